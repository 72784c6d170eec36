"""The table `hops`: frames between two recording proxies in a row, a sidecar and a gateway for example.

A proxy records the address of its own socket to the server (`upstream_local`); a proxy there records the same
address as that of its client.  So a connection of one recorder may be the client of the other if the
addresses are the same, and the times alike.  (An address translation between the two hides them from each
other.)  Machines that have nothing to do with each other share addresses too, 127.0.0.1 for one.

Between the two no frame gets lost, changed or overtaken: the n-th that the one sent is the n-th that the
other received.  So a pair of connections counts only if all such frames look the same.

The two may have clocks of their own.  The difference is estimated as NTP does: the least time one way is
taken to be as long as the least time the other way, among the frames of an hour.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from natsproxy.spark.tables.base import CONN, shaped, when
from natsproxy.spark.tables.connections import info

SLACK: Final = 300_000_000_000
"""The time by which clocks of two recorders may differ for connections to be found, ns.

Five minutes: Kerberos refuses clocks that differ by more, so most machines are kept within it.
"""
TRIES: Final = 3
"""The pairs of a connection with those of another recorder whose frames are compared."""
NAMES: Final = (*CONN, *(f"next_{name}" for name in CONN))
TEXTS: Final = ("op", "subject", "template")
_HOUR = 3_600_000_000_000
_ENDS = """inline(array(
    named_struct('recorder', recorder, 'conn_id', conn_id, 'dir', 0, 'sends', true),
    named_struct('recorder', next_recorder, 'conn_id', next_conn_id, 'dir', 0, 'sends', false),
    named_struct('recorder', next_recorder, 'conn_id', next_conn_id, 'dir', 1, 'sends', true),
    named_struct('recorder', recorder, 'conn_id', conn_id, 'dir', 1, 'sends', false)))"""
# NULL, which is like everything: a frame from which a recorder took secrets, and one without its first line.
_LOOK = """CASE
    WHEN op = 'INFO' THEN xxhash64(get_json_object(args, '$.server_id'), get_json_object(args, '$.client_id'))
    WHEN op IS NOT NULL AND (flags & 4) = 0 THEN xxhash64(op, subject, reply, sid, size) END"""


def hops(frames: DataFrame, items: DataFrame) -> DataFrame:
    """Return one row per frame that one recorder sent and the next one received.

    recorder, conn_id: of the proxy that is nearer to the client; next_recorder, next_conn_id: of the one
    behind it.  ordinal: of the frame between the two, by direction.  sent_ns, received_ns: by the clock of
    either.  clock_ns: the time by which the clock of the next recorder is ahead, as estimated; NULL where
    frames went one way only.  latency_ns: between the two, without that difference.
    """
    found = candidates(items)
    ends = F.broadcast(found.select("link", F.expr(_ENDS)))
    passed = (
        frames.join(ends, [*CONN, "dir"])
        .withColumn("ordinal", F.expr("if(sends, out_ordinal, in_ordinal)"))
        .where("ordinal IS NOT NULL AND (flags & 1) = 0")
        .withColumn("at_ns", F.expr("t_ns + if(sends, delay_ns, 0)"))
        .withColumn("look", F.expr(_LOOK))
    )
    pairs = (
        passed.groupBy("link", "dir", "ordinal")
        .agg(
            F.max(when("sends", "at_ns")).alias("sent_ns"),
            F.max(when("NOT sends", "at_ns")).alias("received_ns"),
            F.max("size").alias("size"),
            F.min("look").alias("look"),
            F.max("look").alias("other_look"),
            # Of the two the one that knows more.  No key has more than two rows here: texts cost no more than
            # numbers that stand for them.
            F.min(F.struct(F.expr("flags & 4"), F.isnull("op"), *TEXTS)).alias("frame"),
        )
        .select("*", *(f"frame.{text}" for text in TEXTS))
        .where("sent_ns IS NOT NULL AND received_ns IS NOT NULL")
        .withColumn("hour", F.expr(f"sent_ns DIV {_HOUR}"))
    )
    rows = pairs.join(F.broadcast(links(pairs, found)), ["link", "hour"])
    ahead = "if(dir = 0, 1, -1) * coalesce(clock_ns, 0)"
    return shaped("hops", rows.withColumn("latency_ns", F.expr(f"received_ns - sent_ns - {ahead}")))


def links(pairs: DataFrame, found: DataFrame) -> DataFrame:
    """Return the candidates whose frames look the same: a row for each hour, with the clock of that.

    A window for each step: a join would read all frames once more.
    """
    took = "received_ns - sent_ns"
    seen = pairs.groupBy("link", "hour").agg(
        F.min(when("dir = 0", took)).alias("there"),
        F.min(when("dir = 1", took)).alias("back"),
        F.max(when("look <> other_look", F.lit(1))).alias("differs"),
    )
    link, between = Window.partitionBy("link"), Window.partitionBy("recorder", "next_recorder", "hour")
    same = seen.withColumn("differs", F.max("differs").over(link)).where("differs IS NULL")
    chosen = likeliest(same.join(F.broadcast(found), "link"), 1)
    clock = (F.min("there").over(between) - F.min("back").over(between)).alias("twice")
    return chosen.select("link", "hour", *NAMES, clock).select(
        "link", "hour", *NAMES, F.expr("twice DIV 2").alias("clock_ns")
    )


_PEER = ("proxied_by", "open.proxied_by", "client", "open.client")
"""The other end of a proxy's socket: a load balancer may have told it another address for the client."""


