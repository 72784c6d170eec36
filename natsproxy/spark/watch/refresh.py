"""Refresh: the tables that a watch derives from `frames` and `items` while it goes on.

    an hour that is over            is written at once, into `DIR/<table>/date=.../hour=...`
    an hour with late frames        is written again, whole, into the same folder
    an hour that is not over        stands in `DIR/_open/<table>`, until it is over or the watch ends
    tables without hours            are written anew each time, `DIR/<table>/as_of=...`

The first is due by the captures.  The others are due by the clock and get a tenth of the time (`Throttle`):
they are computed anew each time, and the time that takes depends on the traffic.  Before the first rows come
they are written without Spark, whose plans take as long for none: the first rows would wait for nine times
that.  So a reader sees the hours
that are over, whole, and the rest as it was a while ago; the list tells the two apart.

Where a folder is replaced, a query that is open at that moment may miss a file and fail; asked again, it is
right.

A frame is late where its recorder was cut off, or catches up, or is simply behind the others: hours are over
by the newest frame of *any* recorder, since a recorder that is gone for ever would hold them open for ever.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark.sql import DataFrame, SparkSession

from natsproxy.spark.errors import translate_errors
from natsproxy.spark.jobs.analyze import Progress
from natsproxy.spark.schema import SOURCES, TABLES
from natsproxy.spark.storage.folder import Folder
from natsproxy.spark.storage.local import part_name
from natsproxy.spark.storage.manifest import Manifest
from natsproxy.spark.storage.parquet import (
    file_without_rows,
    read_folders,
    replace_hours,
    write_folder,
)
from natsproxy.spark.storage.watch_state import WholeTable
from natsproxy.spark.tables import FROM, derive
from natsproxy.spark.tables.hours import HOUR, HOURLY, hour_start, hour_tables, needs

OPEN = "_open"
"""The folder of the hours that are not over."""
SHARE = 10
"""Refreshing takes at most one part in so many of the time."""


class Throttle:
    """Limits periodic work to one part in `SHARE` of the time."""

    def __init__(self, least: float, clock: Callable[[], float] = time.monotonic) -> None:
        """least: the shortest interval of the work, seconds."""
        self._least, self._clock = least, clock
        self._next = clock() + least

    def due(self) -> bool:
        """Return True when the work is due again."""
        return self._clock() >= self._next

    @contextmanager
    def work(self) -> Iterator[None]:
        """Measure the work done inside, and schedule the next."""
        began = self._clock()
        yield
        ended = self._clock()
        self._next = ended + max(self._least, (ended - began) * (SHARE - 1))


class Refresh:
    """The derived tables of one watch.  `stop` is called between tables; it may raise to end at once."""

    def __init__(
        self,
        spark: SparkSession,
        folder: Folder,
        manifest: Manifest,
        tables: list[str],
        margin: int,
        stop: Callable[[], bool],
        progress: Progress,
        statements: Callable[[], DataFrame],
    ) -> None:
        """statements: returns those of the checks on the captures that are there."""
        self._statements = statements
        self._spark, self._folder, self._manifest = spark, folder, manifest
        self._tables = [name for name in tables if name not in SOURCES]
        self._margin, self._stop, self._progress = margin, stop, progress
        for name in self._tables:
            if name in HOURLY and not folder.names(name):
                self._write_no_rows(name, hour_place(name, 0))  # so that it is a table from the beginning

    def write_next_hour(self) -> bool:
        """Write the first hour that is over and not written yet; return False where there is none."""
        with self._manifest.current() as state:
            due = state.due_hours(self._margin)
        for hour, tables in due.items():
            self._replace_hour(hour, tables)
            return True
        return False

    def refresh(self) -> list[str]:
        """Write late hours, open hours and outdated tables; return the folders that are obsolete."""
        with self._manifest.current() as state:
            late, open_hours = state.late_hours(self._margin), state.open_hours(self._margin)
        for hour, tables in late.items():
            self._replace_hour(hour, tables)
        return self._write_open_hours(open_hours) + self._write_whole_tables()

    def finish(self) -> None:
        """Write everything as if every hour were over."""
        with self._manifest.current() as state:
            unfinished = state.unfinished_hours()
        for hour, tables in unfinished.items():
            self._replace_hour(hour, tables)
        self._write_whole_tables()

    def _replace_hour(self, hour: int, tables: list[str]) -> None:
        """Replace an hour of tables in their own folders."""
        with self._manifest.current() as state:
            again = [name for name in tables if hour in state.hour_tables[name].done]
        if again:  # Spark removes the old files before it moves the new ones in their place
            with self._manifest.change() as state:
                state.begin_replacing(hour, again)
        with self._manifest.current() as state:
            as_of = state.version  # batches may come while the hour is written: then it is stale again
        self._write_hour(hour, {name: name for name in tables})
        with self._manifest.change() as state:
            for name in tables:
                state.hour_written(name, hour, as_of)

    def _write_open_hours(self, hours: dict[int, list[str]]) -> list[str]:
        """Write hours that are not over, beside their tables; return the folders that are obsolete."""
        with self._manifest.current() as state:
            as_of = state.version
        places = {name: f"{OPEN}/{name}/as_of={as_of}" for tables in hours.values() for name in tables}
        for place in places.values():
            self._folder.remove(place)  # of an attempt that was killed
        for hour, tables in hours.items():
            self._write_hour(hour, {name: places[name] for name in tables})
        if not places:
            return []
        with self._manifest.change() as state:
            of = {name: [hour for hour, tables in hours.items() if name in tables] for name in places}
            before = [
                state.open_hours_written(name, place, of[name], as_of) for name, place in places.items()
            ]
        return [place for place in before if place is not None]

    def _write_whole_tables(self) -> list[str]:
        """Write new versions of the tables without hours; return the folders that are obsolete."""
        with self._manifest.current() as state:
            as_of, outdated = state.version, state.outdated_tables(self._tables)
            places = {source: state.places(source) for source in SOURCES}
        old = []
        for name in outdated:
            self._stop()
            place = f"{name}/as_of={as_of}"
            if not any(places[source] for source in needs(name)) and "statements" not in FROM[name][1]:
                self._write_no_rows(name, place)
                count = 0
            else:
                count = self._write_whole_table(name, place, places)
            with self._manifest.change() as state:
                before = state.whole_tables.get(name)
                state.whole_tables[name] = WholeTable(place, count, as_of)
            old += [before.place] if before is not None and before.place != place else []
            self._progress(name, count)
        return old

    def _write_whole_table(self, name: str, place: str, places: dict[str, list[str]]) -> int:
        """Write a table without hours into a new folder; return the number of its rows."""
        with translate_errors(f"{self._folder.root}/{name}"):
            frames, items = (self._source(source, places[source]) for source in SOURCES)
            statements = self._statements() if "statements" in FROM[name][1] else None
            rows = derive(name, frames, items, statements=statements)
            target = f"{self._folder.root}/{place}"
            write_folder(name, rows, target)
            return self._spark.read.schema(rows.schema).parquet(target).count()

    def _write_hour(self, hour: int, places: dict[str, str]) -> None:
        """Write an hour of tables, each below its place."""
        start, end = hour * HOUR - self._margin, (hour + 1) * HOUR + self._margin
        with self._manifest.current() as state:
            found = {source: state.places(source, start, end) for source in SOURCES}
        frames, items = (self._source(source, found[source]) for source in SOURCES)
        wanted = [name for name in HOURLY if name in places]
        if "faults" in wanted and items.where("kind = 'firing'").isEmpty():
            wanted.remove("faults")  # most hours have no firing, and its plan takes long
            self._write_no_rows("faults", hour_place(places["faults"], hour))
        count = 0
        with hour_tables(frames, items, wanted, hour, self._margin) as made:
            for name, rows in made:
                self._stop()
                count += self._write_table_hour(rows, name, hour, places[name])
        self._progress(f"hour {hour_start(hour):%Y-%m-%dT%H}", count)

    def _source(self, name: str, places: list[str]) -> DataFrame:
        return read_folders(self._spark, self._folder.root, name, places, SOURCES[name])

    def _write_table_hour(self, rows: DataFrame, name: str, hour: int, place: str) -> int:
        """Write an hour of a table below a place; return the number of its rows.

        An hour without rows has a file without rows.
        """
        own = hour_place(place, hour)
        before = self._folder.names(own)
        with translate_errors(f"{self._folder.root}/{place}"):
            replace_hours(rows, f"{self._folder.root}/{place}")
            if self._folder.names(own) == before:  # Spark leaves an hour as it was where there are no rows
                self._write_no_rows(name, own)
                return 0
            return self._spark.read.schema(TABLES[name]).parquet(f"{self._folder.root}/{own}").count()

    def _write_no_rows(self, name: str, place: str) -> None:
        """Write an empty folder of a table, replacing what was there."""
        with translate_errors(f"{self._folder.root}/{place}"):
            self._folder.remove(place)
            self._folder.write(f"{place}/{part_name()}", file_without_rows(TABLES[name]))


def hour_place(place: str, hour: int) -> str:
    """Return the folder of an hour of a table, as Spark names it."""
    began = hour_start(hour)
    return f"{place}/date={began:%Y-%m-%d}/hour={began.hour}"
