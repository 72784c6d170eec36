"""The table `replay_diff`: a recording and its replay side by side, from two `frames`."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from natsproxy.spark.tables.base import MESSAGE, clients_side, shaped
from natsproxy.spark.tables.messages import errors
from natsproxy.spark.tables.pairing import timed

COUNTS = (
    "published",
    "delivered",
    "subscribed",
    "errors",
    "requests",
    "replies",
    "no_responders",
    "unanswered",
)
TIMES = {"p50_ns": "0.5", "p99_ns": "0.99", "worst_ns": "1.0"}


def replay_diff(recorded: DataFrame, observed: DataFrame) -> DataFrame:
    """Return one row per subject template: the counts and latencies of clients, recorded and observed.

    recorded, observed: NULL where that side has no frames there.  errors: -ERRs that quote a subject of that
    template, or have the template `-ERR <kind>` where they quote none that was used.  requests and
    the columns behind it: by the template of the request.  same: all counts are equal, whatever the times.
    """
    sides = [
        _tally(frames).select("template", F.struct(*COUNTS, "statuses", *TIMES).alias(name))
        for name, frames in (("recorded", recorded), ("observed", observed))
    ]
    both = sides[0].join(sides[1], "template", "full")
    same = " AND ".join(f"recorded.{name} <=> observed.{name}" for name in (*COUNTS, "statuses"))
    return shaped("replay_diff", both.withColumn("same", F.expr(same)))


def _tally(frames: DataFrame) -> DataFrame:
    """Return one row per template of one side."""
    passed = clients_side(frames).where(f"{MESSAGE} OR op = 'SUB'")
    messages = passed.groupBy("template").agg(
        F.expr("count_if(op IN ('PUB', 'HPUB'))").alias("published"),
        F.expr("count_if(op IN ('MSG', 'HMSG'))").alias("delivered"),
        F.expr("count_if(op = 'SUB')").alias("subscribed"),
    )
    requests = (
        timed(frames)
        .groupBy("template")
        .agg(
            F.sum("requests").alias("requests"),
            F.sum("replies").alias("replies"),
            F.expr("count_if(outcome = 'no responders')").alias("no_responders"),
            F.expr("count_if(outcome = 'no reply')").alias("unanswered"),
            *(F.expr(f"percentile_approx(latency_ns, {share})").alias(name) for name, share in TIMES.items()),
        )
    )
    rows = messages
    for more in (_refusals(frames, passed), _statuses(passed), requests):
        rows = rows.join(more, "template", "full")
    return rows.na.fill(0, list(COUNTS)).withColumn(
        "statuses", F.expr("coalesce(statuses, CAST(array() AS array<struct<status: int, count: bigint>>))")
    )


def _refusals(frames: DataFrame, passed: DataFrame) -> DataFrame:
    known = passed.select("subject", F.col("template").alias("of_subject")).distinct()
    named = errors(frames).join(known, "subject", "left")
    return named.groupBy(F.expr("coalesce(of_subject, '-ERR ' || kind)").alias("template")).agg(
        F.count("*").alias("errors")
    )


def _statuses(passed: DataFrame) -> DataFrame:
    counted = passed.where("status IS NOT NULL").groupBy("template", "status").count()
    return counted.groupBy("template").agg(
        F.array_sort(F.collect_list(F.struct("status", "count"))).alias("statuses")
    )
