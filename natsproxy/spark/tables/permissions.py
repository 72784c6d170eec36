"""The table `permissions`: the subjects that each client used, generalised as `natsproxy permissions` does.

Uses are counted by connection and subject, in place.  The Python code of the command then reads each
subject once (`natsproxy/permissions/rows.py`).  Its variable tokens become `*` where a client used many of
them; those below, and words, stay for the reader, who puts clients together.

A publish to the reply subject of a message that its connection got before is a response.  Only subjects on
which both happened are put in the order of the recording.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from natsproxy.permissions.marks import Mark
from natsproxy.permissions.rows import FOLDED, RESPOND, facts, shape, traced
from natsproxy.permissions.templates import COUNTED
from natsproxy.permissions.uses import Verb
from natsproxy.protocol.errors import PUBLISH_DENIED, SUBSCRIBE_DENIED
from natsproxy.spark.tables.base import CONN, shaped, when

_CLIENT = ("user", "name", "account", "lang")
_FACTS = (
    "user string, name string, account string, lang string, subs array<struct<subject:string, queue:string>>"
)
_SHAPE = "queue string, template string, marks string, values array<string>"
_ORDER = ("segment", "block_off", "idx", "nth")
_KEY = (*_CLIENT, "verb", "queue", "template", "marks")
_PUBLISH, _SUBSCRIBE = str(Verb.PUBLISH), str(Verb.SUBSCRIBE)
_NO_TIME = "cast(NULL AS bigint)"


def permissions(frames: DataFrame, items: DataFrame) -> DataFrame:
    """Return one row per client, verb, queue group and template, with the evidence.

    A client is its user, name, account and library: those that are known first of a connection.  verb:
    publish, subscribe, or respond for all responses of a client (most for one message, and the longest time
    until one), or NULL for a client that used nothing.  marks: a digit for each token of the template, as
    `natsproxy/permissions/marks.py` numbers them.  values: for each token that is `*` in place of others, the
    first of these in their order, `COUNTED` at most.  frames, denied: the uses, and the -ERRs of the server
    about them.
    """
    clients = _clients(frames, items)
    published, responses = _published(frames)
    uses = published.unionByName(_subscribed(frames, items)).unionByName(_denied(frames))
    counted = uses.groupBy(*CONN, "verb", "subject", "queue").agg(*_sums())
    counted = counted.join(clients, [*CONN], "left").na.fill("", [*_CLIENT])
    lines = _lines(counted)
    answers = (
        responses.join(clients, [*CONN], "left")
        .na.fill("", [*_CLIENT])
        .groupBy(*_CLIENT)
        .agg(
            F.count("*").alias("frames"),
            F.min("t_ns").alias("first_ns"),
            F.max("t_ns").alias("last_ns"),
            F.max("turn").alias("most"),
            F.max("elapsed").alias("longest_ns"),
        )
        .withColumns(
            {"verb": F.lit(RESPOND), "denied": F.lit(0).cast("bigint"), "flow_control": F.lit(False)}
        )
    )
    used = lines.select(*_CLIENT).union(answers.select(*_CLIENT)).distinct()
    silent = clients.select(*_CLIENT).distinct().join(used, [*_CLIENT], "left_anti")
    silent = silent.withColumns(
        {"frames": F.lit(0).cast("bigint"), "denied": F.lit(0).cast("bigint"), "flow_control": F.lit(False)}
    )
    rows = lines.unionByName(answers, allowMissingColumns=True).unionByName(silent, allowMissingColumns=True)
    for name in (*_CLIENT, "queue"):
        rows = rows.withColumn(name, F.expr(f"nullif(`{name}`, '')"))
    return shaped("permissions", rows)


def _sums() -> tuple[Column, ...]:
    return (
        F.sum("frames").alias("frames"),
        F.sum("denied").alias("denied"),
        F.min("first_ns").alias("first_ns"),
        F.max("last_ns").alias("last_ns"),
        F.max("flow_control").alias("flow_control"),
    )


def _clients(frames: DataFrame, items: DataFrame) -> DataFrame:
    """Return all connections with the facts about their clients; "" for those that are not known."""
    tell = F.udf(facts, _FACTS, useArrow=False)
    greeted = frames.where(
        "op IN ('CONNECT', 'INFO') AND in_ordinal IS NOT NULL AND args IS NOT NULL"
    ).select(*CONN, "segment", "block_off", F.lit(2).alias("rank"), "idx", tell("op", "args").alias("told"))
    rank = "CASE kind WHEN 'open' THEN 0 WHEN 'preamble' THEN 1 ELSE 3 END"
    recorded = items.where("kind IN ('open', 'preamble', 'close') AND conn_id IS NOT NULL").select(
        *CONN,
        "segment",
        "block_off",
        F.expr(rank).alias("rank"),
        F.lit(0).alias("idx"),
        tell("kind", "info").alias("told"),
    )
    told = greeted.unionByName(recorded)
    order = F.struct("segment", "block_off", "rank", "idx")
    first = (F.min_by(f"told.{name}", when(f"told.{name} <> ''", order)).alias(name) for name in _CLIENT)
    known = told.groupBy(*CONN).agg(*first)
    seen = items.select(*CONN).union(frames.select(*CONN)).where("conn_id IS NOT NULL").distinct()
    return seen.join(known, [*CONN], "left").na.fill("", [*_CLIENT])


def _published(frames: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Return the publishes that need a permission, and those that are responses.

    turn: its number among the responses to the message.  elapsed: ns since that.
    """
    whole = frames.where("(flags & 1) = 0")
    sent = whole.where("dir = 0 AND in_ordinal IS NOT NULL AND op IN ('PUB', 'HPUB')")
    place = ("segment", "block_off", "idx")
    flow = F.expr("js_flow_control IS NOT NULL").alias("flow")
    plain = sent.select(
        *CONN, F.expr("coalesce(subject, '')").alias("subject"), *place, F.lit(0).alias("nth"), "t_ns", flow
    )
    trace = F.udf(traced, "string", useArrow=False)
    with_trace = (
        sent.where("op = 'HPUB' AND contains(lower(headers), 'nats-trace-dest')")
        .select(
            *CONN,
            trace("headers").alias("subject"),
            *place,
            F.lit(1).alias("nth"),
            "t_ns",
            F.lit(False).alias("flow"),
        )
        .where("subject <> ''")
    )
    all_sent = plain.unionByName(with_trace)
    asked = whole.where(
        "dir = 1 AND out_ordinal IS NOT NULL AND op IN ('MSG', 'HMSG') AND reply IS NOT NULL "
        "AND NOT startswith(reply, '$JS.')"
    ).select(*CONN, F.col("reply").alias("subject"), *place, F.expr("t_ns + delay_ns").alias("since"))
    key = [*CONN, "subject"]
    both = all_sent.select(*key).distinct().join(asked.select(*key).distinct(), key)
    order = Window.partitionBy(*key).orderBy(*_ORDER)
    messages = asked.join(both, key, "left_semi").withColumns({"nth": F.lit(0), "asks": F.lit(1)})
    events = messages.unionByName(all_sent.join(both, key, "left_semi"), allowMissingColumns=True)
    events = events.withColumns(
        {
            "message": F.sum(F.coalesce("asks", F.lit(0))).over(order),
            "since": F.last("since", ignorenulls=True).over(order),
        }
    ).where("asks IS NULL")
    by_message = Window.partitionBy(*key, "message").orderBy(*_ORDER)
    responses = events.where("message = 1").withColumns(
        {
            "turn": F.row_number().over(by_message).cast("bigint"),
            "elapsed": F.expr("greatest(0, t_ns - since)"),
        }
    )
    rest = all_sent.join(both, key, "left_anti").unionByName(
        events.where("message <> 1").select(*all_sent.columns)  # see `permissions/uses.py`
    )
    return rest.select(*_use(_PUBLISH, "subject", "''", flow="flow")), responses


