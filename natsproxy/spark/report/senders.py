"""Senders and receivers: the clients that publish on a subject, and those that get its messages."""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from natsproxy.spark.report.tables import Axis, Tables
from natsproxy.spark.report.traffic import Rows, cut, rows, seen_by
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
    named = (
        _named(counted, tables)
        .groupBy("template", "dir", "name")
        .agg(F.sum("count").alias("count"), seen_by(tables))
    )
    busiest = named.groupBy("template").agg(F.sum("count").alias("all"))
    top = busiest.orderBy(F.desc("all"), "template").limit(_SUBJECTS)
    listed = rows(named.join(F.broadcast(top), "template").orderBy(F.desc("count"), "name").limit(2_000))
    found: dict[str, dict[str, Any]] = {}
    for row in sorted(listed, key=lambda row: (-row["all"], row["template"], -row["count"], row["name"])):
        subject = found.setdefault(
            row["template"], {"template": row["template"][:160], "all": row["all"], "from": [], "to": []}
        )
        side = subject["to" if row["dir"] else "from"]
        if len(side) < _CLIENTS:
            side.append([row["name"], row["count"]])
        elif side[-1][0] == OTHERS:
            side[-1][1] += row["count"]
        else:
            side.append([OTHERS, row["count"]])
        subject["recorders"] = sorted({*subject.get("recorders", ()), *(row["recorders"] or ())})
    return list(found.values())


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
