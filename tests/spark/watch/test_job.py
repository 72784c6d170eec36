"""A watch while it goes on: the tables of a reader, and the rest of one that was killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from natsproxy.capture.format.records import GapRecord, OpenRecord
from natsproxy.errors import NatsproxyError
from natsproxy.wire.ops import C2S, S2C
from tests.kit.captures import MONO, Scribe, write
from tests.spark.conftest import load
from tests.spark.growing_captures import make

pytest.importorskip("pyspark", reason="the tables need pyspark: pip install 'natsproxy[spark]'")

import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from natsproxy.spark.schema import FRAMES, ITEMS, TABLES
from natsproxy.spark.storage.folder import Folder
from natsproxy.spark.storage.manifest import Manifest
from natsproxy.spark.storage.parquet import dated
from natsproxy.spark.storage.permission_rows import read_rows
from natsproxy.spark.storage.store import Store
from natsproxy.spark.storage.watch_state import BatchRange
from natsproxy.spark.tables import derive
from natsproxy.spark.watch.compaction import merge
from natsproxy.spark.watch.ingest import Ingest
from natsproxy.spark.watch.job import remove_unlisted, watch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
SECOND, HOUR = 10**9, 3_600 * 10**9
WANTED = ("subjects", "connections")
"""One that has hours and one that has none, both cheap to compute."""


def record_requests(path: Path, name: str, times: Iterable[int]) -> Path:
    """Write a capture of a request at each time (ns), answered 2 ms later, and a gap at the first."""
    scribe, times = Scribe(), list(times)
    scribe.items.append(OpenRecord(1, MONO + times[0], {"client": "10.0.0.1:1"}))
    for n, t in enumerate(times):
        inbox = f"_INBOX.{name}.{n}"
        scribe.frame(t, 1, C2S, f"PUB svc.{n} {inbox} 1\r\nq\r\n".encode())
        scribe.frame(t + 2_000_000, 1, S2C, f"MSG {inbox} 9 1\r\na\r\n".encode())
    scribe.items.append(GapRecord(None, MONO + times[0], {"reason": name, "frames": 3, "bytes": 99}))
    return write(path, scribe.items, per_block=3)


def rows(table: DataFrame, like: DataFrame | None = None) -> Counter[Any]:
    """Return the rows of a table, in the columns of another."""
    return Counter(map(tuple, table.select((like or table).columns).collect()))


def all_at_once(spark: SparkSession, folder: Path) -> Callable[[str], DataFrame]:
    """Return a function that makes the tables of all captures at once."""
    frames, items = load(spark, sorted(folder.iterdir()))
    return lambda name: derive(name, frames, items)


class Killed(Exception):
    """Stands for a signal that leaves no time for anything."""


def kill_at(word: str) -> Callable[[str, int], None]:
    """Return a progress that kills the watch when a table is reported."""

    def progress(table: str, rows: int) -> None:
        if word in table:
            raise Killed

    return progress


@pytest.mark.long
def test_tables_are_there_while_it_goes_on(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hours that are over, the one that is not, a recorder that is late: all there is, and it was killed."""
    monkeypatch.setattr("natsproxy.spark.watch.refresh.SHARE", 1)  # as often as it can
    monkeypatch.setattr("natsproxy.spark.watch.job.POLL", 0.2)
    monkeypatch.setattr("natsproxy.spark.watch.ingest.POLL", 0.2)
    folder, out = tmp_path / "traffic", tmp_path / "out"
    folder.mkdir()
    record_requests(folder / "a.ncap", "a", (0, SECOND, HOUR - 1_000_000, HOUR + 61 * SECOND))
    with pytest.raises(Killed):  # the hour stands there, and no list says so
        watch(spark, [folder], out, WANTED, every=0.5, stop=lambda: False, progress=kill_at("hour"))
    store, came, over = Store(spark, out), False, False
    seen: list[list[str]] = []

    def look() -> None:
        nonlocal came, over
        listed = store.listed()  # once: batches come meanwhile, and the next list is of another moment
        subjects = listed["subjects"]
        if "late" not in str(list(folder.iterdir())):
            if len(seen) == 0 and subjects["hours"] == ["2026-01-01T00:00Z/2026-01-01T01:00Z"]:
                seen.append(subjects["open"])
                assert rows(spark.read.parquet(str(out / "subjects")).where("hour > 0")) == Counter()
                record_requests(folder / "late.ncap", "late", (2 * SECOND, 3 * SECOND))
        elif came:  # before this refresh began: it has missed nothing
            assert subjects["stale"] == []
            assert subjects["open"] == seen[0] == ["2026-01-01T01:00Z/2026-01-01T02:00Z"]
            expected = all_at_once(spark, folder)
            for name in WANTED:
                assert rows(store.read_listed(listed[name]), expected(name)) == rows(expected(name)), name
            assert store.read_listed(listed["faults"]).isEmpty()
            over = True
        came = (listed["frames"]["rows"], listed["items"]["rows"]) == (12, 4)

    tables = [*WANTED, "faults"]  # of which there are none
    watch(spark, [folder], out, tables, every=0.5, refresh=0, stop=lambda: over, refreshed=look)

    expected = all_at_once(spark, folder)
    for name in WANTED:
        assert rows(store.read(name), expected(name)) == rows(expected(name)), name
    plain = spark.read.parquet(str(out / "subjects"))
    assert rows(plain, expected("subjects")) == rows(expected("subjects"))
    assert not list((out / "_open").rglob("*.parquet"))


