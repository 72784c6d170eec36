"""Requests and their answers: latency by subject and over time, the slowest with their frames.

The same shape as `traffic`: each function asks for a small answer.  Latencies are in ms.  Pull requests of
JetStream consumers are left out: waiting for messages is their purpose.
"""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from natsproxy.spark.report.tables import Axis, Tables
from natsproxy.spark.report.traffic import (
    POINTS,
    TEXT,
    Rows,
    cut,
    ms,
    percentiles,
    rows,
    seen_by,
    who,
    with_whole,
)
from natsproxy.spark.tables.base import clients_side

DECADE: Final = 6
"""Rows of the heat map per power of ten."""
NO_PULL: Final = "outcome <> 'pull'"
"""The requests that count here: pull requests wait for messages, so their latency means nothing."""
_FAILED: Final = "outcome IN ('no reply', 'no responders')"
"""The requests that got no answer that helps."""
_COARSE: Final = 100
"""The most steps of time for latencies: a percentile needs more than a few requests."""
_SLOWEST: Final = 12
"""The number of slow requests that are listed."""
_FRAMES: Final = 12
"""Frames that are shown of a slow request."""


def latency(requests: DataFrame, axis: Axis, tables: Tables) -> dict[str, Any]:
    """Return latencies by subject template, together, over time, and as a heat map (time x log latency)."""
    counted = requests.where(NO_PULL)
    counts = (
        F.sum("requests").alias("requests"),
        F.sum("replies").alias("replies"),
        F.count_if(F.expr("outcome = 'no responders'")).alias("no_responders"),
        F.count_if(F.expr("outcome = 'no reply'")).alias("unanswered"),
        percentiles("latency_ns"),
        percentiles("service_ns", "service"),
        seen_by(tables),
    )
    whole, listed = with_whole(counted, ("template",), counts, "requests", also="get(latency, 2)")
    if not listed:
        return {}
    for row in (whole, *listed):
        row["latency"], row["service"] = ms(row["latency"]), ms(row["service"])
    coarse = -(-axis.count // _COARSE)
    _over_time(counted, axis, listed)
    counted = counted.withColumn("at", axis.bucket("t1", coarse))
    steps = counted.where("latency_ns IS NOT NULL").groupBy("at")
    over = {
        row["at"]: [row["count"], *(ms(row["latency"]) or ())]
        for row in rows(steps.agg(F.count("*").alias("count"), percentiles("latency_ns")))
    }
    places = range(-(-axis.count // coarse))
    asked = counted.groupBy("at").agg(F.sum("requests").alias("all"), F.count_if(F.expr(_FAILED)).alias("no"))
    rate = {row["at"]: [row["all"], row["no"]] for row in rows(asked)}
    return {
        "whole": whole,
        "listed": listed,
        "rate": [rate.get(at, [0, 0]) for at in places],
        "coarse": coarse,
        "over": [over.get(at) for at in places],
        "decade": DECADE,
        "cells": _cells(counted),
    }


def _over_time(counted: DataFrame, axis: Axis, listed: Rows) -> None:
    """Add to the rows of subjects their p50 and p99 over time, in steps with an answer."""
    coarse = -(-axis.count // POINTS)
    named = counted.withColumn("template", cut("template")).where("latency_ns IS NOT NULL")
    named = named.where(F.col("template").isin([row["template"] for row in listed]))
    found: dict[str, dict[int, list[float]]] = {}
    quantiles = percentiles("latency_ns", shares=("0.5", "0.99"))
    for row in rows(named.groupBy("template", axis.bucket("t1", coarse).alias("at")).agg(quantiles)):
        found.setdefault(row["template"], {})[row["at"]] = ms(row["latency"]) or []
    places = range(-(-axis.count // coarse))
    for row in listed:
        row["over"] = [found.get(row["template"], {}).get(at) for at in places]


def _cells(counted: DataFrame) -> list[list[int | None]]:
    """Return [time, row, count]; row r holds 10**(r/DECADE) ns and more, None the unanswered requests."""
    row = F.expr(
        f"if(latency_ns IS NULL, NULL, cast(floor(log10(greatest(latency_ns, 1000)) * {DECADE}) as int))"
    )
    shown = counted.where("latency_ns IS NOT NULL OR outcome = 'no reply'")
    cells = rows(shown.groupBy("at", row.alias("row")).count())
    cells.sort(key=lambda cell: (cell["at"], -1 if cell["row"] is None else cell["row"]))
    return [[cell["at"], cell["row"], cell["count"]] for cell in cells]


def slowest(requests: DataFrame, axis: Axis, tables: Tables) -> Rows:
    """Return the slowest requests: their four times and their frames."""
    answered = requests.where(NO_PULL).where("latency_ns IS NOT NULL AND requests = 1")
    slow = answered.orderBy(F.desc("latency_ns"), "t1", "reply").limit(_SLOWEST)
    names = (
        "subject",
        "template",
        "reply",
        "recorder",
        "requester",
        "responder",
        "status",
        "t1",
        "t2",
        "t3",
        "t4",
    )
    listed = rows(slow.select(*names, "latency_ns"))
    legs = _frames(slow, tables.get("frames")) if listed else {}
    return [
        {
            **{name: (row[name] or "")[:TEXT] for name in ("subject", "template")},
            "requester": who(row["recorder"], row["requester"]),
            "responder": who(row["recorder"], row["responder"]),
            "status": row["status"],
            **{leg: axis.ms(row[leg]) for leg in ("t1", "t2", "t3", "t4")},
            "latency": row["latency_ns"] / 1e6,
            "frames": [
                {
                    "t": axis.ms(leg.pop("at_ns")),
                    "delay": (leg.pop("delay_ns") or 0) / 1e6,
                    "conn": who(leg.pop("recorder"), leg.pop("conn_id")),
                    **leg,
                }
                for leg in legs.get((row["recorder"], row["reply"], row["t1"]), ())
            ],
        }
        for row in listed
    ]


def _frames(slow: DataFrame, frames: DataFrame | None) -> dict[tuple[str, str, int], Rows]:
    """Return the first frames of each slow request, by its recorder, reply subject and time."""
    if frames is None:
        return {}
    keys = slow.select(
        "recorder", F.col("reply").alias("k"), F.col("t1").alias("start"), F.col("t4").alias("end")
    )
    order = Window.partitionBy("recorder", "k", "start").orderBy("at_ns", "dir")
    legs = (
        clients_side(frames)
        .withColumn("k", F.explode(F.array_compact(F.array("reply", "subject"))))
        .join(F.broadcast(keys), ["recorder", "k"])
        .where("at_ns BETWEEN start AND end")
        .select(
            "k",
            "start",
            "at_ns",
            "recorder",
            "conn_id",
            "dir",
            "op",
            cut("subject").alias("subject"),
            "size",
            "status",
            cut("cause").alias("cause"),
            "delay_ns",
        )
        .withColumn("place", F.row_number().over(order))
        .where(F.col("place") <= _FRAMES)
    )
    found: dict[tuple[str, str, int], Rows] = {}
    for row in sorted(rows(legs), key=lambda row: row.pop("place")):
        found.setdefault((row["recorder"], row.pop("k"), row.pop("start")), []).append(row)
    return found
