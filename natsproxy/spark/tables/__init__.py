"""The tables: pure functions from DataFrames to DataFrames, in native Spark SQL only.

`frames` is read from captures and written to Parquet first; everything else derives from that and from the
`items` that are no frames.  What each table has is written down in `natsproxy/spark/schema.py`, what it means
with its function.  They are written for captures of any size: see `natsproxy/spark/tables/base.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame

from natsproxy.spark.tables.base import MESSAGES, clients_side
from natsproxy.spark.tables.connections import connections, gaps, liveness, subscriptions
from natsproxy.spark.tables.faults import faults
from natsproxy.spark.tables.jetstream import js_acks, pub_acks
from natsproxy.spark.tables.messages import errors, fanout, headers, subjects
from natsproxy.spark.tables.replays import replay_diff
from natsproxy.spark.tables.requests import js_api, requests

__all__ = [
    "FROM_BOTH", "FROM_FRAMES", "FROM_ITEMS", "MESSAGES", "PAYLOAD_BYTES", "TABLES", "clients_side", "derive",
    "replay_diff",
]  # fmt: skip

FROM_FRAMES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "requests": requests, "subjects": subjects, "fanout": fanout, "headers": headers, "errors": errors,
    "js_api": js_api, "js_acks": js_acks, "pub_acks": pub_acks, "liveness": liveness,
}  # fmt: skip
FROM_BOTH: dict[str, Callable[[DataFrame, DataFrame], DataFrame]] = {
    "connections": connections, "subscriptions": subscriptions, "faults": faults,
}  # fmt: skip
FROM_ITEMS: dict[str, Callable[[DataFrame], DataFrame]] = {"gaps": gaps}
TABLES = ("frames", *FROM_FRAMES, *FROM_BOTH, *FROM_ITEMS)
"""All tables, in the order in which they are written; `replay_diff` compares two `frames`, by itself."""
PAYLOAD_BYTES = 256
"""How much of each payload the tables look at: acks, publish acks and JetStream's error codes."""


def derive(name: str, frames: DataFrame, items: DataFrame) -> DataFrame:
    """Return a table of `TABLES` other than `frames`, whatever it derives from."""
    if name in FROM_BOTH:
        return FROM_BOTH[name](frames, items)
    return FROM_FRAMES[name](frames) if name in FROM_FRAMES else FROM_ITEMS[name](items)
