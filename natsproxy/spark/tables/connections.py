"""Tables of whole connections: `connections`, `subscriptions`, `liveness`; and `gaps`.

A connection or subscription that was there before its recording is known from the preamble of a segment; the
first one counts, later segments repeat it.

Silence is found without sorting frames: they are first counted by connection, direction and second, in
place, and only the seconds of a connection are put in order.  So silences of a second and more are exact, and
shorter ones do not count.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from natsproxy.protocol.errors import SUBSCRIBE_DENIED, TOO_MANY_TOKENS
from natsproxy.spark.tables.base import CONN, clients_side, shaped, when

SECOND = 1_000_000_000
_ADDRESSES = ("client", "upstream_local")
_BYTES = ("c2s_bytes", "s2c_bytes", "c2s_frames", "s2c_frames")


def info(name: str, kind: str = "string") -> Column:
    """Return a field of the JSON of an item."""
    return F.expr(f"try_cast(get_json_object(info, '$.{name}') AS {kind})")


def connections(frames: DataFrame, items: DataFrame) -> DataFrame:
    """Return one row per connection: its times, its client, the cause of its end, its traffic.

    opened_ns: NULL where it was open before the recording; closed_ns, cause: where it did not end in it.
    client, upstream_local: its addresses, that of the client and that which the server sees.
    name, lang, version, user: of its last CONNECT; server_version: of its last INFO.
    """
    connected = (
        items.where("kind IN ('open', 'preamble', 'close')")
        .groupBy(*CONN)
        .agg(
            F.min(when("kind = 'open'", "t_ns")).alias("opened_ns"),
            F.max(when("kind = 'close'", "t_ns")).alias("closed_ns"),
            *(F.max(F.coalesce(info(name), info(f"open.{name}"))).alias(name) for name in _ADDRESSES),
            F.max(when("kind = 'close'", info("cause"))).alias("cause"),
            F.max(info("detail")).alias("detail"),
            *(F.max(info(name, "bigint")).alias(name) for name in _BYTES),
        )
    )
    greetings = clients_side(frames).where("op IN ('CONNECT', 'INFO')").select(*CONN, "op", "at_ns", "args")
    before = items.where("kind = 'preamble'").select(
        *CONN,
        F.col("t_ns").alias("at_ns"),
        F.expr(
            "inline(array(named_struct('op', 'CONNECT', 'line', get_json_object(info, '$.connect')), "
            "named_struct('op', 'INFO', 'line', get_json_object(info, '$.info'))))"
        ),
    )
    greetings = greetings.unionByName(
        before.select(*CONN, "op", "at_ns", F.regexp_extract("line", r"(\{.*\})", 1).alias("args"))
    )
    fields = {name: f"CONNECT.{name}" for name in ("name", "lang", "version", "user")}
    fields["server_version"] = "INFO.version"
    greeted = greetings.groupBy(*CONN).agg(
        *(
            F.expr(
                f"max_by(get_json_object(args, '$.{path.split('.')[1]}'), "
                f"if(op = '{path.split('.')[0]}', at_ns, NULL))"
            ).alias(name)
            for name, path in fields.items()
        )
    )
    return shaped("connections", connected.join(greeted, [*CONN], "left"))


def subscriptions(frames: DataFrame, items: DataFrame) -> DataFrame:
    """Return one row per subscription: from SUB to UNSUB, its max or the end of the connection.

    template: the subject, where it is from before the recording.  turn: 1 for the first subscription of that
    sid, 2 for the next.  ended: unsub, max, close, refused, revoked (new permissions took it away), NULL
    (still open when the capture ended).  max: of UNSUB, or NULL.  refused: a rule kept it from the server, or
    the client got a permissions violation for its subject and queue.  delivered, bytes: of the messages that
    reached the client in the recording; a 503 for a request of its own does not count.
    """
    control = _control(frames, items)
    starts = control.where("start").drop("start")
    reused = F.broadcast(starts.where("turn > 1").select(*CONN, "sid").distinct())
    rows = _touching(frames)
    counts = [
        F.max(when("op = 'UNSUB'", "at_ns")).alias("unsub_ns"),
        F.expr("max_by(most, if(op = 'UNSUB', at_ns, NULL))").alias("most"),
        F.max(when("op = 'SUB' AND went", F.lit(1))).alias("reached"),
        F.expr("count_if(message)").alias("delivered"),
        F.sum(when("message", "size")).alias("bytes"),
        F.min(when("message", "at_ns")).alias("first_ns"),
        F.max(when("message", "at_ns")).alias("last_ns"),
        F.min(when("op = '-ERR'", "at_ns")).alias("revoked_ns"),
    ]
    key = [*CONN, "sid"]
    once = rows.groupBy(*key).agg(*counts).join(reused, key, "left_anti").withColumn("turn", F.lit(1))
    order = Window.partitionBy(*key).orderBy("at_ns", "dir", "ordinal")
    marks = starts.join(reused, key, "left_semi").select(
        *key, "at_ns", "dir", "ordinal", F.lit(1).alias("begins")
    )
    again = rows.join(reused, key, "left_semi").withColumn("begins", F.lit(0))
    again = again.unionByName(marks, allowMissingColumns=True)
    again = again.withColumn("turn", F.sum("begins").over(order)).groupBy(*key, "turn").agg(*counts)
    both = starts.join(once.unionByName(again), [*key, "turn"], "left")
    closed = items.where("kind = 'close'").groupBy(*CONN).agg(F.min("t_ns").alias("closed_ns"))
    return shaped("subscriptions", _ended(_denied(both, frames).join(closed, [*CONN], "left")))


def _control(frames: DataFrame, items: DataFrame) -> DataFrame:
    """Return SUBs, those of preambles and UNSUBs, with `start` (it begins a subscription) and `turn`.

    A SUB of a sid that is in use begins none: the server ignores it.
    """
    sent = (
        clients_side(frames)
        .where("dir = 0 AND op IN ('SUB', 'UNSUB')")
        .select(
            *CONN,
            "sid",
            "op",
            "at_ns",
            "dir",
            F.col("in_ordinal").alias("ordinal"),
            "subject",
            "template",
            "queue",
            F.lit(None).cast("bigint").alias("limit"),
            F.lit(0).cast("bigint").alias("before"),
        )
    )
    subs = F.expr("explode(from_json(get_json_object(info, '$.subs'), 'array<array<string>>'))").alias("sub")
    before = (
        items.where("kind = 'preamble'")
        .select(*CONN, "t_ns", subs)
        .select(
            *CONN,
            F.expr("get(sub, 0)").alias("sid"),
            F.lit("PREAMBLE").alias("op"),
            F.col("t_ns").alias("at_ns"),
            F.lit(0).alias("dir"),
            F.lit(-1).cast("bigint").alias("ordinal"),
            F.expr("get(sub, 1)").alias("subject"),
            F.lit(None).cast("string").alias("template"),
            F.expr("nullif(get(sub, 2), '')").alias("queue"),
            F.expr("nullif(try_cast(get(sub, 3) AS bigint), 0)").alias("limit"),
            F.expr("coalesce(try_cast(get(sub, 4) AS bigint), 0)").alias("before"),
        )
    )
    order = Window.partitionBy(*CONN, "sid").orderBy("at_ns", "dir", "ordinal")
    control = sent.unionByName(before).withColumn("previous", F.lag("op").over(order))
    begins = "previous IS NULL OR (op = 'SUB' AND previous = 'UNSUB')"
    control = control.withColumn("start", F.expr(f"op <> 'UNSUB' AND ({begins})"))
    return control.withColumn("turn", F.sum(F.expr("if(start, 1, 0)")).over(order)).drop("previous")


def _touching(frames: DataFrame) -> DataFrame:
    """Return the frames that count for a sid: `message` reached the client, `went` reached the server.

    An -ERR counts for the sid that it names.
    """
    rows = (
        frames.withColumn("sid", F.coalesce("err_sid", "sid"))
        .where("sid IS NOT NULL AND (flags & 1) = 0")
        .where(
            "op = 'SUB' OR (op = 'UNSUB' AND in_ordinal IS NOT NULL) OR (dir = 1 AND out_ordinal IS NOT NULL)"
        )
    )
    return rows.select(
        *CONN,
        "sid",
        "op",
        "dir",
        F.coalesce("in_ordinal", "of", "out_ordinal").alias("ordinal"),
        "size",
        F.expr("t_ns + if(dir = 1, delay_ns, 0)").alias("at_ns"),
        F.expr("out_ordinal IS NOT NULL").alias("went"),
        F.expr("dir = 1 AND op <> '-ERR' AND NOT (status <=> 503)").alias("message"),
        F.expr("if(args RLIKE '^[0-9]{1,9}$', CAST(args AS bigint), 0)").alias("most"),
    )


def _denied(subscriptions: DataFrame, frames: DataFrame) -> DataFrame:
    """Return subscriptions with `denied_ns`: the time of the -ERR that refuses them, NULL without one.

    An -ERR without a sid is that of the latest subscription before it with its subject and queue; where there
    are as many as such subscriptions, each has one.  A subject with too many tokens is denied to all queues,
    and the -ERR names none.
    """
    refusals = (
        clients_side(frames)
        .where(F.col("err_kind").isin(SUBSCRIBE_DENIED.name, TOO_MANY_TOKENS.name))
        .select(
            *CONN,
            F.col("err_subject").alias("subject"),
            F.col("err_queue").alias("queue"),
            "at_ns",
            F.lit(True).alias("refusal"),
            (F.col("err_kind") == TOO_MANY_TOKENS.name).alias("long"),
        )
    )
    rows = subscriptions.unionByName(refusals, allowMissingColumns=True)
    too_long = F.max("long").over(Window.partitionBy(*CONN, "subject"))
    rows = rows.withColumn("group", F.when(~F.coalesce(too_long, F.lit(False)), F.col("queue")))
    alike = Window.partitionBy(*CONN, "subject", "group")
    order = alike.orderBy("at_ns", F.asc_nulls_first("refusal"))
    is_denied = F.lead("refusal").over(order) | (
        2 * F.count("refusal").over(alike) >= F.count("*").over(alike)
    )
    following = order.rowsBetween(Window.currentRow, Window.unboundedFollowing)
    first = F.min(when("refusal", "at_ns")).over(following)
    denied = rows.withColumn("denied_ns", F.when(is_denied, first)).where("refusal IS NULL")
    return denied.drop("refusal", "long", "group")


def _ended(rows: DataFrame) -> DataFrame:
    rows = rows.withColumns(
        {
            "begun_ns": F.col("at_ns"),
            "template": F.coalesce("template", "subject"),
            "delivered": F.coalesce("delivered", F.lit(0)),
            "bytes": F.coalesce("bytes", F.lit(0)),
            "refused": F.expr("(op = 'SUB' AND reached IS NULL) OR denied_ns IS NOT NULL"),
            "max": F.expr("nullif(if(unsub_ns IS NULL, limit, most), 0)"),
        }
    ).withColumn(
        "ended",
        F.expr(
            "CASE WHEN refused THEN 'refused' WHEN delivered + before >= max THEN 'max' "
            "WHEN revoked_ns IS NOT NULL THEN 'revoked' "
            "WHEN unsub_ns IS NOT NULL AND max IS NULL THEN 'unsub' WHEN closed_ns IS NOT NULL THEN 'close' "
            "END"
        ),
    )
    return rows.withColumn(
        "ended_ns",
        F.expr(
            "CASE ended WHEN 'max' THEN greatest(unsub_ns, last_ns) WHEN 'unsub' THEN unsub_ns "
            "WHEN 'revoked' THEN revoked_ns WHEN 'close' THEN closed_ns WHEN 'refused' THEN denied_ns END"
        ),
    )


def liveness(frames: DataFrame) -> DataFrame:
    """Return one row per connection and side: its PINGs, their round trips, its longest silence.

    dir: 0 for the frames of the client, 1 for those of the server.  PINGs and PONGs pair in order; a PONG
    before the first PING belongs to one before the recording.  rtt: as the client saw it.  silence_ns: the
    longest time without a frame from that side, from `silent_from_ns` on, the first of several; NULL below a
    second.  first_ns,
    last_ns: frames.
    """
    key = [*CONN, "dir"]
    received = frames.where("in_ordinal IS NOT NULL AND conn_id IS NOT NULL")
    seconds = received.groupBy(*key, F.expr(f"t_ns DIV {SECOND}").alias("second")).agg(
        F.min("t_ns").alias("first"), F.max("t_ns").alias("last"), F.count("*").alias("frames")
    )
    order = Window.partitionBy(*key).orderBy("second")
    gaps = seconds.withColumn("since", F.lag("last").over(order)).withColumn(
        "gap", F.expr(f"if(first - since >= {SECOND}, first - since, NULL)")
    )
    sides = gaps.groupBy(*key).agg(
        F.sum("frames").alias("frames"),
        F.min("first").alias("first_ns"),
        F.max("last").alias("last_ns"),
        F.max("gap").alias("silence_ns"),
        F.expr("max_by(since, if(gap IS NULL, NULL, struct(gap, -since)))").alias("silent_from_ns"),
    )
    return shaped("liveness", sides.join(_round_trips(frames), key, "left").na.fill(0, ["pings", "pongs"]))


def _round_trips(frames: DataFrame) -> DataFrame:
    key = [*CONN, "dir"]
    rows = (
        clients_side(frames)
        .where("op IN ('PING', 'PONG')")
        .select(
            *CONN,
            "op",
            "at_ns",
            F.expr("if(op = 'PING', dir, 1 - dir)").alias("dir"),
            F.coalesce("in_ordinal", "out_ordinal").alias("ordinal"),
        )
    )
    began = F.min(when("op = 'PING'", "at_ns")).over(Window.partitionBy(*key))
    rows = rows.withColumn("began", began).where("op = 'PING' OR at_ns >= began")
    number = F.row_number().over(Window.partitionBy(*key, "op").orderBy("at_ns", "ordinal"))
    pairs = (
        rows.withColumn("n", number)
        .groupBy(*key, "n")
        .agg(
            F.min(when("op = 'PING'", "at_ns")).alias("ping"),
            F.min(when("op = 'PONG'", "at_ns")).alias("pong"),
        )
    )
    pairs = pairs.withColumn("rtt", when("pong >= ping", "pong - ping"))
    return pairs.groupBy(*key).agg(
        F.count("ping").alias("pings"),
        F.count("pong").alias("pongs"),
        F.min("rtt").alias("rtt_min_ns"),
        F.max("rtt").alias("rtt_max_ns"),
        F.expr("sum(rtt) DIV nullif(count(rtt), 0)").alias("rtt_mean_ns"),
    )


def gaps(items: DataFrame) -> DataFrame:
    """Return one row per gap: frames that the recorder could not keep."""
    return shaped(
        "gaps",
        items.where("kind = 'gap'").withColumns(
            {
                "reason": info("reason"),
                "frames": info("frames", "bigint"),
                "bytes": info("bytes", "bigint"),
            }
        ),
    )
