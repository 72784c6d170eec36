"""The JetStream meaning of a message as flat fields, for tables and Parquet files.

`describe` looks at one message alone, as `jetstream.py` does.  It also reads answers of which only the first
bytes were recorded, so members are searched for in the text and keep their escapes; `jetstream.py` parses
whole ones.  `capture/columns/_jetstream.pxd` has the common forms in C.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from natsproxy.protocol.jetstream import (
    ACK_PREFIX,
    AckKind,
    ack_kind,
    api_verb,
    asks_flow_control,
    parse_ack,
    parse_api,
)
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import Op

KINDS: Final = (
    "api",
    "delivery",
    "publish",
    "publish-ack",
    "duplicate",
    "ack",
    "nak",
    "wpi",
    "term",
    "next",
    "other",
    "unknown",
)
"""The kinds of messages.

api: a call of the API.  delivery: a message that needs an ack.  publish: it has JetStream headers.
publish-ack, duplicate: the ack of a publish, or of a duplicate.  ack, nak, wpi, term, next:
the answer to a delivery; other: one that is none of these; unknown: its payload was not recorded.
"""
_CONSUMER_ANSWER: Final = b'{"type":"io.nats.jetstream.api.v1.consumer_'
_MAKES_CONSUMER: Final = (b"CONSUMER.CREATE", b"CONSUMER.DURABLE.CREATE")
_READ: Final = 1024
"""The first bytes of a body that are searched: the members wanted are near its beginning."""
_FOR_JETSTREAM: Final = re.compile(rb"\nNats-(?:Msg-Id|Expected-[A-Za-z-]+|Batch-Id|TTL):")
_ERROR: Final = re.compile(rb'"description":\s*"((?:[^"\\]|\\.)*)')
_TEXTS: Final = {
    name: re.compile(rb'"%b":\s*"([^"]*)"' % name)
    for name in (b"stream", b"stream_name", b"name", b"ack_policy")
}
_NUMBERS: Final = {name: re.compile(rb'"%b":\s*([0-9]+)' % name) for name in (b"seq", b"count", b"err_code")}
_DUPLICATE: Final = re.compile(rb'"duplicate":\s*true')


class JetStreamMessage(NamedTuple):
    """The fields of a message; `b""` and None where it has none.

    kind: one of `KINDS`.  verb: of an API call.  domain, stream, consumer: as the subject names them (the
    reply subject, for a delivery), or the answer.  delivered, stream_seq, consumer_seq, pending: of a
    delivery and its answer; stream_seq of a publish ack too.  batch: the size of an atomic batch.  err_code,
    error: of an answer, escapes included.  ack_policy: of a consumer, in the call that makes it and in
    answers about it.  flow_control: 1 in a call that makes a consumer with flow control.
    """

    kind: str | None = None
    verb: bytes = b""
    domain: bytes = b""
    stream: bytes = b""
    consumer: bytes = b""
    delivered: int | None = None
    stream_seq: int | None = None
    consumer_seq: int | None = None
    pending: int | None = None
    batch: int | None = None
    err_code: int | None = None
    error: bytes = b""
    ack_policy: bytes = b""
    flow_control: int | None = None


NOTHING: Final = JetStreamMessage()
_PUBLISH: Final = JetStreamMessage("publish")


def describe(frame: Frame) -> JetStreamMessage:
    """Return the fields of a frame; `NOTHING` for one outside JetStream."""
    if frame.op in (Op.MSG, Op.HMSG):
        if frame.reply.startswith(ACK_PREFIX):
            return _acked(frame.reply, "delivery")
        if not frame.subject.startswith(b"$JS."):
            return _answer(frame)
    elif frame.op not in (Op.PUB, Op.HPUB):
        return NOTHING
    elif not frame.subject.startswith(b"$JS."):
        return _PUBLISH if _FOR_JETSTREAM.search(frame.headers) else NOTHING
    if frame.subject.startswith(ACK_PREFIX):
        return _acked(frame.subject, _answer_kind(frame.body, frame.size - frame.header_size))
    return _call(frame)


def _acked(subject: bytes, kind: str) -> JetStreamMessage:
    """Return the fields of an ack subject."""
    ack = parse_ack(subject)
    if ack is None:
        return JetStreamMessage(kind)
    return JetStreamMessage(
        kind,
        domain=ack.domain,
        stream=ack.stream,
        consumer=ack.consumer,
        delivered=_fitting(ack.delivered),
        stream_seq=_fitting(ack.stream_seq),
        consumer_seq=_fitting(ack.consumer_seq),
        pending=_fitting(ack.pending),
    )


def _answer_kind(body: bytes, size: int) -> str:
    """Return the kind of the answer to a delivery; size: of its payload, of which `body` was recorded."""
    kind = ack_kind(body)
    clear = kind in (AckKind.NAK, AckKind.TERM, AckKind.NEXT)
    if not clear and len(body) < min(size, len(b"+TERM")):
        return "unknown"
    return "other" if kind is AckKind.NONE else kind.value


def _call(frame: Frame) -> JetStreamMessage:
    verb = api_verb(frame.subject)
    if not verb:
        return NOTHING
    call = parse_api(frame.subject)
    if call is None:
        return JetStreamMessage("api", verb)
    policy = _text(frame.body[:_READ], b"ack_policy") if verb in _MAKES_CONSUMER else b""
    return JetStreamMessage(
        "api",
        verb,
        call.domain,
        call.stream,
        call.consumer,
        ack_policy=policy,
        flow_control=1 if asks_flow_control(call, frame.body) else None,
    )


def _answer(frame: Frame) -> JetStreamMessage:
    """Return the fields of a JetStream answer: to a publish or to an API call."""
    body = frame.body[:_READ]
    if not body.startswith((b'{"stream"', b'{"error"', b'{"type":"')):
        return NOTHING
    found = NOTHING
    if b"err_code" in body:
        error = _ERROR.search(body)
        found = JetStreamMessage(err_code=_number(body, b"err_code", 32), error=error[1] if error else b"")
    if body.startswith(_CONSUMER_ANSWER):
        stream, consumer, policy = (_text(body, name) for name in (b"stream_name", b"name", b"ack_policy"))
        return found._replace(stream=stream, consumer=consumer, ack_policy=policy)
    stream_at = body.find(b'"stream"')
    if body.startswith(b'{"type":"') or stream_at < 0 or b'"seq"' not in body[stream_at:]:
        return found
    return found._replace(
        kind="duplicate" if _DUPLICATE.search(body) else "publish-ack",
        stream=_text(body, b"stream"),
        stream_seq=_number(body, b"seq"),
        batch=_number(body, b"count"),
    )


def _text(body: bytes, name: bytes) -> bytes:
    found = _TEXTS[name].search(body)
    return found[1] if found else b""


def _number(body: bytes, name: bytes, bits: int = 64) -> int | None:
    found = _NUMBERS[name].search(body)
    return _fitting(int(found[1]), bits) if found and len(found[1]) < 20 else None


def _fitting(number: int, bits: int = 64) -> int | None:
    return number if number < 1 << (bits - 1) else None
