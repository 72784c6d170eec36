"""Senders and receivers: the clients that publish on a subject, and those that get its messages."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from natsproxy.spark.report.groups import TEXT, Row, Rows, cut, rows
from natsproxy.spark.report.tables import Axis, Tables, short
from natsproxy.spark.tables.base import CONN, MESSAGE, clients_side

_SUBJECTS: Final = 12
"""The number of subjects that are shown: those with most messages."""
_CLIENTS: Final = 8
"""The number of clients that are named on each side of a subject; the others are summed up."""
OTHERS: Final = ""
"""The name of the sum of the others."""


def senders(frames: DataFrame, axis: Axis, tables: Tables) -> Rows:
    """Return the busiest subjects with the clients on both sides: [name, messages], most first.

    A client has the name of its CONNECT, so the processes of one service are one client; without a name, that
    of its connection.  Inboxes and JetStream's own subjects are left out: their requests count.
    """
    own = "NOT startswith(template, '_INBOX.') AND NOT startswith(template, '$JS.')"
    counted = clients_side(frames).where(MESSAGE).where(own).groupBy("template", "dir", *CONN).count()
    # No choice is all recorders.
    choices = [F.lit(None).cast("string"), *([F.col("recorder")] if tables.recorder_choices else [])]
    counted = _named(counted, tables).withColumn("choice", F.explode(F.array(*choices)))
    named = counted.groupBy("template", "dir", "choice", "name").agg(F.sum("count").alias("n"))
    busiest = named.where("choice IS NULL").groupBy("template").agg(F.sum("n").alias("all"))
    top = busiest.orderBy(F.desc("all"), "template").limit(_SUBJECTS)
    if tables.recorder_choices:
        named = named.where(F.col("choice").isNull() | F.col("choice").isin(tables.recorder_choices))
    found = rows(_ranked(named.join(F.broadcast(top), "template")))
    listed = []
    for _, template in sorted({(-row["all"], row["template"]) for row in found}):
        those = [row for row in found if row["template"] == template]
        subject = {"template": template[:TEXT], **_sides(those, None)}
        if tables.recorder_choices:
            alone = {row["choice"] for row in those} - {None}
            subject["by_recorder"] = {short(one): _sides(those, one) for one in sorted(alone)}
        listed.append(subject)
    return listed


def _ranked(named: DataFrame) -> DataFrame:
    """Return the first `_CLIENTS` clients on each side of a subject, and the sum of the others as one."""
    side = ("template", "dir", "choice")
    order = Window.partitionBy(*side).orderBy(F.desc("n"), "name")
    placed = named.withColumn("place", F.least(F.row_number().over(order), F.lit(_CLIENTS + 1)))
    first = F.when(F.col("place") <= _CLIENTS, F.col("name")).otherwise(OTHERS)
    return placed.groupBy(*side, "all", "place", first.alias("name")).agg(F.sum("n").alias("n"))


def _sides(rows: Rows, choice: str | None) -> Row:
    """Return the clients on both sides of a subject, most first."""
    places = sorted(
        (row["place"], row["dir"], row["name"], row["n"]) for row in rows if row["choice"] == choice
    )
    return {
        name: [[client, count] for _, dir, client, count in places if dir == way]
        for way, name in enumerate(("from", "to"))
    }


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
