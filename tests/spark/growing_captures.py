"""Captures that grow under the eyes of a reader, byte by byte."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from natsproxy.capture.format.records import Frames
from natsproxy.capture.write.builder import BlockBuilder
from natsproxy.capture.write.writer import CaptureWriter, SegmentInfo
from natsproxy.wire.ops import C2S, Op
from tests.kit.captures import MONO, WALL

PING = b"PING\r\n"


def make(folder: Path, recorder: bytes, segments: list[list[int]], *, limited: bool = False) -> list[Path]:
    """Write a recorder's segments, each of blocks of so many PINGs; return its files, all closed.

    limited: their headers say that the recorder keeps only so many.
    """
    settings = {"keep": {"owner": "host 127.0.0.1:4222", "count": 3}} if limited else {}
    writer = CaptureWriter(folder, SegmentInfo(recorder * 16, bytes(16), WALL, MONO, settings=settings))
    ordinals = itertools.count()
    files = []
    for number, blocks in enumerate(segments):
        files.append(writer.open_segment())
        for place, count in enumerate(blocks):
            builder = BlockBuilder()
            builder.begin(MONO, WALL + number * 1_000 + place)
            for _ in range(count):
                first = next(ordinals)
                builder.add(Frames(1, C2S, PING, 1, 1 << Op.PING, first, MONO, first, MONO))
            writer.write(builder.seal())
    writer.close()
    return files


@dataclass
class Growing:
    """A folder into which the bytes of finished segments come bit by bit, in order."""

    folder: Path
    sources: list[Path]
    _chunks: Iterator[tuple[Path, bytes]] = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        self._chunks = ((path, bytes([byte])) for path in self.sources for byte in path.read_bytes())

    def grow(self, size: int) -> bool:
        """Let so many bytes come; whether there are more."""
        for path, parts in itertools.groupby(itertools.islice(self._chunks, size), lambda chunk: chunk[0]):
            with (self.folder / path.name).open("ab") as file:
                file.write(b"".join(part for _, part in parts))
        return any(
            not (self.folder / path.name).exists()
            or (self.folder / path.name).stat().st_size < path.stat().st_size
            for path in self.sources
        )
