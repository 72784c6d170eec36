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
`date=.../hour=...`, written by Spark's dynamic partition overwriting: an hour that is there is whole, and
one that has no rows is left as it is.  A watch does this by itself (`derived.py`); `write_hours` does it
for frames that something else has stored.

Tables of whole connections (`connections`, `subscriptions`, `liveness`) have no hours.  What the hours see
differently from tables of everything at once is what lies further apart than the look-ahead: a reply that
comes later is none, pull requests on one inbox are a row per hour, and a reply subject that is used again
hours later counts as a new one.  Whether another publish on a template got an ack, by which `pub_acks` judges
one that got none, is asked of the hour and its look-ahead and look-back alone.  A frame that was delayed by
more than the look-ahead may be in no hour: it is looked for by its `t_ns`, and placed by when it went out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from natsproxy.errors import ConfigError
from natsproxy.rules.file.values import duration
from natsproxy.spark.schema import TABLES
from natsproxy.spark.tables import FROM, derive, exchanges
from natsproxy.spark.tables.messages import fanout
from natsproxy.spark.watch.watch_state import HOUR, HOURLY, needs

BEGINS = {name: begun for name, begun in HOURLY.items() if needs(name) == {"frames"}}
"""The tables that `write_hours` computes, from frames alone, and when a row of each begins (Unix ns)."""


def closed_hours(frames: DataFrame, lookahead: str = "60s") -> list[datetime]:
    """Return the hours that frames are of and whose look-ahead is over by the newest of them, in order."""
    rows = frames.groupBy(F.expr(f"t_ns DIV {HOUR}").alias("hour")).agg(F.max("t_ns").alias("last")).collect()
    upto = max((row["last"] for row in rows), default=0) - around_ns(lookahead)
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
        _write(frames, str(out), wanted, hour * HOUR, around_ns(lookahead))
    return [datetime.fromtimestamp(hour * 3600, UTC) for hour in starts]


def _write(frames: DataFrame, out: str, tables: list[str], start: int, around: int) -> None:
    """Replace one hour of tables, from `start` on (Unix ns)."""
    if "date" in frames.columns:  # the folders that the frames stand in
        times = (start - around, start + HOUR + around)
        frames = frames.where(
            F.col("date").between(*(datetime.fromtimestamp(t // 10**9, UTC).date() for t in times))
        )
    with hour_tables(frames, None, tables, start // HOUR, around) as made:
        for name, rows in made:
            writer = rows.write.mode("overwrite").option("partitionOverwriteMode", "dynamic")
            writer.partitionBy("date", "hour").parquet(f"{out}/{name}")


@contextmanager
def hour_tables(
    frames: DataFrame, items: DataFrame | None, tables: Iterable[str], hour: int, around: int
) -> Iterator[Iterator[tuple[str, DataFrame]]]:
    """Give the rows of tables that begin in an hour, with their `date` and `hour`, table by table.

    frames, items: at least those of the hour and of `around` ns before and behind it.  hour: since 1970.
    What the tables share is kept in memory until the end.
    """
    start, end = hour * HOUR, (hour + 1) * HOUR
    near = f"t_ns >= {start - around} AND t_ns < {end + around}"
    own = f"at_ns >= {start} AND at_ns < {end}"
    seen, said = frames.where(near), None if items is None else items.where(near)
    wanted = list(tables)
    selected = any("exchanges" in FROM[name][1] for name in wanted if name != "faults")
    paired = exchanges(seen, own).persist() if selected else None
    began = datetime.fromtimestamp(hour * 3600, UTC)
    keys = {"date": F.lit(began.date()), "hour": F.lit(began.hour)}

    def made() -> Iterator[tuple[str, DataFrame]]:
        for name in wanted:
            if name == "fanout":
                rows = fanout(seen, own)
            else:  # a firing may be of a request that began before this hour
                rows = derive(name, seen, said, None if name == "faults" else paired)
            begun = F.expr(HOURLY[name])
            yield name, rows.where((begun >= start) & (begun < end)).withColumns(keys)

    try:
        yield made()
    finally:
        if paired is not None:
            paired.unpersist()


def around_ns(lookahead: str) -> int:
    """Return a look-ahead in ns.  Raises ConfigError for what is no duration."""
    try:
        return duration(lookahead)
    except ValueError as error:
        raise ConfigError(f"the look-ahead {error}") from None
