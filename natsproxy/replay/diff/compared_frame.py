"""The frames that are compared: each with its row in the report, and as the matcher sees it.

A row is a subject template: inboxes, generated names and numbers are `*`.  The numbers of ack subjects (of
deliveries, sequences, times) are left out, since they say how fast a client was.  An answer of JetStream that
holds a stored message as base64 is that message.  An -ERR belongs to the subject that it names
(permissions); an error of the JetStream API is a status of the answer that carries it.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Container
from functools import lru_cache
from typing import Any, Final, NamedTuple

from natsproxy.protocol import errors, headers
from natsproxy.protocol.identifiers import is_generated_consumer
from natsproxy.protocol.jetstream import StatusKind, parse_ack, status_kind
from natsproxy.protocol.template import template
from natsproxy.replay.diff.sequences import sequences
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, S2C, Direction, Op
from natsproxy.wire.parse import frames

COMPARED: Final = (Op.PUB, Op.HPUB, Op.SUB, Op.MSG, Op.HMSG, Op.ERR)
_CACHED: Final = 200  # bytes of a subject whose row is remembered
KINDS: Final = ("SUB", "PUB", "MSG", "-ERR")
_GENERATED: Final = re.compile(rb"(?=[^.]*[0-9])[0-9A-Za-z_:+/-]{13,}={0,2}")
_DIGITS: Final = b"0123456789"
_STORED: Final = b".api.v1.stream_msg_get_response"
_CREATED: Final = b".api.v1.consumer_create_response"
_ENDS_OF_PULLS: Final = (StatusKind.TIMEOUT, StatusKind.NOT_FOUND)


class ComparedFrame(NamedTuple):
    """A frame that is compared.

    kind: SUB, PUB, MSG or -ERR.  group: the subject template; of an -ERR that names no subject its text.
    status: of a header block, or the error of the JetStream API.  failed: True for such an error and for an
    -ERR.  frame: as the matcher sees it.  sequences: those in it, see `sequences.py`.  ends_pull: the clock
    of the server ended a pull request.
    """

    kind: str
    group: str
    status: str
    failed: bool
    frame: Frame
    sequences: tuple[bytes, ...] = ()
    ends_pull: bool = False


def compared(
    frame: Frame, direction: Direction, server_names: Container[bytes] = (), stream: bytes = b""
) -> ComparedFrame | None:
    """Return a frame for the comparison; None for one that is not compared (PING, heartbeats, flow control).

    server_names: names of consumers that the server has chosen so far (`server_chosen_name`).  stream: that
    of the request which it answers.
    """
    if frame.op not in COMPARED or frame.subject.startswith(b"$JS.FC."):
        return None
    if frame.op == Op.ERR:
        named = errors.classify(errors.err_text(frame.args)).subject
        group = group_of(named, server_names) if named else _shown(frame.args)
        return ComparedFrame("-ERR", group, "", True, frame)
    kind = "SUB" if frame.op == Op.SUB else "PUB" if direction == C2S else "MSG"
    error = _api_error(frame)
    status, ends_pull = error, False
    if frame.header_size:
        block = headers.parse(frame.headers)
        if block.code == b"100":
            return None
        status = error or b" ".join((block.code, block.description)).strip().decode(errors="replace")
        ends_pull = bool(block.code) and status_kind(block.code, block.description) in _ENDS_OF_PULLS
    group = group_of(frame.subject, server_names)
    prepared, found = sequences(_prepared(frame), direction, stream)
    return ComparedFrame(kind, group, status, bool(error), prepared, found, ends_pull)


def group_of(subject: bytes, server_names: Container[bytes] = ()) -> str:
    """Return the row of a subject: its template, with all that may be generated as `*`."""
    found = _group(subject) if len(subject) <= _CACHED else _group.__wrapped__(subject)
    if not (server_names and found.startswith(("$JS.", "$O."))):
        return found
    return ".".join("*" if token.encode() in server_names else token for token in found.split("."))


@lru_cache(4096)
def _group(subject: bytes) -> str:
    tokens = template(subject).split(b".")
    own = tokens[0] in (b"$JS", b"$O")
    return _shown(
        b".".join(
            b"*" if _GENERATED.fullmatch(token) or (own and _is_mixed(token)) else token for token in tokens
        )
    )


def _shown(text: bytes) -> str:
    return text.decode(errors="replace")


def _is_mixed(token: bytes) -> bool:
    """Return whether a token may be a name that the server chose: eight letters, not as in a word."""
    if len(token) != 8 or not token.isalnum() or token.isdigit():
        return False
    return not (token.islower() or token.isupper() or token.istitle()) or any(
        map(_DIGITS.__contains__, token)
    )


def _api_error(frame: Frame) -> str:
    """Return the error of a JetStream answer as `404 stream not found (10059)`, `""` for all else."""
    body = frame.body
    if frame.op not in (Op.MSG, Op.HMSG) or b'"err_code":' not in body or not body.startswith(b"{"):
        return ""
    try:
        error = json.loads(body)["error"]
        return f"{int(error['code'])} {error.get('description', '')} ({int(error['err_code'])})"
    except (ValueError, TypeError, KeyError, AttributeError):
        return ""  # JSON of an application


def _prepared(frame: Frame) -> Frame:
    subject, reply = _ack_subject(frame.subject), _ack_subject(frame.reply)
    if subject != frame.subject or reply != frame.reply:
        frame = frame._replace(subject=subject, reply=reply)
    if frame.op == Op.MSG and _STORED in frame.body[:80]:
        frame = _opened(frame)
    return frame


def _ack_subject(subject: bytes) -> bytes:
    """Return an ack subject without its numbers, any other one as it is."""
    ack = parse_ack(subject) if subject.startswith(b"$JS.ACK.") else None
    return subject if ack is None else b"$JS.ACK." + ack.stream + b"." + ack.consumer


def _opened(frame: Frame) -> Frame:
    """Return the answer to a request for a stored message in the form of a direct get: the message itself."""
    answer = _load(frame.body)
    message = answer.get("message") if isinstance(answer, dict) else None
    if not isinstance(message, dict):
        return frame
    try:
        body, block = (base64.b64decode(message.get(name) or "") for name in ("data", "hdrs"))
        pairs = headers.parse(block).pairs if block else ()
    except (ValueError, TypeError):
        return frame
    facts = {b"Nats-Subject": message.get("subject"), b"Nats-Sequence": message.get("seq")}
    own = [(name, str(value).encode()) for name, value in facts.items()]
    made = encode.msg(frame.subject, frame.sid, body, headers=headers.build([*pairs, *own]))
    return next(frames(made, S2C))


def _load(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def server_chosen_name(frame: Frame) -> bytes:
    """Return the consumer name that the server chose, from the answer to a creation; `b""` if none."""
    if _CREATED not in frame.body[:80]:
        return b""
    answer = _load(frame.body)
    config = answer.get("config") if isinstance(answer, dict) else None
    if not isinstance(config, dict):
        return b""
    name = str(answer.get("name", "")).encode()
    named = config.keys() & {"name", "durable_name"}
    return b"" if named and not is_generated_consumer(name) else name
