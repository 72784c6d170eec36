"""Traffic: frames over time, messages by subject template, and their fan-out to subscribers.

Each function queries a small result (top N, one row per step of the axis) and returns plain values; times are
ms since the axis began.  An empty table gives an empty result.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from natsproxy.spark.report.groups import POINTS, Groups, Rows, percentiles, rows
from natsproxy.spark.report.tables import Axis, Tables
from natsproxy.spark.tables.base import MESSAGE, clients_side, peer


def traffic(frames: DataFrame, axis: Axis, tables: Tables) -> dict[str, Any]:
    """Return frames and message bytes per step and direction."""
    found = rows(
        clients_side(frames)
        .groupBy(axis.bucket("at_ns").alias("at"), "dir")
        .agg(F.count("*").alias("frames"), F.coalesce(F.sum("size"), F.lit(0)).alias("bytes"))
    )
    if not found:
        return {}
    return {
        measure: {
            name: axis.series({row["at"]: row[measure] for row in found if row["dir"] == direction})
            for direction, name in enumerate(("c2s", "s2c"))
        }
        for measure in ("frames", "bytes")
    }


def templates(frames: DataFrame, axis: Axis, tables: Tables) -> Rows:
    """Return the subject templates with most messages, and their messages over time."""
    coarse = axis.coarse(POINTS)
    named = clients_side(frames).where(MESSAGE).where("template IS NOT NULL")
    groups = Groups(named, ("template",), tables)
    counts = (
        F.count_if(F.col("dir") == 0).alias("published"),
        F.count_if(F.col("dir") == 1).alias("delivered"),
        F.coalesce(F.sum("size"), F.lit(0)).alias("bytes"),
        F.approx_count_distinct("subject").alias("subjects"),
        F.approx_count_distinct(peer()).alias("connections"),
    )
    found = groups.top(counts, (F.col("published") + F.col("delivered")).desc())
    groups.add_over(found, axis.bucket("at_ns", coarse), F.count("*"), axis.steps(coarse), zero=0)
    return found


def fanout(table: DataFrame, axis: Axis, tables: Tables) -> Rows:
    """Return the fan-out by subject template: deliveries, messages that nobody got, delay and spread."""
    unheard = "deliveries = 0 AND NOT stored AND NOT coalesce(refused, false)"
    counts = (
        F.sum("published").alias("published"),
        F.sum("deliveries").alias("deliveries"),
        F.sum(F.expr(f"if({unheard}, published, 0)")).alias("unheard"),
        percentiles(tables, "delay_ns", "delay"),
        percentiles(tables, "spread_ns", "spread"),
    )
    return Groups(table, ("template",), tables).top(counts, F.desc("published"))
