"""The index of a segment: the summaries of its blocks, and its last bytes.

The rows are kept packed: a recording of quiet traffic has many small blocks, whose summaries would take ten
times as much memory as objects.

An index is one block, so its size has a limit.  At `FULL`, half of it, a recorder begins the
next segment.  A segment beyond the limit has no index, and is read from header to header.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, Final

import msgpack

from natsproxy.capture.format.blocks import BODY_MAX, END, FOOTER, BlockKind, header

FULL: Final = BODY_MAX // 2
"""Size of the index, in bytes, at which a segment is to end."""
_HEAD: Final = 5  # the most bytes of the array before its rows


class Index:
    """The index of a segment that is being written.

    blocks, items, frames: their numbers.  wall: the wall clock of a segment without blocks.
    """

    def __init__(self, wall: int) -> None:
        self.blocks = self.items = self.frames = 0
        self._first = self._last = wall
        self._rows = bytearray()
        self._beyond = False

    @property
    def full(self) -> bool:
        """True if the segment is to end."""
        return self._beyond or len(self._rows) >= FULL

    def add(self, offset: int, packed: bytes, summary: Sequence[Any]) -> None:
        """Add the records block at an offset by its summary, packed and as it is."""
        first, last = summary[1] + summary[2], summary[1] + summary[3]
        self._first = self._first if self.blocks else first
        self._last = max(self._last, last) if self.blocks else last
        self.blocks += 1
        self.items += summary[4]
        self.frames += summary[5]
        if not self._beyond:
            self._rows += b"\x93" + msgpack.packb(offset) + msgpack.packb(int(BlockKind.RECORDS)) + packed
            self._beyond = len(self._rows) > BODY_MAX - _HEAD
            if self._beyond:
                self._rows = bytearray()

    def ending(self, offset: int) -> list[bytes | bytearray]:
        """Return the last bytes of a segment, index and footer, for this offset; none beyond the limit."""
        if self._beyond:
            return []
        summary = msgpack.packb([self.blocks, self.items, self.frames, self._first, self._last])
        body = [msgpack.Packer().pack_array_header(self.blocks), self._rows]
        return [
            header(BlockKind.INDEX, 0, summary, body, sum(map(len, body))),
            summary,
            *body,
            footer(offset),
        ]


def footer(offset: int) -> bytes:
    """Return the footer that points at the index block at `offset`."""
    place = offset.to_bytes(8, "little")
    return FOOTER.pack(END, zlib.crc32(place), offset)
