"""The complete tables in a folder, and the time axis that all charts share.

A table that was not requested, that a failed run left incomplete, or that an earlier analysis left behind is
not in the list of the analysis.  The report does not fail without it: its section gives the reason.  The
list is read once, so all sections show the same moment even while a watch is writing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from natsproxy.spark.sail import percentile
from natsproxy.spark.storage.store import Store
from natsproxy.spark.tables.folding import folded, template_folds

BUCKETS: Final = 240
"""The most steps that the time axis can have."""
_TEMPLATES: Final = ("subjects", "subscriptions", "errors")
"""Tables that have all templates together: some subscriptions get no message, some subjects are denied."""
_UNFOLDED: Final = ("permissions",)
"""Tables whose templates are no names for people: a block is made of them."""
_US, _MS, _S = 1_000, 1_000_000, 1_000_000_000
_STEPS: Final = tuple(
    unit * step
    for unit, steps in (
        (_US, (1, 2, 5, 10, 20, 50, 100, 200, 500)),
        (_MS, (1, 2, 5, 10, 20, 50, 100, 200, 500)),
        (_S, (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)),
    )
    for step in steps
)
"""Readable widths of a step, in ns."""


def short(recorder: str) -> str:
    """Return the short name of a recorder, for the page."""
    return recorder[:8]


class Tables:
    """The tables under `out`; `why` has a sentence for each table that cannot be read.

    recorder_choices: the recorders that a reader of the page can choose, for which groups are counted
    separately, too; none where one recorder wrote everything.
    """

    def __init__(self, spark: SparkSession, out: str | Path) -> None:
        self._store = Store(spark, out)
        self._listed = self._store.listed()
        self._open: dict[str, DataFrame | None] = {}
        self.why: dict[str, str] = {}
        self.recorder_choices: list[str] = []
        self._spark = spark
        self._folds: list[str] = []

    def get(self, name: str) -> DataFrame | None:
        """Return a table; None, with a reason in `why`, where it is missing or incomplete."""
        if name not in self._open:
            row = self._listed.get(name)
            self._open[name] = None if row is None else self._folded(name, self._store.read_listed(row))
            if row is None:
                self.why[name] = f"The table “{name}” was not written by this analysis."
        return self._open[name]

    def fold(self) -> None:
        """Fold the templates of all tables where those of messages, subscriptions or errors are too many."""
        found = [table.select("template") for name in _TEMPLATES if (table := self.get(name)) is not None]
        if found:
            self._folds = template_folds(reduce(DataFrame.union, found))
            self._open.clear()

    def percentile(self, column: str, share: str) -> str:
        """Return the SQL of a percentile: a measured value, the same one on each engine."""
        return f"max({column})" if share == "1.0" else percentile(self._spark, column, share)

    def _folded(self, name: str, table: DataFrame) -> DataFrame:
        if not self._folds or "template" not in table.columns or name in _UNFOLDED:
            return table
        return table.withColumn("template", folded("template", self._folds))


@dataclass(frozen=True)
class Axis:
    """Time in equal steps: t0, when it begins (Unix ns), step (ns), count (at most `BUCKETS`)."""

    t0: int
    step: int
    count: int

    def bucket(self, column: str, coarse: int = 1) -> Column:
        """Return the step of a time (Unix ns); times outside fall into the first or the last."""
        width = self.step * coarse
        last = max(0, self.steps(coarse) - 1)
        return F.expr(f"cast(greatest(0, least({last}, ({column} - {self.t0}) div {width})) as int)")

    def coarse(self, most: int) -> int:
        """Return by how much steps must widen so that there are `most` at most."""
        return -(-self.count // most)

    def steps(self, coarse: int) -> int:
        """Return the number of steps if each is `coarse` times as wide."""
        return -(-self.count // coarse)

    def since(self, moment: str) -> Column:
        """Return a time (Unix ns, SQL) in ms since the axis began."""
        return F.expr(f"({moment} - {self.t0}) / 1e6D")

    def ms(self, t: int | None) -> float | None:
        """Return a time (Unix ns) in ms since the axis began."""
        return None if t is None else (t - self.t0) / 1e6

    def series(self, rows: dict[int, Any], zero: Any = 0) -> list[Any]:
        """Return values by step as a list with one entry for each step."""
        return [rows.get(place, zero) for place in range(self.count)]


def axis(first: int, last: int) -> Axis:
    """Return the axis from `first` to `last` (Unix ns), in the narrowest readable step that fits."""
    span = max(1, last - first)
    days = -(-span // (BUCKETS * 86_400 * _S))
    step = next((step for step in _STEPS if span // step < BUCKETS), days * 86_400 * _S)
    return Axis(first, step, span // step + 1)
