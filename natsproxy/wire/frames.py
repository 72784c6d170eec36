"""Segments of one direction's byte stream, which a scanner returns in order and without gaps.

`Run`        neighbouring whole frames that nobody wants, as one slice: the hot path.
`Frame`      one frame that somebody wants (or one too large to hold), with its parts.
`Body`       more bytes of the payload of the last `Frame` that had `missing > 0`.
`Malformed`  the stream cannot be framed from here on; the scanner returns nothing after it.
`Opaque`     s2c only, after an op that natsproxy does not know: bytes to pass on untouched.

Offsets index the `buffer` that the segment belongs to, not the stream.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from natsproxy.wire.ops import Op

NO_LIMIT: Final = 1 << 30
"""More frames than any buffer holds."""


class Need(IntEnum):
    """The part of a frame that somebody must see before it may go on."""

    NONE = 0
    LINE = 1
    HEADERS = 2
    PAYLOAD = 3


class Run(NamedTuple):
    """Whole neighbouring frames: `buffer[start:end]`, their number, and the bitmask of their ops."""

    buffer: bytes
    start: int
    end: int
    frames: int
    ops: int


class Frame(NamedTuple):
    """One frame: `buffer[start:end]` with its fields.

    line_end: the end of the control line, its LF included.
    subject, reply, sid, queue: as on the wire, `b""` where the op or the frame has none.
    args: the argument text of INFO, CONNECT, -ERR, and the max field of UNSUB; blanks around it removed.
    header_size: bytes of header block at the start of the payload; 0 without headers.
    size: declared payload bytes, header block included, final CRLF excluded; 0 without payload.
    missing: bytes of this frame (CRLF included) that are not in `buffer[start:end]` and follow as `Body`.
    short: the wanted part of the frame is not all there, since it exceeds `buffer_limit`.
    """

    buffer: bytes
    start: int
    end: int
    line_end: int
    op: Op
    subject: bytes = b""
    reply: bytes = b""
    sid: bytes = b""
    queue: bytes = b""
    args: bytes = b""
    header_size: int = 0
    size: int = 0
    missing: int = 0
    short: bool = False

    @property
    def raw(self) -> bytes:
        """The wire bytes of the frame, as far as received."""
        return self.buffer[self.start : self.end]

    @property
    def line(self) -> bytes:
        """The control line, its CRLF (or LF) included."""
        return self.buffer[self.start : self.line_end]

    @property
    def headers(self) -> bytes:
        """The header block, `NATS/1.0` to the blank line; `b""` without headers."""
        return self.buffer[self.line_end : min(self.end, self.line_end + self.header_size)]

    @property
    def body(self) -> bytes:
        """The payload after the header block, as far as received."""
        last = self.line_end + self.size
        return self.buffer[self.line_end + self.header_size : last if last < self.end else self.end]

    @property
    def alone(self) -> Frame:
        """A copy with bytes of its own, which does not keep the read or record around it alive."""
        buffer, start, end, line_end = self[:4]
        # `tuple.__new__` takes half the time of `Frame(...)`, and replays do this for each frame.
        return tuple.__new__(Frame, (buffer[start:end], 0, end - start, line_end - start, *self[4:]))

    @property
    def no_responders(self) -> bool:
        """True for the server's 503 without a reply subject, which does not count toward UNSUB max."""
        return not self.reply and self.headers[8:12] == b" 503"

    @property
    def wire_size(self) -> int:
        """The length of the whole frame on the wire, in bytes, missing part included."""
        return self.end - self.start + self.missing


class Body(NamedTuple):
    """More bytes of a frame that was returned with `missing > 0`; `last` ends it."""

    buffer: bytes
    start: int
    end: int
    last: bool


class Opaque(NamedTuple):
    """Bytes of a server stream that natsproxy no longer frames."""

    buffer: bytes
    start: int
    end: int


class FramingFault(IntEnum):
    """The reason why a stream cannot be framed, by the reaction of nats-server to it."""

    UNKNOWN_OP = 0
    """`-ERR 'Unknown Protocol Operation'`, then close."""
    LINE_TOO_LONG = 1
    """`-ERR 'maximum control line exceeded'`, then close."""
    SILENT = 2
    """Close without an -ERR (argument count or number)."""
    TERMINATOR = 3
    """The payload is not followed by CRLF: `-ERR 'Unknown Protocol Operation'`, then close."""
    REFUSED = 4
    """nats-server would tolerate it, natsproxy does not (embedded CR, HMSG or -ERR or INFO from a client)."""


class Malformed(NamedTuple):
    """The stream cannot be framed from `buffer[start]` on.

    start: the first byte of the frame at fault (for TERMINATOR of a streamed frame: of the wrong bytes).
    end: just after the byte that shows the fault.  reason: a short clause for people.
    offset: the position of that byte in the stream.
    streaming: part of the frame was already returned (TERMINATOR after a `Frame` with `missing > 0`).
    """

    buffer: bytes
    start: int
    end: int
    fault: FramingFault
    reason: str
    offset: int
    streaming: bool = False


Segment = Run | Frame | Body | Malformed | Opaque
