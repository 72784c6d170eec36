"""Firings of rules: by rule and over time, with the events that followed and the latencies meanwhile."""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from natsproxy.spark.report.connections import CLEAN
from natsproxy.spark.report.exchanges import NO_PULL
from natsproxy.spark.report.groups import Groups, cut, percentiles, rows
from natsproxy.spark.report.tables import Axis, Tables
from natsproxy.spark.tables.base import peer

_STRIPS: Final = 12
"""The number of rules that have a chart of their own."""


def faults(table: DataFrame, axis: Axis, tables: Tables) -> dict[str, Any]:
    """Return firings by rule and action, by rule over time, and the events that followed them.

    error, closed, unanswered: firings after which the client got an error, its connection did not end
    well (both as in the table `faults`), its request had no reply.  reply: the time until the reply, where it
    came.  during: all requests that began in the steps in which the rule fired.
    """
    counts = (
        F.count("*").alias("count"),
        F.count_distinct(peer()).alias("connections"),
        axis.since("min(t_ns)").alias("first"),
        axis.since("max(t_ns)").alias("last"),
        F.min(cut("subject")).alias("example"),
        F.count("error_ns").alias("error"),
        F.count_if(F.col("close_ns").isNotNull() & ~F.col("close_cause").isin(*CLEAN)).alias("closed"),
        F.count_if(F.expr("outcome = 'no reply'")).alias("unanswered"),
        percentiles(tables, "nullif(delay_ns, 0)", "delay"),
        percentiles(tables, "reply_ns", "reply"),
    )
    whole, listed = Groups(table, ("rule", "kind", "action"), tables).with_whole(counts, "count")
    if not listed:
        return {}
    rules = list(dict.fromkeys(row["rule"] for row in listed))
    named = table.withColumn("rule", cut("rule")).where(F.col("rule").isin(rules))
    hits = named.groupBy("rule", axis.bucket("t_ns").alias("at")).count()
    over: dict[str, dict[int, int]] = {}
    for hit in rows(hits):
        over.setdefault(hit["rule"], {})[hit["at"]] = hit["count"]
    during = _during(hits.select("rule", "at"), axis, tables)
    for row in listed:
        row["during"] = during.get(row["rule"])
    strips = [{"rule": rule, "over": axis.series(over[rule])} for rule in rules[:_STRIPS]]
    return {"count": whole["count"], "listed": listed, "strips": strips}


def _during(hits: DataFrame, axis: Axis, tables: Tables) -> dict[str, dict[str, Any]]:
    """Return, by rule, all requests that began in the steps in which it fired: count and latency."""
    requests = tables.get("requests")
    if requests is None:
        return {}
    meanwhile = requests.where(NO_PULL).withColumn("at", axis.bucket("t1")).join(F.broadcast(hits), "at")
    counts = F.sum("requests").alias("requests"), percentiles(tables, "latency_ns")
    return {
        row["rule"]: {"requests": row["requests"], "latency": row["latency"]}
        for row in rows(meanwhile.groupBy("rule").agg(*counts))
    }