def candidates(items: DataFrame) -> DataFrame:
    """Return the connections of two recorders that may be one: `link` is the number of the pair.

    alike: how many pairs of the two recorders began with nearly the same time between them, which then is the
    difference of the clocks; 0 where a recording began later than its connection.  apart: that time, or NULL.
    """
    known = (
        items.where("kind IN ('open', 'preamble', 'close')")
        .groupBy(*CONN)
        .agg(
            F.min("t_ns").alias("since"),
            F.min(when("kind = 'open'", "t_ns")).alias("opened"),
            F.max(when("kind = 'close'", "t_ns")).alias("closed"),
            F.max(F.coalesce(*map(info, _PEER))).alias("client"),
            F.max(F.coalesce(info("upstream_local"), info("open.upstream_local"))).alias("upstream_local"),
        )
    )
    # The slots keep the uses of one address from meeting all others.  Those that began nearly together meet
    # in the slot of that time.  Those known from a preamble are few, and meet all: behind in -1, near in -2.
    times = ("since", "opened", "closed")
    near = known.where("upstream_local IS NOT NULL").select(
        F.col("upstream_local").alias("address"),
        *CONN,
        *times,
        F.expr(f"explode(array(-1L, if(opened IS NULL, -2L, opened DIV {SLACK})))").alias("slot"),
    )
    slots = f"next_opened DIV {SLACK}"
    behind = known.select(
        F.col("client").alias("address"), *(F.col(name).alias(f"next_{name}") for name in (*CONN, *times))
    ).withColumn(
        "slot",
        F.expr(
            f"explode(if(next_opened IS NULL, array(-1L), array(-2L, {slots} - 1, {slots}, {slots} + 1)))"
        ),
    )
    found = (
        near.join(behind, ["address", "slot"])
        .where(
            f"recorder <> next_recorder AND next_since <= coalesce(closed + {SLACK}, next_since) "
            f"AND since <= coalesce(next_closed + {SLACK}, since)"
        )
        .withColumn("ahead", F.expr("next_opened - opened"))
        .withColumn("apart", F.expr("abs(ahead)"))
        .where(f"coalesce(apart <= {SLACK}, true)")
        .withColumn("second", F.expr("CAST(round(ahead / 1e9) AS BIGINT)"))
    )
    alike = F.count("ahead").over(Window.partitionBy("recorder", "next_recorder", "second"))
    found = found.select(F.xxhash64(*NAMES).alias("link"), *NAMES, "apart", alike.alias("alike"))
    return likeliest(found, TRIES)


def likeliest(found: DataFrame, most: int) -> DataFrame:
    """Return, of the pairs of a connection with those of another recorder, the `most` likely ones.

    Another recorder, not all others: a recording that is stopped and begun again has a recorder of its own.
    """
    for own, other in ((NAMES[:2], NAMES[2]), (NAMES[2:], NAMES[0])):
        order = Window.partitionBy(*own, other).orderBy(F.desc("alike"), "apart", *NAMES)
        found = found.withColumn("place", F.dense_rank().over(order)).where(f"place <= {most}")
    return found.drop("place")
