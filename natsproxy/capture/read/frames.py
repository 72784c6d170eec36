"""The frames of a capture, one `CapturedFrame` each, for listings, exports and tables.

`read_frames` yields the frames that match a `Query`.  It checks three times, cheapest first: a block's
summary (`wants_block`) avoids reading the block, a record's connection and direction (`wants_record`) avoid
parsing the record, and `wants` decides on the frame.  `frames_of` splits one record.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from natsproxy.capture.format.connection import ConnectionChoice, ConnectionId
from natsproxy.capture.format.records import Flags, Frames, Item
from natsproxy.capture.read.reader import CaptureReader
from natsproxy.capture.read.segment import BlockRef
from natsproxy.errors import CaptureError, ProtocolError
from natsproxy.protocol.subjects import matches, tokens
from natsproxy.units import short_duration
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import ALL_OPS, Direction, Op
from natsproxy.wire.parse import frames as parse_frames
from natsproxy.wire.parse import head

_ALL: Final = ConnectionChoice()


class CapturedFrame(NamedTuple):
    """One frame of a capture, with its ordinals, times and wire bytes.

    t: monotonic ns of its arrival (departure for a frame that the proxy made); wall: the same in Unix ns.
    in_ordinal, out_ordinal: its number on each leg, None where that leg did not see it.  delay: ns between
    arrival and departure.  cause: the rule that dropped, made or changed it, None without one.  of: the
    ordinal of the frame that it replaces.  frame: None for a frame that is not whole (`flags` say why);
    `head` has the fields of its control line.
    """

    conn: ConnectionId
    direction: Direction
    t: int
    wall: int
    in_ordinal: int | None
    out_ordinal: int | None
    delay: int
    cause: str | None
    flags: int
    of: int | None
    frame: Frame | None
    data: bytes

    @property
    def head(self) -> Frame | None:
        """The frame, whole or not, as far as it was recorded; None without a whole control line."""
        return self.frame if self.frame is not None else head(self.data, self.direction)


def frames_of(ref: BlockRef, item: Frames) -> Iterator[CapturedFrame]:
    """Yield the frames of a record.

    Raises CaptureError where its bytes do not parse, or hold another number of frames than it claims.
    """
    data = bytes(item.data)
    delay = (item.out_t - item.in_t) if item.in_t is not None and item.out_t is not None else 0
    of = (item.extra or {}).get("of")
    common = (ref.segment.connection(item.conn), item.direction, item.t, ref.wall(item.t))
    if item.flags & ~Flags.REDACTED:  # such a record is one frame, and its bytes are not whole
        yield CapturedFrame(
            *common, item.in_first, item.out_first, delay, item.cause, item.flags, of, None, data
        )
        return
    count = 0
    try:
        for frame in parse_frames(data, item.direction):
            arrived = None if item.in_first is None else item.in_first + count
            left = None if item.out_first is None else item.out_first + count
            yield CapturedFrame(*common, arrived, left, delay, item.cause, item.flags, of, frame, frame.raw)
            count += 1
    except ProtocolError as error:
        raise CaptureError(f"a record that does not parse: {error}", path=ref.segment.path) from None
    if count != item.frames:
        text = f"a record of {item.frames} frames that holds {count}"
        raise CaptureError(text, path=ref.segment.path, offset=ref.block.offset)


@dataclass(frozen=True, slots=True)
class Query:
    """A choice of frames; an empty field selects all.

    start, end: wall clock, Unix ns, both included.  ops: an op bitmask.  subjects: patterns.
    """

    start: int | None = None
    end: int | None = None
    conns: ConnectionChoice = _ALL
    direction: Direction | None = None
    ops: int = ALL_OPS
    subjects: tuple[bytes, ...] = ()

    def wants_block(self, ref: BlockRef) -> bool:
        """Tell from a block's summary whether the block may hold frames of the query."""
        s = ref.summary
        if self.start is not None and s.wall0 + s.t_last < self.start:
            return False
        if self.end is not None and s.wall0 + s.t_first > self.end:
            return False
        # Without any op the block holds only cut frames, whose op was not known when they were recorded.
        if self.ops != ALL_OPS and s.ops and not s.ops & self.ops:
            return False
        if self.conns and s.conns is not None and self.conns.numbers(ref.segment.run).isdisjoint(s.conns):
            return False
        if not self.subjects or s.tokens is None:
            return True
        return any(_may_begin(pattern, s.tokens) for pattern in self.subjects)

    def wants_record(self, ref: BlockRef, item: Frames) -> bool:
        """Tell from a record's connection and direction whether it may hold frames of the query."""
        if not self.wants_connection(ref, item):
            return False
        return self.direction is None or item.direction == self.direction

    def wants_connection(self, ref: BlockRef, item: Item) -> bool:
        """Tell whether the query includes the connection of an item; an item without one matches always."""
        conn = ref.connection(item) if self.conns else None
        return conn is None or conn in self.conns

    def wants(self, one: CapturedFrame) -> bool:
        """Tell whether a frame matches the query."""
        frame = one.head
        op, subject = (None, b"") if frame is None else (frame.op, frame.subject)
        return self.wants_message(one.conn, one.direction, one.wall, op, subject)

    def wants_message(
        self, conn: ConnectionId, direction: Direction, wall: int, op: Op | None, subject: bytes
    ) -> bool:
        """Tell the same of a frame's parts.  op: None for one without a whole control line."""
        if self.conns and conn not in self.conns:
            return False
        if self.direction is not None and direction != self.direction:
            return False
        if self.start is not None and wall < self.start:
            return False
        if self.end is not None and wall > self.end:
            return False
        if self.ops == ALL_OPS and not self.subjects:
            return True
        if op is None or not self.ops >> op & 1:
            return False
        return not self.subjects or any(subject and matches(pattern, subject) for pattern in self.subjects)


def read_frames(reader: CaptureReader, query: Query | None = None) -> Iterator[CapturedFrame]:
    """Yield the frames of a capture that match `query`, by time; memory is one block per run."""
    query = query or Query()
    for ref, item in reader.items(query.wants_block):
        if isinstance(item, Frames) and query.wants_record(ref, item):
            for one in frames_of(ref, item):
                if query.wants(one):
                    yield one


def _may_begin(pattern: bytes, found: tuple[bytes, ...]) -> bool:
    """Tell whether a pattern may match a subject that begins with one of the tokens `found`."""
    first = tokens(pattern)[0]
    return first in (b"*", b">") or first in found


_NOT_WHOLE: Final = {
    Flags.CUT: "cut: it never ended",
    Flags.TRUNCATED: "longer than what is recorded",
}


def remarks(one: CapturedFrame) -> list[str]:
    """Return the proxy's treatment of a frame as short texts; none for a frame that passed unchanged.

    That of a rule begins with its name.
    """
    done = []
    if one.in_ordinal is None:
        done.append("made here")
    elif one.out_ordinal is None:
        done.append("not passed")
    if one.delay:
        done.append(f"held {short_duration(one.delay)}")
    text = ", ".join(done) or ("" if one.cause is None else "changed")
    found = [f"{one.cause}: {text}" if one.cause else text] if text else []
    found += [text for flag, text in _NOT_WHOLE.items() if one.flags & flag]
    return [*found, _kept(one)] if one.flags & Flags.PAYLOAD else found


def _kept(one: CapturedFrame) -> str:
    """Return how much of a payload that was cut was kept, in words."""
    begun = one.head
    if begun is None or not begun.body:
        return "payload not kept"
    return f"{len(begun.body)} of {begun.size - begun.header_size} bytes of the payload kept"
