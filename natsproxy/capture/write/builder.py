"""Items to blocks, on the traffic path: cheap, and without copying what was received in large pieces.

A block's body is a list of buffers: packed fields, then the data as it was received, and so on.  Small pieces
share one buffer, since each holds the memory of the read that it came with.  Sealing makes the summary;
joining, checksum and compression are left to the writer's thread.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

import msgpack

from natsproxy.capture.format.records import Frames, Item, encode
from natsproxy.capture.write.first_tokens import FirstTokens

BLOCK_SIZE = 1 << 20
_MAX_CONNS = 64
_COPIED = 16_384  # bytes up to which a piece is copied
_DATA = 10  # the place of the data among the fields of a record
_BIN = struct.Struct(">BI")


@dataclass(slots=True)
class SealedBlock:
    """A block that is ready to be written; `buffers` is its body."""

    buffers: list[bytes | bytearray | memoryview]
    length: int
    summary: list[Any]
    frames: int


@dataclass(slots=True)
class BlockBuilder:
    """Gathers items; times in ns, sizes in bytes."""

    mono0: int = 0
    wall0: int = 0
    size: int = 0
    begun: bool = False
    _buffers: list[bytes | bytearray | memoryview] = field(default_factory=list)
    _small: bytearray = field(default_factory=bytearray)  # what comes behind `_buffers`
    _items: int = 0
    _frames: int = 0
    _ops: int = 0
    _first: int = 0
    _last: int = 0
    _conns: set[int] = field(default_factory=set)
    _tokens: FirstTokens = field(default_factory=FirstTokens)
    _pack: Any = field(default_factory=lambda: msgpack.Packer(autoreset=True, unicode_errors="replace").pack)

    def begin(self, mono: int, wall: int) -> None:
        """Start a block at this moment of both clocks."""
        self.mono0, self.wall0, self.begun = mono, wall, True

    def add(self, item: Item) -> None:
        """Add an item; `begin` was called."""
        if isinstance(item, Frames):
            self._add_frames(item)
            return
        packed = self._pack(encode(item, self.mono0))
        self._small += packed
        self.size += len(packed)
        self._seen(item.t, getattr(item, "conn", None))

    def _add_frames(self, item: Frames) -> None:
        fields = encode(item, self.mono0)
        data, length, extra = item.data, len(item.data), item.extra
        # All but data and extra are packed; the array is one longer, and a bin (c6) goes behind them.
        head = self._pack(fields[:_DATA])
        small = self._small
        small += bytes((head[0] + len(fields) - _DATA,)) + head[1:] + _BIN.pack(0xC6, length)
        self.size += len(head) + _BIN.size + length
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
        self._tokens.add(item)
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
        """Return the block and start anew."""
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
            self._tokens.summary(),
        ]
        block = SealedBlock([*self._buffers, self._small], self.size, summary, self._frames)
        self._small = bytearray()
        self._buffers, self._conns, self._tokens = [], set(), FirstTokens()
        self.size = self._items = self._frames = self._ops = 0
        self.begun = False
        return block
