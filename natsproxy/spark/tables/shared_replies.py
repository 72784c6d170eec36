"""Requests that share a reply subject: the request to which each of their frames belongs.

The requests of a reply subject are numbered by time: that number is the `turn` of a leg.  Nothing on the wire
names it, so it is found from what was recorded of the other clients:

- A delivery is a copy of a request: it has its subject, headers, size and first bytes.  Where several
  requests look the same, it is that of the only one which had no copy yet; or of the n-th of them, where one
  client sent them and a subscription got all, since the server keeps that order.
- A reply answers the delivery to the client that sends it, if no other one was waiting there.  With two
  waiting, either may have been answered first: then it is not known.
- A reply's copy for the requester is found as the copy of a request is.

Where the responder was not recorded (JetStream, a client of another proxy), a reply belongs to the request
that waits for one, if it is the only one.  A request that has been answered waits no more; a further reply
belongs to the latest request.

These are all the same question, asked in different places: of causes and effects in the order of time, an
effect is that of a cause where no other one is waiting.  `_periods` cuts time where nothing waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F

from natsproxy.spark.tables.base import when

KEY: Final = ("recorder", "k")
"""The key of an exchange: its recorder and its reply subject."""


def turns(legs: DataFrame) -> DataFrame:
    """Return the legs of reply subjects with the `turn` that they count for.

    unknown: it is not known whether that request has a reply, or which is its first.  Legs that cannot be
    told apart count for the latest such request before them, else for the latest of all, and tell nothing
    else: a delivery is leg 7, a reply that arrives leg 6.  Deliveries to others than the first responder are
    leg 5.
    """
    rows = _answers(_copies(_numbered(_at_home(legs)), "leg = 1 AND sent", "leg = 2"))
    return _counted(_of_the_requester(_copies(rows, "leg = 3 AND sent", "leg = 4")))


def _at_home(legs: DataFrame) -> DataFrame:
    """Drop replies to connections without a request, where others have one."""
    here = Window.partitionBy(*KEY, "conn_id")
    asks = legs.withColumns({"asks": F.max(F.expr("leg = 1")).over(here), "hears": _any("leg = 4", here)})
    home = _any("leg = 4 AND asks", Window.partitionBy(*KEY))
    return asks.withColumn("home", home).where("leg <> 4 OR asks OR NOT home").drop("home", "asks")


def _numbered(legs: DataFrame) -> DataFrame:
    """Number the requests.

    asked: the latest request.  waiting: see `_periods`.  mixed: a reply came before the first request, or
    several subscriptions get each.  alone: the only request that waits for a reply; NULL where several do, or
    where they are mixed.
    """
    key = Window.partitionBy(*KEY)
    order = key.orderBy("at_ns", "leg", "in_ordinal")
    rows = legs.withColumn("asked", _running(F.sum(F.expr("if(leg = 1, 1, 0)")), order))
    rows = rows.withColumn("turn", when("leg = 1", "asked"))
    rows = _periods(rows, KEY, "leg = 1", "leg = 4", "at_ns").withColumnRenamed("period", "waiting")
    # Of several subscriptions each gets every reply, or one gets them after another.
    stream = when("leg = 4", F.xxhash64("conn_id", "sid"))
    one = Window.partitionBy(*KEY, "leg", "conn_id", "sid").orderBy("at_ns", "in_ordinal")
    rows = rows.withColumns({"stream": stream, "heard": F.row_number().over(one)})
    before = F.last("stream", ignorenulls=True).over(order.rowsBetween(Window.unboundedPreceding, -1))
    rows = rows.withColumn("before", before)
    mixed = _any("leg = 4 AND (waiting = 0 OR (heard > 1 AND before <> stream))", key)
    number = F.sum(F.expr("if(leg = 1, 1, 0)")).over(Window.partitionBy(*KEY, "waiting"))
    rows = rows.withColumns({"mixed": mixed, "number": number})
    return rows.withColumn("alone", when("number = 1 AND NOT mixed", "asked"))


def _copies(legs: DataFrame, original: str, copy: str) -> DataFrame:
    """Find the turns of copies by those of their originals: conditions on legs."""
    like = (*KEY, "content")
    rows = _periods(legs, like, original, copy, "wire_ns")
    every = Window.partitionBy(*like, "period")
    one = Window.partitionBy(*like, "period", "leg", "conn_id", "sid")
    rows = rows.withColumns(
        {
            "first": F.min(when(original, "turn")).over(every),
            "last": F.max(when(original, "turn")).over(every),
            "vague": _any(f"{original} AND turn IS NULL", every),
            "originals": F.sum(F.expr(f"if({original}, 1, 0)")).over(every),
            "senders": F.max(when(original, "conn_id")).over(every)
            - F.min(when(original, "conn_id")).over(every),
            "nth": F.row_number().over(one.orderBy("wire_ns", "in_ordinal")),
            "copies": F.count("*").over(one),
        }
    )
    place = Window.partitionBy(*like, "period", "nth")
    rows = rows.withColumns(
        {
            "nth_turn": F.max(when(original, "turn")).over(place),
            "nth_ns": F.max(when(original, "wire_ns")).over(place),
        }
    )
    in_order = F.min(F.expr("wire_ns >= nth_ns")).over(one)
    rows = rows.withColumn("in_order", F.coalesce(in_order, F.lit(False)))
    found = (
        "CASE WHEN period = 0 OR copies > originals THEN alone WHEN vague THEN NULL "
        "WHEN first = last THEN first WHEN senders = 0 AND copies = originals AND in_order THEN nth_turn "
        "ELSE alone END"
    )
    return rows.withColumn("turn", F.expr(f"if({copy}, {found}, turn)"))


def _answers(legs: DataFrame) -> DataFrame:
    """Find the turns of replies by the deliveries to the client that sends them.

    perhaps: of a delivery, that one of several replies may be the one to it.
    """
    here = (*KEY, "conn_id")
    once = F.row_number().over(Window.partitionBy(*here, "leg", "turn").orderBy("at_ns", "in_ordinal"))
    rows = legs.withColumn("once", once).withColumn("opens", F.expr("leg = 2 AND (turn IS NULL OR once = 1)"))
    rows = _periods(rows, here, "opens", "leg = 3", "at_ns")
    every = Window.partitionBy(*here, "period")
    rows = rows.withColumns(
        {
            "first": F.min(when("leg = 2", "turn")).over(every),
            "last": F.max(when("leg = 2", "turn")).over(every),
            "vague": _any("leg = 2 AND turn IS NULL", every),
        }
    )
    found = "CASE WHEN period = 0 THEN alone WHEN first = last AND NOT vague THEN first END"
    rows = rows.withColumn("turn", F.expr(f"if(leg = 3, {found}, turn)"))
    return rows.withColumn("perhaps", F.expr("leg = 2") & _any("leg = 3 AND turn IS NULL", every))


def _of_the_requester(legs: DataFrame) -> DataFrame:
    """Drop replies to connections other than the requester, where the requester got any."""
    turn = Window.partitionBy(*KEY, "turn")
    rows = legs.withColumns(
        {
            "asker": F.max(when("leg = 1", "conn_id")).over(turn),
            "asker_hears": _any("leg = 1 AND hears", turn),
        }
    )
    return rows.where("NOT (leg = 4 AND turn IS NOT NULL AND asker_hears AND conn_id <> asker)")


def _counted(legs: DataFrame) -> DataFrame:
    """Return all legs with a turn, and whether that request's replies are unknown."""
    stray = "(leg = 4 AND turn IS NULL)"
    key, turn = Window.partitionBy(*KEY), Window.partitionBy(*KEY, "turn")
    later = key.orderBy("at_ns").rowsBetween(0, Window.unboundedFollowing)
    rows = legs.withColumns(
        {
            "near": _any(stray, Window.partitionBy(*KEY, "waiting")) | (F.col("mixed") & _any(stray, key)),
            "next_stray": F.min(when(stray, "at_ns")).over(later),
            "responder": F.expr("min_by(conn_id, if(leg = 3, at_ns, NULL))").over(turn),
            "replied_ns": F.min(when("leg = 4", "at_ns")).over(turn),
        }
    )
    perhaps = (
        "(leg = 1 AND near AND replied_ns IS NULL) "
        "OR (perhaps AND next_stray IS NOT NULL AND coalesce(next_stray < replied_ns, true))"
    )
    leg = (
        f"CASE WHEN leg = 2 AND turn IS NULL THEN 7 WHEN leg = 2 AND conn_id <> responder THEN 5 "
        f"WHEN {stray} THEN 6 ELSE leg END"
    )
    unknown = _any(perhaps, turn) & F.col("turn").isNotNull()
    rows = rows.withColumn("unknown", unknown).where("leg <> 3 OR turn IS NOT NULL")
    upto = key.orderBy("at_ns", "leg", "in_ordinal")
    before = _running(F.last(when("leg = 1 AND unknown", "turn"), ignorenulls=True), upto)
    return rows.withColumns({"leg": F.expr(leg), "turn": F.coalesce("turn", before, "asked")})


def _periods(rows: DataFrame, group: Sequence[str], cause: str, effect: str, at: str) -> DataFrame:
    """Number the times between two moments at which no cause waits: the column `period`.

    Each cause waits for one effect; an effect without a waiting cause is a further one of the last period.
    Period 0 is the time before the first cause.
    """
    step = f"if({cause}, 1, if({effect}, -1, 0))"
    order = Window.partitionBy(*group).orderBy(at, F.expr(f"if({cause}, 0, 1)"), "leg", "in_ordinal")
    rows = rows.withColumn("sum", _running(F.sum(F.expr(step)), order))
    rows = rows.withColumn("least", _running(F.min("sum"), order))
    begins = F.expr(f"if({cause} AND sum - least(least, 0) = 1, 1, 0)")
    return rows.withColumn("period", _running(F.sum(begins), order)).drop("sum", "least")


def _running(value: Column, order: WindowSpec) -> Column:
    return value.over(order.rowsBetween(Window.unboundedPreceding, Window.currentRow))


def _any(condition: str, window: WindowSpec) -> Column:
    return F.coalesce(F.max(F.expr(condition)).over(window), F.lit(False))
