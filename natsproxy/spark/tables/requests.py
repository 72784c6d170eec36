"""Requests and their replies: one aggregation on the reply subject, no join of frames with frames.

The four legs of an exchange share a key: 1 the request arrives (its reply subject), 2 it is delivered to a
responder, 3 the reply arrives (its subject), 4 it is delivered to the requester.  A frame with a reply
subject is a leg of two exchanges: the one that it opens, and the one that it may answer.

A reply subject that is used again is counted in turns, by time: a reply belongs to the latest request before
it.  Pull requests (`CONSUMER.MSG.NEXT` on one inbox for ever) are answered by deliveries on other subjects,
and more than `TURNS_MAX` requests on one reply subject would make one task sort them all: both stay one row
per reply subject, with counts and without latency.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from natsproxy.spark.tables.base import (
    ACK,
    MESSAGE,
    clients_side,
    peer,
    shaped,
    when,
    with_peer,
    with_text,
)

TURNS_MAX = 100_000
"""Requests on one reply subject that are still told apart."""
PULL = r"subject LIKE '$JS.%API.CONSUMER.MSG.NEXT.%'"
_LEGS = (
    "inline(if(reply IS NULL, array(named_struct('k', subject, 'leg', 3 + dir)), "
    "array(named_struct('k', reply, 'leg', 1 + dir), named_struct('k', subject, 'leg', 3 + dir))))"
)
_NUMBER = "try_cast(nullif(regexp_extract(body, '{}', 1), '') AS {})"
ERR_CODE = _NUMBER.format(r'"err_code":\\s*([0-9]+)', "int")
ERROR = r"""nullif(regexp_extract(body, '"description":\\s*"((?:[^"\\\\]|\\\\.)*)', 1), '')"""
OUTCOME = (
    "CASE WHEN pulls > 0 THEN 'pull' WHEN replies = 0 THEN 'no reply' "
    "WHEN status = 503 THEN 'no responders' ELSE 'replied' END"
)

_VERB = (
    "concat_ws('.', get(p, 0), get(p, 1), "
    "if(get(p, 1) IN ('MSG', 'DURABLE', 'LEADER', 'PEER') OR p[0] = 'ACCOUNT', get(p, 2), NULL))"
)


def legs(frames: DataFrame) -> DataFrame:
    """Return one row per message and exchange: `k`, `leg`; body is a reply's text where it is JSON."""
    rows = clients_side(frames).where(MESSAGE)
    return rows.select(
        "at_ns", "in_ordinal", "subject", "status", peer().alias("peer"),
        F.expr("if(substr(payload, 1, 1) = X'7B', CAST(payload AS string), NULL)").alias("body"),
        F.expr(_LEGS),
    ).where(~F.col("k").startswith(ACK))  # fmt: skip


def paired(rows: DataFrame, *more: Column, until: int | None = None) -> DataFrame:
    """Return one row per request (`k`, `turn`), in numbers only: see `natsproxy.spark.tables.base`.

    more: further aggregates.  until: requests from then on are not counted where a row holds several.
    """
    first = "leg = 1" if until is None else f"leg = 1 AND at_ns < {until}"
    whole = [
        *(F.min(when(f"leg = {leg}", "at_ns")).alias(f"t{leg}") for leg in (1, 2, 3, 4)),
        F.max(when("leg = 4", "at_ns")).alias("last_ns"),
        F.max(when("leg = 1", "peer")).alias("requester_id"),
        F.expr("min_by(peer, if(leg = 2, at_ns, NULL))").alias("reached_id"),
        F.expr("min_by(peer, if(leg = 3, at_ns, NULL))").alias("answered_id"),
        F.max(when("leg = 1", F.xxhash64("subject"))).alias("subject_id"),
        F.expr("min_by(status, if(leg = 4, at_ns, NULL))").alias("status"),
        F.max(when("leg = 4 AND body LIKE '%err_code%'", ERR_CODE)).alias("err_code"),
        F.expr(f"count_if(leg = 1 AND {PULL})").alias("pulls"),
        F.expr(f"count_if({first})").alias("requests"),
        F.expr("count_if(leg = 2)").alias("deliveries"),
        F.expr("count_if(leg = 4)").alias("replies"),
        *more,
    ]
    once = rows.groupBy("k").agg(*whole, F.expr("count_if(leg = 1)").alias("uses"))
    single = once.where(f"uses = 1 OR (uses > 1 AND (pulls > 0 OR uses > {TURNS_MAX}))").drop("uses")
    again = _turns(rows).groupBy("k", "turn").agg(*whole).where("turn > 0")
    return single.withColumn("turn", F.lit(1).cast("bigint")).unionByName(again)