def _use(
    verb: str, subject: str, queue: str, *, flow: str = "false", denied: bool = False
) -> tuple[Column, ...]:
    return (
        *map(F.col, CONN),
        F.lit(verb).alias("verb"),
        F.expr(f"coalesce({subject}, '')").alias("subject"),
        F.expr(f"coalesce({queue}, '')").alias("queue"),
        F.lit(int(not denied)).cast("bigint").alias("frames"),
        F.lit(int(denied)).cast("bigint").alias("denied"),
        F.expr(_NO_TIME if denied else "t_ns").alias("first_ns"),
        F.expr(_NO_TIME if denied else "t_ns").alias("last_ns"),
        F.expr(flow).alias("flow_control"),
    )


def _subscribed(frames: DataFrame, items: DataFrame) -> DataFrame:
    """Return the SUBs that clients sent, and those from before the recording.

    Only a preamble that is the first of its connection counts.
    """
    sent = frames.where("(flags & 1) = 0 AND dir = 0 AND in_ordinal IS NOT NULL AND op = 'SUB'")
    preambles = items.where("kind = 'preamble'").withColumn(
        "place", F.row_number().over(Window.partitionBy(*CONN).orderBy("segment", "block_off"))
    )
    opened = items.where("kind = 'open'").select(*CONN).distinct()
    first = preambles.where("place = 1").join(opened, [*CONN], "left_anti")
    began = (
        frames.join(first.select(*CONN).distinct(), [*CONN], "left_semi")
        .groupBy(*CONN)
        .agg(F.min("segment").alias("began"))
    )
    first = first.join(began, [*CONN], "left").where("began IS NULL OR began >= segment")
    subs = F.explode(F.udf(facts, _FACTS, useArrow=False)("kind", "info").subs).alias("sub")
    before = first.select(*CONN, "t_ns", subs)
    return sent.select(*_use(_SUBSCRIBE, "subject", "queue")).unionByName(
        before.select(*_use(_SUBSCRIBE, "sub.subject", "sub.queue"))
    )


