"""Requests and their replies: one aggregation on the reply subject, no join of frames with frames.

The four legs of an exchange share a key: 1 the request arrives (its reply subject), 2 it is delivered to a
responder, 3 the reply arrives (its subject), 4 it is delivered to the requester.  A frame with a reply
subject is a leg of two exchanges: the one that it opens, and the one that it may answer.  Legs pair within
their recorder: two proxies in a row record the same exchange, each with its own four times.

The requests of a reply subject that is used again are told apart by what was recorded of their responders
(`shared_replies.py`).  Where that does not decide, their outcome is `unknown`: no time and no responder is
guessed.

A subscriber to `>` gets copies of all requests and replies.  A reply is delivered on the requester's own
connection, a request on that of the client that replies; deliveries elsewhere count where there is none.  The
responder of a request without a reply is a connection that replies to others, else it is not known.

Pull requests (`CONSUMER.MSG.NEXT` on one inbox for ever, or `+NXT` as the answer to a delivery) are answered
by deliveries on other subjects, and more than `TURNS_MAX` requests on one reply subject would make one task
sort them all: both stay one row per reply subject, with counts and without latency.

A 503 says that nobody was there to reply: it is no reply, and no latency.

The columns of requests, JetStream calls and publish acks are aggregated here at once, so that these tables
are mere selections of one result, which a caller that wants several of them keeps.  Frames are read three
times for it: for the legs, for the subjects of requests and for the texts in JetStream's replies; and once
more for reply subjects that are used again, or whose frames reached others too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeAlias

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from natsproxy.spark.tables.base import (
    ACK,
    MESSAGE,
    PUBLISH_ACK,
    clients_side,
    when,
    with_text,
)
from natsproxy.spark.tables.shared_replies import KEY, turns

Keep: TypeAlias = Callable[[DataFrame], DataFrame]
"""Caches rows that are used several times."""

TURNS_MAX = 100_000
"""The number of requests on one reply subject up to which they are told apart."""
BROADCAST_MAX = 1_000_000
"""The number of reply subjects for the second pass up to which they are broadcast."""
_PULL = "coalesce(js_verb = 'CONSUMER.MSG.NEXT', js_kind = 'next', false)"
_REPLY = "leg = 4 AND NOT (status <=> 503)"
_SOMEBODYS = "(leg = 6 AND NOT (status <=> 503))"
"""A reply whose request is unknown: it is only counted."""
_AGAIN = """
CASE WHEN pulls = 0 AND uses <= {most} AND (uses > 1 OR t4 < t1) THEN 'mixed'
WHEN pulls = 0 AND uses = 1 AND (reached <> answered OR nearest <> farthest) THEN 'copied' END
"""
"""The reply subjects that need a second pass over their frames.

mixed: each frame may belong to one of several requests (`shared_replies.py`).  copied: others got frames of
one too.
"""
_SIDES = "explode(if(reply IS NULL, array(3), array(1, 3)))"
"""The exchanges of which a message is a leg: 1, the one that it opens; 3, the one that it may answer."""


def _from_reply(condition: str, value: str | Column) -> Column:
    """Return a value of JetStream's reply, where the condition holds for it."""
    return F.max(when(f"leg = 4 AND {condition}", value))


def request_messages(frames: DataFrame) -> DataFrame:
    """Return the messages with a reply subject that clients sent, acks apart."""
    rows = clients_side(frames).where(f"{MESSAGE} AND dir = 0 AND reply IS NOT NULL")
    return rows.where(~F.col("reply").startswith(ACK))


def of_exchanges(frames: DataFrame, beginnings: Collection[str]) -> DataFrame:
    """Return the frames that `exchanges` needs: the others would be aggregated by subject, and dropped.

    beginnings: the first tokens of all reply subjects that are no ack subjects.
    """
    begins = F.substring_index("subject", ".", 1)
    needed = F.col("reply").isNotNull()
    for beginning in beginnings:
        needed |= begins == beginning
    return frames.where(needed)


