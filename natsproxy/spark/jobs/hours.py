"""The job for frames that another program has stored: hours of tables, each replaced as a whole.

A watch writes its hours by itself (`natsproxy/spark/watch/refresh.py`); this is for frames of a stream of the
user's own.  The tables stand under `out` in `date=.../hour=...`: an hour that is there is whole, and an hour
without rows is left as it is.  The rows of an hour are explained in `natsproxy/spark/tables/hours.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from natsproxy.errors import ConfigError
from natsproxy.spark.schema import TABLES
from natsproxy.spark.storage.parquet import replace_hours
from natsproxy.spark.tables.hours import (
    HOUR,
    HOURLY,
    closed_hours,
    hour_start,
    hour_tables,
    margin_ns,
    needs,
)

FROM_FRAMES = tuple(name for name in HOURLY if needs(name) == {"frames"})
"""The tables that `write_hours` can compute: those with hours, from frames alone."""


def write_hours(
    spark: SparkSession,
    frames_path: str | Path,
    out: str | Path,
    tables: Iterable[str] = FROM_FRAMES,
    hours: Iterable[datetime] | None = None,
    lookahead: str = "60s",
) -> list[datetime]:
    """Compute tables of whole hours from stored frames, replace those hours, and return them.

    hours: any moment in each; all closed hours if not given.  lookahead: the time after an hour in which a
    reply still counts, and the time before it from which a request still counts.  Raises ConfigError for a
    table that has no hours, and for a look-ahead that is no duration.
    """
    wanted = list(tables)
    for name in wanted:
        if name not in FROM_FRAMES:
            known = "there is no table" if name not in TABLES else "there are no hours of the table"
            raise ConfigError(f"{known} {name!r}: by the hour there are {', '.join(FROM_FRAMES)}")
    margin = margin_ns(lookahead)
    frames = spark.read.parquet(str(frames_path))
    if hours is None:
        chosen = closed_hours(frames, margin)
    else:
        chosen = sorted({int(moment.timestamp()) // 3600 for moment in hours})
    for hour in chosen:
        with hour_tables(_near(frames, hour, margin), None, wanted, hour, margin) as made:
            for name, rows in made:
                replace_hours(rows, f"{out}/{name}")
    return [hour_start(hour) for hour in chosen]


def _near(frames: DataFrame, hour: int, margin: int) -> DataFrame:
    """Return the frames of the days around an hour, so that Spark opens no folders of other days."""
    if "date" not in frames.columns:
        return frames
    first, last = (hour * HOUR - margin) // HOUR, ((hour + 1) * HOUR + margin) // HOUR
    return frames.where(F.col("date").between(hour_start(first).date(), hour_start(last).date()))
