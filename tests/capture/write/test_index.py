"""The index of a segment with very many blocks: its memory, and its limit."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from natsproxy.capture.format import blocks
from natsproxy.capture.format.records import OpenRecord
from natsproxy.capture.read.reader import open_capture
from natsproxy.capture.read.recover import recover, verify
from natsproxy.capture.write import index
from natsproxy.capture.write.builder import BlockBuilder, SealedBlock
from natsproxy.capture.write.writer import CaptureWriter, SegmentInfo
from tests.kit.captures import MONO, WALL

CONNS = 30


def block(number: int) -> SealedBlock:
    """Return a block of some connections."""
    builder = BlockBuilder()
    builder.begin(MONO + number, WALL + number)
    for conn in range(CONNS):
        builder.add(OpenRecord(1000 * conn, MONO + number, {}))
    return builder.seal()


def writer(path: Path) -> CaptureWriter:
    """Return a writer with an open segment."""
    made = CaptureWriter(path, SegmentInfo(b"r" * 16, bytes(16), WALL, MONO))
    made.open_segment()
    return made


def test_a_block_takes_the_memory_that_its_row_takes_on_the_disk(tmp_path: Path) -> None:
    made = writer(tmp_path / "x.ncap")
    made.write(block(0))
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(1, 1001):
            made.write(block(number))
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    size = made.size
    made.close()
    assert grown < 1.5 * ((tmp_path / "x.ncap").stat().st_size - size)


def test_beyond_its_limit_a_capture_has_no_index_and_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index of more bytes than a block may have would make it unreadable."""
    for module in (blocks, index):
        monkeypatch.setattr(module, "BODY_MAX", 5_000)
    path = tmp_path / "x.ncap"
    made = writer(path)
    for number in range(200):
        made.write(block(number))
    made.close()
    items = sum(isinstance(item, OpenRecord) for _, item in open_capture(path).items())
    assert items == verify(path).items == 200 * CONNS
    assert recover(path, tmp_path / "y.ncap").blocks == 200
    assert (tmp_path / "y.ncap").read_bytes() == path.read_bytes()
