"""Traffic: totals, frames over time, subjects, fan-out, errors, gaps.

Each function asks Spark for a small answer (top N, one row per step of the axis) and returns plain values;
times are ms since the axis began.  An empty table gives an empty answer.
"""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from natsproxy.spark.report.groups import POINTS, TOP, Groups, Rows, cut, percentiles, rows, who
from natsproxy.spark.report.tables import Axis, Tables
from natsproxy.spark.tables.base import MESSAGE, clients_side, peer

_DENIED: Final = "Permissions Violation"


def overview(frames: DataFrame) -> dict[str, Any]:
    """Return the totals of all frames, first and last time (Unix ns; None without any)."""
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
    """Return copies of messages by template: deliveries, messages without one, delay and spread."""
    unheard = "deliveries = 0 AND NOT stored AND NOT coalesce(refused, false)"
    counts = (
        F.sum("published").alias("published"),
        F.sum("deliveries").alias("deliveries"),
        F.sum(F.expr(f"if({unheard}, published, 0)")).alias("unheard"),
        percentiles(tables, "delay_ns", "delay"),
        percentiles(tables, "spread_ns", "spread"),
    )
    return Groups(table, ("template",), tables).top(counts, F.desc("published"))


def errors(table: DataFrame, axis: Axis, tables: Tables) -> dict[str, Any]:
    """Return -ERR by kind, permissions that were denied by subject template, and all errors over time."""
    over = {row["at"]: row["count"] for row in rows(table.groupBy(axis.bucket("t_ns").alias("at")).count())}
    if not over:
        return {}
    denied = table.where(F.col("kind").startswith(_DENIED))
    return {
        "count": sum(over.values()),
        "over": axis.series(over),
        "listed": _errors_by(table, axis, tables, "kind"),
        "denied": _errors_by(denied, axis, tables, "kind", "template"),
    }


def _errors_by(errors: DataFrame, axis: Axis, tables: Tables, *by: str) -> Rows:
    """Return errors by some of their texts: counts, connections, an example, their origin."""
    counts = (
        F.count("*").alias("count"),
        F.count_if("from_proxy").alias("from_proxy"),
        F.count_distinct(peer()).alias("connections"),
        F.min(cut("text")).alias("example"),
        axis.since("min(t_ns)").alias("first"),
        axis.since("max(t_ns)").alias("last"),
    )
    return Groups(errors, by, tables).top(counts, F.desc("count"))


def gaps(table: DataFrame, axis: Axis, tables: Tables) -> dict[str, Any]:
    """Return the largest gaps, and the sums of all."""
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
            {"t": axis.ms(row.pop("t_ns")), "conn": who(row.pop("recorder"), row.pop("conn_id")), **row}
            for row in top
        ],
    }
