"""The table `findings`: the statements of `natsproxy check --json` on the same captures, and no others."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from natsproxy.capture.format.records import CloseRecord, Item, OpenRecord, Preamble
from natsproxy.capture.read.reader import open_capture
from natsproxy.capture.write.builder import BlockBuilder
from natsproxy.capture.write.writer import CaptureWriter, SegmentInfo
from natsproxy.check.checker import CHECKS, check_captures
from natsproxy.cli.check import check as check_command
from natsproxy.errors import CaptureError, ConfigError
from natsproxy.wire.ops import C2S, S2C
from tests.kit.captures import MONO, WALL, Scribe, write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
SECOND = 1_000_000_000
INBOX = b"_INBOX.oMssyhzujTKOBAXWf1wuAX"
Row = dict[str, Any]


def asked(*, answered: bool, body: bytes = b"q") -> list[Item]:
    """Return the items of a client that asks, and is there for ten seconds more."""
    scribe = Scribe()
    scribe.items.append(OpenRecord(1, MONO, {"client": "10.0.0.1:1"}))
    scribe.frame(0, 1, C2S, b'CONNECT {"name":"worker","headers":true,"no_responders":true}\r\n')
    scribe.frame(0, 1, C2S, b"SUB %s.* 1\r\n" % INBOX)
    scribe.frame(SECOND, 1, C2S, b"PUB svc.a %s.1 %d\r\n%s\r\n" % (INBOX, len(body), body))
    scribe.frame(2 * SECOND, 1, C2S, b"PUB other 0\r\n\r\n")
    if answered:
        scribe.frame(3 * SECOND, 1, S2C, b"MSG %s.1 1 1\r\na\r\n" % INBOX)
    scribe.frame(11 * SECOND, 1, C2S, b"PUB later 0\r\n\r\n")
    scribe.items.append(CloseRecord(1, MONO + 12 * SECOND, "client-closed", {}))
    return scribe.items


def segments(folder: Path, *parts: Sequence[Item]) -> list[Path]:
    """Write the segments of one recorder."""
    writer, made = CaptureWriter(folder, SegmentInfo(os.urandom(16), bytes(16), WALL, MONO)), []
    for items in parts:
        made.append(writer.open_segment())
        builder = BlockBuilder()
        builder.begin(MONO, WALL)
        for item in items:
            builder.add(item)
        writer.write(builder.seal())
    writer.close()
    return made


def stated(spark: SparkSession, captures: Sequence[Path | str], **options: Any) -> list[Row]:
    """Return the rows of the table, in the order of their texts."""
    from natsproxy.spark.jobs.analyze import check
    from natsproxy.spark.tables import derive

    rows: DataFrame = derive("findings", spark.range(0), statements=check(spark, captures, **options))
    return sorted(rows.toArrow().to_pylist(), key=lambda row: (row["check"], row["sentence"]))


def as_json(rows: list[Row]) -> list[Row]:
    """Return rows of the table as `natsproxy check --json` has them."""
    began = WALL  # of all captures here
    return [
        {name: row[name] for name in ("check", "verdict", "sentence", "clients", "rules")}
        | {
            "frames": [
                {name: frame[name] for name in ("capture", "connection", "ordinal", "text")}
                | {
                    "direction": ("c2s", "s2c")[frame["dir"]],
                    "t": frame["t_ns"] - began,
                    "rule": frame["rule"] or "",
                }
                for frame in row["frames"]
            ]
        }
        for row in rows
    ]


def told(captures: Sequence[Path]) -> list[Row]:
    """Return the statements of the command."""
    done = CliRunner().invoke(check_command, ["--json", *map(str, captures)])
    statements: list[Row] = json.loads(done.stdout)["statements"]
    return sorted(statements, key=lambda one: (one["check"], one["sentence"]))


@pytest.mark.parametrize(
    "here",
    [pytest.param(True, marks=pytest.mark.long), False],
    ids=["in this process", "in a task"],
)
def test_the_table_has_the_statements_of_the_command(spark: SparkSession, tmp_path: Path, here: bool) -> None:
    """Of a capture with a lost answer, of a sound one, and of both with what they tell together."""
    lost = write(tmp_path / "lost.ncap", asked(answered=False))
    sound = write(tmp_path / "sound.ncap", asked(answered=True, body=b"another"))
    assert stated(spark, [sound], here=here) == told([sound]) == []
    for captures, checks in (
        ([lost], ["request_without_answer"]),
        ([lost, sound], ["payload_changed", "request_without_answer"]),
    ):
        rows = stated(spark, captures, here=here)
        assert [row["check"] for row in rows] == checks
        assert as_json(rows) == told(captures)


def test_a_statement_names_recorder_and_time(spark: SparkSession, tmp_path: Path) -> None:
    """So that its frames can be joined with `frames`."""
    lost = write(tmp_path / "lost.ncap", asked(answered=False))
    (row,) = stated(spark, [lost], here=True)
    (segment,) = open_capture(lost).segments()
    assert (row["capture"], row["recorder"], row["t_ns"]) == (
        str(lost),
        segment.recorder.hex(),
        WALL + SECOND,
    )
    (frame,) = row["frames"]
    key = ("recorder", "conn_id", "dir", "ordinal", "t_ns")
    assert [frame[name] for name in key] == [segment.recorder.hex(), 1, 0, 2, WALL + SECOND]


def test_a_recording_is_one_however_its_files_are_given(spark: SparkSession, tmp_path: Path) -> None:
    """In two segments, the first ends before the client has waited long; local files, or objects."""
    for answered, checks in ((True, []), (False, ["request_without_answer"])):
        folder, items = tmp_path / str(answered), asked(answered=answered)
        folder.mkdir()
        made = segments(folder, items[:5], items[5:])
        assert told(made[:1]) == told(made[1:]) == []
        for places in ([folder], made, [f"file://{folder}"], [f"file://{path}" for path in made]):
            assert [row["check"] for row in stated(spark, places, here=True)] == checks


def test_a_damaged_block_is_a_gap(spark: SparkSession, tmp_path: Path) -> None:
    """What it held may have been the answer; what was over before it is judged."""
    from natsproxy.spark.source.survey import contents

    path = write(tmp_path / "damaged.ncap", asked(answered=True), per_block=1)
    raw = bytearray(path.read_bytes())
    block = contents(str(path)).blocks[5]
    raw[block.end - 1] ^= 0xFF
    path.write_bytes(raw)
    with pytest.raises(CaptureError, match="damaged"):
        check_captures([path])
    (row,) = stated(spark, [path], here=True)
    assert (row["check"], row["verdict"]) == ("request_without_answer", "cannot say")
    assert row["sentence"] == "the recording does not tell: frames are missing in the recording"


def test_what_a_check_cannot_read_it_cannot_tell(spark: SparkSession, tmp_path: Path) -> None:
    """With FAILFAST it is an error."""
    path = write(tmp_path / "odd.ncap", [Preamble(1, MONO, {"connect": 7, "subs": 7})])
    rows = stated(spark, [path], here=True)
    assert [row["check"] for row in rows] == sorted(CHECKS)
    assert {row["verdict"] for row in rows} == {"cannot say"}
    assert all("a preamble cannot be read" in row["sentence"] for row in rows)
    with pytest.raises(CaptureError, match="a preamble cannot be read"):
        stated(spark, [path], here=True, mode="FAILFAST")


def test_a_name_that_is_no_text_is_one_in_the_table(spark: SparkSession, tmp_path: Path) -> None:
    """A path can be any bytes; a column cannot."""
    path = write(tmp_path / os.fsdecode(b"a\xff.ncap"), asked(answered=False))
    (row,) = stated(spark, [path], here=True)
    assert row["capture"] == row["frames"][0]["capture"] == str(tmp_path / "a?.ncap")


def test_parts_of_captures_are_not_checked(spark: SparkSession, tmp_path: Path) -> None:
    """Frames that an option leaves out would count as lost."""
    from natsproxy.spark.jobs.analyze import check, read_stream

    path = write(tmp_path / "a.ncap", asked(answered=True))
    with pytest.raises(ConfigError, match="leave out what selects frames"):
        check(spark, [path], op="PUB")
    with pytest.raises(Exception, match="no stream of findings"):
        read_stream(spark, [path], what="findings").writeStream.format("noop").trigger(
            availableNow=True
        ).start().awaitTermination()


@pytest.mark.long
def test_a_watch_keeps_the_table(spark: SparkSession, tmp_path: Path) -> None:
    """Of the captures that are there, anew each time."""
    from natsproxy.spark.storage.store import Store
    from natsproxy.spark.watch.job import watch

    folder, out, refreshed = tmp_path / "captures", tmp_path / "out", list[int]()
    folder.mkdir()
    write(folder / "lost.ncap", asked(answered=False))

    def look() -> None:
        refreshed.append(Store(spark, out).read("findings").count())

    watch(
        spark,
        [folder],
        out,
        ["findings"],
        every=0.5,
        refresh=0,
        stop=lambda: 1 in refreshed,
        refreshed=look,
    )
    assert Store(spark, out).read("findings").toArrow().to_pylist() == stated(spark, [folder], here=True)


@pytest.mark.long
def test_the_report_shows_the_table(spark: SparkSession, tmp_path: Path) -> None:
    """Its statements with their frames, and how many there are."""
    from natsproxy.spark.jobs.analyze import analyze
    from natsproxy.spark.report.collect import collect

    lost, out = write(tmp_path / "lost.ncap", asked(answered=False)), tmp_path / "out"
    analyze(spark, [lost], out, ["findings"])
    data = collect(spark, out, [lost])
    assert (data["checks"]["found"], data["checks"]["cannot_say"]) == (1, 0)
    (shown,), (row,) = data["checks"]["listed"], stated(spark, [lost], here=True)
    assert (shown["check"], shown["sentence"], shown["first"]) == (row["check"], row["sentence"], 1000)
    same = ("dir", "ordinal", "text", "rule")
    assert [[frame[name] for name in same] for frame in shown["frames"]] == [
        [frame[name] for name in same] for frame in row["frames"]
    ]
    said = [finding["text"] for finding in data["findings"] if finding["section"] == "checks"]
    assert said == ["1 thing went wrong: `request_without_answer` 1."]
