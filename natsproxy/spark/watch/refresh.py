"""The tables that a watch derives while it goes on.

    an hour that is over            is written at once, into `DIR/<table>/date=.../hour=...`
    one to which frames came late   is written again, whole, into the same folder
    an hour that is not over        stands in `DIR/_open/<table>`, until it is over or the watch ends
    tables without hours            are written as a new version, `DIR/<table>/version=...`

The first is due by the captures; the others, by the clock, are worth a tenth of the time (`Throttle`): they
are
computed anew each time, and how long that takes depends on the traffic.  So who reads while the watch goes on
sees the hours that are over, whole, and the rest as it was a while ago; the list says what is what.

Where a folder is replaced, a query that is open at that moment may miss a file, and fails; asked again, it is
right.

A frame is late where its recorder was cut off, or catches up, or is simply behind the others: hours are over
by the newest frame of *any* recorder, since one that is gone for ever would hold them open for ever.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark.sql import DataFrame, SparkSession

from natsproxy.spark.errors import translate_errors
from natsproxy.spark.jobs.analyze import Progress
from natsproxy.spark.jobs.hours import hour_tables
from natsproxy.spark.jobs.store import SOURCES as SCHEMAS
from natsproxy.spark.schema import TABLES
from natsproxy.spark.tables import derive
from natsproxy.spark.watch.folder import Folder
from natsproxy.spark.watch.manifest import Manifest, moment, stored
from natsproxy.spark.watch.watch_state import HOUR, HOURLY, SOURCES, Whole

AHEAD = "_open"
"""The folder of the hours that are not over."""
SHARE = 10
"""What is not over takes one part in so many of the time."""


class Throttle:
    """When work that could be done at any time is due again: it takes one part in `SHARE` of the time."""

    def __init__(self, least: float, clock: Callable[[], float] = time.monotonic) -> None:
        """least: seconds between two times, at least."""
        self._least, self._clock = least, clock
        self._next = clock() + least

    def due(self) -> bool:
        """Whether it is time."""
        return self._clock() >= self._next

    @contextmanager
    def work(self) -> Iterator[None]:
        """Do it inside."""
        began = self._clock()
        yield
        ended = self._clock()
        self._next = ended + max(self._least, (ended - began) * (SHARE - 1))


class Refresh:
    """The derived tables of one watch.  `stop` is asked between tables; it may raise to end at once."""

    def __init__(
        self,
        spark: SparkSession,
        folder: Folder,
        manifest: Manifest,
        tables: list[str],
        around: int,
        stop: Callable[[], bool],
        progress: Progress,
    ) -> None:
        self._spark, self._folder, self._manifest = spark, folder, manifest
        self._tables = [name for name in tables if name not in SOURCES]
        self._around, self._stop, self._progress = around, stop, progress
        for name in self._tables:
            folder.make(name)  # a table that has no rows yet is there

    def close_one(self) -> bool:
        """Write the first hour that is over and not written yet; return whether there was one."""
        with self._manifest.look() as state:
            due = state.due(self._around)
        for hour, tables in due.items():
            self._write(hour, tables)
            return True
        return False

    def refresh(self) -> list[str]:
        """Write what is not as it should be, for now; return the places that count no more."""
        with self._manifest.look() as state:
            late, open_hours = state.late(self._around), state.open(self._around)
        for hour, tables in late.items():
            self._write(hour, tables)
        return self._ahead(open_hours) + self._without_hours()

    def finish(self) -> None:
        """Write everything as if every hour were over."""
        with self._manifest.look() as state:
            rest = state.rest()
        for hour, tables in rest.items():
            self._write(hour, tables)
        self._without_hours()

    def _write(self, hour: int, tables: list[str]) -> None:
        """Replace an hour of tables in their folders."""
        with self._manifest.look() as state:
            again = [name for name in tables if hour in state.hours[name].done]
        if again:  # Spark removes what is there before it puts the new files in its place
            with self._manifest.change() as state:
                state.replace(hour, again)
        with self._manifest.look() as state:
            as_of = state.version
        self._hour(hour, {name: name for name in tables})
        with self._manifest.change() as state:
            for name in tables:
                state.wrote(name, hour, as_of)

    def _ahead(self, hours: dict[int, list[str]]) -> list[str]:
        """Write hours that are not over beside the table."""
        with self._manifest.look() as state:
            as_of = state.version
        places = {name: f"{AHEAD}/{name}/version={as_of}" for tables in hours.values() for name in tables}
        for place in places.values():
            self._folder.remove(place)  # of an attempt that was killed
            self._folder.make(place)  # it is there, whatever is in it
        for hour, tables in hours.items():
            self._hour(hour, {name: places[name] for name in tables})
        if not places:
            return []
        with self._manifest.change() as state:
            of = {name: [hour for hour, tables in hours.items() if name in tables] for name in places}
            before = [state.wrote_ahead(name, place, of[name], as_of) for name, place in places.items()]
        return [place for place in before if place is not None]

    def _without_hours(self) -> list[str]:
        with self._manifest.look() as state:
            as_of, behind = state.version, state.behind(self._tables)
            places = {source: state.places(source) for source in SOURCES}
        old = []
        for name in behind:
            self._stop()
            place = f"{name}/version={as_of}"
            with translate_errors(f"{self._folder.root}/{name}"):
                rows = derive(name, *(self._source(source, places[source]) for source in SOURCES))
                target = f"{self._folder.root}/{place}"
                rows.write.mode("overwrite").option("partitionOverwriteMode", "static").parquet(target)
                count = self._spark.read.schema(rows.schema).parquet(target).count()
            with self._manifest.change() as state:
                before = state.whole.get(name)
                state.whole[name] = Whole(place, count, as_of)
            old += [before.place] if before is not None and before.place != place else []
            self._progress(name, count)
        return old

    def _hour(self, hour: int, places: dict[str, str]) -> None:
        """Write an hour of tables, each below its place."""
        start, end = hour * HOUR - self._around, (hour + 1) * HOUR + self._around
        with self._manifest.look() as state:
            there = {source: state.places(source, start, end) for source in SOURCES}
        frames, items = (self._source(source, there[source]) for source in SOURCES)
        wanted = [name for name in HOURLY if name in places]
        if "faults" in wanted and items.where("kind = 'firing'").isEmpty():
            wanted.remove("faults")  # the common case, and a long plan
        count = 0
        with hour_tables(frames, items, wanted, hour, self._around) as made:
            for name, rows in made:
                self._stop()
                count += self._put(rows, name, hour, places[name])
        self._progress(f"hour {moment(hour):%Y-%m-%dT%H}", count)

    def _source(self, name: str, places: list[str]) -> DataFrame:
        return stored(self._spark, self._folder.root, name, places, SCHEMAS[name])

    def _put(self, rows: DataFrame, name: str, hour: int, place: str) -> int:
        """Write an hour of a table below a place; return how many rows it has.  One without has no folder."""
        target, began = f"{self._folder.root}/{place}", moment(hour)
        own = f"date={began:%Y-%m-%d}/hour={began.hour}"
        before = self._folder.names(f"{place}/{own}")
        with translate_errors(target):
            writer = rows.write.mode("overwrite").option("partitionOverwriteMode", "dynamic")
            writer.partitionBy("date", "hour").parquet(target)
            there = self._folder.names(f"{place}/{own}")
            if there and there == before:  # there are no rows: nothing has replaced what they were
                self._folder.remove(f"{place}/{own}")
                return 0
            return self._spark.read.schema(TABLES[name]).parquet(f"{target}/{own}").count() if there else 0