def _denied(frames: DataFrame) -> DataFrame:
    kinds = {PUBLISH_DENIED.name: _PUBLISH, SUBSCRIBE_DENIED.name: _SUBSCRIBE}
    told = frames.where("(flags & 1) = 0 AND dir = 1 AND out_ordinal IS NOT NULL AND op = '-ERR'").where(
        F.col("err_kind").isin(*kinds)
    )
    verb = F.when(F.col("err_kind") == PUBLISH_DENIED.name, _PUBLISH).otherwise(_SUBSCRIBE)
    uses = told.select(*_use(_PUBLISH, "err_subject", "err_queue", denied=True), verb.alias("other"))
    return uses.withColumn("verb", F.col("other")).drop("other")


def _lines(counted: DataFrame) -> DataFrame:
    """Return the templates of counted subjects, with the values of their tokens."""
    cut = F.udf(shape, _SHAPE, useArrow=False)("subject", "queue").alias("cut")
    shapes = counted.select(
        *_CLIENT, "verb", "frames", "denied", "first_ns", "last_ns", "flow_control", cut
    ).select("*", "cut.queue", "cut.template", "cut.marks", F.col("cut.values").alias("texts"))
    shapes = shapes.groupBy(*_KEY, "texts").agg(*_sums())
    mark = "substr(marks, pos + 1, 1)"
    variable = (
        shapes.select(*_KEY, F.posexplode("texts").alias("pos", "value"))
        .where(f"{mark} = '{Mark.VARIABLE.value}'")
        .distinct()
        .groupBy(*_KEY, "pos")
        .count()
        .where(f"count >= {FOLDED}")
        .groupBy(*_KEY)
        .agg(F.collect_set("pos").alias("stars"))
    )
    shown = (
        "transform(texts, (text, pos) -> if(text IS NOT NULL AND "
        f"({mark} = '{Mark.GENERATED.value}' OR coalesce(array_contains(stars, pos), false)), '*', text))"
    )
    folded = shapes.join(variable, [*_KEY], "left").withColumn("shown", F.expr(shown))
    lines = folded.groupBy(*_KEY, "shown").agg(*_sums())
    few = Window.partitionBy(*_KEY, "shown", "pos").orderBy("value")
    values = (
        folded.select(*_KEY, "shown", "frames", F.posexplode("texts").alias("pos", "value"))
        .where(f"get(shown, pos) = '*' AND (frames > 0 OR {mark} = '{Mark.VARIABLE.value}')")
        .select(*_KEY, "shown", "pos", "value")
        .distinct()
        .withColumn("place", F.row_number().over(few))
        .where(f"place <= {COUNTED}")
        .groupBy(*_KEY, "shown", "pos")
        .agg(F.sort_array(F.collect_list("value")).alias("value"))
        .groupBy(*_KEY, "shown")
        .agg(F.map_from_entries(F.collect_list(F.struct("pos", "value"))).alias("found"))
    )
    rows = lines.join(values, [*_KEY, "shown"], "left")
    return rows.select(
        *_CLIENT,
        "verb",
        "queue",
        F.expr(
            "array_join(transform(split(template, '[.]', -1), "
            "(text, pos) -> coalesce(get(shown, pos), text)), '.')"
        ).alias("template"),
        "marks",
        "frames",
        "denied",
        "first_ns",
        "last_ns",
        "flow_control",
        F.expr("transform(shown, (text, pos) -> try_element_at(found, pos))")
        .cast("array<array<string>>")
        .alias("values"),
    )