@pytest.mark.long
def test_a_table_that_was_empty_is_filled(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first refresh sees no capture; a later one has the block, while the watch goes on."""
    monkeypatch.setattr("natsproxy.spark.watch.refresh.SHARE", 1)
    monkeypatch.setattr("natsproxy.spark.watch.job.POLL", 0.2)
    monkeypatch.setattr("natsproxy.spark.watch.ingest.POLL", 0.2)
    folder, out = tmp_path / "traffic", tmp_path / "out"
    folder.mkdir()
    refused: list[str] = []
    found: set[str | None] = set()

    def look() -> None:
        try:
            found.update(row.template for row in read_rows(out))
        except NatsproxyError as error:
            refused.append(str(error))
            if len(refused) == 1:
                record_requests(folder / "a.ncap", "a", (0, SECOND))

    watch(
        spark, [folder], out, ["permissions"], every=0.5, refresh=0, stop=lambda: bool(found), refreshed=look
    )

    assert "has not yet written rows" in refused[0]
    assert found >= {"svc.0", "svc.1"}


@pytest.mark.long
def test_each_table_can_be_read_by_any_reader(spark: SparkSession, tmp_path: Path) -> None:
    """Without rows too; and no folder's name hides a column."""
    folder, out = tmp_path / "traffic", tmp_path / "out"
    folder.mkdir()
    scribe = Scribe()
    scribe.items.append(OpenRecord(1, MONO, {"client": "10.0.0.1:1"}))
    scribe.frame(0, 1, C2S, b'CONNECT {"name":"x","version":"2.16.0"}\r\n')
    write(folder / "a.ncap", scribe.items)
    empty = ("faults", "errors", "headers", "hops")
    watch(spark, [folder], out, (*empty, "connections"), stop=lambda: True)
    schemas = {"frames": FRAMES, "items": ITEMS, **{name: TABLES[name] for name in (*empty, "connections")}}
    for name, schema in schemas.items():
        columns = {column.split()[0] for column in schema.split(", ")}
        plain, arrow = spark.read.parquet(str(out / name)), pq.read_table(out / name)
        assert columns <= set(plain.columns), name
        assert columns <= set(arrow.column_names), name
        assert plain.count() == arrow.num_rows == (0 if name in empty else 1), name
        parts = {
            part.split("=")[0] for path in (out / name).rglob("*=*") for part in path.parts if "=" in part
        }
        assert parts.isdisjoint(columns), name
    assert pq.read_table(out / "connections").column("version").to_pylist() == ["2.16.0"]


def test_batches_are_taken_in_their_order(spark: SparkSession, tmp_path: Path) -> None:
    """One that is there is not written again; one that is out of order is of a checkpoint of other tables."""
    folder = Folder(spark, str(tmp_path))
    manifest = Manifest(folder)
    with manifest.change() as state:
        state.add_batch("frames", 0, None, [], 0)
    stream = Ingest(spark, folder, manifest, "frames", [], 0, lambda table, rows: None)
    frames, _ = load(spark, [record_requests(tmp_path / "a.ncap", "a", (0, SECOND))])
    stream.take_batch(frames, 0)
    assert folder.names("frames") == []
    stream.take_batch(dated(frames), 1)
    assert folder.names("frames") == ["batches=00000001-00000001"]
    assert Store(spark, tmp_path).read("frames").count() == 4
    stream.take_batch(dated(frames.where("false")), 2)
    assert folder.names("frames") == ["batches=00000001-00000001"]
    for batch in (0, 4):
        with pytest.raises(NatsproxyError, match=f"batch {batch} comes after 2: _checkpoint is not of these"):
            stream.take_batch(frames, batch)


@pytest.mark.long
def test_merging_loses_nothing_wherever_it_is_killed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the switch and after it; a query that has begun still finds its files."""
    folder = Folder(spark, str(tmp_path))
    manifest = Manifest(folder)
    for batch in range(3):
        frames, _ = load(
            spark, [record_requests(tmp_path / f"{batch}.ncap", str(batch), (batch * 20 * HOUR,))]
        )
        place = f"frames/batches={batch:08}-{batch:08}"
        dated(frames).write.partitionBy("date").parquet(str(tmp_path / place))
        with manifest.change() as state:
            state.add_batch("frames", batch, BatchRange(batch, batch, place, 0, 100, 2, 0, 0), [], 0)
    store, ranges = Store(spark, tmp_path), list(manifest.state.ranges["frames"])
    begun, before = store.read("frames"), rows(store.read("frames"))
    assert sum(before.values()) == 6

    def killed(manifest: Manifest) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Manifest, "change", killed)
        with pytest.raises(Killed):
            merge(spark, folder, manifest, "frames", ranges)
    assert rows(store.read("frames")) == before
    assert len(folder.names("frames")) == 4
    remove_unlisted(folder, Manifest(folder))
    assert len(folder.names("frames")) == 3

    old = merge(spark, folder, manifest, "frames", ranges)
    assert old == [one.place for one in ranges]
    assert rows(begun) == rows(store.read("frames")) == before
    remove_unlisted(folder, Manifest(folder))
    assert folder.names("frames") == ["batches=00000000-00000002"]
    assert rows(store.read("frames")) == before
    assert [len(list(day.glob("*.parquet"))) for day in tmp_path.rglob("date=*")] == [1, 1]


@pytest.mark.long
def test_a_watch_goes_on_behind_segments_that_were_deleted(spark: SparkSession, tmp_path: Path) -> None:
    """The table of gaps names them; a watch that was away for a while does not fail for ever."""
    captures, out = tmp_path / "captures", tmp_path / "out"
    make(tmp_path / "all", b"a", [[1], [2], [4], [8], [16]], limited=True)
    first, *_, fourth, fifth = sorted((tmp_path / "all").iterdir())
    captures.mkdir()
    told: list[list[str]] = []
    for there in ([first], [fourth, fifth]):
        for file in captures.iterdir():
            file.unlink()
        for file in there:
            file.rename(captures / file.name)
        watch(spark, [captures], out, ("gaps",), stop=lambda: True, lost=told.append)
    store = Store(spark, out)
    (lost,) = store.read("gaps").collect()
    assert lost["reason"].startswith("not read: segments 1 to 2 of recorder 6161")
    assert told == 2 * [[lost["reason"].removeprefix("not read: ")]]  # of frames and of items
    frames = store.read("frames")
    assert frames.where("op = 'PING'").count() == 1 + 8 + 16
    assert [row["segment"] for row in frames.where("op = '_corrupt'").collect()] == [1]
