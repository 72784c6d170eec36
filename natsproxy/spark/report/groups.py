"""Grouped rows from Spark: counts for all recorders together and for each one.

Where several recorders wrote the tables, the row of a group has `by_recorder`: its counts for each recorder,
by the recorder's short name.  Texts are cut to `TEXT` characters, so groups whose names differ only after
that are one group.  Latencies are in ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from natsproxy.spark.report.tables import Tables, short

TOP: Final = 50
"""The rows of a table in the report."""
POINTS: Final = 60
"""The points of a sparkline."""
TEXT: Final = 160
"""The characters to which subjects and texts are cut."""

Row = dict[str, Any]
Rows = list[Row]


def cut(column: str) -> Column:
    """Return a text column, cut to `TEXT` characters."""
    return F.substring(column, 1, TEXT)


def rows(frame: DataFrame) -> Rows:
    """Collect a small result."""
    return [row.asDict() for row in frame.collect()]


def percentiles(
    tables: Tables,
    column: str,
    name: str = "latency",
    shares: Sequence[str] = ("0.5", "0.9", "0.99", "1.0"),
) -> Column:
    """Return percentiles of a column of ns as an array of ms: p50, p90, p99, largest; NULL without values."""
    of_each = ", ".join(f"{tables.percentile(column, share)} / 1e6D" for share in shares)
    return F.expr(f"if(count({column}) = 0, NULL, array({of_each}))").alias(name)


def connection_name(recorder: str | None, conn: int | None) -> str | None:
    """Return a unique name for a connection; it ends in `#` and the connection's number."""
    return None if conn is None else f"{short(recorder or '')}#{conn}"


class Groups:
    """The groups of a table by some of its columns."""

    def __init__(self, table: DataFrame, by: Sequence[str], tables: Tables) -> None:
        texts = [name for name, kind in table.dtypes if name in by and kind == "string"]
        # Spark Connect, and so Sail, refuses an empty list of columns.
        self._table = table.withColumns({name: cut(name) for name in texts}) if texts else table
        self._by, self._recorders = tuple(by), tables.recorder_choices

    def top(self, counts: Sequence[Column], *order: Column) -> Rows:
        """Return the counts of the first `TOP` groups in this order; ties are ordered by name."""
        grouped = self._table.groupBy(*self._by).agg(*counts)
        return self._with_recorders(rows(grouped.orderBy(*order, *self._by).limit(TOP)), counts)

    def with_whole(self, counts: Sequence[Column], order: str, also: str = "") -> tuple[Row, Rows]:
        """Return the counts of all rows, and those of the `TOP` groups with the largest `order`.

        also: SQL; the `TOP` groups with its largest values are returned, too.
        """
        by = self._by
        grouped = self._table.rollup(*by).agg(F.grouping_id().alias("level"), *counts)
        kept = grouped.where(F.col("level").isin(0, 2 ** len(by) - 1))
        whole, *found = rows(kept.orderBy(F.desc("level"), F.desc(order), *by).limit(TOP + 1)) or [{}]
        if also and len(found) == TOP:
            known = set(map(self._key, found))
            others = rows(kept.where("level = 0").orderBy(F.expr(also).desc(), *by).limit(TOP))
            found += [row for row in others if self._key(row) not in known]
        for row in (whole, *found):
            row.pop("level", None)
        return {name: whole[name] for name in whole if name not in by}, self._with_recorders(found, counts)

    def add_over(self, found: Rows, at: Column, value: Column, steps: int, zero: Any = None) -> None:
        """Add a series to groups that were found (`over`): a value for each step of time."""
        places = {(*self._key(row), None): row for row in found}
        for row in found:
            places |= {
                (*self._key(row), recorder): part for recorder, part in row.get("by_recorder", {}).items()
            }
        for place in places.values():
            place["over"] = [zero] * steps
        matching, counts = self._matching(found), (value.alias("value"),)
        answers = rows(matching.groupBy(*self._by, at.alias("at")).agg(*counts))
        if self._recorders:
            alone = matching.where(F.col("recorder").isin(self._recorders))
            answers += rows(alone.groupBy(*self._by, "recorder", at.alias("at")).agg(*counts))
        for row in answers:
            name = (*self._key(row), short(row["recorder"]) if "recorder" in row else None)
            if name in places:
                places[name]["over"][row["at"]] = row["value"]

    def _with_recorders(self, found: Rows, counts: Sequence[Column]) -> Rows:
        """Add the counts of each recorder (`by_recorder`), where there are several."""
        if not self._recorders or not found:
            return found
        known = {self._key(row): row for row in found}
        for row in found:
            row["by_recorder"] = {}
        alone = self._matching(found).where(F.col("recorder").isin(self._recorders))
        for row in rows(alone.groupBy(*self._by, "recorder").agg(*counts)):
            if (group := known.get(self._key(row))) is not None:
                counted = {name: row[name] for name in row if name not in self._by}
                group["by_recorder"][short(counted.pop("recorder"))] = counted
        return found

    def _matching(self, found: Rows) -> DataFrame:
        """Return the rows of groups that were found, and of others with the same first key."""
        first = F.col(self._by[0])
        return self._table.where(first.isNull() | first.isin([row[self._by[0]] for row in found]))

    def _key(self, row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in self._by)
