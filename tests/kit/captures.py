"""Captures made by hand, with known contents."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from natsproxy.capture.format.records import Frames, Item
from natsproxy.capture.read.reader import CaptureReader
from natsproxy.capture.write.builder import BlockBuilder
from natsproxy.capture.write.writer import CaptureWriter, SegmentInfo
from natsproxy.wire.ops import Direction
from natsproxy.wire.parse import frames

WALL = 1_767_225_600_000_000_000  # 2026-01-01T00:00:00Z
MONO = 5_000_000_000


class Scribe:
    """A builder of records for frames that passed unchanged, at given times (ns since the start)."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self._ordinals: dict[tuple[int, Direction], int] = {}

    def frame(self, t: int, conn: int, direction: Direction, raw: bytes, *, cause: str | None = None) -> None:
        """Add one frame; with a cause it counts as dropped."""
        (parsed,) = frames(raw, direction)
        ordinal = self._ordinals.get((conn, direction), 0)
        self._ordinals[conn, direction] = ordinal + 1
        at = MONO + t
        made = Frames(conn, direction, raw, 1, 1 << parsed.op, ordinal, at, ordinal, at, cause)
        self.items.append(made._replace(out_first=None, out_t=None) if cause else made)


def write(path: Path, items: Iterable[Item], *, per_block: int = 1_000, compression: str = "none") -> Path:
    """Write items as a capture of blocks of `per_block` items."""
    info = SegmentInfo(os.urandom(16), bytes(16), WALL, MONO, seed=7)
    writer = CaptureWriter(path, info, compression=compression)
    writer.open_segment()
    builder = BlockBuilder()
    for number, item in enumerate(items):
        if not builder.begun:
            builder.begin(MONO, WALL)
        builder.add(item)
        if (number + 1) % per_block == 0:
            writer.write(builder.seal())
    if builder.begun:
        writer.write(builder.seal())
    writer.close()
    return path


_TAPS = (("client->proxy", "proxy->server"), ("server->proxy", "proxy->client"))


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
