"""The job: captures to tables of Parquet.  The same code on a laptop and on a cluster.

Captures are read once: `frames` and `items` are written first, all other tables derive from those.  Running
it again replaces what it wrote; what an interrupted run left is never taken for whole (see `store.py`).

    from natsproxy.spark.session import open_session
    from natsproxy.spark.jobs.analyze import analyze, latencies

    spark = open_session()
    analyze(spark, ["traffic/"], "tables")
    latencies(spark, "tables")
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from natsproxy.errors import ConfigError
from natsproxy.spark.errors import translate_errors
from natsproxy.spark.jobs.store import SOURCES, Store
from natsproxy.spark.source.data_source import NatscapDataSource
from natsproxy.spark.tables import PAYLOAD_BYTES, TABLES, derive, exchanges

Progress = Callable[[str, int], None]
"""Called with a table and its rows, each time there is something to tell."""
ASKED = {
    "frames": {"payload": str(PAYLOAD_BYTES), "mode": "PERMISSIVE"},
    "items": {"what": "items", "mode": "PERMISSIVE"},
}
"""The options with which the sources of all tables are read."""


def register(spark: SparkSession) -> None:
    """Make `format("natscap")` known where Spark does not find it by itself.

    Spark finds it in an installed natsproxy (`pyspark_natsproxy`); an editable install, and a cluster whose
    driver does not look for sources, need this call once per session.  The class goes to the workers by name:
    natsproxy must be installed there.
    """
    spark.dataSource.register(NatscapDataSource)


def read(spark: SparkSession, captures: Sequence[str | Path], **options: str) -> DataFrame:
    """Return captures as one DataFrame, one row per frame.

    captures: files, folders of segments, globs, or URLs of object stores (`natsproxy/spark/source/paths.py`).
    options: those of `natsproxy/spark/source/options.py` by name, as text: `payload="-1"`, `op="PUB,HPUB"`,
    `what="items"`.  Nothing is read before the DataFrame is used; then Spark raises what is wrong with the
    captures, as its own exceptions.
    """
    register(spark)
    return spark.read.format("natscap").options(**options).option("paths", _list(captures)).load()


def read_stream(spark: SparkSession, captures: Sequence[str | Path], **options: str) -> DataFrame:
    """Return captures as one streaming DataFrame, which takes up what is written to them later too."""
    register(spark)
    return spark.readStream.format("natscap").options(**options).option("paths", _list(captures)).load()


def analyze(
    spark: SparkSession,
    captures: Sequence[str | Path],
    out: str | Path,
    tables: Iterable[str] = TABLES,
    progress: Progress = lambda table, rows: None,
) -> None:
    """Write tables under `out`, one folder of Parquet each; `frames` and `items` always.

    out: a folder, or a URL that Spark can write to.  What each table holds stands in
    `natsproxy/spark/schema.py` and with its function in `natsproxy/spark/tables/`.  progress: called with
    each table when it is written, and its rows.  Raises, in one sentence each, ConfigError for a table that
    there is none of, CaptureError for captures that cannot be read, NatsproxyError where the tables cannot
    be written.
    """
    wanted = chosen(tables)
    store = Store(spark, out)
    with store.writing():
        frames, items = (read(spark, captures, **ASKED[name]) for name in SOURCES)
        if store.near:
            progress("frames", store.write_on_executors({**ASKED["frames"], "paths": _list(captures)}))
        else:
            progress("frames", store.write("frames", dated(frames)))
        progress("items", store.write("items", items))
        write_derived(store, wanted, progress)
        store.finish()


def chosen(tables: Iterable[str]) -> list[str]:
    """Return the tables that are asked for, in their order.  Raises ConfigError for what is no table."""
    asked = set(tables)
    for name in sorted(asked - set(TABLES)):
        raise ConfigError(f"there is no table {name!r}: there are {', '.join(TABLES)}")
    return [name for name in TABLES if name in asked]


def dated(frames: DataFrame) -> DataFrame:
    """Return frames with the day (UTC) that they are stored by."""
    return frames.withColumn("date", F.to_date("ts"))


def write_derived(store: Store, tables: Iterable[str], progress: Progress) -> None:
    """Write the tables that derive from the stored `frames` and `items`."""
    frames, items = store.source("frames"), store.source("items")
    paired = exchanges(frames).persist()  # several tables use it, and it is one long job
    for name in tables:
        if name not in SOURCES:
            progress(name, store.write(name, derive(name, frames, items, paired)))
    paired.unpersist()


def latencies(spark: SparkSession, out: str | Path, top: int = 20) -> list[dict[str, Any]]:
    """Return request latencies by subject template, most requests first, as far as `requests` is whole.

    out: what `analyze` wrote to.  Each row: template, requests, replies, no_responders (counts); p50, p99,
    worst (ms, None where nothing was answered).  Raises NatsproxyError where there is no whole table.
    """
    ms = "percentile_approx(latency_ns, {}) / 1e6"
    with translate_errors(out):
        rows = (
            Store(spark, out)
            .read("requests")
            .groupBy("template")
            .agg(
                F.sum("requests").alias("requests"),
                F.sum("replies").alias("replies"),
                F.sum(F.when(F.col("status") == 503, 1).otherwise(0)).alias("no_responders"),
                *(
                    F.expr(ms.format(q)).alias(name)
                    for name, q in (("p50", 0.5), ("p99", 0.99), ("worst", 1.0))
                ),
            )
            .orderBy(F.desc("requests"), "template")
            .limit(top)
            .collect()
        )
    return [row.asDict() for row in rows]


def _list(captures: Sequence[str | Path]) -> str:
    return json.dumps([str(path) for path in captures])
