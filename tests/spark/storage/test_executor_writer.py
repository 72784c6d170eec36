"""Frames that tasks write themselves: the rows that Spark's own writer would write, in the same folders."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from natsproxy.capture.format.records import OpenRecord
from natsproxy.errors import ConfigError
from natsproxy.wire.ops import C2S
from tests.kit.captures import MONO, Scribe, write

pytest.importorskip("pyspark", reason="the tables need pyspark: pip install 'natsproxy[spark]'")

from natsproxy.spark.jobs.analyze import SOURCE_OPTIONS, analyze, read
from natsproxy.spark.schema import SOURCES
from natsproxy.spark.storage import executor_writer
from natsproxy.spark.storage.parquet import dated
from natsproxy.spark.storage.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
DAY = 86_400_000_000_000
DAYS = executor_writer.FILES_OPEN + 2
GOLDEN = sorted((Path(__file__).parents[3] / "recordings").glob("*.ncap"))


@pytest.fixture
def captures(tmp_path: Path) -> list[Path]:
    """The golden ones, one of many days whose blocks are not in order, and one that is damaged."""
    scribe = Scribe()
    scribe.items.append(OpenRecord(1, MONO, {"client": "10.0.0.1:1"}))
    for n in range(4 * DAYS):
        scribe.frame(n % DAYS * DAY, 1, C2S, b"PUB days.%d 1\r\nx\r\n" % n)
    days = write(tmp_path / "days.ncap", scribe.items, per_block=3)
    damaged = write(tmp_path / "damaged.ncap", scribe.items, per_block=3)
    raw = bytearray(damaged.read_bytes())
    raw[len(raw) // 2] ^= 0xFF
    damaged.write_bytes(raw)
    return [*GOLDEN, days, damaged]


def sources(captures: list[Path]) -> dict[str, dict[str, str]]:
    """Return the options of both tables that are read from captures."""
    paths = json.dumps(list(map(str, captures)))
    return {name: {**given, "paths": paths} for name, given in SOURCE_OPTIONS.items()}


@pytest.mark.parametrize("here", [executor_writer.HERE_BYTES, pytest.param(0, marks=pytest.mark.long)])
def test_they_are_the_rows_of_the_source(
    spark: SparkSession,
    captures: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    here: int,
) -> None:
    """Written here or by tasks: by days, the rows of damaged blocks too; Spark reads both kinds alike."""
    monkeypatch.setattr(executor_writer, "TASK_BYTES", 1)
    monkeypatch.setattr(executor_writer, "HERE_BYTES", here)
    source = dated(read(spark, captures, **SOURCE_OPTIONS["frames"]))
    items = read(spark, captures, **SOURCE_OPTIONS["items"])
    theirs = Store(spark, tmp_path / "theirs")
    ours = Store(spark, tmp_path / "ours")
    assert ours.local_tasks
    told = list[tuple[int, int]]()
    written = ours.write_on_executors(sources(captures), lambda done, tasks: told.append((done, tasks)))
    assert told
    assert all(done <= tasks > len(GOLDEN) for done, tasks in told)
    assert written == {"frames": theirs.write("frames", source), "items": theirs.write("items", items)}
    for name in written:
        rows = [Counter(map(tuple, store.source(name).collect())) for store in (ours, theirs)]
        assert rows[0] == rows[1]
    assert not ours.source("frames").where("op = '_corrupt'").isEmpty()
    folders = [
        {place.name for place in (store_path / "frames").iterdir() if place.is_dir()}
        for store_path in (tmp_path / "ours", tmp_path / "theirs")
    ]
    assert folders[0] == folders[1]
    assert len(folders[0]) > DAYS
    assert spark.read.parquet(ours.place("frames")).schema.simpleString() == (
        spark.read.schema(SOURCES["frames"]).parquet(theirs.place("frames")).schema.simpleString()
    )


@pytest.mark.long
def test_a_folder_by_its_address_is_spark_s_to_write(spark: SparkSession, tmp_path: Path) -> None:
    """`file:` has one slash too; and a name that Spark takes for a pattern is refused."""
    assert not Store(spark, f"file:{tmp_path}/out").local_tasks
    analyze(spark, [GOLDEN[0]], f"file:{tmp_path}/out", ["gaps"])
    here = Store(spark, tmp_path / "out")
    assert here.local_tasks
    assert here.read("frames").count() == read(spark, [GOLDEN[0]]).count() > 0
    with pytest.raises(ConfigError, match="for wildcards"):
        Store(spark, tmp_path / "tables[1]")


def test_a_missing_capture_leaves_no_frames(spark: SparkSession, tmp_path: Path) -> None:
    """A run that fails has no frames that could be taken for whole."""
    with pytest.raises(Exception, match="no such file"):
        executor_writer.write(spark, sources([Path("/nowhere/a.ncap")]), tmp_path)
    assert [path.name for path in (tmp_path / "frames").iterdir()] == ["_temporary"]


def test_the_files_of_a_task_are_bounded(captures: list[Path], tmp_path: Path) -> None:
    """A day that comes back gets one more file."""
    import pyarrow.parquet as pq

    from natsproxy.capture.columns.arrow import batch
    from natsproxy.capture.read.segment import CaptureFile

    days = executor_writer.DayFiles(tmp_path)
    with CaptureFile(captures[-2]) as file:
        made = [batch(file, ref) for ref in file.blocks()]
    for each in made:
        days.add(each)
        assert days.open <= executor_writer.FILES_OPEN
    days.close(most=0)
    assert sum(rows for _, _, rows in days.written) == sum(each.num_rows for each in made)
    assert len(days.written) > len({day for day, _, _ in days.written}) == DAYS
    for day, name, rows in days.written:
        table = pq.read_table(tmp_path / name)
        assert table.num_rows == rows
        assert {moment.date().isoformat() for moment in table.column("ts").to_pylist()} == {day[-10:]}
