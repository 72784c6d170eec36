"""Items to blocks, on the traffic path: cheap, and without copying what was received.

A block's body is a list of buffers for `os.writev`: for each `Frames` the packed fields, then the data as it
was received.  Sealing packs the summary; the checksum and compression are left to the writer's thread.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

import msgpack

from natsproxy.capture.records import Frames, Item, encode
from natsproxy.capture.tokens import FirstTokens

BLOCK_SIZE = 1 << 20
_MAX_CONNS = 64


@dataclass(slots=True)
class SealedBlock:
    """A block that is ready to be written; `buffers` is its body."""

    buffers: list[bytes | memoryview]
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
    _buffers: list[bytes | memoryview] = field(default_factory=list)
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
        self._buffers.append(packed)
        self.size += len(packed)
        self._seen(item.t, getattr(item, "conn", None))

    def _add_frames(self, item: Frames) -> None:
        fields = encode(item._replace(data=b"", extra=None), self.mono0)
        data, length = item.data, len(item.data)
        # The packed array ends in an empty bin (c4 00): put the true length there and the data behind it.
        head = self._pack(fields)[:-2] + b"\xc6" + struct.pack(">I", length)
        if item.extra is not None:
            head = bytes([head[0] + 1]) + head[1:]
        self._buffers.append(head)
        self._buffers.append(data)
        self.size += len(head) + length
        if item.extra is not None:
            tail = self._pack(item.extra)
            self._buffers.append(tail)
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
            self.mono0, self.wall0, self._first, self._last, self._items, self._frames, self._ops, self.size,
            conns, self._tokens.summary(),
        ]  # fmt: skip
        block = SealedBlock(self._buffers, self.size, summary, self._frames)
        self._buffers, self._conns, self._tokens = [], set(), FirstTokens()
        self.size = self._items = self._frames = self._ops = 0
        self.begun = False
        return block
