"""The table `faults`: firings of rules, and the events that followed them.

An error or an end of the connection is looked for in time: the next one on that connection within `WINDOW`,
where the action of the rule can cause it.  An error that quotes a subject follows from a firing on that
subject; one that quotes none, and an end, from the nearest firing before it.  Firings, errors and ends are
rare beside messages, so only they are put in order.  A reply is looked for by name: the firing's frame is
known by its ordinal, its reply subject is the key of the exchange, and the reply is one of its legs; so a
connection with 1e9 messages costs no more than its firings.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from natsproxy.spark.tables.base import CONN, clients_side, shaped, when
from natsproxy.spark.tables.connections import info

WINDOW = 5_000_000_000
"""The time after a firing in which an error or an end counts as its consequence, ns."""
_SUBJECT_MOST = 256  # the bytes that a firing keeps of its subject
_QUOTED = "if(err_kind = 'publish_reply_denied', NULL, err_subject)"
"""The SQL of the subject that an error is about; a refused reply subject may be that of any publish."""
_SILENCES = "(action IN ('drop', 'hold') AND coalesce(subject, '') = '')"
"""A lost PING, PONG or CONNECT, to which a server answers `Stale Connection` or a timeout."""
_REFUSES = "(action IN ('deny', 'error', 'rewrite', 'suspend') AND subject <> '')"
"""Firings that can cause an -ERR about their subject."""
_DISTURBS = "'error', 'headers', 'info', 'announce', 'pause', 'bandwidth', 'slice'"
_FAILS = f"(action IN ({_DISTURBS}) OR {_SILENCES})"
"""Firings that can cause any other -ERR: their own, or for a message too large, or for a late PONG."""
_ENDS = f"(action IN ({_DISTURBS}, 'close', 'reset', 'refuse', 'stop_reading', 'half_close') OR {_SILENCES})"
"""Firings that can cause the end of a connection.  Other actions leave frames whole: no reason to close."""
_TEXTS = ("rule", "kind", "action", "direction", "subject", "key")


def faults(frames: DataFrame, items: DataFrame, exchanges: DataFrame) -> DataFrame:
    """Return one row per firing of a rule, with the error, end and reply that followed.

    count: the frames of one read that it stands for; the other fields are those of the first.  error_ns,
    close_ns: the time until the next -ERR to the client, and until the end, that its action can have caused;
    NULL if later than `WINDOW`, or nearer to another such firing.  outcome: of the request that the frame
    opened or answered (as in `requests`), NULL where it belongs to none, or to a reply subject that several
    share; reply_ns: the time until the reply.
    """
    fired = items.where("kind = 'firing'").select(
        *CONN,
        "t_ns",
        *(info(name).alias(name) for name in _TEXTS),
        *(info(name, "bigint").alias(name) for name in ("m", "ordinal")),
        info("delay", "bigint").alias("delay_ns"),
        F.coalesce(info("count", "bigint"), F.lit(1)).alias("count"),
    )
    return shaped("faults", _answered(_followed(fired, frames, items), frames, exchanges))


def _followed(fired: DataFrame, frames: DataFrame, items: DataFrame) -> DataFrame:
    """Return firings with the next error and the next end that may follow from them."""
    errors = (
        clients_side(frames)
        .where("op = '-ERR'")
        .select(
            *CONN,
            F.col("at_ns").alias("t_ns"),
            F.expr(_QUOTED).alias("subject"),
            F.struct("at_ns", F.expr("trim(BOTH '\\'' FROM err)").alias("text")).alias("erred"),
        )
    )
    ends = items.where("kind = 'close'").select(
        *CONN, "t_ns", F.struct(F.col("t_ns").alias("at_ns"), info("cause").alias("text")).alias("ended")
    )
    rows = fired.withColumn("fired", F.lit(True))
    absent = F.expr("CAST(NULL AS struct<at_ns: bigint, text: string>)")  # an absent column has no type
    rows = rows.withColumns({"erred": absent, "ended": absent})
    for more, other in ((errors, "ended"), (ends, "erred")):
        rows = rows.unionByName(more.withColumn(other, absent), allowMissingColumns=True)
    rows = rows.withColumn("about", F.substring("subject", 1, _SUBJECT_MOST))

    def following(column: Column, *same: str) -> Column:
        falling = Window.partitionBy(*CONN, *same).orderBy(F.desc("t_ns"), F.asc_nulls_first("fired"))
        upto = falling.rowsBetween(Window.unboundedPreceding, Window.currentRow)
        return F.last(column, ignorenulls=True).over(upto)

    # Firings of one read have one time, and share what follows.
    later = Window.partitionBy(*CONN).orderBy(F.desc("t_ns")).rangeBetween(Window.unboundedPreceding, -1)
    rows = rows.withColumns(
        {
            "failed": following(when("about IS NULL", "erred")),
            "next_failing": F.min(when(f"fired AND {_FAILS}", "t_ns")).over(later),
            "ended": following(F.col("ended")),
            "next_ending": F.min(when(f"fired AND {_ENDS}", "t_ns")).over(later),
            "refused": following(F.col("erred"), "about"),
        }
    ).where("fired")
    after = "if({1} AND {0}.at_ns - t_ns <= {3} AND coalesce({2} > {0}.at_ns, true), {0}.at_ns - t_ns, NULL)"
    rows = rows.withColumns(
        {
            "failed_ns": F.expr(after.format("failed", _FAILS, "next_failing", WINDOW)),
            "refused_ns": F.expr(after.format("refused", _REFUSES, "NULL", WINDOW)),
            "close_ns": F.expr(after.format("ended", _ENDS, "next_ending", WINDOW)),
        }
    )
    # The texts are guarded by the times, not the structs: Sail reads through a struct that is NULL.
    return rows.withColumns(
        {
            "error_ns": F.least("failed_ns", "refused_ns"),
            "error": F.expr("if(failed_ns < refused_ns OR refused_ns IS NULL, failed, refused).text"),
            "close_cause": when("close_ns IS NOT NULL", "ended.text"),
        }
    ).withColumn("error", when("error_ns IS NOT NULL", "error"))


def _answered(fired: DataFrame, frames: DataFrame, exchanges: DataFrame) -> DataFrame:
    """Return firings with the reply to the request that their frame is a leg of."""
    place = [*CONN, "dir", "in_ordinal"]
    fired = fired.withColumns({"dir": F.expr("if(direction = 'c2s', 0, 1)"), "in_ordinal": F.col("ordinal")})
    # The frames are narrowed to those that a rule acted on before anything is shuffled.
    hit = frames.where("subject IS NOT NULL").join(fired.select(*place), place, "left_semi")
    hit = hit.select(*place, F.coalesce("reply", "subject").alias("k"))
    alone = exchanges.where("NOT shared").select("recorder", "k", "t4", "outcome")
    rows = fired.join(hit, place, "left").join(alone, ["recorder", "k"], "left")
    return rows.withColumn("reply_ns", F.expr("if(t4 >= t_ns, t4 - t_ns, NULL)"))
