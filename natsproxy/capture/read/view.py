"""A capture as frames with their meaning: what `capture cat`, replays and tables start from.

One frame is one `Seen`: its connection, direction, ordinals, times, wire bytes and what became of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from natsproxy.capture.format.records import Flags, Frames
from natsproxy.capture.read.reader import CaptureReader
from natsproxy.capture.read.segment import BlockRef
from natsproxy.errors import CaptureError, ProtocolError
from natsproxy.protocol.subjects import matches, tokens
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import ALL_OPS, Direction
from natsproxy.wire.parse import frames as parse_frames
from natsproxy.wire.parse import head


class Seen(NamedTuple):
    """One frame of a capture.

    wall: Unix ns of `t` (arrival; departure for what the proxy made).  in_ordinal, out_ordinal: its number on
    each leg, None where that leg did not see it.  delay: ns between arrival and departure.  of: the ordinal
    of the frame that it replaces.  frame is None for a frame that is not whole (flags say why): see `head`.
    """

    conn: int
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
        """The frame as far as it was recorded, not whole ones too; None without a whole control line."""
        return self.frame if self.frame is not None else head(self.data, self.direction)


def seen(ref: BlockRef, item: Frames) -> Iterator[Seen]:
    """Yield the frames of a record.  Raises CaptureError where its bytes are not what it claims."""
    data = bytes(item.data)
    delay = (item.out_t - item.in_t) if item.in_t is not None and item.out_t is not None else 0
    of = (item.extra or {}).get("of")
    common = (item.conn, item.direction, item.t, ref.wall(item.t))
    if item.flags & ~Flags.REDACTED:
        yield Seen(*common, item.in_first, item.out_first, delay, item.cause, item.flags, of, None, data)
        return
    count = 0
    try:
        for frame in parse_frames(data, item.direction):
            came = None if item.in_first is None else item.in_first + count
            went = None if item.out_first is None else item.out_first + count
            yield Seen(*common, came, went, delay, item.cause, item.flags, of, frame, frame.raw)
            count += 1
    except ProtocolError as error:
        raise CaptureError(f"a record that does not parse: {error}", path=ref.segment.path) from None
    if count != item.frames:
        text = f"a record of {item.frames} frames that holds {count}"
        raise CaptureError(text, path=ref.segment.path, offset=ref.block.offset)


@dataclass(frozen=True, slots=True)
class Query:
    """Which frames are asked for; an empty field asks for all.  start, end: wall clock, Unix ns."""

    start: int | None = None
    end: int | None = None
    conns: frozenset[int] = frozenset()
    direction: Direction | None = None
    ops: int = ALL_OPS
    subjects: tuple[bytes, ...] = ()

    def wants_block(self, ref: BlockRef) -> bool:
        """Whether a block may hold such frames, by its summary alone."""
        s = ref.summary
        if self.start is not None and s.wall0 + s.t_last < self.start:
            return False
        if self.end is not None and s.wall0 + s.t_first > self.end:
            return False
        if self.ops != ALL_OPS and s.ops and not s.ops & self.ops:
            return False
        if self.conns and s.conns is not None and self.conns.isdisjoint(s.conns):
            return False
        if not self.subjects or s.tokens is None:
            return True
        return any(_may_begin(pattern, s.tokens) for pattern in self.subjects)

    def wants_record(self, item: Frames) -> bool:
        """Whether a record may hold such frames."""
        if self.conns and item.conn not in self.conns:
            return False
        return self.direction is None or item.direction == self.direction

    def wants(self, one: Seen) -> bool:
        """Whether it is such a frame."""
        if self.conns and one.conn not in self.conns:
            return False
        if self.direction is not None and one.direction != self.direction:
            return False
        if self.start is not None and one.wall < self.start:
            return False
        if self.end is not None and one.wall > self.end:
            return False
        if self.ops == ALL_OPS and not self.subjects:
            return True
        frame = one.head
        if frame is None or not self.ops >> frame.op & 1:
            return False
        return not self.subjects or any(
            frame.subject and matches(pattern, frame.subject) for pattern in self.subjects
        )


def walk(reader: CaptureReader, query: Query | None = None) -> Iterator[Seen]:
    """Yield the frames of a capture that `query` asks for, in file order, in the memory of one block."""
    query = query or Query()
    for ref, item in reader.items(query.wants_block):
        if isinstance(item, Frames) and query.wants_record(item):
            for one in seen(ref, item):
                if query.wants(one):
                    yield one


def legs(reader: CaptureReader, conn: int) -> dict[str, bytes]:
    """Return what each of the four taps of a connection saw, byte for byte (redactions apart).

    Keys: "client->proxy", "proxy->server", "server->proxy", "proxy->client".  For tests and small captures:
    all of it is in memory.
    """
    taps: dict[str, list[tuple[int, bytes]]] = {name: [] for pair in _TAPS for name in pair}
    for _, item in reader.items():
        if isinstance(item, Frames) and item.conn == conn:
            arrived, left = _TAPS[item.direction]
            if item.in_first is not None:
                taps[arrived].append((item.in_first, bytes(item.data)))
            if item.out_first is not None:
                taps[left].append((item.out_first, bytes(item.data)))
    return {name: b"".join(data for _, data in sorted(parts)) for name, parts in taps.items()}


def _may_begin(pattern: bytes, found: tuple[bytes, ...]) -> bool:
    """Return whether a pattern may match a subject that begins with one of the tokens `found`."""
    first = tokens(pattern)[0]
    return first in (b"*", b">") or first in found


_TAPS = (("client->proxy", "proxy->server"), ("server->proxy", "proxy->client"))
