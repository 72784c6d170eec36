"""Building blocks of the tables: frames as one side saw them, and texts as numbers.

A proxy sees each frame on two legs.  `clients_side` has the frames that clients sent and got, `servers_side`
those that the server got and sent.  A frame that a rule changed is a row on each side, a dropped one on the
sender's only, and one that the proxy made on the receiver's only, so that on either side each frame counts
once.

Aggregations keep numbers only: Spark combines numbers in place, in a hash table before the shuffle, so that
a key with 1e9 frames is one row per task, but falls back to sorting as soon as one buffer holds a text.  So
texts travel as their xxhash64 and come back by a join with the few different ones (`with_text`).
Two texts of one hash would make two rows of one: at a million different texts the odds are 1 in 37 million.

Most keys are used once.  Keys that are used again (a reply subject, a sid) go through a window that numbers
the uses (the column `turn`); the frames of all other keys are never sorted.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from natsproxy.protocol.jetstream import ACK_PREFIX
from natsproxy.spark.schema import TABLES

MESSAGES = ("PUB", "HPUB", "MSG", "HMSG")
# As text, which Parquet keeps as numbers and a dictionary.  A column of numbers beside it would save a
# twentieth of a table's work, and be NULL in frames that were stored without it.
MESSAGE = f"op IN {MESSAGES}"
ACK = ACK_PREFIX.decode()
PUBLISH_ACK = "js_kind IN ('publish-ack', 'duplicate')"
CONN = ("recorder", "conn_id")
_WHOLE = "(flags & 1) = 0"  # the flag of a frame that the end of its connection cut


def clients_side(frames: DataFrame) -> DataFrame:
    """Return the whole frames as clients sent and got them; `at_ns` is the time of that (Unix ns)."""
    passed = "((dir = 0 AND in_ordinal IS NOT NULL) OR (dir = 1 AND out_ordinal IS NOT NULL))"
    return frames.where(f"{passed} AND {_WHOLE}").withColumn(
        "at_ns", F.expr("t_ns + if(dir = 1, delay_ns, 0)")
    )


def servers_side(frames: DataFrame) -> DataFrame:
    """Return the whole frames as the server got and sent them; `at_ns` is the time of that (Unix ns)."""
    passed = "((dir = 0 AND out_ordinal IS NOT NULL) OR (dir = 1 AND in_ordinal IS NOT NULL))"
    return frames.where(f"{passed} AND {_WHOLE}").withColumn(
        "at_ns", F.expr("t_ns + if(dir = 0, delay_ns, 0)")
    )


def shaped(name: str, rows: DataFrame) -> DataFrame:
    """Return the columns of a table as `natsproxy/spark/schema.py` has them."""
    schema = StructType.fromDDL(TABLES[name])
    assert isinstance(schema, StructType)
    return rows.to(schema)


def when(condition: str, value: str | Column) -> Column:
    """Return `value` where the condition holds, NULL elsewhere: aggregates skip NULL."""
    return F.when(F.expr(condition), F.expr(value) if isinstance(value, str) else value)


def peer() -> Column:
    """Return the connection of a frame as one number."""
    return F.xxhash64(*CONN)


def with_text(rows: DataFrame, texts: DataFrame, number: str, *names: str, few: bool = False) -> DataFrame:
    """Return `rows` with the texts whose number is in a column.

    texts: rows that hold the columns `names`, the first of which the number is of.  few: there are few
    different ones, and every task can have them all; without, a text that most rows lack (a number that is
    NULL) would send those rows to one task.
    """
    known = texts.select(F.xxhash64(names[0]).alias(number), *names).distinct()
    return rows.join(F.broadcast(known) if few else known, number, "left")
