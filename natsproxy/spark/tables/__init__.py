"""The tables: pure functions from DataFrames to DataFrames, in native Spark SQL only.

`frames` is read from captures and written to Parquet first; everything else derives from that.  Each function
ends in a `select` that is its schema.  Rows are seen from the client's side: what arrived from it and what
left to it, so that a frame that a rule changed counts once.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

MESSAGES = ("PUB", "HPUB", "MSG", "HMSG")
_ACK = "$JS.ACK."


def clients_side(frames: DataFrame) -> DataFrame:
    """Return the frames as clients saw them."""
    return frames.where("(dir = 0 AND in_ordinal IS NOT NULL) OR (dir = 1 AND out_ordinal IS NOT NULL)")


def requests(frames: DataFrame) -> DataFrame:
    """Return one row per request: its reply subject, who asked and who answered, the four times, latencies.

    All legs of an exchange share the key coalesce(reply, subject): 1 the request arrives, 2 it is delivered
    to a responder, 3 the reply arrives, 4 it is delivered to the requester.  One aggregation, no join.
    latency_ns is the requester's (t4 - t1), service_ns the responder's (t3 - t2).  status: 503 for no
    responders.
    """
    legs = (
        clients_side(frames)
        .where(F.col("op").isin(*MESSAGES))
        .select(
            "t_ns", "conn_id", "subject", "template", "status",
            F.coalesce("reply", "subject").alias("k"),
            (F.when(F.col("reply").isNull(), 3).otherwise(1) + F.col("dir")).alias("leg"),
        )
        .where(~F.col("k").startswith(_ACK))
    )  # fmt: skip

    def at(leg: int, column: str) -> Column:
        return F.when(F.col("leg") == leg, F.col(column))

    return (
        legs.groupBy("k")
        .agg(
            *(F.min(at(leg, "t_ns")).alias(f"t{leg}") for leg in (1, 2, 3, 4)),
            F.max(at(1, "conn_id")).alias("requester"),
            F.max(at(2, "conn_id")).alias("responder"),
            F.max(at(1, "subject")).alias("subject"),
            F.max(at(1, "template")).alias("template"),
            F.max(at(4, "status")).alias("status"),
            F.count(at(1, "t_ns")).alias("requests"),
            F.count(at(4, "t_ns")).alias("replies"),
        )
        .where("requests > 0")
        .select(
            F.col("k").alias("reply"), "subject", "template", "requester", "responder", "requests", "replies",
            "status", "t1", "t2", "t3", "t4",
            (F.col("t4") - F.col("t1")).alias("latency_ns"), (F.col("t3") - F.col("t2")).alias("service_ns"),
        )
    )  # fmt: skip


def subjects(frames: DataFrame) -> DataFrame:
    """Return one row per subject template and minute: messages, bytes, connections, distinct subjects."""
    return (
        clients_side(frames)
        .where(F.col("op").isin(*MESSAGES))
        .groupBy("template", F.date_trunc("minute", "ts").alias("minute"), "dir")
        .agg(
            F.count("*").alias("messages"),
            F.sum("size").alias("bytes"),
            F.approx_count_distinct("conn_id").alias("connections"),
            F.approx_count_distinct("subject").alias("distinct_subjects"),
        )
        .select("template", "minute", "dir", "messages", "bytes", "connections", "distinct_subjects")
    )


def errors(frames: DataFrame) -> DataFrame:
    """Return every -ERR that a client got, with its text and whether the proxy made it."""
    return (
        clients_side(frames)
        .where("op = '-ERR'")
        .select(
            "t_ns", "conn_id", F.expr("trim(BOTH '\\'' FROM err)").alias("text"),
            F.regexp_extract("err", '"([^"]*)"', 1).alias("subject"),
            F.col("in_ordinal").isNull().alias("from_proxy"), "cause",
        )
    )  # fmt: skip


def js_api(frames: DataFrame) -> DataFrame:
    """Return one row per JetStream API call: verb, stream, latency."""
    return (
        requests(frames)
        .where("subject LIKE '$JS.API.%'")
        .withColumn("p", F.split("subject", r"\."))
        .select(
            "t1", "requester", "subject",
            F.expr("concat_ws('.', get(p, 2), get(p, 3))").alias("verb"),
            F.expr("get(p, size(p) - 1)").alias("last_token"),
            "replies", "status", "latency_ns",
        )
    )  # fmt: skip


def js_acks(frames: DataFrame) -> DataFrame:
    """Return one row per JetStream delivery: how often it was delivered, what the client said, how late.

    answer: "ack", "nak", "term", "wpi", "next", or NULL for none (needs payloads of 4 bytes in frames).
    """
    legs = (
        clients_side(frames)
        .where(F.col("op").isin(*MESSAGES))
        .withColumn("k", F.coalesce(F.when(F.col("dir") == 1, F.col("reply")), F.col("subject")))
        .where(F.col("k").startswith(_ACK))
    )
    answer = F.expr(
        "CASE WHEN dir = 1 THEN NULL "
        "WHEN payload IS NULL OR substr(payload, 1, 4) IN (X'2B41434B', X'2B4F4B') THEN 'ack' "
        "WHEN substr(payload, 1, 4) = X'2D4E414B' THEN 'nak' "
        "WHEN substr(payload, 1, 4) = X'2B544552' THEN 'term' "
        "WHEN substr(payload, 1, 4) = X'2B575049' THEN 'wpi' "
        "WHEN substr(payload, 1, 4) = X'2B4E5854' THEN 'next' ELSE 'other' END"
    )
    grouped = legs.groupBy("k").agg(
        F.min(F.when(F.col("dir") == 1, F.col("t_ns"))).alias("delivered_ns"),
        F.min(F.when(F.col("dir") == 0, F.col("t_ns"))).alias("answered_ns"),
        F.max(F.when(F.col("dir") == 1, F.col("conn_id"))).alias("conn_id"),
        F.max(F.when(F.col("dir") == 1, F.col("subject"))).alias("subject"),
        F.max(answer).alias("answer"),
    )
    return (
        grouped.withColumn("p", F.split("k", r"\."))
        .withColumn("o", F.expr("if(size(p) >= 11, 4, 2)"))
        .select(
            "conn_id", "subject",
            F.expr("get(p, o)").alias("stream"), F.expr("get(p, o + 1)").alias("consumer"),
            F.expr("try_cast(get(p, o + 2) AS bigint)").alias("delivered"),
            F.expr("try_cast(get(p, o + 3) AS bigint)").alias("stream_seq"),
            "delivered_ns", "answered_ns", "answer",
            (F.col("answered_ns") - F.col("delivered_ns")).alias("answer_ns"),
        )
    )  # fmt: skip


def connections(items: DataFrame) -> DataFrame:
    """Return one row per connection: when it came and went, from where, why, and how much it carried."""
    info = {
        name: F.get_json_object("info", f"$.{name}")
        for name in ("client", "cause", "detail", "c2s_bytes", "s2c_bytes", "c2s_frames", "s2c_frames")
    }
    return (
        items.where("kind IN ('open', 'close')")
        .groupBy("recorder", "conn_id")
        .agg(
            F.min(F.when(F.col("kind") == "open", F.col("t_ns"))).alias("opened_ns"),
            F.max(F.when(F.col("kind") == "close", F.col("t_ns"))).alias("closed_ns"),
            *(F.max(column).alias(name) for name, column in info.items()),
        )
        .select(
            "recorder", "conn_id", "opened_ns", "closed_ns", "client", "cause", "detail",
            *(F.expr(f"try_cast({name} AS bigint)").alias(name)
              for name in ("c2s_bytes", "s2c_bytes", "c2s_frames", "s2c_frames")),
        )
    )  # fmt: skip


def faults(items: DataFrame) -> DataFrame:
    """Return every firing of a rule."""
    names = ("rule", "kind", "action", "direction", "subject", "key")
    return items.where("kind = 'firing'").select(
        "t_ns", "conn_id", *(F.get_json_object("info", f"$.{name}").alias(name) for name in names),
        F.expr("try_cast(get_json_object(info, '$.m') AS bigint)").alias("m"),
        F.expr("try_cast(get_json_object(info, '$.ordinal') AS bigint)").alias("ordinal"),
        F.expr("try_cast(get_json_object(info, '$.delay') AS bigint)").alias("delay_ns"),
    )  # fmt: skip


def gaps(items: DataFrame) -> DataFrame:
    """Return what a capture could not record."""
    return items.where("kind = 'gap'").select(
        "t_ns", "conn_id", F.get_json_object("info", "$.reason").alias("reason"),
        F.expr("try_cast(get_json_object(info, '$.frames') AS bigint)").alias("frames"),
        F.expr("try_cast(get_json_object(info, '$.bytes') AS bigint)").alias("bytes"),
    )  # fmt: skip


FROM_FRAMES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "requests": requests, "subjects": subjects, "errors": errors, "js_api": js_api, "js_acks": js_acks,
}  # fmt: skip
FROM_ITEMS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "connections": connections, "faults": faults, "gaps": gaps,
}  # fmt: skip
FROM_BOTH: dict[str, Callable[[DataFrame, DataFrame], DataFrame]] = {}
TABLES = ("frames", *FROM_FRAMES, *FROM_ITEMS, *FROM_BOTH)
"""All tables, in the order in which they are written."""
PAYLOAD_BYTES = 256
"""How much of each payload the tables look at: acks, publish acks and JetStream's error codes."""


def derive(name: str, frames: DataFrame, items: DataFrame) -> DataFrame:
    """Return a table of `TABLES` other than `frames`, whatever it derives from."""
    if name in FROM_BOTH:
        return FROM_BOTH[name](frames, items)
    return FROM_FRAMES[name](frames) if name in FROM_FRAMES else FROM_ITEMS[name](items)