def _turns(rows: DataFrame) -> DataFrame:
    """Return the legs of reply subjects that several requests use, each with the number of its request."""
    asked = rows.where("leg = 1").groupBy("k").agg(
        F.count("*").alias("uses"), F.expr(f"count_if({PULL})").alias("pulls")
    )  # fmt: skip
    reused = asked.where(f"uses BETWEEN 2 AND {TURNS_MAX} AND pulls = 0").select("k")
    order = Window.partitionBy("k").orderBy("at_ns", "leg", "in_ordinal")
    return rows.join(reused, "k", "left_semi").withColumn(
        "turn", F.sum(F.expr("if(leg = 1, 1, 0)")).over(order)
    )


def named(rows: DataFrame, frames: DataFrame) -> DataFrame:
    """Return paired requests with their texts, latency and outcome."""
    asked = clients_side(frames).where(f"{MESSAGE} AND dir = 0 AND reply IS NOT NULL")
    rows = with_text(rows, asked, "subject_id", "subject", "template")
    return with_peer(rows, frames, "requester_id", "recorder", "requester").withColumns({
        "outcome": F.expr(OUTCOME),
        "latency_ns": when("requests = 1 AND pulls = 0 AND t4 >= t1", "t4 - t1"),
    })  # fmt: skip


def requests(frames: DataFrame, until: int | None = None) -> DataFrame:
    """Return one row per request: who asked, who answered first, the times of its four legs, latencies.

    t1 to t4: the first time of each leg, as the clients saw it; last_ns: the last reply (scatter-gather).
    requests: 1, more only for pulls and beyond `TURNS_MAX`.  deliveries: to responders.  latency_ns is the
    requester's (t4 - t1), service_ns the responder's (t3 - t2).  outcome: replied, no responders (503), no
    reply (timed out, or still open when the capture ended), pull.  err_code: JetStream's, in the reply.
    """
    rows = named(paired(legs(frames), until=until), frames)
    rows = rows.withColumn("responder_id", F.coalesce("answered_id", "reached_id"))
    rows = with_peer(rows, frames, "responder_id", "responder_recorder", "responder")
    return shaped("requests", rows.withColumns({
        "reply": F.col("k"),
        "service_ns": when("requests = 1 AND t3 >= t2", "t3 - t2"),
    }))  # fmt: skip


def js_api(frames: DataFrame, until: int | None = None) -> DataFrame:
    """Return one row per JetStream API call: verb, who, how long, and the error that it got.

    verb: "STREAM.CREATE", "CONSUMER.MSG.NEXT"; a domain is left out.  err_code, error: of the reply.
    """
    rows = legs(frames)
    error_id = F.max(when("leg = 4 AND body LIKE '%err_code%'", F.xxhash64(F.expr(ERROR)))).alias("error_id")
    calls = named(paired(rows, error_id, until=until), frames)
    calls = with_text(calls, error_texts(rows), "error_id", "error")
    calls = calls.where(r"subject RLIKE '^[$]JS[.]([^.]+[.])?API[.]'").withColumn(
        "p", F.split(F.regexp_replace("subject", r"^[$]JS[.]([^.]+[.])?API[.]", ""), r"\.")
    )
    return shaped("js_api", calls.withColumns({
        "verb": F.expr(_VERB),
        "last_token": F.expr("get(p, size(p) - 1)"),
    }))  # fmt: skip


def error_texts(rows: DataFrame) -> DataFrame:
    """Return the different error descriptions of JetStream in legs, as `error`."""
    return rows.where("leg = 4 AND body LIKE '%err_code%'").select(F.expr(ERROR).alias("error")).distinct()
