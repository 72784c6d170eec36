"""The tables: `frames` and `items` flow in, one DataFrame per table flows out.

They are pure functions in native Spark SQL.  `frames` is read from captures and written to Parquet first;
every other table derives from it and from `items`, except `findings`, whose checks read captures themselves.
The columns of a table stand in
`natsproxy/spark/schema.py`, their meaning with its function here.  They work for captures of any size:
`base.py` says how.

Four tables select from the same pairs of requests and replies, `exchanges` (`pairing.py`): a caller that
writes several of them keeps it (`persist`) and gives it to `derive`.  `hours.py` computes the same tables
hour by hour.

Read `FROM` below first, then `base.py`, then one simple table (`subjects` in `messages.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Final

from pyspark.sql import DataFrame

from natsproxy.spark.tables.base import MESSAGES, clients_side
from natsproxy.spark.tables.connections import connections, gaps, liveness, subscriptions
from natsproxy.spark.tables.faults import faults
from natsproxy.spark.tables.findings import findings
from natsproxy.spark.tables.hops import hops
from natsproxy.spark.tables.jetstream import js_acks
from natsproxy.spark.tables.messages import errors, fanout, headers, subjects
from natsproxy.spark.tables.pairing import exchanges
from natsproxy.spark.tables.permissions import permissions
from natsproxy.spark.tables.replays import replay_diff
from natsproxy.spark.tables.requests import js_api, pub_acks, requests

__all__ = [
    "FROM",
    "MESSAGES",
    "PAYLOAD_BYTES",
    "TABLES",
    "USUAL",
    "clients_side",
    "derive",
    "exchanges",
    "replay_diff",
]

FROM: Final[dict[str, tuple[Callable[..., DataFrame], tuple[str, ...]]]] = {
    "requests": (requests, ("exchanges",)),
    "js_api": (js_api, ("exchanges",)),
    "pub_acks": (pub_acks, ("exchanges",)),
    "js_acks": (js_acks, ("frames",)),
    "subjects": (subjects, ("frames",)),
    "fanout": (fanout, ("frames", "exchanges")),
    "headers": (headers, ("frames",)),
    "errors": (errors, ("frames",)),
    "liveness": (liveness, ("frames",)),
    "connections": (connections, ("frames", "items")),
    "subscriptions": (subscriptions, ("frames", "items")),
    "hops": (hops, ("frames", "items")),
    "permissions": (permissions, ("frames", "items")),
    "gaps": (gaps, ("items",)),
    "faults": (faults, ("frames", "items", "exchanges")),
    "findings": (findings, ("statements",)),
}
"""Each table: its function and that function's arguments."""
TABLES: Final = ("frames", *FROM)
"""All tables, in the order in which they are written; `replay_diff` compares two `frames`, by itself."""
USUAL: Final = tuple(name for name in TABLES if name != "permissions")
"""Those that are written where nobody names any: `permissions` runs Python for each subject."""
RARE: Final[dict[str, tuple[str, str, Callable[[Set[str]], object]]]] = {
    "headers": ("frames", "op", {"HPUB", "HMSG"}.intersection),
    "errors": ("frames", "op", {"-ERR"}.intersection),
    "hops": ("items", "recorder", lambda recorders: len(recorders) > 1),
    "gaps": ("items", "kind", {"gap"}.intersection),
    "faults": ("items", "kind", {"firing"}.intersection),
}
"""Tables that are often empty: a source, a column of it, and whether its values make rows.

Where they do not, the table is empty.
"""
PAYLOAD_BYTES: Final = 256
"""The bytes of each payload that `frames` keeps: they tell apart messages that are alike otherwise."""


def derive(
    name: str,
    frames: DataFrame,
    items: DataFrame | None = None,
    paired: DataFrame | None = None,
    statements: DataFrame | None = None,
) -> DataFrame:
    """Return a table of `TABLES` other than `frames`.

    items, statements: for the tables that need them (`FROM`).  paired: `exchanges(frames)`, where the caller
    has it.
    """
    make, sources = FROM[name]
    given = {"frames": frames, "items": items, "statements": statements}
    if "exchanges" in sources:
        given["exchanges"] = exchanges(frames) if paired is None else paired
    return make(*(given[source] for source in sources))
