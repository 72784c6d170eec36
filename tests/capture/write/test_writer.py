"""Files that fail under the writer: what stays whole, what is tried again, what goes to another file."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from natsproxy.capture.format.records import Note, OpenRecord
from natsproxy.capture.read.reader import open_capture
from natsproxy.capture.write.builder import BlockBuilder, SealedBlock
from natsproxy.capture.write.writer import CaptureWriter, SegmentInfo
from natsproxy.errors import CaptureError
from tests.kit.captures import MONO, WALL
from tests.kit.disks import Disk


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """Give a disk that obeys."""
    return Disk(monkeypatch)


def block(number: int) -> SealedBlock:
    """Return a block of one item."""
    builder = BlockBuilder()
    builder.begin(MONO, WALL)
    builder.add(OpenRecord(number, MONO, {}))
    return builder.seal()


def begun(path: Path) -> CaptureWriter:
    """Return a writer with one block in its first segment."""
    writer = CaptureWriter(path, SegmentInfo(b"r" * 16, bytes(16), WALL, MONO))
    writer.open_segment()
    writer.write(block(0))
    return writer


def conns(path: Path) -> list[int]:
    """Return the connections that were opened in a capture, which must be whole."""
    reader = open_capture(path)
    assert reader.tail() is None
    return [item.conn for _, item in reader.items() if isinstance(item, OpenRecord)]


def test_a_full_disk_is_tried_again(tmp_path: Path, disk: Disk) -> None:
    """In the same file, behind its last whole block; the index too."""
    writer = begun(tmp_path / "x.ncap")
    disk.fill()
    for _ in range(3):
        with pytest.raises(CaptureError, match="No space left"):
            writer.write(block(1))
        assert len(list(open_capture(tmp_path / "x.ncap").blocks())) == 1
    disk.error = 0
    writer.write(block(1))
    disk.fill()
    with pytest.raises(CaptureError):
        writer.close()
    disk.error = 0
    writer.close()
    assert conns(tmp_path / "x.ncap") == [0, 1]


@pytest.mark.parametrize("trouble", ["EIO", "removed"])
def test_another_segment_where_a_file_is_no_more(trouble: str, tmp_path: Path, disk: Disk) -> None:
    """It is numbered next, however often it took to make it, and says when it began."""
    folder = tmp_path / "capture"
    writer = begun(folder)
    if trouble == "EIO":
        disk.error = errno.EIO
    else:
        next(folder.iterdir()).unlink()
        folder.rmdir()
        disk.fill()
    for _ in range(3):
        with pytest.raises(CaptureError):
            writer.write(block(1))
    disk.error = 0
    writer.write(block(1))
    writer.close()
    assert [segment.number for segment in open_capture(folder).segments()][-1] == 1
    assert len(list(folder.iterdir())) == (2 if trouble == "EIO" else 1)
    assert conns(sorted(folder.iterdir())[-1]) == [1]


def test_only_a_file_without_blocks_is_removed(tmp_path: Path, disk: Disk) -> None:
    """Once there is one in its place, and another's file that has taken its name meanwhile stays."""
    path = tmp_path / "x.ncap"
    writer = CaptureWriter(path, SegmentInfo(b"r" * 16, bytes(16), WALL, MONO))
    disk.fill()
    with pytest.raises(CaptureError):
        writer.open_segment()
    assert not path.exists()
    disk.error = 0
    writer.open_segment()
    path.unlink()
    path.write_text("not ours")
    writer.write(block(1))
    writer.close()
    assert path.read_text() == "not ours"
    (other,) = tmp_path.glob("x_*.ncap")
    assert [segment.number for segment in open_capture(other).segments()] == [0]
    assert conns(other) == [1]


def test_the_next_segment_is_there_before_the_last_one_is_closed(tmp_path: Path, disk: Disk) -> None:
    """So a capture that was not closed never looks as if it were."""
    writer = begun(tmp_path)
    disk.fill()
    for _ in range(3):
        with pytest.raises(CaptureError):
            writer.open_segment(replace(writer.info))
        assert len(list(tmp_path.iterdir())) == 1
    writer.abandon()
    assert open_capture(tmp_path).tail() is not None


def test_names_sort_by_time(tmp_path: Path) -> None:
    """Those of one run do whatever the clock says, and of many segments too."""
    walls = [WALL + hours * 3_600_000_000_000 for hours in (0, 5, -9, -9, 2, 7, *range(20))]
    for path in (tmp_path / "folder", tmp_path / "x.ncap"):
        writer = CaptureWriter(path, SegmentInfo(b"r" * 16, bytes(16), walls[0], MONO))
        made = [writer.open_segment(replace(writer.info, wall=wall)) for wall in walls]
        writer.close()
        assert made == sorted(made)
        assert len(set(made)) == len(walls)


@pytest.mark.parametrize("error", [False, True], ids=["works", "fails"])
def test_what_is_written_leaves_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: bool
) -> None:
    advised: list[tuple[int, int]] = []

    def advise(fd: int, offset: int, size: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_DONTNEED
        assert offset + size <= os.fstat(fd).st_size
        advised.append((offset, offset + size))
        if error:
            raise OSError(errno.EINVAL, "not on this file system")

    monkeypatch.setattr(os, "posix_fadvise", advise)
    writer = begun(tmp_path / "x.ncap")
    for number in range(40):
        builder = BlockBuilder()
        builder.begin(MONO, WALL)
        builder.add(OpenRecord(number, MONO, {}))
        builder.add(Note(MONO, {"padding": bytes(3 << 20)}))
        writer.write(builder.seal())
    begins, ends = zip(*advised, strict=True)
    assert all(begin <= end for begin, end in zip(begins, (0, *ends), strict=False))  # nothing is left out
    assert writer.size - ends[-1] <= 16 << 20
    assert begins[0] == 0 < begins[-1]  # it does not look at the whole file each time
    writer.close()
    assert conns(tmp_path / "x.ncap") == [0, *range(40)]
