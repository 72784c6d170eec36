"""Requests and their replies: one aggregation on the reply subject, no join of frames with frames.

The four legs of an exchange share a key: 1 the request arrives (its reply subject), 2 it is delivered to a
responder, 3 the reply arrives (its subject), 4 it is delivered to the requester.  A frame with a reply
subject is a leg of two exchanges: the one that it opens, and the one that it may answer.  Legs pair within
their recorder: two proxies in a row record the same exchange, each with its own four times.

The requests of a reply subject that is used again are numbered by time (`turn`).  Where a leg is there as
often as the request, and never earlier than its own, they pair first in, first out: a client may send several
requests before the first reply comes.  Otherwise each belongs to the latest request before it, as long as no
sign says that requests waited in a row: a reply before the first request, several replies to a request after
one that got none, several replies of which the first came after more than two requests.  With such a sign it
is unknown which request a reply belongs to, for all requests of that reply subject: their outcome is
`unknown`, and they have no times but their own.  So a request with many replies, and one that is made again
after a time-out, keep their rows.

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
    TEXT,
    clients_side,
    payload_begins,
    when,
    with_text,
)

Keep: TypeAlias = Callable[[DataFrame], DataFrame]
"""Returns rows that are used several times, computed once."""

TURNS_MAX = 100_000
"""The number of requests on one reply subject up to which they are told apart."""
BROADCAST_MAX = 1_000_000
"""The number of reply subjects up to which each task gets all that have to be looked at again."""
_PULL = (
    r"(subject LIKE '$JS.%API.CONSUMER.MSG.NEXT.%' "
    rf"OR (startswith(subject, '{ACK}') AND coalesce({payload_begins(b'+NXT')}, false)))"
)
_REPLY = "leg = 4 AND NOT (status <=> 503)"
_AGAIN = (
    "pulls = 0 AND uses <= {most} AND (uses > 1 OR coalesce(reached <> answered, false) "
    "OR coalesce(nearest <> farthest, false) OR coalesce(t4 < t1, false))"
)
"""The reply subjects whose legs have to be looked at one by one: see `_turns`."""
_KEY = ("recorder", "k")
"""The key of an exchange: its recorder and its reply subject."""
_SIDES = "explode(if(reply IS NULL, array(3), array(1, 3)))"
"""The exchanges of which a message is a leg: 1, the one that it opens; 3, the one that it may answer."""
_FOR_JETSTREAM = r"coalesce(headers RLIKE '\nNats-(Msg-Id|Expected-[A-Za-z-]+|Batch-Id|TTL):', false)"
_IS_JSON = payload_begins(b"{")
_ERRED = "body LIKE '%err_code%'"
_IS_ACK = """(body LIKE '{"stream"%"seq"%' OR body LIKE '{"error"%"stream"%"seq"%')"""
_ERROR = r"""nullif(regexp_extract(body, '"description":\\s*"((?:[^"\\\\]|\\\\.)*)', 1), '')"""
_STREAM = r"""nullif(regexp_extract(body, '"stream":\\s*"([^"]*)"', 1), '')"""
_DUPLICATE = r"""int(body RLIKE '"duplicate":\\s*true')"""


def _number(name: str, kind: str = "bigint") -> str:
    return rf"""try_cast(nullif(regexp_extract(body, '"{name}":\\s*([0-9]+)', 1), '') AS {kind})"""


def _from_reply(condition: str, value: str | Column) -> Column:
    """Return a value of JetStream's reply, where the condition holds for it."""
    return F.max(when(f"leg = 4 AND body IS NOT NULL AND {condition}", value))


def request_messages(frames: DataFrame) -> DataFrame:
    """Return the messages with a reply subject that clients sent, acks apart."""
    rows = clients_side(frames).where(f"{MESSAGE} AND dir = 0 AND reply IS NOT NULL")
    return rows.where(~F.col("reply").startswith(ACK))


def of_exchanges(frames: DataFrame, beginnings: Collection[str]) -> DataFrame:
    """Return the frames that `exchanges` needs: the others would be counted by subject, and dropped.

    beginnings: the first tokens of all reply subjects that are no ack subjects.
    """
    begins = F.substring_index("subject", ".", 1)
    needed = F.col("reply").isNotNull()
    for beginning in beginnings:
        needed |= begins == beginning
    return frames.where(needed)


