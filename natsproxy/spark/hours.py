"""Tables by the hour: each closed hour is computed once more or again, alone, and replaces what was there.

A request of 9:59:59.9 is answered at 10:00:00.1: to pair them, an hour is computed from its own frames and
those of a look-ahead behind it, and keeps the rows that begin in it.  A look-back before it tells a reply
that is late from the reply to the next request on the same subject.  So each row is in one hour, whatever
hours are computed together or apart, and an hour that is computed again (after a recorder was late, or after
a crash) has the rows that it would have had at once.

That is what a stream cannot do: its watermark is the latest time of *any* recorder, less a delay.  Rows of a
recorder that lags behind, or catches up, are older than that, and are dropped without an error; and what
waits for an answer at the end of a quiet stream never comes out.  So frames are streamed (that needs no
state), and what needs state is computed from them hour by hour.

Which hours are closed: those whose look-ahead is over by the newest frame.  The tables stand under `out` in
`date=.../hour=...`, written by Spark's dynamic partition overwriting: an hour that is there is whole, and one
that has no rows is left as it is.  Tables of whole connections (`connections`, `subscriptions`, `liveness`)
have no hours, nor have those that need more than frames.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from natsproxy.errors import ConfigError
from natsproxy.rules.values import duration
from natsproxy.spark.schema import TABLES
from natsproxy.spark.tables import FROM, derive, exchanges
from natsproxy.spark.tables.messages import fanout

HOUR: Final = 3_600_000_000_000
BEGINS: Final = {
    "requests": "t1", "js_api": "t1", "pub_acks": "t1", "js_acks": "delivered_ns", "fanout": "published_ns",
    "headers": "t_ns", "errors": "t_ns", "subjects": "unix_seconds(minute) * 1000000000",
}  # fmt: skip
"""The tables that have hours, and when a row of each begins (Unix ns)."""


def closed_hours(frames: DataFrame, lookahead: str = "60s") -> list[datetime]:
    """Return the hours that frames are of and whose look-ahead is over by the newest of them, in order."""
    rows = frames.groupBy(F.expr(f"t_ns DIV {HOUR}").alias("hour")).agg(F.max("t_ns").alias("last")).collect()
    upto = max((row["last"] for row in rows), default=0) - _ns(lookahead)
    closed = sorted(row["hour"] for row in rows if (row["hour"] + 1) * HOUR <= upto)
    return [datetime.fromtimestamp(hour * HOUR // 10**9, UTC) for hour in closed]


def write_hours(
    spark: SparkSession,
    frames_path: str | Path,
    out: str | Path,
    tables: Iterable[str] = tuple(BEGINS),
    hours: Iterable[datetime] | None = None,
    lookahead: str = "60s",
) -> list[datetime]:
    """Compute tables of whole hours from stored frames, replacing those hours; return the hours.

    hours: any moment in each; all closed ones without.  lookahead: how long after an hour an answer is still
    looked for, and how long before it a question.  Raises ConfigError for a table that has no hours, and for
    what is no duration.
    """
    wanted = list(tables)
    for name in wanted:
        if name not in BEGINS:
            known = "there is no table" if name not in TABLES else "there are no hours of the table"
            raise ConfigError(f"{known} {name!r}: by the hour there are {', '.join(BEGINS)}")
    frames = spark.read.parquet(str(frames_path))
    moments = closed_hours(frames, lookahead) if hours is None else hours
    starts = sorted({int(moment.timestamp()) // 3600 for moment in moments})
    for hour in starts:
        _write(frames, str(out), wanted, hour * HOUR, _ns(lookahead))
    return [datetime.fromtimestamp(hour * 3600, UTC) for hour in starts]


def _write(frames: DataFrame, out: str, tables: list[str], start: int, around: int) -> None:
    """Replace one hour of tables, from `start` on (Unix ns)."""
    end = start + HOUR
    seen = frames.where(f"t_ns >= {start - around} AND t_ns < {end + around}")
    if "date" in frames.columns:  # the folders that the frames stand in
        days = [datetime.fromtimestamp(t // 10**9, UTC).date() for t in (start - around, end + around)]
        seen = seen.where(F.col("date").between(*days))
    hour = datetime.fromtimestamp(start // 10**9, UTC)
    own = f"at_ns >= {start} AND at_ns < {end}"
    paired = exchanges(seen, own).persist() if any("exchanges" in FROM[name][1] for name in tables) else None
    for name in tables:
        rows = fanout(seen, own) if name == "fanout" else derive(name, seen, paired=paired)
        begun = F.expr(BEGINS[name])
        rows = rows.where((begun >= start) & (begun < end))
        rows = rows.withColumns({"date": F.lit(hour.date()), "hour": F.lit(hour.hour)})
        writer = rows.write.mode("overwrite").option("partitionOverwriteMode", "dynamic")
        writer.partitionBy("date", "hour").parquet(f"{out}/{name}")
    if paired is not None:
        paired.unpersist()


def _ns(lookahead: str) -> int:
    try:
        return duration(lookahead)
    except ValueError as error:
        raise ConfigError(f"the look-ahead {error}") from None
