"""Secrets never reach a disk: what is taken out of records before they are packed.

CONNECT and INFO come as records of one frame.  Redaction is by key (`protocol/redaction.py`); what does not
parse is withheld whole.  This is not a setting.
"""

from __future__ import annotations

from natsproxy.capture.records import Flags, Frames
from natsproxy.protocol.connect import redact_connect
from natsproxy.protocol.info import redact_info
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import Direction, Op, op_mask
from natsproxy.wire.parse import frames

SECRET_OPS = op_mask(Op.CONNECT, Op.INFO)


def redacted(record: Frames) -> Frames:
    """Return the record as it may be written down; the record itself where it holds no secret."""
    if not record.ops & SECRET_OPS:
        return record
    data = bytes(record.data)
    clean = redact_frames(data, record.direction)
    if clean == data:
        return record
    return record._replace(data=clean, flags=record.flags | Flags.REDACTED)


def redact_frames(data: bytes, direction: Direction) -> bytes:
    """Return whole frames with the secrets of CONNECT and INFO withheld, all other bytes kept."""
    return b"".join(_frame(frame) for frame in frames(data, direction))


def _frame(frame: Frame) -> bytes:
    if frame.op == Op.CONNECT:
        return _with_args(frame, redact_connect(frame.args))
    if frame.op == Op.INFO:
        return _with_args(frame, redact_info(frame.args))
    return frame.raw


def _with_args(frame: Frame, args: bytes) -> bytes:
    if args == frame.args or not frame.args:
        return frame.raw
    head, _, tail = frame.raw.partition(frame.args)
    return head + args + tail
