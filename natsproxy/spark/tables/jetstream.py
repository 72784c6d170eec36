"""The table `js_acks`: JetStream's deliveries and the answers of clients.

A delivery carries its ack subject as its reply, and the client's answer goes to that subject: the pair is one
aggregation on it, as a request's is (`natsproxy/spark/tables/pairing.py`).

A consumer whose ack policy is `all` answers many deliveries at once: an ack settles all with a stream
sequence up to its own (`_covered`).
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from natsproxy.spark.tables.base import (
    ACK,
    MESSAGE,
    TEXT,
    clients_side,
    payload_begins,
    shaped,
    when,
    with_text,
)

ANSWERS = ("ack", "nak", "term", "next", "other", "unknown")
"""The answers to a delivery, by their numbers in aggregations; +WPI only asks for more time."""
_ACKING = (ANSWERS.index("ack") + 1, ANSWERS.index("next") + 1)
_UNREAD = ANSWERS.index("unknown") + 1
POLICIES = ("none", "all", "explicit")
"""The ack policies of consumers, by their numbers in aggregations."""
_TOLD = '{"type":"io.nats.jetstream.api.v1.consumer_'
_MAKES_CONSUMER = r"^[$]JS[.]([^.]+[.])?API[.]CONSUMER[.](DURABLE[.])?CREATE[.](.+)$"
_WPI = "coalesce(payload = X'2B575049' AND size - header_size = 4, false)"
_ANSWER = (
    "CASE WHEN size <= header_size THEN 1 "
    f"WHEN {payload_begins(b'-NAK')} THEN 2 "
    f"WHEN {payload_begins(b'+TERM')} THEN 3 "
    f"WHEN {payload_begins(b'+NXT')} THEN 4 "
    f"WHEN coalesce(length(payload), 0) < least(size - header_size, 5) THEN {_UNREAD} "
    "WHEN payload IN (X'2B41434B', X'2B4F4B') THEN 1 ELSE 5 END"
)
"""The SQL of an answer; it is unknown where too little of the payload was recorded."""


def _token(place: int, kind: str = "string") -> str:
    return f"if(size(p) IN (9, 11, 12), try_cast(get(p, o + {place}) AS {kind}), NULL)"


def js_acks(frames: DataFrame) -> DataFrame:
    """Return one row per JetStream delivery: its number, the client's answer, the time until then.

    answer: the first that settles it: ack, nak, term, next (+NXT), other (no ack for the server); wpi where
    there were only those; not asked (the consumer's ack policy is none, as that of a KV watcher); none.
    unknown: the payload of the answer was not recorded; or there is none, the policy is not known, and nobody
    answered any delivery of that consumer.  With the ack policy all, the ack of a later message is that of
    the ones before it, and an unknown answer makes theirs unknown.
    conn_id: that which answered, else the first that got it: a subscriber to `>` gets a copy.
    ack_policy: of the consumer, where a call of JetStream's API tells it; else NULL.  redelivered: it was
    delivered before.  wpi: the times that the client asked for more time.  answer_ns: from delivery to
    answer.  Answers to deliveries from before the recording are none.
    """
    rows = (
        clients_side(frames)
        .where(MESSAGE)
        .withColumn("k", F.expr("if(dir = 1, reply, subject)"))
        .where(F.col("k").startswith(ACK))
        .withColumn("answer_code", F.expr(f"CASE WHEN dir = 1 OR {_WPI} THEN NULL ELSE {_ANSWER} END"))
    )
    grouped = rows.groupBy("recorder", "k").agg(
        F.min(when("dir = 1", "at_ns")).alias("delivered_ns"),
        F.min(when("answer_code IS NOT NULL", "at_ns")).alias("settled_ns"),
        F.expr("min_by(answer_code, if(answer_code IS NOT NULL, at_ns, NULL))").alias("answer_code"),
        F.expr(f"count_if(dir = 0 AND {_WPI})").alias("wpi"),
        F.min(when(f"dir = 0 AND {_WPI}", "at_ns")).alias("wpi_ns"),
        F.expr("min_by(conn_id, if(dir = 1, at_ns, NULL))").alias("reached"),
        F.expr("min_by(conn_id, if(dir = 0, at_ns, NULL))").alias("answered"),
        F.max(when("dir = 1", F.xxhash64("subject"))).alias("subject_id"),
    )
    grouped = grouped.where("delivered_ns IS NOT NULL")
    grouped = with_text(grouped, rows.where("dir = 1"), "subject_id", "subject")
    split = grouped.withColumn("p", F.split("k", r"\.")).withColumn("o", F.expr("if(size(p) >= 11, 4, 2)"))
    split = split.withColumns({"stream": F.expr(_token(0)), "consumer": F.expr(_token(1))})
    split = split.join(F.broadcast(_consumers(frames)), ["recorder", "stream", "consumer"], "left")
    split = split.withColumns(
        {"stream_seq": F.expr(_token(3, "bigint")), "domain": F.expr("if(o = 4, nullif(p[2], '_'), NULL)")}
    )
    split = _covered(split)
    words = ", ".join(f"'{word}'" for word in ANSWERS)
    unanswered = (
        "CASE WHEN perhaps THEN 'unknown' WHEN wpi > 0 THEN 'wpi' WHEN ack_policy = 'none' THEN 'not asked' "
        "WHEN ack_policy IS NULL AND NOT coalesce(answers, false) THEN 'unknown' ELSE 'none' END"
    )
    return shaped(
        "js_acks",
        split.withColumns(
            {
                "conn_id": F.coalesce("answered", "reached"),
                "delivered": F.expr(_token(2, "bigint")),
                "consumer_seq": F.expr(_token(4, "bigint")),
                "pending": F.expr(_token(6, "bigint")),
                "redelivered": F.expr(f"{_token(2, 'bigint')} > 1"),
                "answered_ns": F.expr("coalesce(settled_ns, wpi_ns)"),
                "answer": F.expr(f"coalesce(elt(answer_code, {words}), {unanswered})"),
                "answer_ns": F.expr("coalesce(settled_ns, wpi_ns) - delivered_ns"),
            }
        ),
    )


def _covered(deliveries: DataFrame) -> DataFrame:
    """Return deliveries, settled by the ack of a later message where the consumer's ack policy is `all`.

    The time is that of the first such ack; of the last one where the first is older than the delivery (a
    consumer was made again under its name).  perhaps: a later answer may be such an ack.
    """
    consumer = "if(ack_policy = 'all', concat_ws('.', domain, stream, consumer), k)"  # others stay alone
    later = Window.partitionBy("recorder", F.expr(consumer)).orderBy(F.desc("stream_seq"))
    acks = when(f"ack_policy = 'all' AND answer_code IN {_ACKING}", "settled_ns")
    unread = when(f"ack_policy = 'all' AND answer_code = {_UNREAD}", "settled_ns")
    rows = deliveries.withColumns(
        {
            "first_ack": F.min(acks).over(later),
            "last_ack": F.max(acks).over(later),
            "perhaps": F.coalesce(F.max(unread).over(later) >= F.col("delivered_ns"), F.lit(False)),
        }
    )
    at = "CASE WHEN first_ack >= delivered_ns THEN first_ack WHEN last_ack >= delivered_ns THEN last_ack END"
    rows = rows.withColumn("covered_ns", F.expr(f"if(settled_ns IS NULL, {at}, NULL)"))
    return rows.withColumns(
        {
            "answer_code": F.expr("if(covered_ns IS NULL, answer_code, 1)"),
            "settled_ns": F.coalesce("settled_ns", "covered_ns"),
        }
    )


def _consumers(frames: DataFrame) -> DataFrame:
    """Return the last known ack policy of each consumer, and whether clients answer its deliveries.

    The policy is known from calls that make a consumer or ask for it.
    """
    policies = ", ".join(f"'{policy}'" for policy in POLICIES)
    telling = f"contains(body, '\"ack_policy\"') AND (dir = 0 OR startswith(body, '{_TOLD}'))"
    rows = (
        clients_side(frames)
        .where(MESSAGE)
        .withColumn("answers", F.expr(f"dir = 0 AND startswith(subject, '{ACK}')"))
        .where(f"answers OR {payload_begins(b'{')}")
        .withColumn("body", F.expr(f"if(answers, NULL, {TEXT})"))
        .where(f"answers OR ({telling})")
        .withColumn("made", F.regexp_extract("subject", _MAKES_CONSUMER, 3))
        .withColumn("p", F.split(F.expr("if(answers, subject, made)"), r"\."))
        .withColumn("o", F.expr("if(answers, if(size(p) >= 11, 4, 2), 0)"))
    )
    told = rows.select(
        "recorder",
        "answers",
        F.expr("if(answers, NULL, at_ns)").alias("told_ns"),
        F.expr(f"if(dir = 0, get(p, o), {_value('stream_name')})").alias("stream"),
        F.expr(f"if(dir = 0, get(p, o + 1), {_value('name')})").alias("consumer"),
        F.expr(f"array_position(array({policies}), {_value('ack_policy')})").alias("policy"),
    )
    latest = told.groupBy("recorder", "stream", "consumer").agg(
        F.max_by("policy", "told_ns").alias("policy"), F.max("answers").alias("answers")
    )
    return latest.withColumn("ack_policy", F.expr(f"elt(int(nullif(policy, 0)), {policies})")).drop("policy")


def _value(name: str) -> str:
    return f"""regexp_extract(body, '"{name}": *"([^"]*)"', 1)"""
