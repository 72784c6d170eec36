"""The watch: captures to tables while the captures are written.

    DIR/frames, DIR/items   the rows of captures, batch by batch, each exactly once (`ingest.py`); many
                            small batches become few large files (`compaction.py`)
    DIR/<table>             the tables that derive from them, as the hours go by (`refresh.py`)
    DIR/_open               the hours that are not over
    DIR/analysis            the list of the folders that count (`natsproxy/spark/storage/manifest.py`)
    DIR/_checkpoint         Spark's own: the progress of the streams

`Store(spark, DIR).read(table)` gives a table as it is now, and so does the report: the same call, and the
same rows, as for an analysis that did not watch.  Batches come between two such calls; several tables of one
moment are those of one list: `listed()`, and `of` with each of its rows.  To another reader a table is its
folder: of the tables with hours it holds the hours that are over, each of them whole; of the others the
folders that the list names count.

When the watch is asked to stop, it takes the blocks that are there at that moment, writes all tables, with
the hours that are not over too, and ends.  Killed at any moment, it goes on from there when it is started
again: unfinished work is done again, its left-over files are removed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

from pyspark.sql import SparkSession

from natsproxy.spark.errors import translate_errors
from natsproxy.spark.jobs.analyze import Progress, check, chosen
from natsproxy.spark.schema import FRAMES, ITEMS, SOURCES
from natsproxy.spark.storage.folder import Folder
from natsproxy.spark.storage.local import part_name
from natsproxy.spark.storage.manifest import LIST, Manifest
from natsproxy.spark.storage.parquet import file_without_rows
from natsproxy.spark.storage.store import Store
from natsproxy.spark.tables import TABLES, USUAL
from natsproxy.spark.tables.hours import margin_ns
from natsproxy.spark.watch.compaction import GRACE, merge, ranges_to_merge
from natsproxy.spark.watch.ingest import POLL, Ingest, Lost
from natsproxy.spark.watch.refresh import OPEN, Refresh, Throttle

NO_BATCH = "batches=0"
"""A folder of each source that is there from the beginning, with a file without rows."""
_NO_ROWS = {
    "frames": (FRAMES, f"frames/{NO_BATCH}/date=1970-01-01"),
    "items": (ITEMS, f"items/{NO_BATCH}"),
}


def watch(
    spark: SparkSession,
    captures: Sequence[str | Path],
    out: str | Path,
    tables: Iterable[str] = USUAL,
    *,
    every: float = 10.0,
    refresh: float = 60.0,
    lookahead: str = "60s",
    stop: Callable[[], bool],
    progress: Progress = lambda table, rows: None,
    refreshed: Callable[[], None] = lambda: None,
    lost: Lost = lambda clauses: None,
) -> None:
    """Write tables under `out` from captures that grow, until `stop()` is true.

    captures: as for `analyze`; a folder may still be empty.  every: seconds between two batches.  refresh:
    seconds, at least, between two writings of the hour that is not over (see `refresh.Throttle`); `refreshed`
    is called after each.  lookahead: as for `write_hours`.  stop: called every second and between tables; it
    may raise to end at once, which loses nothing.  progress: called with the rows of each batch of `frames`
    and `items`, of all tables of an hour ("hour 2026-01-01T09"), and of each table without hours.  lost:
    called with the clauses that name segments which were deleted before they were read; `gaps` has them too.
    Raises as `analyze` does, and ConfigError through Connect.
    """
    wanted, margin = chosen(tables), margin_ns(lookahead)
    store = Store(spark, out)
    folder = Folder(spark, store.out)
    with store.locked("stream"), translate_errors(store.out):
        manifest = Manifest(folder)
        with manifest.change() as state:
            dropped = state.select_tables(wanted)
        for name in dropped:
            folder.remove(name)
        remove_unlisted(folder, manifest)
        for name, (columns, place) in _NO_ROWS.items():
            if not folder.names(name):  # so that each is a table from the beginning
                folder.write(f"{place}/{part_name()}", file_without_rows(columns))
        tables_refresh = Refresh(
            spark, folder, manifest, wanted, margin, stop, progress, lambda: check(spark, captures)
        )
        streams = [
            Ingest(spark, folder, manifest, name, captures, margin, progress, lost) for name in SOURCES
        ]
        with ExitStack() as ends:  # each stream is ended, even if the end of another raises
            for stream in streams:
                ends.callback(stream.end)
            _loop(spark, folder, manifest, tables_refresh, streams, every, Throttle(refresh), stop, refreshed)
        for stream in streams:
            stream.catch_up(stop)
        tables_refresh.finish()
        remove_unlisted(folder, manifest)


def _loop(
    spark: SparkSession,
    folder: Folder,
    manifest: Manifest,
    tables_refresh: Refresh,
    streams: list[Ingest],
    every: float,
    throttle: Throttle,
    stop: Callable[[], bool],
    refreshed: Callable[[], None],
) -> None:
    """Read batches, write tables and merge files in turn, until `stop()` is true."""
    old: deque[tuple[float, str]] = deque()  # folders that count no more, with the time since then
    while not stop():
        for stream in streams:
            stream.start(every)
            stream.poll(POLL / len(streams))
        gone: list[str] = []
        if not tables_refresh.write_next_hour() and throttle.due():
            with throttle.work():
                gone += tables_refresh.refresh()
                refreshed()
        for source in SOURCES:
            with manifest.current() as state:
                small = ranges_to_merge(state.ranges[source])
            if small:
                gone += merge(spark, folder, manifest, source, small)
        now = time.monotonic()
        old.extend((now, place) for place in gone)
        while old and old[0][0] < now - GRACE:
            folder.remove(old.popleft()[1])


def remove_unlisted(folder: Folder, manifest: Manifest) -> None:
    """Remove folders that the list does not name: leftovers of a killed watch, and merged ones."""
    with manifest.current() as state:
        for source in SOURCES:
            named = {place.rpartition("/")[2] for place in state.places(source)}
            for name in folder.names(source):
                if name.startswith("batches=") and name not in named and name != NO_BATCH:
                    folder.remove(f"{source}/{name}")
        whole = {table.place for table in state.whole_tables.values()}
        for table in TABLES:
            for name in folder.names(table):
                outdated = name.startswith("as_of=") and f"{table}/{name}" not in whole
                if outdated or name.startswith(".spark-staging-"):
                    folder.remove(f"{table}/{name}")
        for name in folder.names(LIST):
            if name.startswith(".") and name.endswith(".part"):
                folder.remove(f"{LIST}/{name}")
        for table in folder.names(OPEN):
            hours = state.hour_tables.get(table)
            for name in folder.names(f"{OPEN}/{table}"):
                if hours is None or not hours.open_hours or f"{OPEN}/{table}/{name}" != hours.open_place:
                    folder.remove(f"{OPEN}/{table}/{name}")
