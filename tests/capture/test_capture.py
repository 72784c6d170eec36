"""Captures: written and read back, damaged in every way, followed while they grow, cut off by kill -9."""

from __future__ import annotations

import io
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproxy.capture.format import records
from natsproxy.capture.format.blocks import HEADER, MAGIC, BlockKind, header
from natsproxy.capture.format.connection import ConnectionChoice
from natsproxy.capture.format.records import (
    CloseRecord,
    FiringRecord,
    Frames,
    GapRecord,
    Item,
    Note,
    OpaqueRecord,
    OpenRecord,
    Preamble,
)
from natsproxy.capture.read.frames import Query, read_frames
from natsproxy.capture.read.reader import Follower, open_capture
from natsproxy.capture.read.recover import recover, verify
from natsproxy.capture.read.segment import CaptureFile
from natsproxy.capture.write.builder import BlockBuilder
from natsproxy.capture.write.writer import CaptureWriter, SegmentInfo
from natsproxy.errors import CaptureError, TruncatedCapture
from natsproxy.wire.ops import C2S, S2C, Op, op_mask
from tests.kit.captures import MONO, WALL, Scribe, legs, write


def items(path: Path) -> list[Item]:
    """Return all items of a capture."""
    return [item for _, item in open_capture(path).items()]


_TIMES = st.integers(0, 1 << 40).map(lambda t: MONO + t)
_INFO = st.dictionaries(st.text(max_size=5), st.none() | st.integers(0, 9) | st.text(max_size=5), max_size=3)
_FRAMES = st.builds(
    lambda conn, way, n, came, went, cause: Frames(
        conn, way, b"PING\r\n" * n, n, 0, came and 7, came and MONO + 5, went and 8, went and MONO + 6, cause
    ),
    st.integers(0, 1 << 40),
    st.sampled_from([C2S, S2C]),
    st.integers(1, 4),
    st.just(1) | st.none(),
    st.just(1) | st.none(),
    st.none() | st.text(max_size=8),
)
_ITEMS = st.one_of(
    _FRAMES,
    st.builds(OpenRecord, st.integers(0, 9), _TIMES, _INFO),
    st.builds(CloseRecord, st.integers(0, 9), _TIMES, st.text(), _INFO),
    st.builds(FiringRecord, st.integers(0, 9), _TIMES, _INFO),
    st.builds(GapRecord, st.none() | st.integers(0, 9), _TIMES, _INFO),
    st.builds(Preamble, st.integers(0, 9), _TIMES, _INFO),
    st.builds(Note, _TIMES, _INFO),
    st.builds(OpaqueRecord, st.integers(0, 9), st.sampled_from([C2S, S2C]), _TIMES, st.integers(0, 1 << 40)),
)