def legs(frames: DataFrame) -> DataFrame:
    """Return one row per message and exchange (`recorder`, `k`), with its `leg`."""
    rows = (
        clients_side(frames)
        .where(MESSAGE)
        .select(
            "at_ns",
            "in_ordinal",
            "recorder",
            "conn_id",
            "sid",
            "dir",
            "subject",
            "reply",
            "status",
            F.expr(_PULL).alias("pull"),
            "js_kind",
            "js_stream",
            "js_stream_seq",
            "js_batch",
            "js_err_code",
            "js_error",
            F.expr("t_ns + if(dir = 0, delay_ns, 0)").alias("wire_ns"),
            F.expr("dir = 0 AND out_ordinal IS NOT NULL").alias("sent"),
            F.xxhash64("headers", "size", "payload").alias("same"),
            F.expr(_SIDES).alias("side"),
        )
    )
    rows = rows.withColumns(
        {
            "content": F.expr("xxhash64(if(side = 1, subject, ''), same)"),
            "k": F.expr("if(side = 1, reply, subject)"),
            "leg": F.expr("side + dir"),
        }
    )
    return rows.where(~F.col("k").startswith(ACK)).drop("side", "dir", "reply", "same")


def _aggregates(own: str) -> list[Column]:
    """Return the aggregates of an exchange, in numbers only; own: an SQL condition on requests that count."""
    return [
        F.min(when(f"leg = 1 AND {own}", "at_ns")).alias("t1"),
        *(F.min(when(f"leg = {leg}", "at_ns")).alias(f"t{leg}") for leg in (2, 3)),
        F.min(when(_REPLY, "at_ns")).alias("t4"),
        F.max(when(_REPLY, "at_ns")).alias("last_ns"),
        F.max(when(f"leg = 1 AND {own}", "conn_id")).alias("requester"),
        F.expr("min_by(conn_id, if(leg = 2, at_ns, NULL))").alias("reached"),
        F.expr("max_by(conn_id, if(leg IN (2, 5), at_ns, NULL))").alias("reached_last"),
        F.expr("min_by(conn_id, if(leg = 3, at_ns, NULL))").alias("answered"),
        F.max(when(f"leg = 1 AND {own}", F.xxhash64("subject"))).alias("subject_id"),
        F.expr(f"min_by(status, if({_REPLY}, at_ns, NULL))").alias("reply_status"),
        F.expr("count_if(leg = 4 AND status = 503)").alias("nobody"),
        F.expr("count_if(leg = 1 AND pull)").alias("pulls"),
        F.expr(f"count_if(leg = 1 AND {own})").alias("requests"),
        F.expr("count_if(leg IN (2, 5, 7))").alias("deliveries"),
        F.expr(f"count_if({_REPLY} OR {_SOMEBODYS})").alias("replies"),
        F.expr("count_if(leg = 1 AND js_kind = 'publish')").alias("marked"),
        _from_reply("js_err_code IS NOT NULL", "js_err_code").alias("err_code"),
        _from_reply("js_error IS NOT NULL", F.xxhash64("js_error")).alias("error_id"),
        _from_reply(PUBLISH_ACK, F.xxhash64("js_stream")).alias("stream_id"),
        _from_reply(PUBLISH_ACK, "js_stream_seq").alias("seq"),
        _from_reply(PUBLISH_ACK, "js_batch").alias("batch"),
        F.expr("count_if(leg = 4 AND js_kind = 'duplicate')").alias("duplicates"),
    ]


def paired(frames: DataFrame, own: str = "true", keep: Keep | None = None) -> DataFrame:
    """Return one row per request (`recorder`, `k`, `turn`), its texts as numbers: see `base`.

    shared: other requests have the same reply subject.  own: an SQL condition on requests that count; the
    others are only told apart from them.  keep: see `exchanges`.
    """
    whole = _aggregates(own)
    counts = {"uses": "leg = 1", "own_deliveries": f"leg = 2 AND {own}", "own_replies": f"{_REPLY} AND {own}"}
    once = (
        legs(frames)
        .groupBy(*KEY)
        .agg(
            *whole,
            *(F.expr(f"count_if({condition})").alias(name) for name, condition in counts.items()),
            F.min(when("leg = 4", F.xxhash64("conn_id", "sid"))).alias("nearest"),
            F.max(when("leg = 4", F.xxhash64("conn_id", "sid"))).alias("farthest"),
        )
        .where("uses > 0")
    )
    if keep is not None:
        once = keep(once)
    once = once.withColumn("again", F.expr(_AGAIN.format(most=TURNS_MAX)))
    # A row of several requests counts deliveries and replies by their own times.
    rows = (
        once.where("again IS NULL")
        .withColumns(
            {
                **{name: F.expr(f"if(uses > 1, own_{name}, {name})") for name in ("deliveries", "replies")},
                "turn": F.lit(1).cast("bigint"),
                "shared": F.expr("uses > 1"),
                "unknown": F.lit(False),
            }
        )
        .drop("own_deliveries", "own_replies", "uses", "nearest", "farthest", "again")
    )
    for kind, told_apart in (("mixed", turns), ("copied", _first_hand)):
        again = once.where(f"again = '{kind}'").select(*KEY, "uses", "requester", "answered")
        number = 1 if keep is None else again.limit(BROADCAST_MAX + 1).count()
        if number:
            again = F.broadcast(again) if number <= BROADCAST_MAX else again
            by_turn = told_apart(legs(frames).join(again, [*KEY])).groupBy(*KEY, "turn", "uses")
            found = by_turn.agg(*whole, F.max("unknown").alias("unknown"))
            rows = rows.unionByName(found.withColumn("shared", F.expr("uses > 1")).drop("uses"))
    replying = once.where("answered IS NOT NULL").select("recorder", "answered").distinct()
    for name in ("reached", "reached_last"):
        those = replying.withColumns({name: F.col("answered"), f"{name}_replies": F.lit(True)}).drop(
            "answered"
        )
        rows = rows.join(F.broadcast(those), ["recorder", name], "left")
    return rows.where("requests > 0")


