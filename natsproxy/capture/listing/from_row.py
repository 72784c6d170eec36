"""Objects of JSON back to listed frames, so that a viewer elsewhere shows the lines that this process would.

An object holds what people see of a frame, not its bytes: header lines come back in the form that most
clients write.
"""

from __future__ import annotations

import re
from typing import Any, Final

from natsproxy.capture.format.connection import ConnectionId
from natsproxy.capture.listing.listing import Listed, Request, Subscription
from natsproxy.capture.read.frames import CapturedFrame
from natsproxy.protocol.headers import build
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import BY_TOKEN, C2S, MESSAGE_OPS, OPS, S2C, Direction
from natsproxy.wire.parse import head

_ESCAPED: Final = re.compile(rb"\\x([89a-f][0-9a-f])")
"""A byte that is not UTF-8, as it is shown."""


def from_row(row: dict[str, Any]) -> Listed:
    """Return the frame that an object of `row.py` tells of.  Raises ValueError where it is none."""
    try:
        return _listed(row)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it is no frame: {error!r}") from None


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
        None if request is None else Request(_raw(request["subject"]), wall - request["after_ns"]),
        row.get("routine", False),
        None
        if subscription is None
        else Subscription(*(_raw(subscription.get(name, "")) for name in ("subject", "queue"))),
        row.get("exchange"),
    )


def _frame(row: dict[str, Any], direction: Direction) -> Frame | None:
    """Return the frame of an object, as far as it was told; None for one without a control line."""
    if "op" not in row:
        return None
    op = BY_TOKEN[row["op"].encode()]
    fields = {name: _raw(row.get(name, "")) for name in ("subject", "reply", "sid", "queue", "args")}
    if op not in MESSAGE_OPS:
        words = [fields[name] for name in ("subject", "queue", "sid", "args") if fields[name]]
        return head(b" ".join([OPS[op].token, *words]) + b"\r\n", direction)
    block = _headers(row) if OPS[op].headers else b""
    body = bytes.fromhex(row["payload_hex"]) if "payload_hex" in row else row.get("payload", "").encode()
    told = _has_payload(row) and "payload_cut" not in row
    size = len(block) + len(body) if told else max(row["size"], len(block) + len(body))
    line = encode.message_line(op, fields["subject"], fields["sid"], fields["reply"], len(block), size)
    return head(line + block + body + (b"\r\n" if told else b""), direction)


def _has_payload(row: dict[str, Any]) -> bool:
    return "payload" in row or "payload_hex" in row


def _headers(row: dict[str, Any]) -> bytes:
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
