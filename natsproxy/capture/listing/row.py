"""A listed frame as a JSON object, and back, so that a remote viewer shows the same lines."""

from __future__ import annotations

import datetime
import json
import re
from typing import Any, Final

from natsproxy.capture.format.connection import ConnectionId
from natsproxy.capture.listing.listing import Listed, ListedSubscription, OpenRequest
from natsproxy.capture.read.frames import CapturedFrame
from natsproxy.protocol.headers import build
from natsproxy.protocol.headers import parse as parse_headers
from natsproxy.protocol.meaning import shown
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import BY_TOKEN, C2S, MESSAGE_OPS, OPS, S2C, Direction, Op
from natsproxy.wire.parse import head

_MESSAGES: Final = (Op.PUB, Op.MSG)
"""The ops that always have a payload, which may be empty."""
HEADER_BYTES: Final = 4096
"""Bytes of headers that are read where a row is to be short: a megabyte of them takes a third of a second."""
_LAST: Final = 253_000_000_000_000_000_000
"""Unix ns in the year 9987."""


def json_line(listed: Listed) -> str:
    """Return a frame as a line of JSON."""
    return json.dumps(row(listed))


def row(listed: Listed, most: int | None = None) -> dict[str, Any]:
    """Return a frame as an object of JSON.

    A payload that is not UTF-8 is given as hex; a payload that was not recorded whole is left out.  Of one
    with more than `most` bytes only the first `most` are given, and `payload_cut` is true; of many headers
    only the first ones, and `headers_cut` is true.  `recorder`, `t_ns`, `conn`, `direction`, `in` and `out`
    are as the columns of `capture/columns/table.py`, so that lines join with rows of tables; `time` is `t_ns`
    for people, and `run` the number of the recorder among those of the capture, by time.
    """
    one = listed.one
    found: dict[str, Any] = {
        "recorder": one.conn.recorder.hex(),
        "run": one.conn.run,
        "time": iso(one.wall),
        "t_ns": one.wall,
        "conn": one.conn.number,
        "direction": one.direction.label,
        "in": one.in_ordinal,
        "out": one.out_ordinal,
        "delay_ns": one.delay,
        "cause": one.cause,
        "flags": one.flags,
    }
    if listed.client:
        found["client"] = listed.client
    if listed.exchange is not None:
        found["exchange"] = listed.exchange
    if listed.routine:
        found["routine"] = True
    if one.of is not None:
        found["of"] = one.of
    frame = one.head
    if frame is None:
        return found
    found |= _fields(frame, most)
    if one.frame is not None and (frame.size or frame.op in _MESSAGES):
        found |= _payload(frame.body) if most is None else _beginning(frame.body, most)
    if listed.subscription is not None and frame.op != Op.SUB:
        found["subscription"] = {k: shown(v) for k, v in listed.subscription._asdict().items() if v}
    if listed.request is not None:
        asked = listed.request
        found["request"] = {"subject": shown(asked.subject), "after_ns": one.wall - asked.wall}
    said = listed.meaning
    if said is not None:
        found["meaning"] = said.row | ({"bad": True} if said.bad else {})
    return found


def _fields(frame: Frame, most: int | None) -> dict[str, Any]:
    found: dict[str, Any] = {"op": frame.op.label}
    for name in ("subject", "reply", "sid", "queue", "args"):
        value = getattr(frame, name)
        if value:
            found[name] = shown(value)
    if frame.headers and len(frame.headers) == frame.header_size:
        found |= _headers(frame.headers) if most is None else _first_headers(frame.headers)
    if frame.size or frame.op in _MESSAGES:
        found["size"] = frame.size
    return found


def _headers(block: bytes) -> dict[str, Any]:
    """Return headers as a map; a name that is there several times has a list of values.

    A malformed block is given as text too, since parsers differ.
    """
    read = parse_headers(block)
    values: dict[str, list[str]] = {}
    for name, value in read.pairs:
        values.setdefault(shown(name), []).append(shown(value))
    found: dict[str, Any] = {
        "headers": {name: given[0] if len(given) == 1 else given for name, given in values.items()}
    }
    return {**found, "headers_raw": shown(block)} if read.odd else found


def _first_headers(block: bytes) -> dict[str, Any]:
    if len(block) <= HEADER_BYTES:
        return _headers(block)
    first = block[: block.rfind(b"\r\n", 0, HEADER_BYTES) + 2]
    return {**_headers(first + b"\r\n"), "headers_cut": True}


