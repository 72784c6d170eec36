"""The table `hops`: frames between two recording proxies in a row, a sidecar and a gateway for example.

A proxy records the address of its own socket to the server (`upstream_local`); a proxy there records the same
address as that of its client.  So a connection of one recorder is found to be the client of the other by
address, and by time, since addresses are used again.  Between the two no frame gets lost or overtakes
another: the n-th that the one sent is the n-th that the other received.  (An address translation between the
two hides them from each other.)

The two may have clocks of their own.  The difference is estimated as NTP does: the least time one way is
taken to be as long as the least time the other way, among the frames of an hour.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from natsproxy.spark.tables.base import CONN, shaped, when
from natsproxy.spark.tables.connections import info

SLACK = 5_000_000_000
"""The time by which clocks of two recorders may differ for connections to be found, ns."""
_HOUR = 3_600_000_000_000
_ENDS = """inline(array(
    named_struct('recorder', recorder, 'conn_id', conn_id, 'dir', 0, 'sends', true),
    named_struct('recorder', next_recorder, 'conn_id', next_conn_id, 'dir', 0, 'sends', false),
    named_struct('recorder', next_recorder, 'conn_id', next_conn_id, 'dir', 1, 'sends', true),
    named_struct('recorder', recorder, 'conn_id', conn_id, 'dir', 1, 'sends', false)))"""


def hops(frames: DataFrame, items: DataFrame) -> DataFrame:
    """Return one row per frame that one recorder sent and the next one received.

    recorder, conn_id: of the proxy that is nearer to the client; next_recorder, next_conn_id: of the one
    behind it.  ordinal: of the frame between the two, by direction.  sent_ns, received_ns: by the clock of
    either.  clock_ns: the time by which the clock of the next recorder is ahead, as estimated; NULL where
    frames went one way only.  latency_ns: between the two, without that difference.
    """
    found = links(items)
    ends = F.broadcast(found.select("link", F.expr(_ENDS)))
    passed = (
        frames.join(ends, [*CONN, "dir"])
        .withColumn("ordinal", F.expr("if(sends, out_ordinal, in_ordinal)"))
        .where("ordinal IS NOT NULL")
        .withColumn("at_ns", F.expr("t_ns + if(sends, delay_ns, 0)"))
    )
    pairs = (
        passed.groupBy("link", "dir", "ordinal")
        .agg(
            F.max(when("sends", "at_ns")).alias("sent_ns"),
            F.max(when("NOT sends", "at_ns")).alias("received_ns"),
            F.max("size").alias("size"),
            # No key has more than two rows here: texts cost no more than numbers that stand for them.
            *(F.any_value(text, True).alias(text) for text in ("op", "subject", "template")),
        )
        .where("sent_ns IS NOT NULL AND received_ns IS NOT NULL")
        .join(F.broadcast(found), "link")
    )
    hour = F.expr(f"sent_ns DIV {_HOUR}").alias("hour")
    took = "received_ns - sent_ns"
    clocks = pairs.groupBy("recorder", "next_recorder", hour).agg(
        F.min(when("dir = 0", took)).alias("there"), F.min(when("dir = 1", took)).alias("back")
    )
    clocks = clocks.withColumn("clock_ns", F.expr("(there - back) DIV 2"))
    rows = pairs.withColumn("hour", hour).join(F.broadcast(clocks), ["recorder", "next_recorder", "hour"])
    ahead = "if(dir = 0, 1, -1) * coalesce(clock_ns, 0)"
    return shaped("hops", rows.withColumn("latency_ns", F.expr(f"{took} - {ahead}")))


_PEER = ("proxied_by", "open.proxied_by", "client", "open.client")
"""The other end of a proxy's socket: a load balancer may have told it another address for the client."""


def links(items: DataFrame) -> DataFrame:
    """Return the connections of two recorders that are one: `link` is the number of the pair."""
    known = (
        items.where("kind IN ('open', 'preamble', 'close')")
        .groupBy(*CONN)
        .agg(
            F.min("t_ns").alias("opened"),
            F.max(when("kind = 'close'", "t_ns")).alias("closed"),
            F.max(F.coalesce(*map(info, _PEER))).alias("client"),
            F.max(F.coalesce(info("upstream_local"), info("open.upstream_local"))).alias("upstream_local"),
        )
    )
    near = known.where("upstream_local IS NOT NULL").withColumnRenamed("upstream_local", "address")
    behind = known.select(
        F.col("client").alias("address"),
        *(F.col(name).alias(f"next_{name}") for name in (*CONN, "opened", "closed")),
    )
    found = near.join(behind, "address").where(
        f"recorder <> next_recorder AND next_opened <= coalesce(closed + {SLACK}, next_opened) "
        f"AND opened <= coalesce(next_closed + {SLACK}, opened)"
    )
    # An address that was soon used again: of the pairs in question the two that began together.
    names = [*CONN, *(f"next_{name}" for name in CONN)]
    for conn in (names[:2], names[2:]):
        order = Window.partitionBy(*conn).orderBy(F.expr("abs(next_opened - opened)"), *names)
        found = found.withColumn("place", F.row_number().over(order)).where("place = 1")
    return found.select(F.xxhash64(*names).alias("link"), *names)