@given(st.lists(_ITEMS, max_size=12), st.sampled_from(["none", "zstd"]), st.integers(1, 5))
def test_written_items_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, wanted: list[Item], compression: str, per_block: int
) -> None:
    """Every kind of item, any block size, compressed or not."""
    path = write(
        tmp_path_factory.mktemp("c") / "x.ncap", wanted, per_block=per_block, compression=compression
    )

    assert items(path) == wanted
    result = verify(path)
    assert result.whole
    assert result.items == len(wanted)
    assert open_capture(path).tail() is None


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A small capture of three blocks."""
    scribe = Scribe()
    scribe.items.append(OpenRecord(1, MONO, {"client": "c"}))
    for number in range(8):
        scribe.frame(number, 1, C2S, b"PUB a.%d 2\r\nhi\r\n" % number)
        scribe.frame(number, 1, S2C, b"MSG a.%d 1 2\r\nhi\r\n" % number)
    return write(tmp_path / "small.ncap", scribe.items, per_block=6)


def test_every_flipped_byte_is_found_or_harmless(small: Path, tmp_path: Path) -> None:
    """A CaptureError, or the same content: never another exception, never other content."""
    raw, whole = small.read_bytes(), items(small)
    broken = tmp_path / "broken.ncap"
    found = 0
    for place in range(len(raw)):
        damaged = bytearray(raw)
        damaged[place] ^= 1 << random.Random(place).randrange(8)
        broken.write_bytes(damaged)
        try:
            got = items(broken)
        except CaptureError as error:
            found += str(broken) in str(error)
            continue
        assert got == whole[: len(got)], place
        if len(got) < len(whole):  # a length that now points behind the end: cut short, and said so
            assert open_capture(broken).tail() is not None
    assert found > len(raw) // 2


def test_every_truncation_reads_to_the_last_whole_block(small: Path, tmp_path: Path) -> None:
    """And `recover` makes a whole capture of it."""
    raw, whole = small.read_bytes(), items(small)
    cut = tmp_path / "cut.ncap"
    for size in range(0, len(raw), 3):
        cut.write_bytes(raw[:size])
        try:
            got = items(cut)
        except TruncatedCapture:
            assert size < 200  # within magic and segment header
            continue
        assert got == whole[: len(got)]
        mended = tmp_path / f"mended-{size}.ncap"
        result = recover(cut, mended)
        assert result.segment
        assert items(mended) == got
        assert verify(mended).whole


def test_recover_continues_behind_the_damage(small: Path, tmp_path: Path) -> None:
    """One bad block costs one block."""
    raw = bytearray(small.read_bytes())
    raw[raw.index(b"PUB a.3")] ^= 0xFF
    broken, mended = tmp_path / "broken.ncap", tmp_path / "mended.ncap"
    broken.write_bytes(raw)
    assert not verify(broken).whole

    result = recover(broken, mended)

    assert result.lost > 0
    assert result.blocks == 2
    assert len(items(mended)) == len(items(small)) - 6
    with pytest.raises(CaptureError, match="exists already"):
        recover(broken, mended)


def test_hostile_lengths_are_refused_before_anything_is_allocated(small: Path, tmp_path: Path) -> None:
    """A block that claims 4 GiB, a zstd bomb's claim, deep nesting: one sentence each."""
    raw = small.read_bytes()
    evil = tmp_path / "evil.ncap"
    place = raw.index(b"NBLK", len(MAGIC) + 4)
    evil.write_bytes(raw[:place] + HEADER.pack(b"NBLK", 2, 0, 10, 0xFFFFFFFF, 0) + raw[place:])
    with pytest.raises(CaptureError, match="more than a block may have"):
        items(evil)
    for body in (b"\x91" * 100_000, b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xc1", b"\x93\x00"):
        summary = msgpack.packb([MONO, WALL, 0, 0, 1, 1, 0, len(body), None, None])
        block = header(BlockKind.RECORDS, 0, summary, [body], len(body)) + summary + body
        evil.write_bytes(raw[:place] + block)
        with pytest.raises(CaptureError):
            items(evil)


def test_unknown_kinds_and_fields_are_skipped(small: Path, tmp_path: Path) -> None:
    """Unknown kinds of blocks and items, trailing fields; an unknown major is refused by name."""
    raw = small.read_bytes()
    place = raw.index(b"NBLK", len(MAGIC) + 4)
    body = msgpack.packb([99, 1, 2]) + msgpack.packb([1, 5, 0, {}, "a new field"])
    summary = msgpack.packb([MONO, WALL, 0, 0, 2, 0, 0, len(body), None, None, "new"])
    known = header(BlockKind.RECORDS, 0, summary, [body], len(body)) + summary + body
    import zlib

    crc = zlib.crc32(b"future", zlib.crc32(HEADER.pack(b"NBLK", 77, 0, 0, 6, 0)[:12]))
    unknown = HEADER.pack(b"NBLK", 77, 0, 0, 6, crc) + b"future"
    newer = tmp_path / "newer.ncap"
    newer.write_bytes(raw[:place] + unknown + known + raw[place:])
    assert items(newer) == [OpenRecord(5, MONO, {}), *items(small)]

    writer = CaptureWriter(tmp_path / "major.ncap", SegmentInfo(bytes(16), bytes(16), 0, 0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("natsproxy.capture.write.writer.VERSION", (9, 0))
        writer.open_segment()
    writer.close()
    with pytest.raises(CaptureError, match=r"format 9.*upgrade natsproxy"):
        open_capture(tmp_path / "major.ncap")


def test_not_a_capture_is_one_sentence(tmp_path: Path) -> None:
    """No such file, an empty folder, random bytes, an empty file."""
    (tmp_path / "random.ncap").write_bytes(os.urandom(500))
    (tmp_path / "empty.ncap").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    for name in ("none.ncap", "random.ncap", "empty.ncap", "folder"):
        with pytest.raises(CaptureError, match=name):
            open_capture(tmp_path / name)


@pytest.mark.parametrize("old_names", [False, True])
def test_a_single_file_that_goes_on_in_another_one_is_told(old_names: bool, tmp_path: Path) -> None:
    """Another segment, or a later run; a pattern reads them all."""
    paths = []
    for run in (b"1", b"2"):
        writer = CaptureWriter(tmp_path / "x.ncap", SegmentInfo(run * 16, bytes(16), WALL, MONO))
        paths += [writer.open_segment(), writer.open_segment()]
        writer.close()
    assert sorted(tmp_path.iterdir()) == paths
    if old_names:
        paths = [paths[0], *(path.rename(tmp_path / f"x-{n}.ncap") for n, path in enumerate(paths[1:], 1))]
    told: list[str] = []
    for path in (*paths[:3], tmp_path / "x*.ncap"):
        open_capture(path, told.append)
    where, every = tmp_path / "x.ncap", "which is not read ('x*.ncap' reads all)"
    assert told == [f"{where}: the recording goes on in {paths[1].name}, {every}"]
    paths[1].unlink()
    open_capture(tmp_path / "x.ncap", told.append)
    assert told[1:] == [f"{where}: a later run recorded to {paths[2].name}, {every}"]


def test_a_growing_capture_is_followed_across_rotation(tmp_path: Path) -> None:
    """`poll` gives each item once, as blocks become whole."""
    folder = tmp_path / "capture"
    writer = CaptureWriter(folder, SegmentInfo(b"r" * 16, bytes(16), WALL, MONO))
    writer.open_segment()
    follower = Follower(folder, print)
    seen: list[Item] = []
    wanted: list[Item] = [OpenRecord(number, MONO + number, {}) for number in range(6)]
    for number, item in enumerate(wanted):
        builder = BlockBuilder()
        builder.begin(MONO, WALL)
        builder.add(item)
        writer.write(builder.seal())
        if number == 2:
            writer.open_segment()
        seen += [found for _, found in follower.poll()]
    writer.close()

    assert seen == wanted
    assert [found for _, found in follower.poll()] == []
    assert items(folder) == wanted
    assert len(open_capture(folder).paths) == 2


def test_both_legs_are_rebuilt(tmp_path: Path) -> None:
    """Dropped, injected, rewritten and passed frames: what each tap saw."""
    pub, other, ping = b"PUB a 1\r\nx\r\n", b"PUB b 1\r\nx\r\n", b"PING\r\n"
    wanted = [
        Frames(1, C2S, pub + pub, 2, 1, 0, MONO, 0, MONO),
        Frames(1, C2S, pub, 1, 1, 2, MONO, None, None, "drop"),
        Frames(1, C2S, ping, 1, 256, None, None, 2, MONO, "proxy"),
        Frames(1, C2S, pub, 1, 1, 3, MONO, None, None, "map"),
        Frames(1, C2S, other, 1, 1, None, None, 3, MONO + 1, "map", 0, {"of": 3}),
    ]
    taps = legs(open_capture(write(tmp_path / "x.ncap", wanted)), 1)

    assert taps["client->proxy"] == pub * 4
    assert taps["proxy->server"] == pub + pub + ping + other


def test_queries_prune_and_filter(small: Path) -> None:
    """By operation, direction, connection, subject and time."""
    reader = open_capture(small)

    def count(**fields: Any) -> int:
        return sum(1 for _ in read_frames(reader, Query(**fields)))

    assert count() == 16
    assert count(ops=op_mask(Op.MSG)) == 8
    assert count(direction=C2S) == 8
    assert count(conns=ConnectionChoice.of(2)) == 0
    assert count(subjects=(b"a.3",)) == 2
    assert count(start=WALL + 7) == 2


def test_a_full_disk_cuts_back_to_the_last_whole_block(tmp_path: Path) -> None:
    """The writer says so; what was written before stays readable (a file-size limit plays the full disk)."""
    code = (
        "import resource, signal, sys\n"
        "from tests.kit.captures import *\n"
        "from natsproxy.errors import CaptureError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))\n"
        "s = Scribe()\n"
        "for n in range(100): s.frame(n, 1, 0 and None or __import__('natsproxy.wire.ops').wire.ops.C2S,"
        " b'PUB a 90\\r\\n' + b'x' * 90 + b'\\r\\n')\n"
        "try: write(Path(sys.argv[1]), s.items, per_block=5)\n"
        "except CaptureError as error: print(error)\n"
    )
    path = tmp_path / "full.ncap"
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, cwd=Path(__file__).parents[2]
    )

    assert "cannot write the capture" in done.stdout, done.stderr
    got = items(path)
    assert got
    assert len(got) % 5 == 0


def test_kill_9_leaves_whole_blocks(tmp_path: Path) -> None:
    """A writer killed at a random moment: readable, recoverable, and nothing sealed before is missing."""
    code = (
        "import sys\n"
        "from tests.kit.captures import *\n"
        "from natsproxy.capture.write.builder import BlockBuilder\n"
        "from natsproxy.wire.ops import C2S\n"
        "w = CaptureWriter(Path(sys.argv[1]), SegmentInfo(bytes(16), bytes(16), WALL, MONO))\n"
        "w.open_segment()\n"
        "n = 0\n"
        "while True:\n"
        "    b = BlockBuilder(); b.begin(MONO, WALL)\n"
        "    for _ in range(50):\n"
        "        b.add(Frames(1, C2S, b'PUB a.%d 0\\r\\n\\r\\n' % n, 1, 1, n, MONO, n, MONO)); n += 1\n"
        "    w.write(b.seal()); print(n, flush=True)\n"
    )
    for turn in range(5):
        path = tmp_path / f"killed-{turn}.ncap"
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
        )
        assert process.stdout is not None
        for _ in range(random.Random(turn).randrange(1, 60)):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        told = [int(line) for line in process.stdout.read().split()]
        process.wait()
        process.stdout.close()
        got = [item for item in items(path) if isinstance(item, Frames)]
        assert [item.in_first for item in got] == list(range(len(got)))
        assert len(got) >= (told[-1] if told else 0)
        mended = tmp_path / f"mended-{turn}.ncap"
        assert recover(path, mended).segment
        assert len(items(mended)) == len(got)


def test_an_existing_capture_is_never_overwritten(tmp_path: Path) -> None:
    """The next free name is taken."""
    paths = []
    for _ in range(3):
        writer = CaptureWriter(tmp_path / "x.ncap", SegmentInfo(bytes(16), bytes(16), WALL, MONO))
        paths.append(writer.open_segment())
        writer.close()
    assert sorted(tmp_path.iterdir()) == paths
    assert paths[0].name == "x.ncap"


def test_malformed_items_are_errors() -> None:
    """Types are checked before use."""
    wrong: list[Any] = [[0], [0, "x"], [1, 1, None, {}], [True], [], "x", [2, 1, 1, 5, {}]]
    for bad in wrong:
        with pytest.raises(CaptureError):
            records.decode(bad, 0)
    assert records.decode([42, "anything"], 0) is None


def test_a_block_is_read_by_its_offset(small: Path) -> None:
    """Blocks are independent: any order."""
    with CaptureFile(small) as file:
        refs = list(file.blocks())
        backwards = [list(file.items(next(file.blocks(ref.block.offset)))) for ref in reversed(refs)]
    assert [item for block in reversed(backwards) for item in block] == items(small)


def test_the_index_names_the_blocks_that_a_walk_finds(tmp_path: Path) -> None:
    """Places, sizes and summaries; without a whole index there is none, and the walk is the way."""
    path = write(
        tmp_path / "x.ncap", [OpenRecord(number, MONO + number, {}) for number in range(25)], per_block=4
    )
    with CaptureFile(path) as file:
        walked = list(file.blocks())
        indexed = file.indexed()
    assert indexed is not None
    assert [(ref.block.offset, ref.block.end, ref.summary) for ref in indexed] == [
        (ref.block.offset, ref.block.end, ref.summary) for ref in walked
    ]
    raw = path.read_bytes()
    for broken in (raw[:-1], raw[: walked[-1].block.end], raw[:-8] + bytes(8)):
        path.write_bytes(broken)
        with CaptureFile(path) as file:
            assert file.indexed() is None


def test_any_seekable_file_is_a_segment(small: Path) -> None:
    """Errors call it by the name that was given."""
    with CaptureFile(small) as local, CaptureFile("s3://b/x.ncap", io.BytesIO(small.read_bytes())) as other:
        assert list(other.blocks())[-1].block == list(local.blocks())[-1].block
        assert [list(other.items(ref)) for ref in other.blocks()] == [
            list(local.items(ref)) for ref in local.blocks()
        ]
    with pytest.raises(CaptureError, match=r"s3://b/y\.ncap: this is not a natsproxy capture"):
        CaptureFile("s3://b/y.ncap", io.BytesIO(b"something else"))
