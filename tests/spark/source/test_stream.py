"""The stream over growing captures: each block once, in bounded batches, whatever happens between them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from natsproxy.capture.format.blocks import MAGIC
from natsproxy.capture.read.frames import read_frames
from natsproxy.capture.read.reader import open_capture
from natsproxy.capture.read.segment import CaptureFile
from natsproxy.errors import CaptureError, MissingCapture
from tests.spark.growing_captures import Growing, make

pytest.importorskip("pyspark", reason="the tables need pyspark: pip install 'natsproxy[spark]'")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes
from pyspark.sql.types import StructType

from natsproxy.spark.source.options import parse
from natsproxy.spark.source.paths import listing
from natsproxy.spark.source.stream import NatscapStream, Offsets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
ROW = (
    StructType()
    .add("recorder", "string")
    .add("segment", "integer")
    .add("block_off", "long")
    .add("idx", "integer")
    .add("op", "string")
)
ALL = ReadAllAvailable()
Rows = list[tuple[Any, ...]]


def stream(folder: Path, **options: str) -> NatscapStream:
    """Return a reader as Spark makes one, anew for each start of a query."""
    return NatscapStream(ROW, parse({"path": str(folder), **options}))


def rows(reader: NatscapStream, start: Offsets, end: Offsets) -> Rows:
    """Return the rows between two offsets, which go through JSON as in a checkpoint."""
    start, end = json.loads(json.dumps([start, end]))
    found: Rows = []
    for partition in reader.partitions(start, end):
        for batch in reader.read(partition):
            found += [tuple(row.values()) for row in batch.to_pylist()]
    return found


def batches(
    reader: NatscapStream, start: Offsets, limit: int | None = None
) -> Iterator[tuple[Offsets, Rows]]:
    """Yield batches until there is nothing more, as Spark asks for them."""
    while True:
        end = reader.latestOffset(start, ALL if limit is None else ReadMaxBytes(limit))
        if json.dumps(end) == json.dumps(start):
            return
        yield end, rows(reader, start, end)
        start = end


def everything(folder: Path) -> Rows:
    """Return the blocks that a sequential reader finds."""
    found: Rows = []
    for ref, item in open_capture(folder).items():
        block = [
            row
            for row in found
            if row[:3] == (ref.segment.recorder.hex(), ref.segment.number, ref.block.offset)
        ]
        found += [(ref.segment.recorder.hex(), ref.segment.number, ref.block.offset, len(block), "PING")]
        assert item is not None
    return found


_SEGMENTS = st.lists(st.lists(st.integers(1, 5), max_size=4), min_size=1, max_size=3)


@settings(max_examples=60, deadline=None)
@given(
    recorders=st.lists(_SEGMENTS, min_size=1, max_size=3),
    steps=st.lists(
        st.tuples(st.integers(1, 900), st.booleans(), st.sampled_from([None, 1, 300])), max_size=12
    ),
)
def test_every_block_comes_once_however_it_grows(
    recorders: list[list[list[int]]], steps: list[tuple[int, bool, int | None]]
) -> None:
    """Cut anywhere, several recorders, restarts between and inside of batches: equal to reading it all."""
    with tempfile.TemporaryDirectory() as name:
        whole, folder = Path(name, "whole"), Path(name, "growing")
        made = [make(whole, b"%c" % (97 + n), segments) for n, segments in enumerate(recorders)]
        growing = [Growing(folder, files) for files in made]
        reader = stream(folder)
        offset = reader.initialOffset()
        found: Rows = []
        for size, crash, limit in [*steps, (1 << 30, False, None)]:
            for one in growing:
                one.grow(size)
            for end, batch in batches(reader, offset, limit):
                if crash:  # planned and written down, then the job is killed: Spark asks again
                    crash, reader = False, stream(folder)
                    assert sorted(rows(reader, offset, end)) == sorted(batch)
                found, offset = found + batch, end
        assert sorted(found) == sorted(everything(whole))
        assert offset == {chr(97 + n).encode().hex() * 16: [len(made[n]), 0] for n in range(len(made))}


def test_a_batch_takes_at_least_one_block_and_no_more_than_its_limit(tmp_path: Path) -> None:
    """Unless all is asked for."""
    make(tmp_path, b"a", [[3] * 10])
    reader = stream(tmp_path, maxBytesPerTrigger="500")
    (size,) = {ref.block.end - ref.block.offset for ref in open_capture(tmp_path).blocks()}
    assert reader.getDefaultReadLimit() == ReadMaxBytes(500)
    start = reader.initialOffset()

    assert [len(found) for _, found in batches(reader, start, 1)] == [3] * 10
    assert [len(found) for _, found in batches(reader, start, 4 * size)] == [12, 12, 6]
    assert [len(found) for _, found in batches(reader, start)] == [30]


def test_recorders_advance_together(tmp_path: Path) -> None:
    """Blocks are taken in the order of their times: no recorder runs ahead of another."""
    for name in (b"a", b"b", b"c"):
        make(tmp_path, name, [[1] * 6])
    reader = stream(tmp_path)
    (size,) = {ref.block.end - ref.block.offset for ref in open_capture(tmp_path).blocks()}
    for _, found in batches(reader, reader.initialOffset(), 3 * size):
        assert sorted({row[0] for row in found}) == sorted({row[0] for row in everything(tmp_path)})


def test_available_now_ends_at_the_blocks_that_were_there(tmp_path: Path) -> None:
    """Even where more has come, in the same segment, in a new one, and from a new recorder."""
    files = make(tmp_path / "whole", b"a", [[1, 1], [1, 1, 1, 1], [1]])
    with CaptureFile(files[1]) as file:
        cut = [ref.block.end for ref in file.blocks()][1]
    growing = Growing(tmp_path / "growing", files)
    growing.grow(files[0].stat().st_size + cut + 5)
    reader = stream(growing.folder)
    reader.prepareForTriggerAvailableNow()
    assert list(reader.reportLatestOffset().values()) == [[1, cut]]
    growing.grow(1 << 30)
    make(growing.folder, b"b", [[1]])

    found = list(batches(reader, {}, 1))

    assert [len(block) for _, block in found] == [1, 1, 0, 1, 1] or sum(len(b) for _, b in found) == 4
    assert list(found[-1][0].values()) == [[1, cut]]
    reader = stream(growing.folder)
    assert sum(len(block) for _, block in batches(reader, found[-1][0])) == 4


def test_a_segment_that_was_read_may_go(tmp_path: Path) -> None:
    """Once it is over; the offset names the next."""
    files = make(tmp_path, b"a", [[1, 2], [3]])
    reader = stream(tmp_path)
    (end, _), *_ = list(batches(reader, {}))
    files[0].unlink()
    files[1].unlink()
    assert list(batches(stream(tmp_path), end)) == []


def test_a_missing_segment_stops_the_stream_unless_it_may_be_lost(tmp_path: Path) -> None:
    """The error names segment, recorder and folder."""
    files = make(tmp_path, b"a", [[1], [2], [4]])
    files[1].unlink()
    with pytest.raises(CaptureError, match=f"{tmp_path}: segment 1 of recorder 6161"):
        list(batches(stream(tmp_path), {}))
    found = list(batches(stream(tmp_path, failOnDataLoss="false"), {}))
    assert sum(len(block) for _, block in found) == 5 + 1  # and a row for the loss


def test_segments_that_a_recorder_deleted_are_told_of_and_passed_over(tmp_path: Path) -> None:
    """Those before the lowest one that is there; one between others may still be on its way."""
    files = make(tmp_path, b"a", [[1], [1], [1], [1], [1]], limited=True)
    reader = stream(tmp_path)
    start: Offsets = {}
    ((end, found),) = list(batches(reader, start, 1))[:1]
    assert [row[1] for row in found] == [0]
    for file in files[:3]:
        file.unlink()
    ((_, found), *_) = batches(stream(tmp_path), end)
    assert [row[1::3] for row in found] == [(1, "_corrupt"), (3, "PING"), (4, "PING")]
    assert errors(stream(tmp_path), end) == [
        f"segments 1 to 2 of recorder {(b'a' * 16).hex()} were deleted before they were read"
    ]
    files[3].rename(tmp_path / "late.part")
    files = make(tmp_path / "more", b"b", [[1], [1], [1]], limited=True)
    files[1].unlink()
    with pytest.raises(CaptureError, match=r"segment 1 of recorder 6262\w+ is missing: wait for it"):
        list(batches(stream(tmp_path / "more"), {}))


def errors(reader: NatscapStream, start: Offsets) -> list[str]:
    """Return the reasons of damage in all rows behind an offset."""
    wanted = NatscapStream(StructType().add("err", "string"), reader._options)
    return [row[0] for _, found in batches(wanted, start) for row in found if row[0]]


def test_a_segment_that_is_deleted_at_any_moment_is_told_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the list and the plan, between the plan and the task, or all of them after a crash."""
    files = make(tmp_path, b"a", [[1], [1], [1]], limited=True)
    reader = stream(tmp_path)
    end = reader.latestOffset({}, ALL)
    plan = reader.partitions({}, end)
    files[0].unlink()
    found = [row for part in plan for batch in reader.read(part) for row in batch.to_pylist()]
    assert [(row["segment"], row["op"]) for row in found] == [(0, "_corrupt"), (1, "PING"), (2, "PING")]

    def list_and_delete(place: str) -> list[str]:
        names = listing(place)
        files[1].unlink(missing_ok=True)
        return names

    reader = stream(tmp_path)
    assert reader.latestOffset({}, ALL) == end  # it has read the headers
    monkeypatch.setattr("natsproxy.spark.source.stream.listing", list_and_delete)
    assert [row[1::3] for row in rows(reader, {}, end)] == [(0, "_corrupt"), (2, "PING")]
    monkeypatch.undo()

    files[2].unlink()
    make(tmp_path, b"b", [[1]], limited=True)
    assert [row[1::3] for row in rows(stream(tmp_path), {}, end)] == [(0, "_corrupt")]


