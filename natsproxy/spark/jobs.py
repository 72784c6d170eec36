"""The job: captures to tables of Parquet.  The same code on a laptop and on a cluster.

Running it again overwrites what it wrote.  Spark marks a table that is whole with `_SUCCESS`; without it a
table is not to be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from natsproxy.errors import ConfigError
from natsproxy.spark.source import NatscapDataSource
from natsproxy.spark.tables import PAYLOAD_BYTES, TABLES, derive, exchanges


def register(spark: SparkSession) -> None:
    """Make `format("natscap")` known where Spark does not find it by itself."""
    spark.dataSource.register(NatscapDataSource)


def read(spark: SparkSession, captures: Sequence[str | Path], **options: str) -> DataFrame:
    """Return captures as one DataFrame; options are those of `natsproxy.spark.source`."""
    register(spark)
    reader = spark.read.format("natscap").options(**options)
    frames = [reader.load(str(path)) for path in captures]
    whole = frames[0]
    for more in frames[1:]:
        whole = whole.unionAll(more)
    return whole


def analyze(
    spark: SparkSession,
    captures: Sequence[str | Path],
    out: str | Path,
    tables: Iterable[str] = TABLES,
    progress: Callable[[str, int], None] = lambda table, rows: None,
) -> None:
    """Write tables under `out`, one folder each; `frames` is always written, the others derive from it.

    Raises ConfigError for a table that there is none of.  progress: called with each table and its rows.
    """
    wanted = list(tables)
    for name in wanted:
        if name not in TABLES:
            raise ConfigError(f"there is no table {name!r}: there are {', '.join(TABLES)}")
    frames = read(spark, captures, payload=str(PAYLOAD_BYTES), mode="PERMISSIVE")
    dated = frames.withColumn("date", F.to_date("ts"))
    # Dynamic overwriting would keep the days of an earlier run, and leaves no `_SUCCESS`.
    writer = dated.write.mode("overwrite").option("partitionOverwriteMode", "static")
    writer.partitionBy("date").parquet(f"{out}/frames")
    stored = spark.read.parquet(f"{out}/frames")
    progress("frames", stored.count())
    # Several tables use both; a capture is read slowly and requests are paired in one long job.
    items = read(spark, captures, what="items").persist()
    paired = exchanges(stored).persist()
    for name in TABLES:
        if name not in wanted or name == "frames":
            continue
        derive(name, stored, items, paired).write.mode("overwrite").parquet(f"{out}/{name}")
        progress(name, spark.read.parquet(f"{out}/{name}").count())
    for kept in (items, paired):
        kept.unpersist()


def latencies(spark: SparkSession, out: str | Path, top: int = 20) -> list[dict[str, Any]]:
    """Return request latencies by subject template, most requests first; in ms."""
    ms = "percentile_approx(latency_ns, {}) / 1e6"
    rows = (
        spark.read.parquet(f"{out}/requests")
        .groupBy("template")
        .agg(
            F.sum("requests").alias("requests"),
            F.sum("replies").alias("replies"),
            F.sum(F.when(F.col("status") == 503, 1).otherwise(0)).alias("no_responders"),
            *(F.expr(ms.format(q)).alias(name) for name, q in (("p50", 0.5), ("p99", 0.99), ("worst", 1.0))),
        )
        .orderBy(F.desc("requests"), "template")
        .limit(top)
        .collect()
    )
    return [row.asDict() for row in rows]
