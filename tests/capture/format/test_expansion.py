"""Compressed blocks that hold far more than they show: no reader takes them, and no recorder writes one."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from natsproxy.capture.columns import arrow
from natsproxy.capture.format.blocks import ZSTD, BlockKind, header
from natsproxy.capture.format.expansion import FREE, allowed, holds_more
from natsproxy.capture.read.frames import read_frames
from natsproxy.capture.read.reader import open_capture
from natsproxy.capture.read.segment import CaptureFile
from natsproxy.capture.write.index import Index
from natsproxy.capture.write.writer import SegmentInfo, beginning
from natsproxy.errors import CaptureError
from natsproxy.wire.ops import Direction, Op
from tests.kit.captures import Scribe, write

HUGE = (16 << 20) - 64
WALL = 10**18
MEMORY = 700 << 20  # bytes of address space for a command


def bomb(path: Path, body: bytes, items: int, frames: int, blocks: int = 1) -> Path:
    """Write a capture of compressed blocks with one and the same body."""
    out = b"".join(beginning(SegmentInfo(b"r" * 16, b"b" * 16, WALL, 0), 0))
    index = Index(WALL)
    stored = zstandard.ZstdCompressor(level=19).compress(body)
    summary: list[Any] = [0, WALL, 0, 0, items, frames, 1 << Op.PING, len(body), [1], None]
    packed = msgpack.packb(summary)
    for _ in range(blocks):
        index.add(len(out), packed, summary)
        out += header(BlockKind.RECORDS, ZSTD, packed, [stored], len(stored)) + packed + stored
    path.write_bytes(out + b"".join(map(bytes, index.ending(len(out)))))
    assert path.stat().st_size < 40_000
    return path


def record(pings: int, claimed: int) -> bytes:
    packed: bytes = msgpack.packb([0, 1, 0, 0, claimed, 0, 0, 0, 0, None, b"PING\r\n" * pings])
    return packed


NOTE = b"\x93\x07\x00\x81\xa1a"
BOMBS: dict[str, Callable[[Path], Path]] = {
    "arrays in an array": lambda path: bomb(
        path, NOTE + b"\xdd" + HUGE.to_bytes(4, "big") + b"\x90" * HUGE, 1, 0
    ),
    "items": lambda path: bomb(path, b"\x93\x07\x00\x80" * (HUGE // 4), HUGE // 4, 0),
    "frames": lambda path: bomb(path, record(2_000_000, 2_000_000), 1, 2_000_000),
    "frames that the summary hides": lambda path: bomb(path, record(2_000_000, 2_000_000), 1, 1),
    "frames that nothing counts": lambda path: bomb(path, record(2_000_000, 1), 1, 1),
    "frames in a preamble": lambda path: bomb(
        path, msgpack.packb([5, 1, 0, {"connect": b"PING\r\n" * 2_000_000}]), 1, 0
    ),
    "records": lambda path: bomb(path, record(1, 1) * 300_000, 300_000, 300_000, blocks=2),
}


@pytest.fixture(params=BOMBS)
def bombed(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return BOMBS[request.param](tmp_path / "bomb.ncap")


@pytest.mark.parametrize(
    "command",
    [
        ["capture", "info"],
        ["capture", "cat"],
        ["capture", "export", "--jsonl", "-"],
        ["replay", "to-server", "--dry-run"],
    ],
    ids=lambda command: " ".join(command[:2]),
)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "frames" else pytest.mark.long) for name in BOMBS]
)
def test_commands_refuse_it_with_its_place(command: list[str], name: str, tmp_path: Path) -> None:
    """In bounded memory, and before they have written much."""
    bombed = BOMBS[name](tmp_path / "bomb.ncap")
    done = subprocess.run(
        [sys.executable, "-m", "natsproxy", *command, str(bombed)],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)),
    )
    assert done.returncode in (1, 2), done.stdout[-500:]
    assert "Traceback" not in done.stderr
    assert "that holds more" in done.stderr, done.stderr
    assert len(done.stdout) < 100_000


def test_tables_refuse_it(bombed: Path) -> None:
    with CaptureFile(bombed) as file:
        ref = next(file.blocks())
        with pytest.raises(CaptureError, match="that holds more"):
            arrow.batch(file, ref, ("subject",))


def test_what_compresses_well_is_read_back(tmp_path: Path) -> None:
    """A long payload of one byte, and a flood of one frame, which is stored as it is."""
    scribe = Scribe()
    scribe.frame(1, 1, Direction.C2S, b"PUB a 4000000\r\n" + bytes(4_000_000) + b"\r\n")
    for t in range(30_000):
        scribe.frame(t, 1, Direction.C2S, b"PING\r\n")
    path = write(tmp_path / "flood.ncap", scribe.items, per_block=30_000, compression="zstd")
    reader = open_capture(path)
    assert sum(1 for _ in read_frames(reader)) == 30_001
    assert path.stat().st_size < 3_000_000


def _values(value: Any) -> Iterator[Any]:
    yield value
    if isinstance(value, list):
        for one in value:
            yield from _values(one)
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from _values(key)
            yield from _values(one)


LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False)
    | st.binary(max_size=70_000)
    | st.text(max_size=300)
    | st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=300))
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=40) | st.dictionaries(st.text(max_size=40), inner, max_size=40),
    max_leaves=60,
)


@given(VALUES)
def test_values_are_counted_whatever_their_form(value: Any) -> None:
    body = msgpack.packb(value)
    count = sum(1 for _ in _values(value))
    assert not holds_more(body, 0, count)
    assert holds_more(body, 0, count - 1)


def test_no_reader_refuses_what_is_not_compressed() -> None:
    assert allowed(0) == FREE
    assert not holds_more(b"\xc0" * 10, 10, allowed(10))
