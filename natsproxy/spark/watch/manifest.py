"""The ledger of a watch on disk, in `DIR/analysis`, and the tables as it says they are.

`analysis` is one small file of JSON lines, a line per table, replaced by a new one at each change:

    table, rows, written, version   as for any analysis; rows are unknown of tables that have hours
    places                          the folders in which rows stand that count, below DIR
    hours                           of tables that have hours: those of which `DIR/<table>/date=.../hour=...`
                                    counts, as "2026-01-01T09:00Z/2026-01-01T17:00Z"
    open                            those whose rows stand in `places`, since they are not over
    stale                           those of both to which frames have come since they were written

The file's name has its version, and the newest one counts.  The last `KEPT` stay: whoever has listed the
folder still finds what was the newest then.  A line of its own has the ledger itself, for the watch that
takes up.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from datetime import UTC, datetime
from threading import RLock
from typing import Any, Final

from pyspark.sql import DataFrame, Row, SparkSession

from natsproxy.errors import NatsproxyError
from natsproxy.spark.watch.folder import Folder
from natsproxy.spark.watch.watch_state import HOURLY, SOURCES, Hours, WatchState, spans

LIST: Final = "analysis"
COLUMNS: Final = (
    "table string, rows bigint, written string, version bigint, places array<string>, hours array<string>, "
    "open array<string>, stale array<string>"
)
KEPT: Final = 8
"""So many versions of the list stay."""
_NAME = re.compile(r"part-(\d+)\.json")
_MOMENT = "%Y-%m-%dT%H:00Z"


class Manifest:
    """The ledger of the watch that writes in a folder.  One thread at a time changes it."""

    def __init__(self, folder: Folder) -> None:
        """Raises NatsproxyError if there is a watch's data, and not a newest list that can be read."""
        self._folder = folder
        self._lock = RLock()
        self._files = [name for name in folder.names(LIST) if _NAME.fullmatch(name)]
        if self._files:
            self.state = _state(folder, f"{LIST}/{self._files[-1]}")
        else:
            _is_new(folder)
            self.state = WatchState()

    @contextmanager
    def change(self) -> Iterator[WatchState]:
        """Give a draft of the ledger as a new version; it counts once it is on disk, and not before."""
        with self._lock:
            draft = deepcopy(self.state)
            draft.version += 1
            yield draft
            name = f"part-{draft.version:012}.json"
            self._folder.write(f"{LIST}/{name}", "".join(f"{json.dumps(line)}\n" for line in _lines(draft)))
            self.state = draft
            self._files.append(name)
            for old in self._files[:-KEPT]:
                self._folder.remove(f"{LIST}/{old}")
            self._files = self._files[-KEPT:]

    @contextmanager
    def look(self) -> Iterator[WatchState]:
        """Give the ledger while nobody changes it."""
        with self._lock:
            yield self.state


def _state(folder: Folder, place: str) -> WatchState:
    """Return the ledger of a list.

    An older list never takes the place of one that cannot be read: what only the newer one names would be
    removed as left over.
    """
    try:
        lines = [json.loads(line) for line in folder.read(place).splitlines()]
        return WatchState.from_json(next(line["state"] for line in lines if line.get("state")))
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration):
        text = "is not whole, or of another version of natsproxy: use that one, or choose another folder"
        raise NatsproxyError(f"{folder.root}/{place} {text}") from None


def _is_new(folder: Folder) -> None:
    """Refuse batches without a list: nothing would name them."""
    batches = (name.startswith("batches=") for source in SOURCES for name in folder.names(source))
    if folder.names("_checkpoint") or any(batches):
        text = f"there is a watch's data, but no list in {LIST}: choose another folder"
        raise NatsproxyError(f"{folder.root}: {text}")


def _lines(state: WatchState) -> Iterator[dict[str, Any]]:
    common = {"written": "stream", "version": state.version}
    for name in SOURCES:
        runs = state.runs[name]
        rows = sum(run.rows for run in runs)
        yield {"table": name, "rows": rows, "places": [run.place for run in runs], **common}
    for name, hours in state.hours.items():
        if _to_be_read(hours):
            places = [hours.ahead] if hours.ahead and hours.ahead_of else []
            lists = {"hours": _said(hours.done), "open": _said(hours.ahead_of), "stale": _said(hours.stale)}
            yield {"table": name, "places": places, **lists, **common}
    for name, whole in state.whole.items():
        yield {"table": name, "rows": whole.rows, "places": [whole.place], **common}
    yield {"table": LIST, **common, "state": state.to_json()}


def _to_be_read(hours: Hours) -> bool:
    """Whether a table is to be read: an empty one would say that there was nothing."""
    return bool(hours.done or hours.ahead_of or not hours.stale)


def _said(hours: Iterable[int]) -> list[str]:
    return ["/".join(f"{moment(hour):{_MOMENT}}" for hour in span) for span in spans(hours)]


def moment(hour: int) -> datetime:
    """Return when an hour begins."""
    return datetime.fromtimestamp(hour * 3600, UTC)


def newest(rows: Iterable[Row]) -> list[Row]:
    """Return those of the newest list among the rows of `analysis`."""
    rows = list(rows)
    last = max((row["version"] or 0 for row in rows), default=0)
    return [row for row in rows if (row["version"] or 0) == last]


def stored(spark: SparkSession, out: str, source: str, places: Iterable[str], schema: str) -> DataFrame:
    """Return the rows of `frames` or `items` that stand in some places; schema: the source's."""
    paths = [f"{out}/{place}" for place in places]
    if not paths:
        return spark.createDataFrame([], schema)
    # Without a common base, Spark refuses several folders that have folders of days.
    reader = spark.read.schema(schema).option("basePath", f"{out}/{source}")
    return reader.parquet(*paths).drop("batches")


def read(spark: SparkSession, out: str, row: Row, schema: str) -> DataFrame:
    """Return a table of a watch as the list says that it is.

    row: of the list.  schema: of the table; one that has hours has `date` and `hour` besides.
    """
    name, places = row["table"], row["places"]
    if name in SOURCES:
        return stored(spark, out, name, places, schema)
    if name not in HOURLY:
        return spark.read.schema(schema).parquet(f"{out}/{places[0]}")
    reader = spark.read.schema(f"{schema}, date date, hour int")
    found = reader.parquet(f"{out}/{name}").where(_within(row["hours"]))
    for place in places:
        found = found.unionByName(reader.parquet(f"{out}/{place}").where(_within(row["open"])))
    return found


def _within(said: Iterable[str]) -> str:
    """Return the SQL condition for the folders of hours."""
    number = "unix_date(date) * 24 + hour"
    found = []
    for span in said:
        first, end = (datetime.strptime(text, _MOMENT).replace(tzinfo=UTC) for text in span.split("/"))
        found.append(
            f"({number} >= {first.timestamp() // 3600:.0f} AND {number} < {end.timestamp() // 3600:.0f})"
        )
    return " OR ".join(found) or "false"
