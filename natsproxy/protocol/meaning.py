"""The meaning of a frame, for people and for JSON: `ack ORDERS/worker #7 (2nd delivery)`.

`meaning` looks at one frame alone, as `jetstream.py` does; a frame that its subject explains has none.
Its `kind` is the name of the role in rules, where there is one.

Peers choose the names in the texts: whatever prints them must escape control characters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from natsproxy.protocol import errors, gojson, headers, jetstream
from natsproxy.protocol.connect import parse_connect
from natsproxy.protocol.info import parse_info
from natsproxy.protocol.jetstream import AckKind, AckSubject, JetStreamError, StatusKind
from natsproxy.units import short_duration, short_size
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import Op

INBOX: Final = b"_INBOX."
_API_ANSWER: Final = b'{"type":"io.nats.jetstream.api.v1.'
_LARGEST: Final = 1 << 16
"""Bytes of a body up to which it is read as JSON; longer ones are lists, whose meaning is their request's."""


_SUBJECT: Final = ("subject",)
_ALL: Final = ("subject", "body")


class Meaning(NamedTuple):
    """The meaning of a frame.

    kind: one word: a role of rules, or `answer`, `status`, `info`, `connect`, `error`.  text: a few words.
    fields: the facts in it, values of JSON.  bad: something failed.  covers: the parts of the frame that the
    text stands for: `subject`, `reply`, `body`.
    """

    kind: str
    text: str
    fields: dict[str, Any]
    bad: bool = False
    covers: tuple[str, ...] = ()

    @property
    def row(self) -> dict[str, Any]:
        """The meaning as an object of JSON."""
        return {"kind": self.kind, "text": self.text, **self.fields}


def meaning(frame: Frame, *, answer: bool = False) -> Meaning | None:
    """Return the meaning of a frame; None for one that needs no explanation.

    answer: it is known to answer a request; without it, only an inbox subject tells.
    """
    if frame.op in (Op.MSG, Op.HMSG):
        return _delivered(frame, answer or frame.subject.startswith(INBOX))
    read = _READERS.get(frame.op)
    return None if read is None else read(frame)


# -- from the client


def _published(frame: Frame) -> Meaning | None:
    if not frame.subject.startswith(b"$JS."):
        return None
    if frame.subject.startswith(b"$JS.FC."):
        return Meaning("flow-reply", "answer to flow control", {}, covers=_ALL)
    ack = jetstream.parse_ack(frame.subject)
    return _api_call(frame) if ack is None else _ack(ack, frame.body)


_ACKS: Final = {
    AckKind.ACK: ("ack", "ack"),
    AckKind.NAK: ("nak", "nak"),
    AckKind.PROGRESS: ("wpi", "in progress"),
    AckKind.TERM: ("term", "term"),
    AckKind.NEXT: ("next", "ack and next"),
    AckKind.NONE: ("unknown-ack", "no known ack of"),
}


def _ack(ack: AckSubject, body: bytes) -> Meaning:
    kind = jetstream.ack_kind(body)
    name, word = _ACKS[kind]
    fields, text = _delivery_fields(ack), f"{word} {_delivery_text(ack)}"
    if kind is AckKind.NAK and (delay := _nak_delay(body)):
        fields["delay_ns"] = delay
        text += f", again in {short_duration(delay)}"
    elif kind is AckKind.TERM and (reason := shown(body[5:].strip())):
        fields["reason"] = reason
        text += f": {reason}"
    elif kind is AckKind.NEXT:
        text += _pull_text(jetstream.pull_request(body[4:].strip()))
    return Meaning(name, text, fields, kind is AckKind.NONE, _SUBJECT if kind is AckKind.NONE else _ALL)


def _nak_delay(body: bytes) -> int:
    return jetstream.number(jetstream.members(body[4:].strip()), "delay")


def _delivery_fields(ack: AckSubject) -> dict[str, Any]:
    named = {"stream": shown(ack.stream), "consumer": shown(ack.consumer)}
    if ack.domain:
        named["domain"] = shown(ack.domain)
    return {
        **named,
        "stream_seq": ack.stream_seq,
        "consumer_seq": ack.consumer_seq,
        "delivered": ack.delivered,
        "pending": ack.pending,
        "stored_ns": ack.timestamp,
    }


