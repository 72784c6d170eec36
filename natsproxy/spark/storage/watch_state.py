"""The state of a watch: the batches it has taken, the folders of their rows, the hours it has written.

It is a value; `manifest.py` keeps it on disk.  A batch is added (`add_batch`) only when its files are whole,
and the hours that it makes stale are noted in the same change; an hour is noted as written (`hour_written`)
only when its tables are whole.  So the state is correct whenever the watch is killed, and work that it does
not list is done again.

**Batch ranges** hold the rows of neighbouring batches in one folder.  A batch begins as a range of its own;
neighbouring ranges are merged (`natsproxy/spark/watch/compaction.py`).  A folder that no range names does not
count.

**Hours** are counted from 1970.  A batch makes stale the hours of its frames, and the neighbouring hours that
look ahead or back to them.  It does not matter how late a batch is: a recorder that was cut off for a day
makes that day's hours stale again.  Whether an hour is over (`is_over`) decides only when it is written,
never the rows that are in it.

Each change has a number, `version`: an hour that was written from one version is stale if a later one touched
it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple

from natsproxy.spark.schema import SOURCES
from natsproxy.spark.tables.hours import HOUR, HOURLY, needs

FORMAT: Final = 3
"""The format of a state as text; another one is refused.

2: `frames` has the columns of JetStream; 3: `js_flow_control` too.
"""


class BatchHour(NamedTuple):
    """The rows that a batch has of one hour: the times of the first and of the last (Unix ns)."""

    hour: int
    first: int
    last: int


@dataclass(frozen=True)
class BatchRange:
    """Neighbouring batches in one folder.

    first, last: batch numbers.  place: the folder, below that of the watch.  level: how often the rows were
    merged.  t0, t1: the times of the first and of the last row (Unix ns).
    """

    first: int
    last: int
    place: str
    level: int
    bytes: int
    rows: int
    t0: int
    t1: int


@dataclass
class HourTable:
    """A table that has hours.

    done: the hours whose folders are written and valid.  stale: the hours to be written, with the version
    that last touched them.  open_place: the folder of the rows of hours that are not over; open_hours: those
    hours.
    """

    done: set[int] = field(default_factory=set)
    stale: dict[int, int] = field(default_factory=dict)
    open_place: str | None = None
    open_hours: set[int] = field(default_factory=set)


@dataclass
class WholeTable:
    """A table that has no hours: its folder, its rows, and the version of the state it was made from."""

    place: str
    rows: int
    as_of: int


@dataclass
class WatchState:
    """The state of a watch, by source (`frames`, `items`) and by table.

    version: counts the changes.  touched: the version that last brought rows.  newest: the time of the newest
    frame (Unix ns).  taken: the last batch.  ranges: the folders of the rows.  known_hours: the hours that
    have rows, or may have.  hour_tables, whole_tables: the tables with and without hours.
    """

    version: int = 0
    touched: int = 0
    newest: int = 0
    taken: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SOURCES, -1))
    ranges: dict[str, list[BatchRange]] = field(default_factory=lambda: {name: [] for name in SOURCES})
    known_hours: dict[str, set[int]] = field(default_factory=lambda: {name: set() for name in SOURCES})
    hour_tables: dict[str, HourTable] = field(default_factory=dict)
    whole_tables: dict[str, WholeTable] = field(default_factory=dict)

    # -- batches

    def add_batch(
        self,
        source: str,
        batch: int,
        written: BatchRange | None,
        hours: Iterable[BatchHour],
        margin: int,
        now: int | None = None,
    ) -> None:
        """Add a batch; written: None where it has no rows.  margin: the ns that hours look ahead and back.

        now: Unix ns; a recorder whose clock is ahead of it closes no hours.
        """
        self.taken[source] = batch
        if written is None:
            return
        hours = list(hours)
        self.ranges[source].append(written)
        self.touched = self.version
        if source == "frames":
            self.newest = max(self.newest, written.t1 if now is None else min(written.t1, now))
        stale = {each.hour for each in hours}
        stale |= {each.hour + 1 for each in hours if each.last >= (each.hour + 1) * HOUR - margin}
        self.known_hours[source] |= stale  # a frame that was delayed may be the only one of the next hour
        stale |= {each.hour - 1 for each in hours if each.first < each.hour * HOUR + margin}
        stale &= set().union(*self.known_hours.values())
        for name, table in self.hour_tables.items():
            if source in needs(name):
                table.stale |= dict.fromkeys(stale, self.version)

    def merge(self, source: str, merged: BatchRange) -> list[str]:
        """Replace the ranges that a merged one holds; return their folders."""
        old = [one for one in self.ranges[source] if merged.first <= one.first and one.last <= merged.last]
        at = self.ranges[source].index(old[0])
        self.ranges[source][at : at + len(old)] = [merged]
        return [one.place for one in old]

    def is_over(self, hour: int, margin: int) -> bool:
        """Return True where an hour and its look-ahead lie before the newest frame of any recorder."""
        return (hour + 1) * HOUR + margin <= self.newest

    def places(self, source: str, start: int | None = None, end: int | None = None) -> list[str]:
        """Return the folders of a source with rows between two times (Unix ns)."""
        return [
            one.place
            for one in self.ranges[source]
            if (start is None or one.t1 >= start) and (end is None or one.t0 < end)
        ]

    # -- tables

    def select_tables(self, tables: Iterable[str]) -> list[str]:
        """Keep only these tables; return the names of the dropped ones."""
        wanted = set(tables) - set(SOURCES)
        dropped = [name for name in [*self.hour_tables, *self.whole_tables] if name not in wanted]
        for name in dropped:
            self.hour_tables.pop(name, None)
            self.whole_tables.pop(name, None)
        for name in wanted & HOURLY.keys() - self.hour_tables.keys():
            hours = set().union(*(self.known_hours[source] for source in needs(name)))
            self.hour_tables[name] = HourTable(stale=dict.fromkeys(hours, self.version))
        return dropped

    def begin_replacing(self, hour: int, tables: Iterable[str]) -> None:
        """Mark an hour of tables as invalid while its folder is replaced; it is due again."""
        for name in tables:
            self.hour_tables[name].done.discard(hour)

    def hour_written(self, table: str, hour: int, as_of: int) -> None:
        """Note that an hour of a table is in its folder, made from the rows of a version."""
        found = self.hour_tables[table]
        found.done.add(hour)
        found.open_hours.discard(hour)
        if found.stale.get(hour, 0) <= as_of:
            found.stale.pop(hour, None)

    def open_hours_written(self, table: str, place: str, hours: Iterable[int], as_of: int) -> str | None:
        """Note the folder of the hours that are not over; return the folder that they had before."""
        found = self.hour_tables[table]
        before, found.open_place, found.open_hours = found.open_place, place, set(hours)
        found.done -= found.open_hours
        for hour in found.open_hours:
            if found.stale.get(hour, 0) <= as_of:
                found.stale.pop(hour, None)
        return before

    def due_hours(self, margin: int) -> dict[int, list[str]]:
        """Return the hours that are over and not written yet, in order, with their tables."""
        return self._by_hour(lambda table, hour: self.is_over(hour, margin) and hour not in table.done)

    def late_hours(self, margin: int) -> dict[int, list[str]]:
        """Return the written hours to which frames have come since, with their tables."""
        return self._by_hour(lambda table, hour: self.is_over(hour, margin) and hour in table.done)

    def unfinished_hours(self) -> dict[int, list[str]]:
        """Return all hours that are stale or have no folder of their own, with their tables."""
        return self._by_hour(lambda table, hour: True)

    def open_hours(self, margin: int) -> dict[int, list[str]]:
        """Return the hours that are not over, if one of them is stale; with those that share their folder."""
        found = self._by_hour(lambda table, hour: hour in table.open_hours or not self.is_over(hour, margin))
        stale = {hour for hour in found for table in self.hour_tables.values() if hour in table.stale}
        return found if stale else {}

    def _by_hour(self, wanted: Callable[[HourTable, int], bool]) -> dict[int, list[str]]:
        found: dict[int, list[str]] = {}
        for name, table in self.hour_tables.items():
            for hour in table.stale.keys() | table.open_hours:
                if wanted(table, hour):
                    found.setdefault(hour, []).append(name)
        return dict(sorted(found.items()))

    def outdated_tables(self, tables: Iterable[str]) -> list[str]:
        """Return the tables without hours, among these, that lack rows of the last batches."""
        return [
            name
            for name in tables
            if name not in HOURLY
            and (name not in self.whole_tables or self.whole_tables[name].as_of < self.touched)
        ]

    # -- as text: the keys are those of the files that watches have written

    def to_json(self) -> str:
        """Return the state as JSON; hours that follow each other are one entry."""
        return json.dumps(
            {
                "format": FORMAT,
                "version": self.version,
                "touched": self.touched,
                "newest": self.newest,
                "taken": self.taken,
                "runs": {name: [asdict(one) for one in ranges] for name, ranges in self.ranges.items()},
                "seen": {name: hour_spans(hours) for name, hours in self.known_hours.items()},
                "hours": {name: _hour_table_json(table) for name, table in self.hour_tables.items()},
                "whole": {name: asdict(table) for name, table in self.whole_tables.items()},
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str) -> WatchState:
        """Return the state of a text of `to_json`.  Raises ValueError, KeyError or TypeError for another."""
        raw: dict[str, Any] = json.loads(text)
        if raw.get("format", 1) != FORMAT:  # the first lists have no format
            raise ValueError(f"a watch state of format {raw['format']}")
        return cls(
            **{key: raw[key] for key in ("version", "touched", "newest", "taken")},
            ranges={name: [BatchRange(**one) for one in ranges] for name, ranges in raw["runs"].items()},
            known_hours={name: _hours_of(spans) for name, spans in raw["seen"].items()},
            hour_tables={name: _hour_table(table) for name, table in raw["hours"].items()},
            whole_tables={name: WholeTable(**table) for name, table in raw["whole"].items()},
        )


def hour_spans(hours: Iterable[int]) -> list[tuple[int, int]]:
    """Return hours as spans: the first hour, and the one behind the last."""
    found: list[tuple[int, int]] = []
    for hour in sorted(hours):
        if found and found[-1][1] == hour:
            found[-1] = (found[-1][0], hour + 1)
        else:
            found.append((hour, hour + 1))
    return found


def _hours_of(spans: Iterable[Iterable[int]]) -> set[int]:
    return {hour for first, end in spans for hour in range(first, end)}


def _hour_table_json(table: HourTable) -> dict[str, Any]:
    return {
        "done": hour_spans(table.done),
        "stale": table.stale,
        "ahead": table.open_place,
        "ahead_of": hour_spans(table.open_hours),
    }


def _hour_table(raw: dict[str, Any]) -> HourTable:
    stale = {int(hour): version for hour, version in raw["stale"].items()}  # JSON has texts for keys
    return HourTable(_hours_of(raw["done"]), stale, raw["ahead"], _hours_of(raw["ahead_of"]))
