"""JetStream as clients met it: deliveries and their answers, publishes, calls of the API."""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from natsproxy.spark.report.tables import Axis, Tables
from natsproxy.spark.report.traffic import POINTS, TOP, Rows, cut, ms, percentiles, rows, seen_by, with_whole

ANSWERS: Final = ("ack", "nak", "term", "wpi", "next", "other", "not asked", "unknown", "none")
"""The answers to a delivery, as in the table `js_acks`."""
OUTCOMES: Final = {
    "ack": "ack",
    "duplicate": "duplicate",
    "error": "error",
    "no_ack": "no ack",
    "no_responders": "no responders",
}
"""The outcomes of a publish, by their names in the data, as in the table `pub_acks`."""


def deliveries(table: DataFrame, axis: Axis, tables: Tables) -> dict[str, Any]:
    """Return deliveries by consumer: acks, naks, redeliveries, how long answers took."""
    made = table.where("delivered_ns IS NOT NULL")
    counts: tuple[Column, ...] = (
        F.count("*").alias("deliveries"),
        F.count_if("redelivered").alias("redelivered"),
        F.max("delivered").alias("most"),
        percentiles("answer_ns"),
        F.max("pending").alias("pending"),
        seen_by(tables),
        *(F.count_if(F.col("answer") == name).alias(name) for name in ANSWERS),
    )
    whole, listed = with_whole(made, ("stream", "consumer"), counts, "deliveries")
    if not listed:
        return {}
    for row in (whole, *listed):
        row["latency"] = ms(row["latency"])
    _pending(made, axis, listed)
    return {"whole": whole, "listed": listed}


def _pending(made: DataFrame, axis: Axis, listed: Rows) -> None:
    """Add to the rows of consumers the messages that still waited for them, the most in each step of time."""
    coarse = -(-axis.count // POINTS)
    named = made.withColumns({name: cut(name) for name in ("stream", "consumer")})
    known = F.col("consumer").isin([row["consumer"] for row in listed])
    steps = named.where(known).groupBy("stream", "consumer", axis.bucket("delivered_ns", coarse).alias("at"))
    found: dict[tuple[str, str], dict[int, int]] = {}
    for row in rows(steps.agg(F.max("pending").alias("most"))):
        found.setdefault((row["stream"], row["consumer"]), {})[row["at"]] = row["most"]
    places = range(-(-axis.count // coarse))
    for row in listed:
        row["over"] = [found.get((row["stream"], row["consumer"]), {}).get(at) for at in places]


def publishes(table: DataFrame, axis: Axis, tables: Tables) -> Rows:
    """Return publishes by subject template: acknowledged, duplicates, refused, how long it took."""
    counts = (F.count_if(F.col("outcome") == outcome).alias(name) for name, outcome in OUTCOMES.items())
    grouped = table.groupBy("template").agg(
        F.count("*").alias("publishes"),
        F.max("stream").alias("stream"),
        F.max(cut("error")).alias("error_text"),
        seen_by(tables),
        *counts,
        percentiles("latency_ns"),
    )
    top = grouped.orderBy(F.desc("publishes"), "template").limit(TOP)
    return [
        {**row, "latency": ms(row["latency"])} for row in rows(top.withColumn("template", cut("template")))
    ]


def api(table: DataFrame, axis: Axis, tables: Tables) -> dict[str, Any]:
    """Return API calls by verb: how many, how many failed, how long they took; and the errors by text."""
    failed = F.expr("err_code IS NOT NULL OR status <=> 503")
    grouped = table.groupBy(cut("verb").alias("verb")).agg(
        F.count("*").alias("calls"),
        F.count_if(failed).alias("errors"),
        F.count_if(F.expr("outcome = 'no reply'")).alias("unanswered"),
        percentiles("latency_ns"),
    )
    listed = rows(grouped.orderBy(F.desc("calls"), "verb").limit(TOP))
    if not listed:
        return {}
    for row in listed:
        row["latency"] = ms(row["latency"])
    text = F.coalesce(cut("error"), F.lit("no responders: is JetStream enabled?")).alias("text")
    errors = table.where(failed).groupBy(cut("verb").alias("verb"), "err_code", text).count()
    return {"listed": listed, "errors": rows(errors.orderBy(F.desc("count"), "verb", "err_code").limit(TOP))}
