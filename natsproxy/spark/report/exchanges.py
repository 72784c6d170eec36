"""Requests and their answers: latency by subject and over time, the slowest with their frames.

Each function queries a small result, as in `traffic.py`.  Latencies are in ms.  Pull requests of
JetStream consumers are left out: waiting for messages is their purpose.
"""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from natsproxy.spark.report.groups import (
    POINTS,
    TEXT,
    Groups,
    Row,
    Rows,
    connection_name,
    cut,
    percentiles,
    rows,
)
from natsproxy.spark.report.tables import Axis, Tables
from natsproxy.spark.tables.base import clients_side

DECADE: Final = 6
"""Rows of the heat map per power of ten."""
NO_PULL: Final = "outcome <> 'pull'"
"""The requests that count here: pull requests wait for messages, so their latency means nothing."""
_FAILED: Final = "outcome IN ('no reply', 'no responders')"
"""The requests without a useful answer."""
_COARSE: Final = 100
"""The most steps of time for latencies: a percentile needs more than a few requests in each."""
_SLOWEST: Final = 12
"""The number of slow requests that are listed."""
_FRAMES: Final = 12
"""The number of frames that are shown of a slow request."""
_KEY: Final = ("recorder", "reply", "t1", "t4")
"""The key by which the frames of a request are found; requests pipelined in one read may share it."""
_LEG: Final = ("dir", "op", "subject", "size", "status", "cause")
"""The columns of a frame that the page shows as they are."""


def latency(requests: DataFrame, axis: Axis, tables: Tables) -> dict[str, Any]:
    """Return latencies by subject template, of all, over time, and as a heat map (time x log latency)."""
    counted = requests.where(NO_PULL)
    counts = (
        F.sum("requests").alias("requests"),
        F.sum("replies").alias("replies"),
        F.count_if(F.expr("outcome = 'no responders'")).alias("no_responders"),
        F.count_if(F.expr("outcome = 'no reply'")).alias("unanswered"),
        F.count_if(F.expr("outcome = 'unknown'")).alias("unknown"),
        percentiles(tables, "latency_ns"),
        percentiles(tables, "service_ns", "service"),
    )
    whole, listed = Groups(counted, ("template",), tables).with_whole(
        counts, "requests", also="get(latency, 2)"
    )
    if not listed:
        return {}
    answered, fine = counted.where("latency_ns IS NOT NULL"), axis.coarse(POINTS)
    Groups(answered, ("template",), tables).add_over(
        listed,
        axis.bucket("t1", fine),
        percentiles(tables, "latency_ns", shares=("0.5", "0.99")),
        axis.steps(fine),
    )
    coarse = axis.coarse(_COARSE)
    counted = counted.withColumn("at", axis.bucket("t1", coarse))
    steps = counted.where("latency_ns IS NOT NULL").groupBy("at")
    over = {
        row["at"]: [row["count"], *row["latency"]]
        for row in rows(steps.agg(F.count("*").alias("count"), percentiles(tables, "latency_ns")))
    }
    places = range(axis.steps(coarse))
    judged = counted.where("outcome <> 'unknown'").groupBy("at")
    asked = judged.agg(F.sum("requests").alias("all"), F.count_if(F.expr(_FAILED)).alias("no"))
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
    slow = answered.orderBy(F.desc("latency_ns"), "t1", "reply", "recorder", "requester").limit(_SLOWEST)
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
            "requester": connection_name(row["recorder"], row["requester"]),
            "responder": connection_name(row["recorder"], row["responder"]),
            "status": row["status"],
            **{leg: axis.ms(row[leg]) for leg in ("t1", "t2", "t3", "t4")},
            "latency": row["latency_ns"] / 1e6,
            "frames": [_leg(leg, axis) for leg in legs.get(tuple(row[name] for name in _KEY), ())],
        }
        for row in listed
    ]


def _leg(leg: Row, axis: Axis) -> Row:
    """Return a frame of a request as the page shows it."""
    return {
        "t": axis.ms(leg["at_ns"]),
        "delay": (leg["delay_ns"] or 0) / 1e6,
        "conn": connection_name(leg["recorder"], leg["conn_id"]),
        **{name: leg[name] for name in _LEG},
    }


def _frames(slow: DataFrame, frames: DataFrame | None) -> dict[tuple[Any, ...], Rows]:
    """Return the first frames of each slow request, by `_KEY`; several requests may share one."""
    if frames is None:
        return {}
    keys = slow.select(*_KEY).distinct().withColumnsRenamed({"reply": "k", "t1": "start", "t4": "end"})
    order = Window.partitionBy("recorder", "k", "start", "end").orderBy(
        "at_ns", "dir", "conn_id", "segment", "block_off", "idx"
    )
    legs = (
        clients_side(frames)
        .withColumn("k", F.explode(F.array_compact(F.array("reply", "subject"))))
        .join(F.broadcast(keys), ["recorder", "k"])
        .where("at_ns BETWEEN start AND end")
        .withColumn("place", F.row_number().over(order))
        .where(F.col("place") <= _FRAMES)
        .withColumns({name: cut(name) for name in ("subject", "cause")})
        .select("recorder", "k", "start", "end", "place", "at_ns", "conn_id", "delay_ns", *_LEG)
    )
    found: dict[tuple[Any, ...], Rows] = {}
    for row in sorted(rows(legs), key=lambda row: row["place"]):
        found.setdefault((row["recorder"], row["k"], row["start"], row["end"]), []).append(row)
    return found
