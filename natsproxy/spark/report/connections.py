"""Connections, their ends, round trips and silences; subscriptions; and proxies in a row."""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from natsproxy.spark.report.groups import TEXT, TOP, Groups, Rows, connection_name, percentiles, rows
from natsproxy.spark.report.tables import Axis, Tables, short
from natsproxy.spark.tables.base import CONN

STRIPS: Final = 60
"""The number of connections in the chart."""
CLEAN: Final = ("client-closed", "drained")
"""The causes of connections that ended as they should."""
_COUNTS: Final = ("c2s_bytes", "s2c_bytes", "c2s_frames", "s2c_frames")


def connections(table: DataFrame, axis: Axis, tables: Tables) -> dict[str, Any]:
    """Return the causes of closes, and the connections to look at: unclean ends first, then the busiest."""
    ends = rows(table.groupBy("cause").count().orderBy(F.desc("count"), "cause").limit(TOP))
    for end in ends:
        end["clean"] = end["cause"] in (*CLEAN, None)
    unclean = F.coalesce(~F.col("cause").isin(*CLEAN), F.lit(False))
    frames = F.expr("coalesce(c2s_frames, 0) + coalesce(s2c_frames, 0)")
    top = table.orderBy(unclean.desc(), frames.desc(), *CONN).limit(STRIPS)
    listed = [
        {
            "conn": connection_name(row["recorder"], row["conn_id"]),
            "id": row["conn_id"],
            "name": (row["name"] or "")[:TEXT],
            "client": row["client"],
            "lang": " ".join(filter(None, (row["lang"], row["version"])))[:TEXT],
            "cause": row["cause"],
            "detail": (row["detail"] or "")[:TEXT],
            "clean": row["cause"] in (*CLEAN, None),
            "opened": axis.ms(row["opened_ns"]),
            "closed": axis.ms(row["closed_ns"]),
            "rtt": _ms(row.get("rtt")),
            "silence": _ms(row.get("silence")),
            **{name: row[name] for name in _COUNTS},
        }
        for row in rows(_with_liveness(top, tables.get("liveness")))
    ]
    listed.sort(key=lambda row: (row["opened"] or 0, row["id"], row["conn"]))
    return {"count": sum(end["count"] for end in ends), "ends": ends, "listed": listed} if listed else {}


def _with_liveness(top: DataFrame, liveness: DataFrame | None) -> DataFrame:
    """Add the longest round trip of a PING and the longest silence, where that table was written."""
    if liveness is None:
        return top
    sides = liveness.groupBy(*CONN).agg(
        F.max("rtt_max_ns").alias("rtt"), F.max("silence_ns").alias("silence")
    )
    return sides.join(F.broadcast(top), [*CONN], "right")


def _ms(value: int | None) -> float | None:
    return None if value is None else value / 1e6


def subscriptions(table: DataFrame, axis: Axis, tables: Tables) -> Rows:
    """Return subscriptions by subject template and queue: counts, refusals, delivered messages."""
    counts = (
        F.count("*").alias("count"),
        F.count_if("refused").alias("refused"),
        F.count_if(F.expr("ended IS NULL AND NOT refused")).alias("open"),
        *(F.count_if(F.col("ended") == end).alias(end) for end in ("unsub", "max", "close", "revoked")),
        F.sum("delivered").alias("delivered"),
        F.sum("bytes").alias("bytes"),
    )
    return Groups(table, ("template", "queue"), tables).top(counts, F.desc("delivered"), F.desc("count"))


def hops(table: DataFrame, axis: Axis, tables: Tables) -> Rows:
    """Return the frames between two proxies in a row, by pair and direction, and the time that they took."""
    ways = table.groupBy("recorder", "next_recorder", "dir").agg(
        F.count("*").alias("frames"), percentiles(tables, "latency_ns")
    )
    return [
        {
            "sent_by": short(row["next_recorder"] if row["dir"] else row["recorder"]),
            "got_by": short(row["recorder"] if row["dir"] else row["next_recorder"]),
            "frames": row["frames"],
            "latency": row["latency"],
        }
        for row in rows(ways.orderBy(F.desc("frames"), "recorder", "next_recorder", "dir").limit(TOP))
    ]
