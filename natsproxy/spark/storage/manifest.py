"""The manifest: the state of a watch on disk, in `DIR/analysis`, and the tables that it lists.

`analysis` is one small file of JSON lines, a line per table, replaced by a new one at each change:

    table, rows, written, version   as for any analysis; rows are unknown of tables that have hours
    places                          the folders, below DIR, of the rows that count
    hours                           of tables that have hours: those whose `DIR/<table>/date=.../hour=...`
                                    counts, as "2026-01-01T09:00Z/2026-01-01T17:00Z"
    open                            the hours whose rows are in `places`, since they are not over
    stale                           the hours, of both, to which frames have come since they were written

The file's name has its version, and the newest one is valid.  The last `KEPT` are kept, so a reader that has
listed the folder still finds the file that was the newest then.  One more line holds the whole state, from
which the watch resumes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from datetime import UTC, datetime
from threading import RLock
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from natsproxy.errors import NatsproxyError
from natsproxy.spark.schema import SOURCES
from natsproxy.spark.storage.folder import Folder
from natsproxy.spark.storage.parquet import read_folders
from natsproxy.spark.storage.watch_state import HourTable, WatchState, hour_spans
from natsproxy.spark.tables.hours import HOURLY, hour_start

LIST: Final = "analysis"
COLUMNS: Final = (
    "table string, rows bigint, written string, version bigint, places array<string>, hours array<string>, "
    "open array<string>, stale array<string>"
)
KEPT: Final = 8
"""The number of versions of the list that are kept."""
_NAME = re.compile(r"part-(\d+)\.json")
_MOMENT = "%Y-%m-%dT%H:00Z"


class Manifest:
    """The state of the watch that writes in a folder.  One thread at a time changes it."""

    def __init__(self, folder: Folder) -> None:
        """Read the newest list.  Raises NatsproxyError if it is unreadable, or missing beside data."""
        self._folder = folder
        self._lock = RLock()
        self._files = [name for name in folder.names(LIST) if _NAME.fullmatch(name)]
        if self._files:
            self.state = _read_state(folder, f"{LIST}/{self._files[-1]}")
        else:
            _refuse_unlisted(folder)
            self.state = WatchState()

    @contextmanager
    def change(self) -> Iterator[WatchState]:
        """Yield a draft of the next version, which takes effect once it is on disk."""
        with self._lock:
            draft = deepcopy(self.state)
            draft.version += 1
            yield draft
            name = f"part-{draft.version:012}.json"
            lines = "".join(f"{json.dumps(line)}\n" for line in _lines(draft))
            self._folder.write(f"{LIST}/{name}", lines.encode())
            self.state = draft
            self._files.append(name)
            for old in self._files[:-KEPT]:
                self._folder.remove(f"{LIST}/{old}")
            self._files = self._files[-KEPT:]

    @contextmanager
    def current(self) -> Iterator[WatchState]:
        """Yield the state, locked against changes."""
        with self._lock:
            yield self.state


def _read_state(folder: Folder, place: str) -> WatchState:
    """Return the state that a list holds.

    An older list is no substitute for one that cannot be read: the folders that only the newer one names
    would be removed as left over.
    """
    try:
        lines = [json.loads(line) for line in folder.read(place).splitlines()]
    except ValueError:
        lines = []
    return state_in(lines, f"{folder.root}/{place}")


def state_in(lines: Iterable[Mapping[str, Any]], path: str) -> WatchState:
    """Return the state in the lines of a list of a watch; path: of the list.

    Raises NatsproxyError for lines that are incomplete, or of another version.
    """
    try:
        return WatchState.from_json(next(line["state"] for line in lines if line.get("state")))
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration):
        text = "is incomplete, or of another version of natsproxy: use that one, or choose another folder"
        raise NatsproxyError(f"{path} {text}") from None


def _refuse_unlisted(folder: Folder) -> None:
    """Raise NatsproxyError for a folder that has batches but no list that names them."""
    batches = (name.startswith("batches=") for source in SOURCES for name in folder.names(source))
    if folder.names("_checkpoint") or any(batches):
        text = f"there is a watch's data, but no list in {LIST}: choose another folder"
        raise NatsproxyError(f"{folder.root}: {text}")


def _lines(state: WatchState) -> Iterator[dict[str, Any]]:
    """Yield the lines of a list; the last one holds the state."""
    common = {"written": "stream", "version": state.version}
    for name in SOURCES:
        ranges = state.ranges[name]
        rows = sum(one.rows for one in ranges)
        yield {"table": name, "rows": rows, "places": [one.place for one in ranges], **common}
    for name, table in state.hour_tables.items():
        if _is_readable(table):
            places = [table.open_place] if table.open_place and table.open_hours else []
            hours = {"hours": table.done, "open": table.open_hours, "stale": table.stale}
            texts = {key: _span_texts(of) for key, of in hours.items()}
            yield {"table": name, "places": places, **texts, **common}
    for name, whole in state.whole_tables.items():
        yield {"table": name, "rows": whole.rows, "places": [whole.place], **common}
    yield {"table": LIST, **common, "state": state.to_json()}


def _is_readable(table: HourTable) -> bool:
    """Return False until an hour of a table is written: a reader would take it for an empty table."""
    return bool(table.done or table.open_hours or not table.stale)


def _span_texts(hours: Iterable[int]) -> list[str]:
    return ["/".join(f"{hour_start(hour):{_MOMENT}}" for hour in span) for span in hour_spans(hours)]


def newest(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the rows of the newest list among all rows of `analysis`."""
    rows = list(rows)
    last = max((row.get("version") or 0 for row in rows), default=0)
    return [row for row in rows if (row.get("version") or 0) == last]


def read(spark: SparkSession, out: str, row: Mapping[str, Any], schema: str) -> DataFrame:
    """Return a table of a watch from the folders that the list names.

    row: of the list.  schema: of the table; the result has `date` and `hour` besides, if the table has hours.
    """
    name, places = row["table"], row["places"]
    if name in SOURCES:
        return read_folders(spark, out, name, places, schema)
    if name not in HOURLY:
        return spark.read.schema(schema).parquet(f"{out}/{places[0]}")
    reader = spark.read.schema(f"{schema}, date date, hour int")
    found = reader.parquet(f"{out}/{name}").where(_within(row["hours"]))
    for place in places:
        found = found.unionByName(reader.parquet(f"{out}/{place}").where(_within(row["open"])))
    return found


def _within(spans: Iterable[str]) -> str:
    """Return the SQL condition for the folders of hours; spans: as in the list."""
    number = "unix_date(date) * 24 + hour"
    found = []
    for span in spans:
        first, end = (datetime.strptime(text, _MOMENT).replace(tzinfo=UTC) for text in span.split("/"))
        found.append(
            f"({number} >= {first.timestamp() // 3600:.0f} AND {number} < {end.timestamp() // 3600:.0f})"
        )
    return " OR ".join(found) or "false"
