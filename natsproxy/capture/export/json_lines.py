"""Captures as lines of JSON: one object per frame.

Memory does not grow with the capture: one block is read at a time.
"""

from __future__ import annotations

import datetime
import json
from typing import IO, Any

from natsproxy.capture.read.frames import CapturedFrame, Query, read_frames
from natsproxy.capture.read.reader import CaptureReader
from natsproxy.wire.ops import Op


def jsonl(reader: CaptureReader, out: IO[bytes], query: Query) -> int:
    """Write the frames that `query` asks for as lines of JSON; return their number."""
    count = 0
    for one in read_frames(reader, query):
        out.write(json_line(one).encode() + b"\n")
        count += 1
    return count


def json_line(one: CapturedFrame) -> str:
    """Return a frame as a JSON object.

    A payload that is not UTF-8 is given as hex; a payload that was not recorded whole is left out.
    `recorder`, `t_ns`, `conn`, `direction`, `in` and `out` are as the columns of `capture/columns/table.py`,
    so that lines join with rows of tables; `time` is `t_ns` for people.
    """
    frame = one.head
    row: dict[str, Any] = {
        "recorder": one.recorder.hex(),
        "time": iso(one.wall),
        "t_ns": one.wall,
        "conn": one.conn,
        "direction": one.direction.label,
        "in": one.in_ordinal,
        "out": one.out_ordinal,
        "delay_ns": one.delay,
        "cause": one.cause,
        "flags": one.flags,
    }
    if frame is not None:
        row["op"] = frame.op.label
        for name in ("subject", "reply", "sid", "queue", "args"):
            value = getattr(frame, name)
            if value:
                row[name] = value.decode("utf-8", "backslashreplace")
        if frame.headers and len(frame.headers) == frame.header_size:
            row["headers"] = frame.headers.decode("utf-8", "backslashreplace")
        if frame.size or frame.op in (Op.PUB, Op.MSG):
            row["size"] = frame.size
        if one.frame is not None and (frame.size or frame.op in (Op.PUB, Op.MSG)):
            row |= _payload(frame.body)
    return json.dumps(row)


def _payload(body: bytes) -> dict[str, str]:
    try:
        return {"payload": body.decode()}
    except UnicodeDecodeError:
        return {"payload_hex": body.hex()}


def iso(wall: int) -> str:
    """Return a time (Unix ns) as text, in UTC to the microsecond."""
    return datetime.datetime.fromtimestamp(wall / 1e9, datetime.UTC).isoformat()
