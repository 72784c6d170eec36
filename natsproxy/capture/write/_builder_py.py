"""Blocks in pure Python (see `builder.py` for the interface), without copying large pieces of data.

A block's body is a list of buffers: packed fields, then the data as it was received, and so on.  Small pieces
share one buffer, since each holds the memory of the read that it came with.  The first tokens of a block are
not known.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import msgpack

from natsproxy.capture.format.records import Frames, Item, encode

BLOCK_SIZE = 1 << 20
_MAX_CONNS = 64
_COPIED = 16_384  # bytes up to which a piece is copied
_DATA = 10  # index of the data among the fields of a record
_BIN = struct.Struct(">BI")


class Filter(Protocol):
    """A filter of items, as `capture/filter/recording_filter.py` has it.

    native: its compiled twin for runs, None where there is none.
    """

    native: Any

    def passes(self, item: Item) -> bool:
        """True if `apply` would return the item unchanged and update no state."""
        ...

    def apply(self, item: Item) -> Iterable[Item]:
        """Return the parts of an item that are to be written."""
        ...


class Missed(NamedTuple):
    """Items that were not kept: the times of the first and the last, and the frames and bytes in them."""

    t0: int
    t1: int
    frames: int
    bytes: int


@dataclass(slots=True)
class SealedBlock:
    """A block that is ready to be written; `buffers` is its body."""

    buffers: list[bytes | bytearray | memoryview]
    length: int
    summary: list[Any]
    frames: int


def packer() -> Any:
    """Return the function that packs the values of items."""
    return msgpack.Packer(autoreset=True, unicode_errors="replace").pack


def frames_head(pack: Any, item: Frames, mono0: int) -> bytes:
    """Return the fields of a record before its data, and the head of the data."""
    fields = encode(item, mono0)
    head: bytes = pack(fields[:_DATA])
    # The array also has the data, a bin (c6), and what follows them.
    return bytes((head[0] + len(fields) - _DATA,)) + head[1:] + _BIN.pack(0xC6, len(item.data))


@dataclass(slots=True)
class BlockBuilder:
    """Gathers items; times in ns, sizes in bytes."""

    filter: Filter | None = None
    mono0: int = 0
    wall0: int = 0
    size: int = 0
    dropping: bool = False
    _buffers: list[bytes | bytearray | memoryview] = field(default_factory=list)
    _small: bytearray = field(default_factory=bytearray)  # what follows `_buffers`
    _items: int = 0
    _frames: int = 0
    _ops: int = 0
    _first: int = 0
    _last: int = 0
    _conns: set[int] = field(default_factory=set)
    _pack: Any = field(default_factory=packer)
    _missed: Missed | None = None

    def begin(self, mono: int, wall: int) -> None:
        """Start a block at this moment of both clocks."""
        self.mono0, self.wall0 = mono, wall

    @property
    def begun(self) -> bool:
        """True while the current block has items."""
        return self._items > 0

    def drop(self) -> None:
        """Count items instead of keeping them."""
        self.dropping = True

    def keep(self) -> Missed | None:
        """Keep items again; return what was missed, None if nothing was."""
        missed, self._missed, self.dropping = self._missed, None, False
        return missed

    def put(self, item: Item) -> None:
        """Add the filtered parts of an item; requires `begin`."""
        if self.filter is None or self.filter.passes(item):
            self.add(item)
        else:
            for kept in self.filter.apply(item):
                self.add(kept)

    def add(self, item: Item) -> None:
        """Add an item; requires `begin`."""
        if self.dropping:
            self._miss(item)
        elif isinstance(item, Frames):
            self._add_frames(item)
        else:
            packed = self._pack(encode(item, self.mono0))
            self._small += packed
            self.size += len(packed)
            self._seen(item.t, getattr(item, "conn", None))

    def _miss(self, item: Item) -> None:
        t0, _, frames, size = self._missed or (item.t, 0, 0, 0)
        if isinstance(item, Frames):
            frames, size = frames + item.frames, size + len(item.data)
        self._missed = Missed(t0, item.t, frames, size)

    def _add_frames(self, item: Frames) -> None:
        head = frames_head(self._pack, item, self.mono0)
        data, length, extra = item.data, len(item.data), item.extra
        small = self._small
        small += head
        self.size += len(head) + length
        if length <= _COPIED:
            small += data
        else:
            self._buffers += (small, data)
            small = self._small = bytearray()
        if extra is not None:
            tail = self._pack(extra)
            small += tail
            self.size += len(tail)
        self._frames += item.frames
        self._ops |= item.ops
        self._seen(item.t, item.conn)

    def _seen(self, t: int, conn: int | None) -> None:
        rel = t - self.mono0
        if not self._items:
            self._first = self._last = rel
        self._items += 1
        self._first = min(self._first, rel)
        self._last = max(self._last, rel)
        if conn is not None and len(self._conns) <= _MAX_CONNS:
            self._conns.add(conn)

    def seal(self) -> SealedBlock:
        """Return the block and start a new one."""
        conns = sorted(self._conns) if len(self._conns) <= _MAX_CONNS else None
        summary = [
            self.mono0,
            self.wall0,
            self._first,
            self._last,
            self._items,
            self._frames,
            self._ops,
            self.size,
            conns,
            None,
        ]
        block = SealedBlock([*self._buffers, self._small], self.size, summary, self._frames)
        self._small = bytearray()
        self._buffers, self._conns = [], set()
        self.size = self._items = self._frames = self._ops = self._first = self._last = 0
        return block
