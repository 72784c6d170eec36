"""Senders and receivers: the clients that publish on a subject, and those that get its messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from natsproxy.spark.report.rows import TEXT, Row, Rows, cut, rows
from natsproxy.spark.report.tables import Axis, Tables, short
from natsproxy.spark.tables.base import CONN, MESSAGE, clients_side

_SUBJECTS: Final = 12
"""The subjects that are shown: those with most messages."""
_CLIENTS: Final = 8
"""The clients that are named on each side of a subject; the others are one more."""
OTHERS: Final = ""
"""The name that stands for all others."""


def senders(frames: DataFrame, axis: Axis, tables: Tables) -> Rows:
    """Return the busiest subjects with the clients on both sides: [name, messages], most first.

    A client is called by the name of its CONNECT, so the processes of one service are one; by its connection
    where it gave none.  Inboxes and JetStream's own subjects are left out: their requests count.
    """
    own = "NOT startswith(template, '_INBOX.') AND NOT startswith(template, '$JS.')"
    counted = clients_side(frames).where(MESSAGE).where(own).groupBy("template", "dir", *CONN).count()
    parts = ("recorder",) if tables.apart else ()
    named = _named(counted, tables).groupBy("template", "dir", "name", *parts).agg(F.sum("count").alias("n"))
    busiest = named.groupBy("template").agg(F.sum("n").alias("all"))
    top = busiest.orderBy(F.desc("all"), "template").limit(_SUBJECTS)
    found = rows(named.join(F.broadcast(top), "template").orderBy(F.desc("n"), "name", *parts).limit(2_000))
    subjects = sorted({(-row["all"], row["template"]) for row in found})
    listed = []
    for _, template in subjects:
        those = [row for row in found if row["template"] == template]
        subject = {"template": template[:TEXT], **_sides(those)}
        if parts:
            alone = {row["recorder"] for row in those} & set(tables.apart)
            subject["of"] = {
                short(one): _sides([row for row in those if row["recorder"] == one]) for one in sorted(alone)
            }
        listed.append(subject)
    return listed


def _sides(rows: Rows) -> Row:
    """Return the clients on both sides of a subject, most first."""
    return {
        name: _clients(row for row in rows if row["dir"] == way) for way, name in enumerate(("from", "to"))
    }


def _clients(rows: Iterable[Row]) -> list[list[Any]]:
    """Return clients with their messages; those beyond `_CLIENTS` as one."""
    counts: Counter[str] = Counter()
    for row in rows:
        counts[row["name"]] += row["n"]
    ranked = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    rest = sum(count for _, count in ranked[_CLIENTS:])
    return [list(one) for one in ranked[:_CLIENTS]] + ([[OTHERS, rest]] if rest else [])


def _named(counted: DataFrame, tables: Tables) -> DataFrame:
    """Add the name of each connection."""
    number = F.expr("concat(substring(recorder, 1, 8), '#', conn_id)")
    connections = tables.get("connections")
    if connections is None:
        return counted.withColumn("name", number)
    names = connections.select(*CONN, cut("name").alias("given"))
    joined = counted.join(names, [*CONN], "left")
    return joined.withColumn("name", F.expr("nullif(given, '')")).withColumn(
        "name", F.coalesce("name", number)
    )
