"""The captures as a whole: totals, recorders, and the gaps in what was recorded."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from natsproxy.spark.report.groups import TOP, Rows, connection_name, cut, rows
from natsproxy.spark.report.tables import Axis, Tables
from natsproxy.spark.tables.base import MESSAGE, clients_side, peer


def overview(frames: DataFrame) -> dict[str, Any]:
    """Return the totals of all frames, and the first and the last time (Unix ns; None without frames)."""
    messages = F.expr(MESSAGE)
    totals = clients_side(frames).agg(
        F.min("at_ns").alias("first"),
        F.max("at_ns").alias("last"),
        F.count("*").alias("frames"),
        F.count_if(messages).alias("messages"),
        F.count_if(messages & (F.col("dir") == 0)).alias("published"),
        F.count_if(messages & (F.col("dir") == 1)).alias("delivered"),
        F.coalesce(F.sum("size"), F.lit(0)).alias("bytes"),
        F.approx_count_distinct(peer()).alias("connections"),
    )
    return {**rows(totals)[0], "corrupt": frames.where("op = '_corrupt'").count()}


def recorders(frames: DataFrame) -> Rows:
    """Return the recorders with their segments and frames."""
    grouped = frames.groupBy("recorder").agg(
        F.min("segment").alias("first"),
        F.max("segment").alias("last"),
        F.count_distinct("segment").alias("segments"),
        F.count("*").alias("frames"),
    )
    return rows(grouped.orderBy(F.desc("frames"), "recorder").limit(TOP))


def gaps(table: DataFrame, axis: Axis, tables: Tables) -> dict[str, Any]:
    """Return the largest gaps, and the totals of all."""
    frames, size = F.coalesce("frames", F.lit(0)), F.coalesce("bytes", F.lit(0))
    total = rows(
        table.agg(F.count("*").alias("count"), F.sum(frames).alias("frames"), F.sum(size).alias("bytes"))
    )[0]
    if not total["count"]:
        return {}
    listed = table.select(
        "t_ns",
        "recorder",
        "conn_id",
        cut("reason").alias("reason"),
        frames.alias("frames"),
        size.alias("bytes"),
    )
    top = rows(listed.orderBy(F.desc("frames"), "t_ns", "recorder", "conn_id").limit(TOP))
    top.sort(key=lambda row: row["t_ns"])
    return {
        **total,
        "listed": [
            {
                "t": axis.ms(row.pop("t_ns")),
                "conn": connection_name(row.pop("recorder"), row.pop("conn_id")),
                **row,
            }
            for row in top
        ],
    }
