"""Tables of single messages: `subjects`, `headers`, `fanout`; and `errors`, the refusals of clients."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from natsproxy.spark.tables.base import (
    ACK,
    MESSAGE,
    clients_side,
    servers_side,
    shaped,
    when,
)
from natsproxy.spark.tables.folding import folded

_LINES = r"transform(split(headers, '\n'), line -> regexp_replace(line, '\r$', ''))"
_MINUTE = 60_000_000_000
_BLANKS = r"'^[ \t]+|[ \t]+$'"


def subjects(frames: DataFrame, folds: Sequence[str] = ()) -> DataFrame:
    """Return one row per recorder, subject template, minute and direction, with counts.

    minute: of arrival at the proxy.  distinct_subjects: an estimate, within 5 % in most cases.  folds: the
    positions that are folded (`folding.py`), `**` in the template.
    """
    rows = clients_side(frames).where(MESSAGE)
    if folds:
        rows = rows.withColumn("template", folded("template", folds))
    minute = F.expr(f"(t_ns - pmod(t_ns, {_MINUTE})) DIV {_MINUTE}")
    grouped = rows.groupBy("recorder", "template", minute.alias("minute"), "dir").agg(
        F.count("*").alias("messages"),
        F.sum("size").alias("bytes"),
        F.count_distinct("conn_id").alias("connections"),
        F.approx_count_distinct("subject").alias("distinct_subjects"),
    )
    return shaped("subjects", grouped.withColumn("minute", F.expr("timestamp_seconds(minute * 60)")))


def headers(frames: DataFrame) -> DataFrame:
    """Return one row per header line of a message, as `natsproxy.protocol.headers` reads them.

    position: 1 for the first line; a name that is there several times has several rows (ADR-4).  The status
    line is position 0 with the name `:status`, which no header can have, and "503" or "404 No Messages".
    """
    rows = clients_side(frames).where("headers IS NOT NULL").withColumn("lines", F.expr(_LINES))
    # The block ends at its first blank line; a block without the version line begins with its first header.
    rows = rows.withColumn("end", F.expr("array_position(lines, '')")).withColumn(
        "lines", F.expr("if(end > 0, slice(lines, 1, int(end) - 1), lines)")
    )
    rows = rows.withColumn("versioned", F.expr("startswith(get(lines, 0), 'NATS/1.0')"))
    rows = rows.withColumn(
        "lines",
        F.expr("if(versioned OR NOT contains(get(lines, 0), ':'), lines, array_insert(lines, 1, ''))"),
    )
    rows = rows.select("*", F.posexplode("lines").alias("position", "line"))
    status = f"regexp_replace(substr(line, 9), {_BLANKS}, '')"
    value = f"regexp_replace(substr(line, instr(line, ':') + 1), {_BLANKS}, '')"
    lines = rows.withColumns(
        {
            "name": F.expr("if(position = 0, ':status', substr(line, 1, instr(line, ':') - 1))"),
            "value": F.expr(f"if(position = 0, {status}, {value})"),
        }
    )
    kept = "if(position = 0, versioned AND value <> '', contains(line, ':'))"
    return shaped("headers", lines.where(kept))


def fanout(frames: DataFrame, exchanges: DataFrame, own: str = "true") -> DataFrame:
    """Return one row per message that the server received: its deliveries by this recorder, and their times.

    Messages have no identity on the wire: they are told apart by subject, reply, headers, size and the first
    bytes of the payload that `frames` keeps.  Where several are equal they share a row (`published` > 1),
    whose counts are right and which has no times between.  delay_ns: to the first copy; spread_ns: from the
    first to the last.  JetStream's deliveries and their acks are in `js_acks`.  stored: a stream takes the
    messages of its template (it acknowledged one, or delivered one), or JetStream itself does (`$JS.`).
    refused: the server denied its publisher that subject, then or at another time.  own: an SQL condition on
    `at_ns`, which messages count.
    """
    rows = servers_side(frames).where(f"{MESSAGE} AND status IS NULL")
    rows = rows.where(~(F.coalesce("reply", F.lit("")).startswith(ACK) | F.col("subject").startswith(ACK)))
    same = F.xxhash64(F.coalesce("reply", F.lit("")), "headers", "size", "payload")
    mine = f"dir = 0 AND {own}"
    grouped = rows.groupBy("recorder", "subject", "template", same.alias("same")).agg(
        F.max(when(mine, "conn_id")).alias("publisher"),
        F.min(when(mine, "at_ns")).alias("published_ns"),
        F.expr("count_if(dir = 0)").alias("sent"),
        F.expr(f"count_if({mine})").alias("published"),
        F.sum(when(mine, "size")).alias("bytes"),
        F.expr("count_if(dir = 1)").alias("deliveries"),
        F.expr(f"count_if(dir = 1 AND {own})").alias("own_deliveries"),
        F.min(when("dir = 1", "at_ns")).alias("first_ns"),
        F.max(when("dir = 1", "at_ns")).alias("last_ns"),
    )
    in_streams = F.broadcast(_of_streams(frames, exchanges).withColumn("in_stream", F.lit(True)))
    denied = F.broadcast(_denied(frames).withColumn("refused", F.lit(True)))
    return shaped(
        "fanout",
        grouped.where("published > 0")
        .join(in_streams, "template", "left")
        .join(denied, ["recorder", "publisher", "subject"], "left")
        .withColumns(
            {
                "stored": F.expr("in_stream IS NOT NULL OR startswith(subject, '$JS.')"),
                "refused": F.coalesce("refused", F.lit(False)),
                "deliveries": F.expr("if(sent > 1, own_deliveries, deliveries)"),
                "delay_ns": when("sent = 1", "first_ns - published_ns"),
                "spread_ns": when("sent = 1", "last_ns - first_ns"),
            }
        ),
    )


def _of_streams(frames: DataFrame, exchanges: DataFrame) -> DataFrame:
    """Return the templates of messages that streams acknowledged or delivered."""
    delivered = clients_side(frames).where("js_kind = 'delivery'")
    acknowledged = exchanges.where("stream IS NOT NULL")
    return delivered.select("template").union(acknowledged.select("template")).distinct()


def _denied(frames: DataFrame) -> DataFrame:
    """Return the connections that the server denied a publish, each with the subject."""
    denials = servers_side(frames).where("err_kind = 'publish_denied'")
    names = F.col("conn_id").alias("publisher"), F.col("err_subject").alias("subject")
    return denials.select("recorder", *names).distinct()


def errors(frames: DataFrame) -> DataFrame:
    """Return one row per -ERR that a client got.

    kind: its text without quoted parts; subject: the one that it is about.  template: of the client's frame
    with that subject; where there is none, the subject.  from_proxy: the server did not send it.  cause:
    `rule` where a rule made it (`faults` names the rule), else the name of the rule that changed it.
    """
    rows = clients_side(frames).where("op = '-ERR'").withColumn("subject", F.col("err_subject"))
    about = rows.where("subject IS NOT NULL").select("recorder", "subject").distinct()
    asked = frames.where("dir = 0 AND subject IS NOT NULL").select("recorder", "subject", "template")
    known = asked.join(F.broadcast(about), ["recorder", "subject"], "left_semi").distinct()
    rows = rows.drop("template").join(F.broadcast(known), ["recorder", "subject"], "left")
    return shaped(
        "errors",
        rows.withColumns(
            {
                "t_ns": F.col("at_ns"),
                "text": F.expr("trim(BOTH '\\'' FROM err)"),
                "kind": F.expr("regexp_replace(trim(BOTH '\\'' FROM err), '\"[^\"]*\"', '\"*\"')"),
                "template": F.coalesce("template", "subject"),
                "from_proxy": F.expr("in_ordinal IS NULL AND of IS NULL"),
            }
        ),
    )
