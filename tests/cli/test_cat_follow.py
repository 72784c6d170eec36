"""`capture cat --follow` as `tail -f`: the last frames, then what comes, also in the next segment."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from natsproxy.capture.format.records import Frames, Item, Preamble
from natsproxy.capture.read.segment import CaptureFile
from natsproxy.capture.write.builder import BlockBuilder
from natsproxy.capture.write.writer import CaptureWriter, SegmentInfo
from natsproxy.cli import main
from natsproxy.units import SECOND
from natsproxy.wire.ops import C2S, Op
from tests.kit.captures import MONO, WALL
from tests.kit.waits import replace_waits


class Recorder:
    """A recorder that writes one frame for each block."""

    def __init__(self, path: Path) -> None:
        self.writer = CaptureWriter(path, SegmentInfo(b"r" * 16, bytes(16), WALL, MONO))
        self.count = 0
        self.rotate()

    def rotate(self) -> None:
        """Begin the next segment, with the connection that is open."""
        self.writer.open_segment()
        named = {"connect": b'CONNECT {"name":"shop"}\r\n'}
        self._write(Preamble(1, MONO + self.count * SECOND // 2, named))

    def frames(self, count: int = 1) -> None:
        """Write frames, half a second between them."""
        for _ in range(count):
            raw, t = b"PUB a.%d 0\r\n\r\n" % self.count, MONO + self.count * SECOND // 2
            self._write(Frames(1, C2S, raw, 1, Op.PUB.bit, self.count, t, self.count, t))
            self.count += 1

    def _write(self, item: Item) -> None:
        builder = BlockBuilder()
        builder.begin(item.t, WALL + item.t - MONO)
        builder.add(item)
        self.writer.write(builder.seal())


@pytest.fixture
def follow(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Give a function that follows a capture: a step happens in each wait, a signal in the last."""

    def run(path: Path, *steps: Callable[[], None], options: tuple[str, ...] = ()) -> list[str]:
        left: Iterator[Callable[[], None]] = iter(steps)

        def sleep(_: float) -> None:
            step = next(left, None)
            if step is None:
                raise KeyboardInterrupt
            step()

        replace_waits(monkeypatch, sleep)
        words = ["capture", "cat", str(path), "--follow", *options]
        done = CliRunner().invoke(main, words, env={"COLUMNS": "200"})
        assert done.exit_code == 0, done.output
        lines = [line for line in done.output.splitlines() if "PUB" in line]
        assert all("shop" in line for line in lines)
        return [line.split()[-2] for line in lines]

    return run


def test_the_last_frames_and_then_the_new_ones(tmp_path: Path, follow: Callable[..., list[str]]) -> None:
    recorder = Recorder(tmp_path / "x.ncap")
    recorder.frames(30)
    assert follow(tmp_path / "x.ncap") == ["a.27", "a.28", "a.29"]
    assert follow(tmp_path / "x.ncap", recorder.frames, recorder.frames)[-3:] == ["a.29", "a.30", "a.31"]
    assert follow(tmp_path / "x.ncap", options=("--from", "2s"))[:2] == ["a.27", "a.28"]


def test_at_most_so_many(tmp_path: Path, follow: Callable[..., list[str]]) -> None:
    """Of those that are chosen."""
    recorder = Recorder(tmp_path / "x.ncap")
    recorder.frames(1)
    for _ in range(40):
        recorder.count -= 1  # at the same moment
        recorder.frames(1)
    assert len(follow(tmp_path / "x.ncap")) == 10


@pytest.mark.parametrize("name", ["x.ncap", "folder"])
def test_it_goes_on_in_the_next_segment(tmp_path: Path, follow: Callable[..., list[str]], name: str) -> None:
    """Of a folder, and of a single file."""
    recorder = Recorder(tmp_path / name)
    recorder.frames(2)
    other = Recorder(tmp_path / "x-9.ncap")  # of another run: it is not followed
    other.writer.info = SegmentInfo(b"o" * 16, bytes(16), WALL, MONO)
    other.rotate()
    steps = (
        recorder.frames,
        recorder.rotate,
        recorder.frames,
        other.frames,
        recorder.rotate,
        recorder.frames,
    )
    assert follow(tmp_path / name, *steps) == ["a.0", "a.1", "a.2", "a.3", "a.4"]


def test_segments_that_are_old_are_not_opened(
    tmp_path: Path, follow: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(tmp_path / "captures")
    for _ in range(5):
        recorder.frames(10)
        recorder.rotate()
    recorder.frames(4)
    opened: list[int] = []
    real = CaptureFile.blocks

    def blocks(file: CaptureFile, *offset: int) -> Iterator[object]:
        opened.append(file.segment.number)
        return real(file, *offset)

    monkeypatch.setattr(CaptureFile, "blocks", blocks)
    for file in (tmp_path / "captures").iterdir():
        os.utime(file, (WALL // SECOND, WALL // SECOND))
    assert follow(tmp_path / "captures", recorder.frames) == ["a.51", "a.52", "a.53", "a.54"]
    assert set(opened) == {0, 5}  # the first block of the run tells when it began
