"""What JetStream says on the wire: deliveries and their acks, publishes and theirs.

A delivery carries its ack subject as its reply, and what the client answers goes to that subject: the pair is
one aggregation on it, as a request's is (`natsproxy/spark/tables/requests.py`).  A publish ack is a reply
like any other; which requests were JetStream publishes is seen from their headers, or from another publish on
that subject template that got a publish ack.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from natsproxy.spark.tables.base import ACK, MESSAGE, clients_side, peer, shaped, when, with_peer, with_text
from natsproxy.spark.tables.requests import ERROR, error_texts, legs, named, paired

ANSWERS = ("ack", "nak", "term", "next", "other")
"""What a client says to a delivery, by its number in aggregations; +WPI only asks for more time."""
_WPI = "payload IS NOT NULL AND substr(payload, 1, 4) = X'2B575049'"
_ANSWER = (
    "CASE WHEN size <= header_size THEN 1 WHEN payload IS NULL THEN 5 "
    "WHEN substr(payload, 1, 4) IN (X'2B41434B', X'2B4F4B') THEN 1 "
    "WHEN substr(payload, 1, 4) = X'2D4E414B' THEN 2 "
    "WHEN substr(payload, 1, 4) = X'2B544552' THEN 3 "
    "WHEN substr(payload, 1, 4) = X'2B4E5854' THEN 4 ELSE 5 END"
)
_STREAM = r"""nullif(regexp_extract(body, '"stream":\\s*"([^"]*)"', 1), '')"""
_IS_ACK = """leg = 4 AND (body LIKE '{"stream"%"seq"%' OR body LIKE '{"error"%"stream"%"seq"%')"""


def _token(place: int, kind: str = "string") -> str:
    return f"if(size(p) IN (9, 11, 12), try_cast(get(p, o + {place}) AS {kind}), NULL)"


def js_acks(frames: DataFrame) -> DataFrame:
    """Return one row per JetStream delivery: the how-many-th it is, what the client said, how late.

    answer: the first that settles it: ack, nak, term, next (+NXT), other (no ack for the server); wpi where
    there were only those; none.  redelivered: it was delivered before.  wpi: how often more time was asked
    for.  answer_ns: from delivery to answer.  Consumers without acks have none.
    """
    rows = (
        clients_side(frames)
        .where(MESSAGE)
        .withColumn("k", F.expr("if(dir = 1, reply, subject)"))
        .where(F.col("k").startswith(ACK))
        .withColumn("said", F.expr(f"CASE WHEN dir = 1 OR {_WPI} THEN NULL ELSE {_ANSWER} END"))
        .withColumn("peer", peer())
    )
    grouped = rows.groupBy("k").agg(
        F.min(when("dir = 1", "at_ns")).alias("delivered_ns"),
        F.min(when("said IS NOT NULL", "at_ns")).alias("settled_ns"),
        F.expr("min_by(said, if(said IS NOT NULL, at_ns, NULL))").alias("said"),
        F.expr(f"count_if(dir = 0 AND {_WPI})").alias("wpi"),
        F.min(when(f"dir = 0 AND {_WPI}", "at_ns")).alias("wpi_ns"),
        F.max(when("dir = 1", "peer")).alias("peer"),
        F.max(when("dir = 1", F.xxhash64("subject"))).alias("subject_id"),
    )
    grouped = with_text(grouped, rows.where("dir = 1"), "subject_id", "subject")
    grouped = with_peer(grouped, frames, "peer", "recorder", "conn_id")
    split = grouped.withColumn("p", F.split("k", r"\.")).withColumn("o", F.expr("if(size(p) >= 11, 4, 2)"))
    words = ", ".join(f"'{word}'" for word in ANSWERS)
    return shaped("js_acks", split.withColumns({
        "domain": F.expr("if(o = 4, nullif(p[2], '_'), NULL)"),
        "stream": F.expr(_token(0)), "consumer": F.expr(_token(1)),
        "delivered": F.expr(_token(2, "bigint")), "stream_seq": F.expr(_token(3, "bigint")),
        "consumer_seq": F.expr(_token(4, "bigint")), "pending": F.expr(_token(6, "bigint")),
        "redelivered": F.expr(f"{_token(2, 'bigint')} > 1"),
        "answered_ns": F.expr("coalesce(settled_ns, wpi_ns)"),
        "answer": F.expr(f"coalesce(element_at(array({words}), said), if(wpi > 0, 'wpi', 'none'))"),
        "answer_ns": F.expr("coalesce(settled_ns, wpi_ns) - delivered_ns"),
    }))  # fmt: skip


def pub_acks(frames: DataFrame, until: int | None = None) -> DataFrame:
    """Return one row per JetStream publish that asked for an ack: stream, sequence, error, how late.

    outcome: ack, duplicate, error, no responders, no ack (none came), other (part of an atomic batch, or not
    JetStream's).  A publish is JetStream's if its headers say so, or another on its template got an ack.
    """
    rows = legs(frames)
    acked = rows.where(_IS_ACK)
    pairs = paired(
        rows,
        F.max(when(_IS_ACK, F.lit(1))).alias("acked"),
        F.max(when(_IS_ACK, F.xxhash64(F.expr(_STREAM)))).alias("stream_id"),
        F.max(when(_IS_ACK, _number("seq"))).alias("seq"),
        F.max(when(_IS_ACK, _number("count"))).alias("batch"),
        F.max(when(_IS_ACK, "if(body RLIKE '\"duplicate\":\\\\s*true', 1, 0)")).alias("duplicated"),
        F.max(when("leg = 4 AND body LIKE '%err_code%'", F.xxhash64(F.expr(ERROR)))).alias("error_id"),
        until=until,
    ).where("pulls = 0")
    asked = named(pairs, frames)
    known = asked.where("acked = 1").select("template").distinct()
    found = _marked(frames)
    asked = asked.join(known.withColumn("usual", F.lit(True)), "template", "left")
    asked = asked.join(found.withColumn("marked", F.lit(True)), "k", "left").where("usual OR marked")
    asked = with_text(asked, acked.select(F.expr(_STREAM).alias("stream")), "stream_id", "stream")
    asked = with_text(asked, error_texts(rows), "error_id", "error")
    return shaped("pub_acks", asked.withColumns({
        "duplicate": F.expr("duplicated = 1"),
        "outcome": F.expr(
            "CASE WHEN err_code IS NOT NULL THEN 'error' WHEN duplicated = 1 THEN 'duplicate' "
            "WHEN acked = 1 THEN 'ack' WHEN replies = 0 THEN 'no ack' "
            "WHEN status = 503 THEN 'no responders' ELSE 'other' END"
        ),
    }))  # fmt: skip


def _number(name: str) -> str:
    return f"try_cast(nullif(regexp_extract(body, '\"{name}\":\\\\s*([0-9]+)', 1), '') AS bigint)"


def _marked(frames: DataFrame) -> DataFrame:
    """Return the reply subjects of publishes whose headers are for JetStream."""
    told = r"headers RLIKE '\nNats-(Msg-Id|Expected-[A-Za-z-]+|Batch-Id|TTL):'"
    marked = clients_side(frames).where(f"op = 'HPUB' AND reply IS NOT NULL AND {told}")
    return marked.select(F.col("reply").alias("k")).distinct()