def _first_hand(legs: DataFrame) -> DataFrame:
    """Return the legs of reply subjects of one request each, with one copy of each reply.

    It is that for the requester, if it got any, and for the first of its subscriptions that did.  Deliveries
    to others than the one that replied are leg 5.  requester, answered: of the request.
    """
    key = Window.partitionBy(*KEY)
    home = F.max(F.expr("leg = 4 AND conn_id = requester")).over(key)
    rows = legs.withColumn("home", F.coalesce(home, F.lit(False)))
    rows = rows.where("leg <> 4 OR conn_id = requester OR NOT home")
    first = F.expr("min_by(sid, if(leg = 4, struct(at_ns, in_ordinal), NULL))").over(key)
    rows = rows.withColumn("first", first).where("leg <> 4 OR NOT home OR sid = first")
    leg = F.expr("if(leg = 2 AND conn_id <> answered, 5, leg)")
    return rows.withColumns({"leg": leg, "turn": F.lit(1).cast("bigint"), "unknown": F.lit(False)})


def timed(frames: DataFrame, own: str = "true", keep: Keep | None = None) -> DataFrame:
    """Return one row per request: its subject, its outcome and its latencies.

    own: an SQL condition on `at_ns`, for requests that count.  keep: see `exchanges`.
    """
    alone = "requests = 1 AND pulls = 0"
    found = with_text(
        paired(frames, own, keep), request_messages(frames), "subject_id", "subject", "template", "js_verb"
    )
    found = found.withColumns({name: when("NOT unknown", name) for name in ("t4", "last_ns", "reply_status")})
    return found.withColumns(
        {
            "outcome": F.expr(
                "CASE WHEN pulls > 0 THEN 'pull' WHEN unknown THEN 'unknown' WHEN replies > 0 THEN 'replied' "
                "WHEN nobody > 0 THEN 'no responders' ELSE 'no reply' END"
            ),
            "status": F.expr("if(replies = 0 AND nobody > 0, 503, reply_status)"),
            "latency_ns": when(f"{alone} AND t4 >= t1", "t4 - t1"),
            "service_ns": when(f"{alone} AND t3 >= t2", "t3 - t2"),
        }
    )


def exchanges(frames: DataFrame, own: str = "true", keep: Keep | None = None) -> DataFrame:
    """Return one row per request with all that `requests`, `js_api`, `pub_acks` and `faults` select from.

    own: an SQL condition on `at_ns`, for requests that count (see `natsproxy/spark/tables/hours.py`).  keep:
    given, it keeps the rows of reply subjects, and this call looks at once whether one is used again; if
    none is, the plan gets no part for such.
    """
    found, texts = timed(frames, own, keep), _quoted(frames)
    for number, name in (("error_id", "error"), ("stream_id", "stream")):
        found = with_text(found, texts.withColumnRenamed("text", name), number, name, few=True)
    replying = (when(f"{name}_replies", name) for name in ("reached", "reached_last"))
    return found.withColumns({"responder": F.coalesce("answered", *replying), "reply": F.col("k")})


def _quoted(frames: DataFrame) -> DataFrame:
    """Return the texts in JetStream's replies: the names of streams, and errors."""
    replies = clients_side(frames).where(f"dir = 1 AND (js_error IS NOT NULL OR {PUBLISH_ACK})")
    quoted = F.array("js_error", when(PUBLISH_ACK, "js_stream"))
    return replies.select(F.explode(F.array_compact(quoted)).alias("text"))
