"""JetStream as clients saw it: deliveries and their acks, publishes, and API calls."""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from natsproxy.spark.report.groups import POINTS, Groups, Rows, cut, percentiles
from natsproxy.spark.report.tables import Axis, Tables

ANSWERS: Final = ("ack", "nak", "term", "wpi", "next", "other", "not asked", "unknown", "none")
"""The answers to a delivery, as in the table `js_acks`."""
OUTCOMES: Final = {
    "ack": "ack",
    "duplicate": "duplicate",
    "error": "error",
    "no_ack": "no ack",
    "no_responders": "no responders",
}
"""The outcomes of a publish: their names in the data, and in the table `pub_acks`."""


def deliveries(table: DataFrame, axis: Axis, tables: Tables) -> dict[str, Any]:
    """Return deliveries by consumer: acks, naks, redeliveries, time to the ack, pending messages.

    over: the most pending messages in each step of time.
    """
    made, coarse = table.where("delivered_ns IS NOT NULL"), axis.coarse(POINTS)
    counts: tuple[Column, ...] = (
        F.count("*").alias("deliveries"),
        F.count_if("redelivered").alias("redelivered"),
        F.max("delivered").alias("most"),
        percentiles(tables, "answer_ns"),
        F.max("pending").alias("pending"),
        *(F.count_if(F.col("answer") == name).alias(name) for name in ANSWERS),
    )
    groups = Groups(made, ("stream", "consumer"), tables)
    whole, listed = groups.with_whole(counts, "deliveries")
    groups.add_over(listed, axis.bucket("delivered_ns", coarse), F.max("pending"), axis.steps(coarse))
    return {"whole": whole, "listed": listed} if listed else {}


def publishes(table: DataFrame, axis: Axis, tables: Tables) -> Rows:
    """Return publishes by subject template: acknowledged, duplicates, refused, time to the ack."""
    counts = (
        F.count("*").alias("publishes"),
        F.max("stream").alias("stream"),
        F.max(cut("error")).alias("error_text"),
        *(F.count_if(F.col("outcome") == outcome).alias(name) for name, outcome in OUTCOMES.items()),
        percentiles(tables, "latency_ns"),
    )
    return Groups(table, ("template",), tables).top(counts, F.desc("publishes"))


def api(table: DataFrame, axis: Axis, tables: Tables) -> dict[str, Any]:
    """Return API calls by verb: their number, failures and latency; and the errors by text."""
    failed = F.expr("err_code IS NOT NULL OR status <=> 503")
    counts = (
        F.count("*").alias("calls"),
        F.count_if(failed).alias("errors"),
        F.count_if(F.expr("outcome = 'no reply'")).alias("unanswered"),
        percentiles(tables, "latency_ns"),
    )
    listed = Groups(table, ("verb",), tables).top(counts, F.desc("calls"))
    if not listed:
        return {}
    text = F.coalesce("error", F.lit("no responders: is JetStream enabled?"))
    errors = Groups(table.where(failed).withColumn("text", text), ("verb", "err_code", "text"), tables)
    return {"listed": listed, "errors": errors.top((F.count("*").alias("count"),), F.desc("count"))}
