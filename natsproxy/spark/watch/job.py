"""The job that goes on: captures to tables while they are written.

    DIR/frames, DIR/items   what recorders wrote, batch by batch, each exactly once (`arrivals.py`); many
                            small batches become few large files (`compaction.py`)
    DIR/<table>             what derives from them, as the hours go by (`derived.py`)
    DIR/_open               the hours that are not over
    DIR/analysis            the list of what counts (`book.py`)
    DIR/_checkpoint         Spark's own: how far the streams have got

`Store(spark, DIR).read(table)` gives a table as it is now, and so does the report: the same call, and the
same rows, as for an analysis that did not watch.  Batches come between two such calls; several tables of one
moment are those of one list: `listed()`, and `of` with each of its rows.  To another reader a table is its
folder: of those with hours it holds the hours that are over, each of them whole; of the others the folders
that the list names count.

When it is asked to stop, it takes what is there at that moment, writes all tables, the hours that are not
over too, and ends.  Killed at any moment, it goes on from there when it is started again: what it had not
finished is done again, what is left of it is removed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

from pyspark.sql import SparkSession

from natsproxy.spark.errors import translate_errors
from natsproxy.spark.jobs.analyze import Progress, chosen
from natsproxy.spark.jobs.hours import around_ns
from natsproxy.spark.jobs.store import Store
from natsproxy.spark.tables import TABLES
from natsproxy.spark.watch.compaction import GRACE, due, merge
from natsproxy.spark.watch.folder import Folder
from natsproxy.spark.watch.ingest import POLL, Ingest
from natsproxy.spark.watch.manifest import LIST, Manifest
from natsproxy.spark.watch.refresh import AHEAD, Refresh, Throttle
from natsproxy.spark.watch.watch_state import SOURCES


def watch(
    spark: SparkSession,
    captures: Sequence[str | Path],
    out: str | Path,
    tables: Iterable[str] = TABLES,
    *,
    every: float = 10.0,
    refresh: float = 60.0,
    lookahead: str = "60s",
    stop: Callable[[], bool],
    progress: Progress = lambda table, rows: None,
    refreshed: Callable[[], None] = lambda: None,
) -> None:
    """Write tables under `out` from captures that grow, until `stop()` is true.

    captures: as for `analyze`; a folder may still be empty.  every: seconds between two batches.  refresh:
    at least so many seconds between two writings of what is not over (see `derived.Throttle`); `refreshed` is
    called after each.  lookahead: as of `hours.write_hours`.  stop: asked every second and between tables;
    it may raise to end at once, which loses nothing.  progress: called with the rows of each batch of
    `frames` and `items`, of all tables of an hour ("hour 2026-01-01T09"), and of each table without hours.
    Raises as `analyze` does, and ConfigError through Connect.
    """
    wanted, around = chosen(tables), around_ns(lookahead)
    store = Store(spark, out)
    folder = Folder(spark, store.out)
    with store.held("stream"), translate_errors(store.out):
        manifest = Manifest(folder)
        with manifest.change() as state:
            gone = state.want(wanted)
        for name in gone:
            folder.remove(name)
        sweep(folder, manifest)
        derived = Refresh(spark, folder, manifest, wanted, around, stop, progress)
        streams = [Ingest(spark, folder, manifest, name, captures, around, progress) for name in SOURCES]
        with ExitStack() as ends:  # each is ended, whatever the end of another raises
            for one in streams:
                ends.callback(one.end)
            _go_on(spark, folder, manifest, derived, streams, every, Throttle(refresh), stop, refreshed)
        for one in streams:
            one.catch_up(stop)
        derived.finish()
        sweep(folder, manifest)


def _go_on(
    spark: SparkSession,
    folder: Folder,
    manifest: Manifest,
    derived: Refresh,
    streams: list[Ingest],
    every: float,
    throttle: Throttle,
    stop: Callable[[], bool],
    refreshed: Callable[[], None],
) -> None:
    old: deque[tuple[float, str]] = deque()  # what counts no more, and since when
    while not stop():
        for one in streams:
            one.go_on(every)
            one.look(POLL / len(streams))
        gone: list[str] = []
        if not derived.close_one() and throttle.due():
            with throttle.work():
                gone += derived.refresh()
                refreshed()
        for source in SOURCES:
            with manifest.look() as state:
                runs = due(state.runs[source])
            if runs:
                gone += merge(spark, folder, manifest, source, runs)
        now = time.monotonic()
        old.extend((now, place) for place in gone)
        while old and old[0][0] < now - GRACE:
            folder.remove(old.popleft()[1])


def sweep(folder: Folder, manifest: Manifest) -> None:
    """Remove what no list names: what a killed watch was at work on, and what has been merged."""
    with manifest.look() as state:
        for source in SOURCES:
            named = {place.rpartition("/")[2] for place in state.places(source)}
            for name in folder.names(source):
                if name.startswith("batches=") and name not in named:
                    folder.remove(f"{source}/{name}")
        whole = {one.place for one in state.whole.values()}
        for table in TABLES:
            for name in folder.names(table):
                old = name.startswith("version=") and f"{table}/{name}" not in whole
                if old or name.startswith(".spark-staging-"):
                    folder.remove(f"{table}/{name}")
        for name in folder.names(LIST):
            if name.startswith(".") and name.endswith(".part"):
                folder.remove(f"{LIST}/{name}")
        for table in folder.names(AHEAD):
            hours = state.hours.get(table)
            for name in folder.names(f"{AHEAD}/{table}"):
                if hours is None or not hours.ahead_of or f"{AHEAD}/{table}/{name}" != hours.ahead:
                    folder.remove(f"{AHEAD}/{table}/{name}")
