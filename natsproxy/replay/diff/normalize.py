"""The normalized form of a frame, without the parts that differ from run to run: captures are compared in it.

Subjects become templates (inboxes, nuids, numbers as `*`).  Replies count as present or absent (ack subjects
carry time stamps).  Headers lose order and spacing.  JSON that NATS defines (JetStream API answers, micro
services) is compared by value without time stamps and server names and with identifiers masked, also where
the API gives an object's metadata as base64; application payloads count byte for byte.  `Ignore` leaves out
more.

An -ERR belongs to the subject that it names (permissions); an error of the JetStream API is a status of the
answer that carries it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Container
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

from natsproxy.protocol import errors, headers
from natsproxy.protocol.identifiers import EXTENDED
from natsproxy.protocol.places import FramePlace, Path, matches_any
from natsproxy.protocol.subjects import matches
from natsproxy.protocol.template import template
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, Direction, Op

# Members of JSON that NATS defines which are times, or names that a server or a client makes up.
_VOLATILE: Final = frozenset(
    {
        "created",
        "ts",
        "time",
        "last_active",
        "first_ts",
        "last_ts",
        "timestamp",
        "started",
        "mtime",
        "nuid",
        "processing_time",
        "average_processing_time",
        "expires",
        "opt_start_time",
        "pause_until",
        "leader",
        "server_id",
        "deliver_subject",
        "cluster",
        "inbox",
    }
)
_STATE: Final = frozenset(
    {
        "ack_floor",
        "delivered",
        "num_pending",
        "num_ack_pending",
        "num_redelivered",
        "num_waiting",
        "push_bound",
    }
)
"""Members that show the state of a consumer at the moment of the call: they change by themselves."""
_IDENTIFIER: Final = re.compile(
    EXTENDED + rb"|[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}|[0-9a-f]{32}"
)
_OBJECT: Final = re.compile(r"\$O\.[^.]+\.M\.")
_EIGHT: Final = re.compile(r"[0-9A-Za-z]{8}")
_VOLATILE_HEADERS: Final = frozenset({b"Nats-Time-Stamp"})
COMPARED: Final = (Op.PUB, Op.HPUB, Op.SUB, Op.MSG, Op.HMSG, Op.ERR)


@dataclass(frozen=True, slots=True)
class Ignore:
    """Parts of frames to leave out: members of JSON, headers (globs of names), subject patterns."""

    json: tuple[FramePlace, ...] = ()
    headers: tuple[str, ...] = ()
    subjects: tuple[bytes, ...] = ()

    def header(self, name: bytes) -> bool:
        """Tell whether a header is left out."""
        return name in _VOLATILE_HEADERS or matches_any(name.decode("latin-1"), self.headers)


class NormalizedFrame(NamedTuple):
    """A frame in normalized form.

    group: the subject template; of an -ERR that names no subject its text.  status: of a header block, or the
    error of the JetStream API.  failed: True for such an error and for an -ERR.
    """

    direction: str
    kind: str
    group: str
    reply: bool
    headers: tuple[tuple[bytes, bytes], ...]
    status: str
    body: Any
    failed: bool = False

    @property
    def digest(self) -> bytes:
        """A hash of all fields, 12 bytes."""
        # `failed` follows from the other fields.  The head is cached: it repeats from frame to frame.
        plain = isinstance(self.body, bytes)
        body = self.body if plain else repr(self.body).encode()
        return hashlib.blake2b(_head(self[:6], plain) + body, digest_size=12).digest()


@lru_cache(maxsize=4096)
def _head(fields: tuple[Any, ...], plain: bool) -> bytes:
    return repr((fields, plain)).encode()


def normalize(
    frame: Frame, direction: Direction, ignore: Ignore = Ignore(), server_names: Container[str] = ()
) -> NormalizedFrame | None:
    """Return the normalized form; None for a frame that is not compared (PING, heartbeats, flow control).

    server_names: names of consumers that the server has chosen so far (`server_chosen_name`).
    """
    if frame.op not in COMPARED or frame.subject.startswith(b"$JS.FC."):
        return None
    if ignore.subjects and any(matches(pattern, frame.subject) for pattern in ignore.subjects):
        return None
    if frame.op == Op.ERR:
        return _normalize_error(frame.args)
    kind = "SUB" if frame.op == Op.SUB else "PUB" if direction == C2S else "MSG"
    error = _api_error(frame)
    status = error
    pairs: tuple[tuple[bytes, bytes], ...] = ()
    if frame.header_size:
        block = headers.parse(frame.headers)
        if block.code == b"100":
            return None
        status = error or b" ".join((block.code, block.description)).strip().decode(errors="replace")
        pairs = tuple(
            sorted((name, mask_header_value(value)) for name, value in block.pairs if not ignore.header(name))
        )
    group = _group(frame.subject, server_names)
    body: Any = frame.queue if frame.op == Op.SUB else _body(frame, ignore)
    return NormalizedFrame(direction.label, kind, group, bool(frame.reply), pairs, status, body, bool(error))


def _normalize_error(args: bytes) -> NormalizedFrame:
    found = errors.classify(errors.err_text(args))
    group, text = _group(found.subject), found.kind.name
    if not found.subject:
        group, text = args.decode(errors="replace"), ""
    text = f"{text} {found.queue.decode(errors='replace')}".strip()
    return NormalizedFrame("s2c", "-ERR", group, False, (), "", text, failed=True)


def _api_error(frame: Frame) -> str:
    """Return the error of a JetStream answer as `404 stream not found (10059)`, `""` for all else."""
    body = frame.body
    if frame.op not in (Op.MSG, Op.HMSG) or b'"err_code":' not in body or not body.startswith(b"{"):
        return ""
    try:
        error = json.loads(body)["error"]
        return f"{int(error['code'])} {error.get('description', '')} ({int(error['err_code'])})"
    except (ValueError, TypeError, KeyError, AttributeError):
        return ""  # an application's own JSON


def is_identifier(token: bytes) -> bool:
    """Tell whether a token looks generated: a nuid, as it is or as clients extend it, or a UUID."""
    return _IDENTIFIER.fullmatch(token) is not None


def mask_header_value(value: bytes) -> bytes:
    """Return a header value with its identifiers masked."""
    return _named(value) if b"." in value else b"*" if is_identifier(value) else value


def _body(frame: Frame, ignore: Ignore) -> Any:
    body = frame.body
    defined = frame.subject.startswith((b"$JS.API.", b"$O.")) or body.startswith(
        (b'{"type":"io.nats.', b'{"type": "io.nats.')
    )
    defined = defined or (body.startswith(b'{"stream":') and b'"seq":' in body[:200])
    if not (defined or ignore.json) or body[:1] not in b"{[":
        return body
    try:
        value = json.loads(body)
    except ValueError:
        return body
    for place in ignore.json:
        if place.pointer is not None and place.on(frame.subject):
            _remove(value, place.pointer)
    if defined:
        _open_object(value)
    volatile = _VOLATILE if defined else frozenset()
    if isinstance(value, dict) and ".v1.consumer_" in str(value.get("type")):
        volatile |= _STATE
    return _canonical(value, volatile)


def _remove(value: Any, pointer: Path) -> None:
    key, *rest = pointer
    keys: list[Any] = []
    if isinstance(value, dict):
        keys = list(value) if key == "*" else [key] * (key in value)
    elif isinstance(value, list):
        keys = [at for at in range(len(value)) if key in ("*", str(at))]
    for one in reversed(keys):  # the last entry of a list first: those before it keep their places
        if rest:
            _remove(value[one], tuple(rest))
        else:
            del value[one]


def _open_object(value: Any) -> None:
    """Replace the base64 of a stored message by the object metadata in it, where there is some."""
    message = value.get("message") if isinstance(value, dict) else None
    if isinstance(message, dict) and _OBJECT.match(str(message.get("subject"))):
        try:
            message["data"] = json.loads(base64.b64decode(message["data"]))
        except (ValueError, TypeError, KeyError):
            return  # a message without data, or an application's own on such a subject


def server_chosen_name(frame: Frame) -> str:
    """Return the name of a consumer that the server chose, from the answer to its creation; else `""`."""
    if b".v1.consumer_create_response" not in frame.body[:80]:
        return ""
    try:
        answer = json.loads(frame.body)
    except ValueError:
        return ""
    return str(answer.get("name", "")) if isinstance(answer, dict) and _is_unnamed_consumer(answer) else ""


def _is_unnamed_consumer(value: dict[str, Any]) -> bool:
    """Tell whether a consumer's configuration gives no name: the server's choice may be any letters."""
    config = value.get("config")
    return isinstance(config, dict) and not config.keys() & {"name", "durable_name"}


def _canonical(value: Any, volatile: frozenset[str]) -> Any:
    if isinstance(value, dict):
        chosen = _is_unnamed_consumer(value)
        return {
            key: "*"
            if key in ("name", "id") and (chosen or _generated(value[key]))
            else _canonical(value[key], volatile)
            for key in sorted(value)
            if key not in volatile
        }
    if isinstance(value, list):
        return [_canonical(entry, volatile) for entry in value]
    if isinstance(value, str) and volatile:
        return mask_header_value(value.encode()).decode()
    return value


def _generated(name: Any) -> bool:
    """Tell whether a name in an answer was generated, by a server or by a client."""
    if not isinstance(name, str):
        return False
    return is_identifier(name.encode()) or _is_mixed(name)


def _is_mixed(name: str) -> bool:
    if _EIGHT.fullmatch(name) is None or name.isdigit():
        return False
    return any(c.isdigit() for c in name) or not (name.islower() or name.isupper() or name[1:].islower())


def _group(subject: bytes, server_names: Container[str] = ()) -> str:
    return _named(subject, server_names).decode(errors="replace")


def _named(subject: bytes, server_names: Container[str] = ()) -> bytes:
    """Return the subject template; in NATS's own subjects every name that may be generated is masked."""
    made = template(subject)
    if not made.startswith((b"$JS.", b"$O.")):
        return made
    consumers = made.startswith(b"$JS.")
    return b".".join(
        b"*" if is_identifier(token) or (consumers and _may_be_generated(token, server_names)) else token
        for token in made.split(b".")
    )


def _may_be_generated(token: bytes, server_names: Container[str]) -> bool:
    name = token.decode(errors="replace")
    return name in server_names or _is_mixed(name)


def difference(ours: NormalizedFrame, theirs: NormalizedFrame) -> str:
    """Return the field in which two frames of one group differ: "reply", "headers", "body /config/..."."""
    for name in ("kind", "group", "reply", "status", "headers"):
        if getattr(ours, name) != getattr(theirs, name):
            return "subject" if name == "group" else name
    if isinstance(ours.body, dict) and isinstance(theirs.body, dict):
        return "body " + _pointer(ours.body, theirs.body)
    return "body"


def _pointer(ours: Any, theirs: Any, path: str = "") -> str:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in sorted(ours.keys() | theirs.keys()):
            if key not in ours or key not in theirs:
                return f"{path}/{key}"
            if ours[key] != theirs[key]:
                return _pointer(ours[key], theirs[key], f"{path}/{key}")
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for index, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            if one != other:
                return _pointer(one, other, f"{path}/{index}")
    return path or "/"
