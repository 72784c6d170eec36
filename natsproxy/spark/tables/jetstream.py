"""The table `js_acks`: JetStream's deliveries and the answers of clients.

A delivery carries its ack subject as its reply, and the client's answer goes to that subject: both meet in
one aggregation on it, as the legs of a request do (`natsproxy/spark/tables/pairing.py`).

A consumer whose ack policy is `all` answers many deliveries at once: an ack covers all with a stream
sequence up to its own (`_covered`).
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from natsproxy.spark.tables.base import (
    clients_side,
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
_OF_DELIVERY = (
    "js_domain",
    "js_stream",
    "js_consumer",
    "js_delivered",
    "js_stream_seq",
    "js_consumer_seq",
    "js_pending",
)
"""The columns that the ack subject of a delivery fills."""
_IS_ANSWER = "dir = 0 AND js_kind IN ('ack', 'nak', 'wpi', 'term', 'next', 'other', 'unknown')"


def js_acks(frames: DataFrame) -> DataFrame:
    """Return one row per JetStream delivery: its number, the client's answer, the time until then.

    answer: the first final one: ack, nak, term, next (+NXT), other (no ack for the server); wpi where
    there were only those; not asked (the consumer's ack policy is none, as that of a KV watcher); none.
    unknown: the payload of the answer was not recorded; or there is none, the policy is not known, and nobody
    answered any delivery of that consumer.  With the ack policy all, the ack of a later message is that of
    the ones before it, and an unknown answer makes theirs unknown.
    conn_id: that which answered, else the first that got it: a subscriber to `>` gets a copy.
    ack_policy: of the consumer, where a call of JetStream's API tells it; else NULL.  redelivered: it was
    delivered before.  wpi: the times that the client asked for more time.  answer_ns: from delivery to
    answer.  Answers to deliveries from before the recording are none.
    """
    words = ", ".join(f"'{word}'" for word in ANSWERS)
    rows = (
        clients_side(frames)
        .where(f"js_kind = 'delivery' OR ({_IS_ANSWER})")
        .withColumn("k", F.expr("if(dir = 1, reply, subject)"))
        .withColumn("answer_code", F.expr(f"nullif(array_position(array({words}), js_kind), 0)"))
    )
    grouped = rows.groupBy("recorder", "k", *_OF_DELIVERY).agg(
        F.min(when("dir = 1", "at_ns")).alias("delivered_ns"),
        F.min(when("answer_code IS NOT NULL", "at_ns")).alias("final_ns"),
        F.expr("min_by(answer_code, if(answer_code IS NOT NULL, at_ns, NULL))").alias("answer_code"),
        F.expr("count_if(js_kind = 'wpi')").alias("wpi"),
        F.min(when("js_kind = 'wpi'", "at_ns")).alias("wpi_ns"),
        F.expr("min_by(conn_id, if(dir = 1, at_ns, NULL))").alias("reached"),
        F.expr("min_by(conn_id, if(dir = 0, at_ns, NULL))").alias("answered"),
        F.max(when("dir = 1", F.xxhash64("subject"))).alias("subject_id"),
    )
    found = grouped.where("delivered_ns IS NOT NULL").withColumnsRenamed(
        {name: name.removeprefix("js_") for name in _OF_DELIVERY}
    )
    found = with_text(found, rows.where("dir = 1"), "subject_id", "subject")
    found = found.join(F.broadcast(_consumers(frames)), ["recorder", "stream", "consumer"], "left")
    unanswered = (
        "CASE WHEN perhaps THEN 'unknown' WHEN wpi > 0 THEN 'wpi' WHEN ack_policy = 'none' THEN 'not asked' "
        "WHEN ack_policy IS NULL AND NOT coalesce(answers, false) THEN 'unknown' ELSE 'none' END"
    )
    return shaped(
        "js_acks",
        _covered(found).withColumns(
            {
                "conn_id": F.coalesce("answered", "reached"),
                "redelivered": F.expr("delivered > 1"),
                "answered_ns": F.expr("coalesce(final_ns, wpi_ns)"),
                "answer": F.expr(f"coalesce(elt(int(answer_code), {words}), {unanswered})"),
                "answer_ns": F.expr("coalesce(final_ns, wpi_ns) - delivered_ns"),
            }
        ),
    )


def _covered(deliveries: DataFrame) -> DataFrame:
    """Return deliveries, acknowledged by the ack of a later message where the consumer's ack policy is `all`.

    The time is that of the first such ack; of the last one where the first is older than the delivery (a
    consumer was made again under its name).  perhaps: a later answer may be such an ack.
    """
    consumer = "if(ack_policy = 'all', concat_ws('.', domain, stream, consumer), k)"  # others stay alone
    later = Window.partitionBy("recorder", F.expr(consumer)).orderBy(F.desc("stream_seq"))
    acks = when(f"ack_policy = 'all' AND answer_code IN {_ACKING}", "final_ns")
    unread = when(f"ack_policy = 'all' AND answer_code = {_UNREAD}", "final_ns")
    rows = deliveries.withColumns(
        {
            "first_ack": F.min(acks).over(later),
            "last_ack": F.max(acks).over(later),
            "perhaps": F.coalesce(F.max(unread).over(later) >= F.col("delivered_ns"), F.lit(False)),
        }
    )
    at = "CASE WHEN first_ack >= delivered_ns THEN first_ack WHEN last_ack >= delivered_ns THEN last_ack END"
    rows = rows.withColumn("covered_ns", F.expr(f"if(final_ns IS NULL, {at}, NULL)"))
    return rows.withColumns(
        {
            "answer_code": F.expr("if(covered_ns IS NULL, answer_code, 1)"),
            "final_ns": F.coalesce("final_ns", "covered_ns"),
        }
    )


def _consumers(frames: DataFrame) -> DataFrame:
    """Return the last known ack policy of each consumer, and whether clients answer its deliveries.

    The policy is known from calls that make a consumer or ask for it.
    """
    policies = ", ".join(f"'{policy}'" for policy in POLICIES)
    rows = clients_side(frames).withColumn("answers", F.expr(f"coalesce({_IS_ANSWER}, false)"))
    told = rows.where("answers OR js_ack_policy IS NOT NULL").select(
        "recorder",
        "answers",
        F.expr("if(answers, NULL, at_ns)").alias("told_ns"),
        F.col("js_stream").alias("stream"),
        F.col("js_consumer").alias("consumer"),
        F.expr(f"array_position(array({policies}), js_ack_policy)").alias("policy"),
    )
    latest = told.groupBy("recorder", "stream", "consumer").agg(
        F.max_by("policy", "told_ns").alias("policy"), F.max("answers").alias("answers")
    )
    return latest.withColumn("ack_policy", F.expr(f"elt(int(nullif(policy, 0)), {policies})")).drop("policy")
