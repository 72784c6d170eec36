"""Tables by the hour: rows that cross an hour are there once, and no late recorder is lost."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from natsproxy.errors import ConfigError
from tests.kit.captures import write
from tests.spark.conftest import load
from tests.spark.known_conversation import Conversation, msg, pub

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
HOUR = 3_600_000  # ms
HOURS = [datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in (0, 1)]


def _punctual() -> Conversation:
    conversation = Conversation()
    for t, reply, late in (
        (HOUR - 100, b"edge", 200),
        (HOUR - 50, b"reused", 250),
        (HOUR + 1000, b"reused", 100),
        (HOUR + 5000, b"inside", 3),
        (2 * HOUR + 1000, b"open", 1),
    ):
        conversation.send(t, 1, pub(b"svc " + reply, b"q"))
        conversation.receive(t + late, 1, msg(reply, b"9", b"a"))
    for n in range(25):  # three wait at any time
        conversation.send(HOUR - 205_000 + 20_000 * n, 5, pub(b"svc waiting", b"q"))
        conversation.receive(HOUR - 154_500 + 20_000 * n, 5, msg(b"waiting", b"9", b"a"))
    for minute in range(0, 120, 10):
        conversation.send(minute * 60_000 + 30_000, 2, pub(b"$JS.API.CONSUMER.MSG.NEXT.S.C pulls", b"1"))
    for t in (HOUR - 10, HOUR, HOUR + 60_000):
        conversation.send(t, 3, pub(b"beat", b"same"))
        conversation.receive(t + 20, 4, msg(b"beat", b"1", b"same"))
    ack = b"$JS.ACK.S.C.1.1.1.1.0"
    conversation.receive(HOUR - 100, 4, msg(b"stored", b"2", b"x", ack))
    conversation.send(HOUR + 400, 4, pub(ack, b""))
    conversation.send(2 * HOUR + 300_000, 1, b"PING\r\n")
    return conversation


def _late() -> Conversation:
    """A recorder that was cut off: its first hour comes when the others are in their third."""
    conversation = Conversation()
    conversation.send(1000, 1, pub(b"svc late", b"q"))
    conversation.receive(1007, 1, msg(b"late", b"9", b"a"))
    return conversation


@pytest.fixture(scope="module")
def frames(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, DataFrame]:
    """Return the folder of stored frames, and the late recorder's, not stored yet."""
    folder, found = tmp_path_factory.mktemp("hours"), []
    for name, conversation in (("punctual", _punctual()), ("late", _late())):
        made, _ = load(spark, [write(folder / f"{name}.ncap", conversation.items)])
        found.append(made.selectExpr("*", "to_date(ts) AS date").coalesce(1))
    found[0].write.partitionBy("date").parquet(str(folder / "frames"))
    return folder / "frames", found[1]


def rows(spark: SparkSession, out: Path, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = spark.read.parquet(str(out / name)).toArrow().to_pylist()
    return found


@pytest.mark.long
def test_hours_are_computed_alone_and_again(
    spark: SparkSession, frames: tuple[Path, DataFrame], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pairs over the edge are in the hour that they begin in; again, only late frames change rows.

    Reply subjects that are used again are joined as if there were too many for each task.
    """
    from natsproxy.spark.jobs.hours import write_hours

    monkeypatch.setattr("natsproxy.spark.tables.pairing.BROADCAST_MAX", 0)
    stored, late = frames
    assert write_hours(spark, stored, tmp_path, ["requests"]) == HOURS
    found = rows(spark, tmp_path, "requests")
    asked = Counter(
        (row["reply"], row["hour"], row["requests"], row["latency_ns"] and row["latency_ns"] // 10**6)
        for row in found
    )
    assert asked == Counter(
        {
            ("edge", 0, 1, 200): 1,
            ("reused", 0, 1, 250): 1,
            ("reused", 1, 1, 100): 1,
            ("inside", 1, 1, 3): 1,
            ("waiting", 0, 1, None): 11,
            ("waiting", 1, 1, None): 14,
            ("pulls", 0, 6, None): 1,
            ("pulls", 1, 6, None): 1,
        }
    )
    assert {row["outcome"] for row in found if row["reply"] == "waiting"} == {"unknown"}

    late.write.mode("append").partitionBy("date").parquet(str(stored))
    write_hours(spark, stored, tmp_path, ["requests"], [HOURS[0].replace(minute=30)])

    before = Counter(map(repr, found))
    added = Counter(map(repr, rows(spark, tmp_path, "requests"))) - before
    assert [("'late'" in row, count) for row, count in added.items()] == [(True, 1)]
    assert len(rows(spark, tmp_path, "requests")) == len(found) + 1


@pytest.mark.long
def test_messages_and_acks_over_the_edge(
    spark: SparkSession, frames: tuple[Path, DataFrame], tmp_path: Path
) -> None:
    """Deliveries are in the hour that they come in; an ack is in the hour of its delivery."""
    from natsproxy.spark.jobs.hours import write_hours

    assert write_hours(spark, frames[0], tmp_path, ["fanout", "js_acks"]) == HOURS
    beats = [row for row in rows(spark, tmp_path, "fanout") if row["subject"] == "beat"]
    assert {row["hour"]: (row["published"], row["deliveries"]) for row in beats} == {0: (1, 0), 1: (2, 3)}
    assert [(row["hour"], row["answer"]) for row in rows(spark, tmp_path, "js_acks")] == [(0, "ack")]


@pytest.mark.long
def test_a_watermark_loses_a_late_recorder(
    spark: SparkSession, frames: tuple[Path, DataFrame], tmp_path: Path
) -> None:
    """The trap that hours are for: a stream drops the late recorder, and keeps its last row back."""
    from pyspark.sql import functions as F

    stored, late = frames
    folder = tmp_path / "in"
    punctual = spark.read.parquet(str(stored)).where("subject IS NOT NULL AND subject <> 'late'").drop("date")
    punctual = punctual.where("reply <> 'late' OR reply IS NULL")
    late = late.drop("date")
    for part in (punctual.where("hour(ts) = 0"), punctual.where("hour(ts) > 0"), late):
        part.coalesce(1).write.mode("append").parquet(str(folder))
    source = spark.readStream.schema(late.schema).option("maxFilesPerTrigger", "1").parquet(str(folder))
    keyed = source.withColumn("k", F.coalesce("reply", "subject")).withWatermark("ts", "60 seconds")
    paired = keyed.groupBy("k", F.session_window("ts", "5 seconds")).agg(
        F.count_if(F.expr("dir = 0")).alias("asked"), F.count_if(F.expr("dir = 1")).alias("answered")
    )
    query = (
        paired.select("k", "asked", "answered")
        .writeStream.format("parquet")
        .outputMode("append")
        .option("checkpointLocation", str(tmp_path / "state"))
        .option("path", str(tmp_path / "out"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()

    progress = [batch for batch in query.recentProgress if batch.numInputRows]
    dropped = sum(state.numRowsDroppedByWatermark for batch in progress for state in batch.stateOperators)
    emitted = {row["k"] for row in rows(spark, tmp_path, "out")}
    assert (len(progress), dropped) == (3, late.count())
    assert "late" not in emitted
    assert "open" not in emitted
    assert "edge" in emitted


def test_tables_without_hours_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    """The sentence names the tables that have hours."""
    from natsproxy.spark.jobs.hours import write_hours

    for name, sentence in (("liveness", "no hours of the table 'liveness'"), ("nope", "no table 'nope'")):
        with pytest.raises(ConfigError, match=sentence):
            write_hours(spark, tmp_path, tmp_path, [name])
