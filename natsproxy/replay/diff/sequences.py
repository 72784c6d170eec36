"""Stream sequences of messages, which the server assigns.

If several clients publish at once, a message has another sequence in each run.  So a sequence is compared as
an identifier of its stream: one stands for one other wherever it appears (publish acks, stored messages,
expected last sequences, requests for a message).
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, NamedTuple

from natsproxy.protocol import headers
from natsproxy.protocol.jetstream import parse_api
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, S2C, Direction, Op
from natsproxy.wire.parse import frames

_ACK: Final = b'"stream":'
_NAMES: Final = (
    b"Nats-Sequence",
    b"Nats-Expected-Last-Sequence",
    b"Nats-Expected-Last-Subject-Sequence",
)
_BUCKETS: Final = {b"$KV": b"KV_", b"$O": b"OBJ_"}
_WRONG: Final = re.compile(r"(?<=wrong last sequence: )[0-9]+")
_REQUESTS: Final = (b"STREAM.MSG.GET", b"STREAM.MSG.DELETE")


class Sequences(NamedTuple):
    """A frame with its sequences replaced by 0, and the sequences, each with its stream."""

    frame: Frame
    found: tuple[bytes, ...] = ()


def sequences(frame: Frame, direction: Direction, stream: bytes = b"") -> Sequences:
    """Return the sequences of a frame.  stream: that of the request which it answers."""
    if frame.op == Op.SUB:
        return Sequences(frame)
    found: list[bytes] = []
    block, body = frame.headers if frame.header_size else b"", frame.body
    if b"-Sequence:" in block:
        block = _without(block, stream or _stream_of(frame), found)
    elif direction == S2C and body.startswith(b"{") and _ACK in body[:300]:
        body = _of_ack(body, found)
    elif direction == C2S and b'"seq"' in body and frame.subject.startswith(b"$JS."):
        call = parse_api(frame.subject)
        if call is not None and call.verb in _REQUESTS:
            body = _of_member(body, call.stream, found)
    if not found:
        return Sequences(frame)
    made = (
        encode.msg(frame.subject, frame.sid, body, reply=frame.reply, headers=block)
        if frame.op in (Op.MSG, Op.HMSG)
        else encode.pub(frame.subject, body, reply=frame.reply, headers=block)
    )
    return Sequences(next(frames(made, direction)), tuple(found))


def _stream_of(frame: Frame) -> bytes:
    named = headers.get(frame.headers, b"Nats-Stream") or headers.get(frame.headers, b"Nats-Expected-Stream")
    if named:
        return named
    first, _, rest = frame.subject.partition(b".")
    return _BUCKETS[first] + rest.partition(b".")[0] if first in _BUCKETS else b""


def _without(block: bytes, stream: bytes, found: list[bytes]) -> bytes:
    if not stream:
        return block
    parsed = headers.parse(block)
    pairs = []
    for name, value in parsed.pairs:
        counts = name in _NAMES and value.isdigit() and value != b"0"
        if counts:
            found.append(_key(stream, value))
        pairs.append((name, b"0" if counts else value))
    return headers.build(pairs, code=parsed.code, description=parsed.description)


def _of_ack(body: bytes, found: list[bytes]) -> bytes:
    ack = _load(body)
    if not isinstance(ack.get("stream"), str):
        return body
    stream = ack["stream"].encode()
    error = ack.get("error")
    if isinstance(error, dict) and isinstance(error.get("description"), str):
        wrong = _WRONG.search(error["description"])
        if wrong is not None and wrong[0] != "0":
            found.append(_key(stream, wrong[0].encode()))
            error["description"] = _WRONG.sub("0", error["description"])
    return _of_member(json.dumps(ack).encode() if found else body, stream, found)


def _of_member(body: bytes, stream: bytes, found: list[bytes]) -> bytes:
    value = _load(body)
    if type(value.get("seq")) is not int or value["seq"] <= 0:
        return body
    found.append(_key(stream, b"%d" % value["seq"]))
    return json.dumps({**value, "seq": 0}).encode()


def _key(stream: bytes, sequence: bytes) -> bytes:
    return b"%b sequence %b" % (stream, sequence)


def _load(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