@pytest.mark.parametrize("mode", ["DROPMALFORMED", "FAILFAST"])
def test_the_mode_decides_about_segments_that_are_gone(tmp_path: Path, mode: str) -> None:
    files = make(tmp_path, b"a", [[1], [1]], limited=True)
    reader = stream(tmp_path, mode=mode)
    end = reader.latestOffset({}, ALL)
    plan = reader.partitions({}, end)
    files[0].unlink()
    if mode == "FAILFAST":
        with pytest.raises(MissingCapture, match="was deleted before it was read"):
            list(reader.read(plan[0]))
        with pytest.raises(CaptureError, match="segment 0 of recorder"):
            rows(reader, {}, end)
    else:
        assert [row[1] for row in rows(reader, {}, end)] == [1]


def test_damage_is_passed_over_and_reported(tmp_path: Path) -> None:
    """A block header that is none, in the middle: one `_corrupt` row, the blocks behind it are there."""
    (path,) = make(tmp_path, b"a", [[1, 2, 3]])
    with CaptureFile(path) as file:
        second = list(file.blocks())[1].block
    raw = bytearray(path.read_bytes())
    raw[second.offset : second.offset + 4] = b"\0\0\0\0"
    path.write_bytes(raw[: second.end + 200])  # and without its index, so that the walk is needed
    found = [row for _, block in batches(stream(tmp_path), {}) for row in block]
    assert [row[4] for row in found].count("_corrupt") == 1
    found = [row for _, block in batches(stream(tmp_path, mode="DROPMALFORMED"), {}) for row in block]
    assert {row[4] for row in found} == {"PING"}
    with pytest.raises(CaptureError, match=f"{path}: there is no block here"):
        list(batches(stream(tmp_path, mode="FAILFAST"), {}))


