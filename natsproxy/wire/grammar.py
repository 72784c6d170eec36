"""The grammar of frames: control lines and payload ends, read as nats-server's parser reads them.

Both scanners use it for the frames that their fast paths do not take.  These functions accept and refuse the
bytes that `server/parser.go` accepts and refuses, and give up at the same byte: a wrong byte in an op is
found as it arrives, not at the end of the line.  The forms of the ops are the op table's.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from natsproxy.wire.frames import FramingFault
from natsproxy.wire.ops import C2S, OPS, Direction, Op, OpSpec

_NUMBER = re.compile(rb"[0-9]{1,9}\Z")
_BLANKS = re.compile(rb"[ \t]*")
# The server tolerates -ERR and INFO from a client; natsproxy knows them only to refuse them by name.
_TOKENS = (
    tuple((spec.token, spec) for spec in OPS if spec.from_client or spec.op in (Op.HMSG, Op.INFO, Op.ERR)),
    tuple((spec.token, spec) for spec in OPS if spec.from_server),
)
_NO_FIELDS: dict[str, bytes] = {}
NO_TERMINATOR = "a payload that is not followed by CRLF"


class ControlLine(NamedTuple):
    """A whole control line.

    end: just after its LF.  fields: its arguments by the names of the op table.
    stray: meaningless bytes follow an op that has no arguments.
    """

    spec: OpSpec
    end: int
    fields: dict[str, bytes]
    stray: bool


class NeedBytes(Exception):
    """More bytes are needed: `size` in all from the frame's first byte on, or (`line`) an end of line."""

    def __init__(self, size: int = 0, *, line: bool = False) -> None:
        super().__init__()
        self.size, self.line = size, line


class NotFramed(Exception):
    """The bytes `start` to `end` of the buffer are not a frame; `reason` is a short clause for people."""

    def __init__(self, start: int, end: int, fault: FramingFault, reason: str) -> None:
        super().__init__(reason)
        self.start, self.end, self.fault, self.reason = start, end, fault, reason


class UnknownServerOp(Exception):
    """The server sent an op that natsproxy does not know: from here on its stream is opaque."""


def read_control_line(buf: bytes, start: int, direction: Direction, limit: int) -> ControlLine:
    """Return the control line that begins at `buf[start]`; `limit` is `max_control_line`, in bytes.

    Raises NeedBytes, NotFramed, or UnknownServerOp (s2c only).
    """
    spec, args_at = _read_op(buf, start, direction)
    end, args = _read_args(buf, start, direction, spec, args_at, limit)
    if spec.gap == "ignored":
        return ControlLine(spec, end, _NO_FIELDS, args.strip(b" \t\r") != b"")
    if spec.gap == "any":
        return ControlLine(spec, end, {"args": args.rstrip(b" \t")}, False)
    return ControlLine(spec, end, _split(start, end, spec, args), False)


def _read_op(buf: bytes, start: int, direction: Direction) -> tuple[OpSpec, int]:
    """Return the op at `start` and the start of its arguments (blanks skipped)."""
    head = buf[start : start + 7].upper()
    for token, spec in _TOKENS[direction]:
        if head.startswith(token):
            return spec, _skip_gap(buf, start, start + len(token), direction, spec)
    unfinished, reach = False, 0
    for token, _ in _TOKENS[direction]:
        same = 0
        while same < min(len(head), len(token)) and head[same] == token[same]:
            same += 1
        reach = max(reach, same)  # the server gives up at the first byte that fits no op
        unfinished = unfinished or same == len(head)
    if unfinished:
        raise NeedBytes
    if direction:
        raise UnknownServerOp
    raise NotFramed(
        start, start + reach + 1, FramingFault.UNKNOWN_OP, "an operation that NATS clients do not have"
    )


def _skip_gap(buf: bytes, start: int, at: int, direction: Direction, spec: OpSpec) -> int:
    """Return the start of the arguments after an op that ends at `at`."""
    if spec.gap == "ignored":
        return at
    if direction == C2S and not spec.from_client:
        raise NotFramed(start, at, FramingFault.REFUSED, f"{spec.token.decode()} is not for clients to send")
    if spec.gap == "blank":
        following = buf[at : at + 1]
        if following and following not in b" \t":
            if direction:
                raise UnknownServerOp
            reason = f"{spec.token.decode()} is not followed by a blank"
            raise NotFramed(start, at + 1, FramingFault.UNKNOWN_OP, reason)
    blanks = _BLANKS.match(buf, at)
    assert blanks is not None
    return blanks.end()


def _read_args(
    buf: bytes, start: int, direction: Direction, spec: OpSpec, at: int, limit: int
) -> tuple[int, bytes]:
    """Return the end of the control line and its argument part; the limits are checked here."""
    lf = buf.find(b"\n", at)
    stop = lf if lf >= 0 else len(buf)
    cr_last = stop > at and buf[stop - 1] == 13
    args_end = stop - cr_last
    # An unfinished line is measured too, as the server does, so that no endless one is held.
    if args_end - at > limit:
        if not spec.limited and direction == C2S:
            raise NotFramed(start, stop, FramingFault.REFUSED, "a line beyond max_control_line")
        raise NotFramed(start, stop, FramingFault.LINE_TOO_LONG, "a control line beyond max_control_line")
    if spec.gap != "ignored":
        cr = buf.find(b"\r", at, args_end)
        if cr >= 0:
            # The server's own reading of an embedded CR depends on how TCP cut the stream.
            raise NotFramed(start, cr + 2, FramingFault.REFUSED, "a CR inside a control line")
    if lf < 0:
        raise NeedBytes(line=True)
    return lf + 1, buf[at:args_end]


def _split(start: int, end: int, spec: OpSpec, args: bytes) -> dict[str, bytes]:
    """Return the arguments by name; their count chooses the form of the op table."""
    # Runs of blanks are usual: nats.go and nats.py write `SUB foo  1`, older servers `MSG a 1  5`.
    parts = [part for part in args.replace(b"\t", b" ").split(b" ") if part]
    names = spec.forms.get(len(parts))
    if names is None:
        raise NotFramed(start, end, FramingFault.SILENT, f"{spec.token.decode()} with {len(parts)} arguments")
    fields = dict(zip(names, parts, strict=True))
    for name in ("size", "header_size"):
        if name in fields and not _NUMBER.match(fields[name]):
            reason = f"{spec.token.decode()} with a size that is not a number"
            raise NotFramed(start, end, FramingFault.SILENT, reason)
    return fields


def payload_end(buf: bytes, start: int, line_end: int, size: int) -> int:
    """Return the end of a frame whose payload begins at `line_end`, its CRLF included.

    Raises NotFramed where `buf` holds the end already and it is not CRLF.
    """
    end = line_end + size + 2
    for at, byte in ((end - 2, 13), (end - 1, 10)):
        if at < len(buf) and buf[at] != byte:
            raise NotFramed(start, at + 1, FramingFault.TERMINATOR, NO_TERMINATOR)
    return end


def streamed_payload(buf: bytes, start: int, missing: int) -> tuple[int, int]:
    """Return the end of the payload bytes at `start`, and the number of bytes still missing after them.

    missing: bytes of the frame that were missing before, its CRLF included.  The end is `start` where the
    terminator is wrong.
    """
    at = min(len(buf), start + max(0, missing - 2))
    left = missing - (at - start)
    while at < len(buf) and left in (1, 2):
        if buf[at] != (13 if left == 2 else 10):
            break
        at += 1
        left -= 1
    return at, left