def legs(frames: DataFrame) -> DataFrame:
    """Return one row per message and exchange (`recorder`, `k`), with its `leg`.

    body: the text of a JSON payload.
    """
    rows = (
        clients_side(frames)
        .where(MESSAGE)
        .select(
            "at_ns",
            "in_ordinal",
            "recorder",
            "conn_id",
            "dir",
            "subject",
            "reply",
            "status",
            F.expr(_FOR_JETSTREAM).alias("for_jetstream"),
            F.expr(_PULL).alias("pull"),
            F.expr(f"if({_IS_JSON}, {TEXT}, NULL)").alias("body"),
            F.expr(_SIDES).alias("side"),
        )
    )
    rows = rows.withColumns({"k": F.expr("if(side = 1, reply, subject)"), "leg": F.expr("side + dir")})
    return rows.where(~F.col("k").startswith(ACK)).drop("side", "dir", "reply")


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
        F.expr("count_if(leg IN (2, 5))").alias("deliveries"),
        F.expr(f"count_if({_REPLY})").alias("replies"),
        F.expr("count_if(leg = 1 AND for_jetstream)").alias("marked"),
        _from_reply(_ERRED, _number("err_code", "int")).alias("err_code"),
        _from_reply(_ERRED, F.xxhash64(F.expr(_ERROR))).alias("error_id"),
        _from_reply(_IS_ACK, F.xxhash64(F.expr(_STREAM))).alias("stream_id"),
        _from_reply(_IS_ACK, _number("seq")).alias("seq"),
        _from_reply(_IS_ACK, _number("count")).alias("batch"),
        _from_reply(_IS_ACK, _DUPLICATE).alias("duplicated"),
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
        .groupBy(*_KEY)
        .agg(
            *whole,
            *(F.expr(f"count_if({condition})").alias(name) for name, condition in counts.items()),
            F.min(when("leg = 4", "conn_id")).alias("nearest"),
            F.max(when("leg = 4", "conn_id")).alias("farthest"),
        )
        .where("uses > 0")
    )
    if keep is not None:
        once = keep(once)
    once = once.withColumn("again", F.expr(_AGAIN.format(most=TURNS_MAX)))
    again = once.where("again").select(*_KEY, "uses")
    # A row of several requests counts deliveries and replies by their own times.
    rows = (
        once.where("NOT again")
        .withColumns(
            {
                **{name: F.expr(f"if(uses > 1, own_{name}, {name})") for name in ("deliveries", "replies")},
                "turn": F.lit(1).cast("bigint"),
                "shared": F.expr("uses > 1"),
                "unknown": F.lit(False),
                "unserved": F.lit(False),
            }
        )
        .drop("own_deliveries", "own_replies", "uses", "nearest", "farthest", "again")
    )
    number = 1 if keep is None else again.limit(BROADCAST_MAX + 1).count()
    if number:
        again = F.broadcast(again) if number <= BROADCAST_MAX else again
        rows = rows.unionByName(_one_by_one(frames, again, whole))
    replying = once.where("answered IS NOT NULL").select("recorder", "answered").distinct()
    for name in ("reached", "reached_last"):
        those = replying.withColumns({name: F.col("answered"), f"{name}_replies": F.lit(True)}).drop(
            "answered"
        )
        rows = rows.join(F.broadcast(those), ["recorder", name], "left")
    return rows.where("requests > 0")


def _one_by_one(frames: DataFrame, again: DataFrame, whole: list[Column]) -> DataFrame:
    """Return one row per request of some reply subjects.

    unknown: the replies may belong to other requests.  unserved: so may the other legs of the responder.
    """
    got = [F.expr(f"count_if(leg = {leg})").alias(f"got{leg}") for leg in (2, 3, 4)]
    rows = _turns(frames, again).groupBy(*_KEY, "turn", "uses").agg(*whole, *got)
    every = Window.partitionBy(*_KEY)

    def turn(first_or_last: Callable[[Column], Column], condition: str) -> Column:
        return first_or_last(when(condition, "turn")).over(every)

    def strays(leg: str) -> Column:
        several_late = turn(F.max, f"{leg} > 1") > turn(F.min, f"turn > 0 AND {leg} = 0")
        return F.coalesce(several_late | (turn(F.min, f"{leg} > 0") == 0), F.lit(False))

    waited = (turn(F.min, "got4 > 0") > 2) & (turn(F.count, "got4 > 0") > 1)
    return rows.withColumns(
        {
            "shared": F.expr("uses > 1"),
            "unknown": strays("got4") | F.coalesce(waited, F.lit(False)),
            "unserved": strays("got2") | strays("got3"),
        }
    ).drop("uses", "got2", "got3", "got4")


def _turns(frames: DataFrame, again: DataFrame) -> DataFrame:
    """Return the legs of some reply subjects, each with the number of its request.

    Replies to connections that did not ask are left out, requests to some that did not reply are leg 5, where
    others did.
    """
    exchange, leg = Window.partitionBy(*_KEY), Window.partitionBy(*_KEY, "leg")
    here = Window.partitionBy(*_KEY, "conn_id")
    rows = legs(frames).join(again, [*_KEY])
    for name, own in (("asks", 1), ("answers", 3)):
        rows = rows.withColumn(name, F.max(F.col("leg") == own).over(here))
    rows = rows.withColumn("aside", F.expr("(leg = 4 AND NOT asks) OR (leg = 2 AND NOT answers)"))
    rows = rows.withColumn("aside", F.col("aside") & ~F.min("aside").over(leg)).where("NOT aside OR leg = 2")
    rows = rows.withColumn("leg", F.expr("if(aside, 5, leg)")).withColumns(
        {
            "asked": F.sum(F.expr("if(leg = 1, 1, 0)")).over(exchange.orderBy("at_ns", "leg", "in_ordinal")),
            "nth": F.row_number().over(leg.orderBy("at_ns", "in_ordinal")),
            "times": F.count("*").over(leg),
        }
    )
    in_order = (F.col("times") == F.col("uses")) & (F.min(F.col("asked") - F.col("nth")).over(leg) >= 0)
    return rows.withColumn("turn", F.when(in_order, F.col("nth")).otherwise(F.col("asked")))


def timed(frames: DataFrame, own: str = "true", keep: Keep | None = None) -> DataFrame:
    """Return one row per request: its subject, its outcome and its latencies.

    own: an SQL condition on `at_ns`, for requests that count.  keep: see `exchanges`.
    """
    alone = "requests = 1 AND pulls = 0"
    found = with_text(
        paired(frames, own, keep), request_messages(frames), "subject_id", "subject", "template"
    )
    for names, known in (("t2", "t3"), "NOT (unknown OR unserved)"), (("t4", "last_ns"), "NOT unknown"):
        found = found.withColumns({name: when(known, name) for name in names})
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
    """Return the texts that JSON for clients quotes: the names of streams, and errors."""
    bodies = clients_side(frames).where(f"dir = 1 AND {_IS_JSON}")
    bodies = bodies.select(F.expr(TEXT).alias("body"))
    quoted = F.array(when(_ERRED, _ERROR), when(_IS_ACK, _STREAM))
    return bodies.select(F.explode(F.array_compact(quoted)).alias("text"))