def test_one_segment_twice_is_an_error(tmp_path: Path) -> None:
    """A copy beside the original would count everything twice."""
    (path,) = make(tmp_path, b"a", [[1]])
    (tmp_path / "copy.ncap").write_bytes(path.read_bytes())
    with pytest.raises(CaptureError, match="the same segment of one recorder"):
        stream(tmp_path).initialOffset()


def test_a_file_that_has_not_begun_is_waited_for(tmp_path: Path) -> None:
    """Not even its header is whole; an empty folder is one where nothing has begun."""
    assert stream(tmp_path).initialOffset() == {}
    (tmp_path / "x.ncap").write_bytes(MAGIC[:3])
    reader = stream(tmp_path)
    assert reader.latestOffset({}, ALL) == {}
    (path,) = make(tmp_path / "whole", b"a", [[2]])
    (tmp_path / "x.ncap").write_bytes(path.read_bytes())
    assert sum(len(block) for _, block in batches(reader, {})) == 2


@pytest.mark.long
def test_spark_runs_it_exactly_once(spark: SparkSession, tmp_path: Path) -> None:
    """Two runs of `availableNow` from one checkpoint: the table equals a batch read."""
    files = make(tmp_path / "whole", b"a", [[5, 5], [7, 7, 7]])
    growing = Growing(tmp_path / "growing", files)
    for size in (files[0].stat().st_size + 300, 1 << 30):
        growing.grow(size)
        frames = (
            spark.readStream.format("natscap").option("maxBytesPerTrigger", "200").load(str(growing.folder))
        )
        query = (
            frames.writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "out"))
        )
        assert query.awaitTermination(120)
        assert len(query.recentProgress) > 1
    keys = ["recorder", "segment", "block_off", "idx", "op"]
    stored = spark.read.parquet(str(tmp_path / "out")).select(keys).collect()
    assert sorted(map(tuple, stored)) == sorted(everything(growing.folder))
    assert len(list(read_frames(open_capture(growing.folder)))) == len(stored)
