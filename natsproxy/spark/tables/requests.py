"""Tables of requests: selections of `exchanges` (`natsproxy/spark/tables/pairing.py`)."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from natsproxy.spark.tables.base import shaped, when


def requests(exchanges: DataFrame) -> DataFrame:
    """Return one row per request: requester, first responder, the times of its four legs, latencies.

    t1 to t4: the first time of each leg, as the clients saw it; last_ns: the last reply (scatter-gather).
    requests: 1, more only for pulls and beyond `TURNS_MAX`.  deliveries: to clients of this recorder.
    latency_ns is the requester's (t4 - t1), service_ns the responder's (t3 - t2).  replies: without 503s.
    outcome: replied, no responders (a 503 and no reply), no reply (timed out, or still open when the capture
    ended), pull, unknown (requests on one reply subject whose replies cannot be told apart: their number is
    right only in sum).  status: of the first reply, or 503.  err_code: JetStream's, in the reply.  responder:
    the first that replied; where nobody did for certain, one that got the request and replies to others.
    """
    return shaped("requests", exchanges)


def js_api(exchanges: DataFrame) -> DataFrame:
    """Return one row per JetStream API call: verb, requester, latency, and the error that it got.

    verb: "STREAM.CREATE", "CONSUMER.MSG.NEXT"; a domain is left out.  err_code, error: of the reply.
    """
    calls = exchanges.where("js_verb IS NOT NULL").withColumnRenamed("js_verb", "verb")
    return shaped("js_api", calls.withColumn("last_token", F.substring_index("subject", ".", -1)))


def pub_acks(exchanges: DataFrame) -> DataFrame:
    """Return one row per JetStream publish that asked for an ack: stream, sequence, error, latency.

    outcome: ack, duplicate, error, no responders, no ack (none came), other (part of an atomic batch, or not
    JetStream's), unknown (as in `requests`).  A publish is JetStream's if its headers say so, or another on
    its template got an ack.
    """
    publishes = exchanges.where("pulls = 0").withColumn("acked", F.col("stream_id").isNotNull())
    usual = publishes.where("acked").select("template").distinct().withColumn("usual", F.lit(True))
    found = publishes.join(F.broadcast(usual), "template", "left").where("usual OR marked > 0")
    return shaped(
        "pub_acks",
        found.withColumns(
            {
                "duplicate": when("acked", "duplicates > 0"),
                "outcome": F.expr(
                    "CASE WHEN unknown THEN 'unknown' WHEN err_code IS NOT NULL THEN 'error' "
                    "WHEN duplicates > 0 THEN 'duplicate' WHEN acked THEN 'ack' "
                    "WHEN replies > 0 THEN 'other' WHEN nobody > 0 THEN 'no responders' ELSE 'no ack' END"
                ),
            }
        ),
    )
