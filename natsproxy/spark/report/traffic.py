"""Traffic: totals, frames over time, subjects, fan-out, errors, gaps.

Each function asks Spark for a small answer (top N, one row per step of the axis) and returns plain values;
times are ms since the axis began, texts are cut.  An empty table gives an empty answer.
"""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from natsproxy.spark.report.tables import Axis, Tables
from natsproxy.spark.tables.base import MESSAGE, clients_side, peer

TOP: Final = 50
"""The rows of a table in the report."""
POINTS: Final = 60
"""The points of a small line."""
_DENIED: Final = "Permissions Violation"
TEXT: Final = 160
"""The characters that are kept of subjects and texts."""

Rows = list[dict[str, Any]]


def cut(column: str) -> Column:
    """Return a text column, cut to `TEXT` characters."""
    return F.substring(column, 1, TEXT)


def rows(frame: DataFrame) -> Rows:
    """Collect a small result."""
    return [row.asDict() for row in frame.collect()]


def percentiles(
    column: str, name: str = "latency", shares: tuple[str, ...] = ("0.5", "0.9", "0.99", "1.0")
) -> Column:
    """Return percentiles of a column of ns as an array, p50, p90, p99 and the largest; NULL without any."""
    of_each = ", ".join(f"percentile_approx({column}, {share})" for share in shares)  # Sail takes no array
    return F.expr(f"if(count({column}) = 0, NULL, array({of_each}))").alias(name)


def who(recorder: str | None, conn: int | None) -> str | None:
    """Return a name for a connection that no other has, and that ends in `#` and its number."""
    return None if conn is None else f"{(recorder or '')[:8]}#{conn}"


def ms(values: list[int] | None) -> list[float] | None:
    """Return ns as ms."""
    return None if values is None else [value / 1e6 for value in values]


def seen_by(tables: Tables) -> Column:
    """Return the recorders of a group, where there are several: their short names."""
    if not tables.several:
        return F.lit(None).alias("recorders")
    return F.sort_array(F.collect_set(F.substring("recorder", 1, 8))).alias("recorders")


def with_whole(
    table: DataFrame, by: tuple[str, ...], counts: tuple[Column, ...], order: str, also: str = ""
) -> tuple[dict[str, Any], Rows]:
    """Return the counts of all rows and, by the columns `by`, of the `TOP` groups with most of `order`.

    also: SQL of which the `TOP` groups with most are returned too.  Texts in `by` are cut.
    """
    grouped = table.rollup(*by).agg(F.grouping_id().alias("level"), *counts)
    all_of = 2 ** len(by) - 1
    kept = grouped.where(F.col("level").isin(0, all_of))
    whole, *listed = rows(kept.orderBy(F.desc("level"), F.desc(order), *by).limit(TOP + 1)) or [{}]
    if also and len(listed) == TOP:
        known = {tuple(row[name] for name in by) for row in listed}
        others = rows(kept.where("level = 0").orderBy(F.expr(also).desc(), *by).limit(TOP))
        listed += [row for row in others if tuple(row[name] for name in by) not in known]
    texts = [{name: (row[name] or "")[:TEXT] for name in by} for row in listed]
    for row in (whole, *listed):
        for name in ("level", *by):
            row.pop(name, None)
    return whole, [text | row for text, row in zip(texts, listed, strict=True)]


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
    coarse = -(-axis.count // POINTS)
    named = clients_side(frames).where(MESSAGE).where("template IS NOT NULL")
    top = (
        named.groupBy("template")
        .agg(
            F.count_if(F.col("dir") == 0).alias("published"),
            F.count_if(F.col("dir") == 1).alias("delivered"),
            F.coalesce(F.sum("size"), F.lit(0)).alias("bytes"),
            F.approx_count_distinct("subject").alias("subjects"),
            F.approx_count_distinct(peer()).alias("connections"),
            seen_by(tables),
        )
        .orderBy((F.col("published") + F.col("delivered")).desc(), "template")
        .limit(TOP)
    )
    found = rows(top)
    steps = named.where(F.col("template").isin([row["template"] for row in found])) if found else named
    counts: dict[str, dict[int, int]] = {}
    for row in rows(steps.groupBy("template", axis.bucket("at_ns", coarse).alias("at")).count()):
        counts.setdefault(row["template"], {})[row["at"]] = row["count"]
    places = range(-(-axis.count // coarse))
    return [
        row
        | {"template": row["template"][:TEXT], "over": [counts[row["template"]].get(at, 0) for at in places]}
        for row in found
    ]


def fanout(table: DataFrame, axis: Axis, tables: Tables) -> Rows:
    """Return copies of messages by template: deliveries, messages without one, delay and spread."""
    grouped = table.groupBy("template").agg(
        F.sum("published").alias("published"),
        F.sum("deliveries").alias("deliveries"),
        F.sum(F.expr("if(deliveries = 0 AND NOT stored, published, 0)")).alias("unheard"),
        percentiles("delay_ns", "delay"),
        percentiles("spread_ns", "spread"),
    )
    top = grouped.orderBy(F.desc("published"), "template").limit(TOP).withColumn("template", cut("template"))
    return [{**row, "delay": ms(row["delay"]), "spread": ms(row["spread"])} for row in rows(top)]


def errors(table: DataFrame, axis: Axis, tables: Tables) -> dict[str, Any]:
    """Return -ERR by kind, permissions that were denied by subject, and all errors over time."""
    over = {row["at"]: row["count"] for row in rows(table.groupBy(axis.bucket("t_ns").alias("at")).count())}
    if not over:
        return {}
    denied = table.where(F.col("kind").startswith(_DENIED))
    return {
        "count": sum(over.values()),
        "over": axis.series(over),
        "listed": _errors_by(table, axis, tables, "kind"),
        "denied": _errors_by(denied, axis, tables, "kind", "subject"),
    }


def _errors_by(errors: DataFrame, axis: Axis, tables: Tables, *by: str) -> Rows:
    """Return errors by some of their texts: counts, connections, an example, their origin."""
    grouped = errors.groupBy(*(cut(name).alias(name) for name in by)).agg(
        F.count("*").alias("count"),
        F.count_if("from_proxy").alias("from_proxy"),
        F.count_distinct(peer()).alias("connections"),
        F.any_value(cut("text")).alias("example"),
        F.min("t_ns").alias("first"),
        F.max("t_ns").alias("last"),
        seen_by(tables),
    )
    listed = rows(grouped.orderBy(F.desc("count"), *by).limit(TOP))
    return [row | {"first": axis.ms(row["first"]), "last": axis.ms(row["last"])} for row in listed]


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
    top = rows(listed.orderBy(F.desc("frames"), "t_ns").limit(TOP))
    top.sort(key=lambda row: row["t_ns"])
    return {
        **total,
        "listed": [
            {"t": axis.ms(row.pop("t_ns")), "conn": who(row.pop("recorder"), row.pop("conn_id")), **row}
            for row in top
        ],
    }