def _delivery_text(ack: AckSubject) -> str:
    again = f" ({_ordinal(ack.delivered)} delivery)" if ack.delivered > 1 else ""
    return f"{shown(ack.stream)}/{shown(ack.consumer)} #{ack.stream_seq}{again}"


def _ordinal(number: int) -> str:
    teens = number % 100 in (11, 12, 13)
    return f"{number}{'th' if teens else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def _api_call(frame: Frame) -> Meaning | None:
    text = api_text(frame.subject)
    if text is None:
        return None
    call = jetstream.parse_api(frame.subject)
    if call is None:  # a verb of a later server
        return Meaning("api", text, {}, covers=_SUBJECT)
    named = {
        name: shown(getattr(call, name))
        for name in ("stream", "consumer", "filter", "account", "domain")
        if getattr(call, name)
    }
    fields: dict[str, Any] = {"verb": shown(call.verb), **named}
    if call.verb != b"CONSUMER.MSG.NEXT":
        return Meaning("api", text, fields, covers=_SUBJECT)
    pull = jetstream.pull_request(frame.body)
    fields |= {"batch": pull.batch, "expires_ns": pull.expires, "no_wait": pull.no_wait}
    return Meaning("pull", text + _pull_text(pull), fields, covers=_ALL)


def api_text(subject: bytes) -> str | None:
    """Return a subject of the JetStream API as `CONSUMER.INFO ORDERS/worker`; None for any other subject."""
    call = jetstream.parse_api(subject)
    if call is None:
        tokens = subject.split(b".")
        at = jetstream.api_verb_at(tokens)
        return None if at is None else shown(b".".join(tokens[at:]))
    names = b"/".join(filter(None, (call.account, call.stream, call.consumer)))
    return " ".join(shown(part) for part in (call.verb, names, call.filter) if part)


def subject_text(subject: bytes) -> str:
    """Return a subject for people: that of an API call or of an ack in short form, any other as it is."""
    if subject.startswith(b"$JS."):
        ack = jetstream.parse_ack(subject)
        text = api_text(subject) if ack is None else f"ack {_delivery_text(ack)}"
        if text is not None:
            return text
    return shown(subject)


def _pull_text(pull: jetstream.PullRequest) -> str:
    text = f" batch={pull.batch}"
    if pull.expires:
        text += f" expires={short_duration(pull.expires)}"
    return text + (" no_wait" if pull.no_wait else "")


def _connect(frame: Frame) -> Meaning:
    try:
        found = parse_connect(frame.args)
    except ValueError as error:
        return Meaning("connect", f"the server cannot read it: {error}", {}, bad=True)
    named = ("name", "lang", "version", "user", "account", "verbose", "pedantic", "headers", "no_responders")
    facts = {name: _clean(getattr(found, name)) for name in named}
    version = " ".join(filter(None, (facts["lang"], facts["version"])))
    words = [f"{facts['name'] or '(no name)'}{f' ({version})' if version else ''}"]
    words += [f"{name} {facts[name]}" for name in ("user", "account") if facts[name]]
    words += [name for name in ("verbose", "pedantic") if facts[name]]
    return Meaning("connect", ", ".join(words), facts)


# -- from the server


def _delivered(frame: Frame, answer: bool) -> Meaning | None:
    if frame.headers[8:9] == b" ":
        found = headers.parse(frame.headers)
        if found.code:
            return _status(frame, found)
    ack = jetstream.parse_ack(frame.reply) if frame.reply else None
    if ack is not None:
        kind = "redelivery" if ack.delivered > 1 else "delivery"
        text = f"{_delivery_text(ack)}, {ack.pending:,} pending" if ack.pending else _delivery_text(ack)
        return Meaning(kind, text, _delivery_fields(ack), covers=("reply",))
    body = frame.body
    if body.startswith(_API_ANSWER):
        name = shown(body[len(_API_ANSWER) : body.find(b'"', len(_API_ANSWER))][:60]).removesuffix(
            "_response"
        )
        return _answered("api-reply", name.replace("_", " "), {"type": name}, _api_error(body))
    if not answer or len(body) > _LARGEST:
        return None
    stored = jetstream.publish_ack(body)
    return None if stored is None else _publish_ack(stored)