def _payload(body: bytes) -> dict[str, str]:
    try:
        return {"payload": body.decode()}
    except UnicodeDecodeError:
        return {"payload_hex": body.hex()}


def _beginning(body: bytes, most: int) -> dict[str, Any]:
    if len(body) <= most:
        return _payload(body)
    begin = body[:most]
    try:
        return {"payload": begin.decode(), "payload_cut": True}
    except UnicodeDecodeError as error:
        if error.start >= most - 3 and error.reason == "unexpected end of data":  # it is cut inside a letter
            return {"payload": begin[: error.start].decode(), "payload_cut": True}
        return {"payload_hex": begin.hex(), "payload_cut": True}


def iso(wall: int) -> str:
    """Return a time (Unix ns) as text, in UTC to the microsecond."""
    return moment(wall).isoformat()


def moment(wall: int) -> datetime.datetime:
    """Return a time (Unix ns) to the microsecond; beyond the years that have a date, the nearest that has."""
    return datetime.datetime.fromtimestamp(min(max(wall, 0), _LAST) / 1e9, datetime.UTC)


_ESCAPED: Final = re.compile(rb"\\x([89a-f][0-9a-f])")
"""A byte that is not UTF-8, as it is shown."""


def from_row(row: dict[str, Any]) -> Listed:
    """Return the frame that an object of `row` describes.  Raises ValueError for an invalid one.

    An object has what people see of a frame, not its bytes: header lines come back in the form that most
    clients write.
    """
    try:
        return _listed(row)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a frame: {error!r}") from None


def _listed(row: dict[str, Any]) -> Listed:
    direction = {one.label: one for one in (C2S, S2C)}[row["direction"]]
    frame, wall = _frame(row, direction), row["t_ns"]
    request, subscription = row.get("request"), row.get("subscription")
    is_kept = frame is not None and (frame.op not in MESSAGE_OPS or _has_payload(row))
    one = CapturedFrame(
        ConnectionId(bytes.fromhex(row["recorder"]), row["run"], row["conn"]),
        direction,
        wall,
        wall,
        row["in"],
        row["out"],
        row["delay_ns"],
        row["cause"],
        row["flags"],
        row.get("of"),
        frame if is_kept else None,
        b"" if frame is None else frame.raw,
    )
    return Listed(
        one,
        row.get("client", ""),
        None if request is None else OpenRequest(_raw(request["subject"]), wall - request["after_ns"]),
        row.get("routine", False),
        None
        if subscription is None
        else ListedSubscription(*(_raw(subscription.get(name, "")) for name in ("subject", "queue"))),
        row.get("exchange"),
    )


def _frame(row: dict[str, Any], direction: Direction) -> Frame | None:
    """Return the frame of an object, as far as it has its fields; None for one without a control line."""
    if "op" not in row:
        return None
    op = BY_TOKEN[row["op"].encode()]
    fields = {name: _raw(row.get(name, "")) for name in ("subject", "reply", "sid", "queue", "args")}
    if op not in MESSAGE_OPS:
        words = [fields[name] for name in ("subject", "queue", "sid", "args") if fields[name]]
        return head(b" ".join([OPS[op].token, *words]) + b"\r\n", direction)
    block = _header_block(row) if OPS[op].headers else b""
    body = bytes.fromhex(row["payload_hex"]) if "payload_hex" in row else row.get("payload", "").encode()
    told = _has_payload(row) and "payload_cut" not in row
    size = len(block) + len(body) if told else max(row["size"], len(block) + len(body))
    line = encode.message_line(op, fields["subject"], fields["sid"], fields["reply"], len(block), size)
    return head(line + block + body + (b"\r\n" if told else b""), direction)


def _has_payload(row: dict[str, Any]) -> bool:
    return "payload" in row or "payload_hex" in row


def _header_block(row: dict[str, Any]) -> bytes:
    if "headers_raw" in row:
        return _raw(row["headers_raw"])
    said = row.get("meaning", {})
    pairs = [
        (_raw(name), _raw(value))
        for name, given in row.get("headers", {}).items()
        for value in (given if isinstance(given, list) else [given])
    ]
    return build(pairs, code=_raw(said.get("status", "")), description=_raw(said.get("description", "")))


def _raw(text: str) -> bytes:
    """Return the bytes of a text that `meaning.shown` made."""
    return _ESCAPED.sub(lambda found: bytes.fromhex(found[1].decode()), text.encode())
