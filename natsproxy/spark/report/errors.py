"""Errors (-ERR) that clients got: by kind, denied permissions by subject template, and over time."""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from natsproxy.spark.report.groups import Groups, Rows, cut, rows
from natsproxy.spark.report.tables import Axis, Tables
from natsproxy.spark.tables.base import peer

_DENIED: Final = "Permissions Violation"


def errors(table: DataFrame, axis: Axis, tables: Tables) -> dict[str, Any]:
    """Return errors by kind, denied permissions by subject template, and all errors over time."""
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
    """Return errors grouped by some columns: counts, connections, an example, their origin."""
    counts = (
        F.count("*").alias("count"),
        F.count_if("from_proxy").alias("from_proxy"),
        F.count_distinct(peer()).alias("connections"),
        F.min(cut("text")).alias("example"),
        axis.since("min(t_ns)").alias("first"),
        axis.since("max(t_ns)").alias("last"),
    )
    return Groups(errors, by, tables).top(counts, F.desc("count"))