_STATUS_TEXTS: Final = {
    StatusKind.HEARTBEAT: ("heartbeat", "idle heartbeat"),
    StatusKind.FLOW_CONTROL: ("flow-control", "flow control request"),
    StatusKind.NO_RESPONDERS: ("no-responders", "no responders"),
}
_ENDS: Final = {StatusKind.END, StatusKind.NOT_FOUND, StatusKind.TIMEOUT, StatusKind.PIN}
"""The statuses with which pulls and reads end normally."""


def _status(frame: Frame, found: headers.Headers) -> Meaning:
    status = jetstream.status_kind(found.code, found.description)
    kind, text = _STATUS_TEXTS.get(status, ("status", shown(found.description) or status.value))
    fields: dict[str, Any] = {"status": shown(found.code), "description": shown(found.description)}
    if (stalled := found.first(b"Nats-Consumer-Stalled")) is not None:
        fields["stalled"] = shown(stalled)
        text += ", stalled"
    calm = status in _ENDS or kind in ("heartbeat", "flow-control")
    return Meaning(kind, f"{shown(found.code)} {text}", fields, bad=not calm)


def _api_error(body: bytes) -> JetStreamError | None:
    return jetstream.api_error(body) if len(body) <= _LARGEST else None


def _answered(kind: str, text: str, fields: dict[str, Any], error: JetStreamError | None) -> Meaning:
    if error is None:
        return Meaning(kind, text, fields, covers=("body",) if kind == "publish-ack" else ())
    told = {name: _clean(value) for name, value in error._asdict().items()}
    said = f"error {error.err_code or error.code}: {told['description']}"
    return Meaning(kind, said, {**fields, "error": told}, bad=True)


def _publish_ack(stored: jetstream.PublishAck) -> Meaning:
    stream = _clean(stored.stream)
    text = f"{'duplicate of' if stored.duplicate else 'stored'} {stream} #{stored.seq}"
    if stored.messages > 1:
        text += f", a batch of {stored.messages:,}"
    fields: dict[str, Any] = {
        "stream": stream,
        "stream_seq": stored.seq,
        "duplicate": stored.duplicate,
    }
    if stored.domain:
        fields["domain"] = _clean(stored.domain)
    return _answered("publish-ack", text, fields, stored.error)


def _info(frame: Frame) -> Meaning:
    try:
        found = parse_info(frame.args)
    except ValueError as error:
        return Meaning("info", f"clients cannot read it: {error}", {}, bad=True)
    flags = {
        "jetstream": "JetStream",
        "auth_required": "login",
        "tls_required": "TLS",
        "ldm": "lame duck mode",
    }
    named = ("server_id", "server_name", "version", "cluster", "domain", "max_payload", "client_id", *flags)
    facts = {key: _clean(getattr(found, key)) for key in named}
    name = "" if facts["server_name"] == facts["server_id"] else facts["server_name"]
    words = [" ".join(filter(None, ("nats-server", facts["version"], name)))]
    words += [f"{key} {facts[key]}" for key in ("cluster", "domain") if facts[key]]
    words += [text for key, text in flags.items() if facts[key]]
    words.append(f"payloads to {short_size(found.max_payload)}")
    return Meaning("info", ", ".join(words), facts, bad=found.ldm)


def _error(frame: Frame) -> Meaning:
    text = errors.err_text(frame.args)
    found = errors.classify(text)
    fields: dict[str, Any] = {"error": found.kind.name, "closes": found.kind.closes}
    if found.subject:
        fields["denied"] = shown(found.subject)
    return Meaning("error", shown(text.encode("utf-8", "surrogateescape")), fields, bad=True)


_READERS: Final[dict[Op, Callable[[Frame], Meaning | None]]] = {
    Op.PUB: _published,
    Op.HPUB: _published,
    Op.CONNECT: _connect,
    Op.INFO: _info,
    Op.ERR: _error,
}


def shown(raw: bytes) -> str:
    """Return bytes of a peer as text; those that are not UTF-8 as escapes."""
    return raw.decode("utf-8", "backslashreplace")


def _clean(value: Any) -> Any:
    """Return a value from a peer's JSON; bytes in a text that are not UTF-8 become escapes."""
    return shown(gojson.to_bytes(value)) if isinstance(value, str) else value


def client_name(args: bytes) -> str:
    """Return the name of a client from the arguments of its CONNECT, "" for none and where they are none."""
    try:
        return str(_clean(parse_connect(args).name))
    except ValueError:
        return ""
