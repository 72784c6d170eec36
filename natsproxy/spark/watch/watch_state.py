"""The ledger of a watch: which batches it has taken, where they are, which hours of which tables are written.

It is a value; `book.py` keeps it on disk.  A batch goes in (`add`) only when its files are whole, and with
it, at once, the hours that it makes stale; an hour goes in (`wrote`) only when its tables are whole.  So
whatever the ledger says is true at any moment at which the watch may be killed, and what it does not say is
done again.

**Runs**: the rows of neighbouring batches, in one folder.  A batch begins as a run of its own; runs that are
neighbours are merged (`compaction.py`).  What no run names does not count.

**Hours** are counted from 1970.  A batch makes stale the hours of its frames, and the neighbours that look
ahead or back to them.  It does not matter how late it is: a recorder that was cut off for a day makes that
day's hours stale again.  Whether an hour is over decides only when it is written (`over`), never what is in
it.

A change has a number, `version`: what was written as of one is stale if it was touched by a later one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple

from natsproxy.spark.tables import FROM

HOUR: Final = 3_600_000_000_000
"""An hour, ns."""
FORMAT: Final = 1
"""Of a ledger as text; another one is not read."""
SOURCES: Final = ("frames", "items")
HOURLY: Final = {
    "requests": "t1",
    "js_api": "t1",
    "pub_acks": "t1",
    "js_acks": "delivered_ns",
    "fanout": "published_ns",
    "headers": "t_ns",
    "errors": "t_ns",
    "subjects": "unix_seconds(minute) * 1000000000",
    "faults": "t_ns",
    "gaps": "t_ns",
}
"""The tables that have hours, and when a row of each begins (Unix ns)."""


def needs(table: str) -> set[str]:
    """Return which of `frames` and `items` a table is computed from."""
    return {"items" if source == "items" else "frames" for source in FROM[table][1]}


class Part(NamedTuple):
    """What a batch has of one hour: the times of its first and of its last row (Unix ns)."""

    hour: int
    first: int
    last: int


@dataclass(frozen=True)
class Run:
    """Neighbouring batches in one folder; place: below the folder of the watch, t0, t1: Unix ns."""

    first: int
    last: int
    place: str
    level: int
    bytes: int
    rows: int
    t0: int
    t1: int


@dataclass
class Hours:
    """A table of hours.

    done: those that stand in their folders, and count.  stale: those to be written, with the version that
    last touched them.  ahead, ahead_of: where the rows of hours that are not over stand, and whose they are.
    """

    done: set[int] = field(default_factory=set)
    stale: dict[int, int] = field(default_factory=dict)
    ahead: str | None = None
    ahead_of: set[int] = field(default_factory=set)


@dataclass
class Whole:
    """A table that has no hours: where it stands, its rows, and as of which version."""

    place: str
    rows: int
    as_of: int


@dataclass
class WatchState:
    """See the module."""

    version: int = 0
    touched: int = 0
    newest: int = 0
    taken: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SOURCES, -1))
    runs: dict[str, list[Run]] = field(default_factory=lambda: {name: [] for name in SOURCES})
    seen: dict[str, set[int]] = field(default_factory=lambda: {name: set() for name in SOURCES})
    hours: dict[str, Hours] = field(default_factory=dict)
    whole: dict[str, Whole] = field(default_factory=dict)

    # -- what comes

    def add(
        self,
        source: str,
        batch: int,
        run: Run | None,
        parts: Iterable[Part],
        around: int,
        now: int | None = None,
    ) -> None:
        """Take a batch in; run: None where it has no rows.  around: ns that hours look ahead and back.

        now: Unix ns; a recorder whose clock is ahead of it closes no hours.
        """
        self.taken[source] = batch
        if run is None:
            return
        parts = list(parts)
        self.runs[source].append(run)
        self.touched = self.version
        if source == "frames":
            self.newest = max(self.newest, run.t1 if now is None else min(run.t1, now))
        stale = {part.hour for part in parts}
        stale |= {part.hour + 1 for part in parts if part.last >= (part.hour + 1) * HOUR - around}
        self.seen[source] |= stale  # a frame that was delayed may be the only one of the next hour
        stale |= {part.hour - 1 for part in parts if part.first < part.hour * HOUR + around}
        stale &= set().union(*self.seen.values())
        for name, table in self.hours.items():
            if source in needs(name):
                table.stale |= dict.fromkeys(stale, self.version)

    def merge(self, source: str, run: Run) -> list[str]:
        """Put a run in the place of those that it holds; return where those stand."""
        old = [one for one in self.runs[source] if run.first <= one.first and one.last <= run.last]
        at = self.runs[source].index(old[0])
        self.runs[source][at : at + len(old)] = [run]
        return [one.place for one in old]

    def over(self, hour: int, around: int) -> bool:
        """Whether an hour and its look-ahead lie behind the newest frame of any recorder."""
        return (hour + 1) * HOUR + around <= self.newest

    def places(self, source: str, start: int | None = None, end: int | None = None) -> list[str]:
        """Return where the rows of a source stand; those between two times (Unix ns), if there are such."""
        return [
            run.place
            for run in self.runs[source]
            if (start is None or run.t1 >= start) and (end is None or run.t0 < end)
        ]

    # -- what is written

    def want(self, tables: Iterable[str]) -> list[str]:
        """Keep these tables, no others; return where those stand that are not wanted any more."""
        wanted = set(tables) - set(SOURCES)
        gone = [name for name in [*self.hours, *self.whole] if name not in wanted]
        for name in gone:
            self.hours.pop(name, None)
            self.whole.pop(name, None)
        for name in wanted & HOURLY.keys() - self.hours.keys():
            seen = set().union(*(self.seen[source] for source in needs(name)))
            self.hours[name] = Hours(stale=dict.fromkeys(seen, self.version))
        return gone

    def replace(self, hour: int, tables: Iterable[str]) -> None:
        """An hour of tables does not count while its folder is replaced; it is due again."""
        for name in tables:
            self.hours[name].done.discard(hour)

    def wrote(self, table: str, hour: int, as_of: int) -> None:
        """An hour of a table stands in its folder, from what there was as of a version."""
        hours = self.hours[table]
        hours.done.add(hour)
        hours.ahead_of.discard(hour)
        if hours.stale.get(hour, 0) <= as_of:
            hours.stale.pop(hour, None)

    def wrote_ahead(self, table: str, place: str, hours: Iterable[int], as_of: int) -> str | None:
        """The rows of hours that are not over stand in a place; return where they stood before."""
        found = self.hours[table]
        before, found.ahead, found.ahead_of = found.ahead, place, set(hours)
        found.done -= found.ahead_of
        for hour in found.ahead_of:
            if found.stale.get(hour, 0) <= as_of:
                found.stale.pop(hour, None)
        return before

    def due(self, around: int) -> dict[int, list[str]]:
        """Return the hours that are over and not written yet, in order, with their tables."""
        return self._by_hour(lambda table, hour: self.over(hour, around) and hour not in table.done)

    def late(self, around: int) -> dict[int, list[str]]:
        """Return the hours that were written, and to which frames have come since."""
        return self._by_hour(lambda table, hour: self.over(hour, around) and hour in table.done)

    def rest(self) -> dict[int, list[str]]:
        """Return all hours that do not stand in their folders as they should."""
        return self._by_hour(lambda table, hour: True)

    def open(self, around: int) -> dict[int, list[str]]:
        """Return the hours that are not over, if one of them is stale; with those that stand beside them."""
        found = self._by_hour(lambda table, hour: hour in table.ahead_of or not self.over(hour, around))
        fresh = {hour for hour in found for table in self.hours.values() if hour in table.stale}
        return found if fresh else {}

    def _by_hour(self, wanted: Callable[[Hours, int], bool]) -> dict[int, list[str]]:
        found: dict[int, list[str]] = {}
        for name, table in self.hours.items():
            for hour in table.stale.keys() | table.ahead_of:
                if wanted(table, hour):
                    found.setdefault(hour, []).append(name)
        return dict(sorted(found.items()))

    def behind(self, tables: Iterable[str]) -> list[str]:
        """Return those of the tables without hours that are not as of the last batch."""
        return [
            name
            for name in tables
            if name not in HOURLY and (name not in self.whole or self.whole[name].as_of < self.touched)
        ]

    # -- as text

    def to_json(self) -> str:
        """Return it as JSON; hours that follow each other are one entry."""
        return json.dumps(
            {"format": FORMAT, **asdict(self)}, default=lambda hours: spans(hours), separators=(",", ":")
        )

    @classmethod
    def from_json(cls, text: str) -> WatchState:
        """Return what `to_json` made a text of.  Raises ValueError, KeyError or TypeError for another."""
        raw: dict[str, Any] = json.loads(text)
        if raw.get("format", 1) != FORMAT:  # the first lists did not say theirs
            raise ValueError(f"a ledger of format {raw['format']}")
        return cls(
            **{key: raw[key] for key in ("version", "touched", "newest", "taken")},
            runs={name: [Run(**run) for run in runs] for name, runs in raw["runs"].items()},
            seen={name: _set(pairs) for name, pairs in raw["seen"].items()},
            hours={name: _hours(table) for name, table in raw["hours"].items()},
            whole={name: Whole(**table) for name, table in raw["whole"].items()},
        )


def spans(hours: Iterable[int]) -> list[tuple[int, int]]:
    """Return hours as spans: the first, and the one behind the last."""
    found: list[tuple[int, int]] = []
    for hour in sorted(hours):
        if found and found[-1][1] == hour:
            found[-1] = (found[-1][0], hour + 1)
        else:
            found.append((hour, hour + 1))
    return found


def _set(pairs: Iterable[Iterable[int]]) -> set[int]:
    return {hour for first, end in pairs for hour in range(first, end)}


def _hours(raw: dict[str, Any]) -> Hours:
    stale = {int(hour): version for hour, version in raw["stale"].items()}
    return Hours(_set(raw["done"]), stale, raw["ahead"], _set(raw["ahead_of"]))
