"""The data of the report for a known capture, and for captures with little in them."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from natsproxy.errors import NatsproxyError
from natsproxy.spark.report import write
from natsproxy.spark.report.page import _part
from tests.kit.captures import WALL
from tests.spark.report import known_capture as known
from tests.spark.report import test_page

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
WANTED = ("requests", "errors", "js_acks", "connections", "faults", "gaps")
Data = dict[str, Any]


@pytest.fixture(scope="module")
def out(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the tables of the known capture, some of them."""
    from natsproxy.spark.jobs.analyze import analyze

    folder = tmp_path_factory.mktemp("report")
    analyze(spark, [known.make(folder / "known.ncap")], folder / "tables", WANTED)
    return folder / "tables"


@pytest.fixture(scope="module")
def data(spark: SparkSession, out: Path) -> Data:
    """Return the data of the page, as a browser reads it."""
    from natsproxy.spark.report.collect import collect

    found = collect(spark, out, ["captures/known.ncap"])
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    return found


def test_the_heading_names_the_captures(data: Data) -> None:
    """Captures by name, the span of time, totals, who recorded."""
    assert data["captures"] == ["known.ncap"]
    assert data["axis"]["t0"] == WALL / 1e6
    assert data["axis"]["length"] == known.SPAN / 1e6
    assert data["axis"]["step"] * data["axis"]["count"] >= data["axis"]["length"]
    assert data["totals"]["connections"] == 3
    assert data["totals"]["corrupt"] == 0
    assert data["totals"]["messages"] == data["totals"]["published"] + data["totals"]["delivered"]
    assert [row["segments"] for row in data["recorders"]] == [1]


def test_traffic_adds_up_to_the_totals(data: Data) -> None:
    """Every step of both directions."""
    assert all(len(way) == data["axis"]["count"] for way in data["traffic"]["frames"].values())
    assert sum(map(sum, data["traffic"]["frames"].values())) == data["totals"]["frames"]
    assert sum(map(sum, data["traffic"]["bytes"].values())) == data["totals"]["bytes"]


def test_the_busiest_subjects_come_first(data: Data) -> None:
    """Their counts, and their counts over time; a hostile subject is a subject."""
    counts = [row["published"] + row["delivered"] for row in data["templates"]]
    assert counts == sorted(counts, reverse=True) == [sum(row["over"]) for row in data["templates"]]
    first = data["templates"][0]
    assert first["template"] == known.EVIL
    assert (first["published"], first["delivered"]) == (known.EVENTS + known.DENIED, known.EVENTS)


def test_latencies_are_those_of_the_requests(data: Data) -> None:
    """By template and together; each answered request is in one step and one cell, the others in none's."""
    by_template = {row["template"]: row for row in data["latency"]["listed"]}
    whole, a, b = data["latency"]["whole"], by_template["svc.a"], by_template["svc.b"]
    slow = sorted(number for number in range(1, known.REQUESTS + 1) if number % 3 == 0)

    assert a["requests"] == known.REQUESTS - len(slow) + known.UNANSWERED
    assert (a["unanswered"], b["unanswered"], whole["unanswered"]) == (known.UNANSWERED, 0, known.UNANSWERED)
    assert whole["no_responders"] == by_template["nobody"]["no_responders"] == 1
    assert b["latency"] == [slow[len(slow) // 2 - 1], slow[len(slow) * 9 // 10 - 1], slow[-1], slow[-1]]
    assert b["service"] == [ms - 1 for ms in b["latency"]]
    answered = known.REQUESTS + 1  # the failed call of the API is answered too
    assert sum(step[0] for step in data["latency"]["over"] if step) == answered
    cells = data["latency"]["cells"]
    assert sum(n for _, row, n in cells if row is not None) == answered
    assert sum(n for _, row, n in cells if row is None) == known.UNANSWERED
    assert all(at < len(data["latency"]["over"]) for at, _, _ in cells)


def test_the_slowest_requests_come_with_their_frames(data: Data) -> None:
    """All four legs, in order, by whom and when."""
    slow = data["slowest"]
    assert [row["latency"] for row in slow] == [known.REQUESTS - place for place in range(len(slow))]
    client, service = (
        f"{data['recorders'][0]['recorder'][:8]}#{one}" for one in (known.CLIENT, known.SERVICE)
    )
    assert (slow[0]["requester"], slow[0]["responder"]) == (client, service)
    assert [(leg["conn"], leg["op"]) for leg in slow[0]["frames"]] == [
        (client, "PUB"),
        (service, "MSG"),
        (service, "PUB"),
        (client, "MSG"),
    ]
    after = [leg["t"] - slow[0]["t1"] for leg in slow[0]["frames"]]
    assert after == [0, 0.5, known.REQUESTS - 0.5, known.REQUESTS]


def test_deliveries_come_with_the_answers_of_consumers(data: Data) -> None:
    """Acks, naks, redeliveries and how long they took."""
    whole, (row,) = data["deliveries"]["whole"], data["deliveries"]["listed"]
    assert (row["stream"], row["consumer"]) == ("S", "C")
    assert row["deliveries"] == known.ACKS + known.NAKS + known.REDELIVERED + known.IGNORED
    assert (row["ack"], row["nak"]) == (known.ACKS + known.REDELIVERED, known.NAKS)
    assert (row["redelivered"], row["most"], row["none"]) == (known.REDELIVERED, 2, known.IGNORED)
    assert row["latency"] == [2, 2, 2, 2]
    assert {**row, **whole} == row


def test_denied_permissions_are_listed_by_subject(data: Data) -> None:
    """With their origin, and all errors over time."""
    errors = data["errors"]
    assert (errors["count"], sum(errors["over"])) == (known.DENIED, known.DENIED)
    (kind,), (denied,) = errors["listed"], errors["denied"]
    assert (kind["kind"], kind["count"]) == ('Permissions Violation for Publish to "*"', known.DENIED)
    assert (denied["template"], denied["count"], denied["from_proxy"]) == (
        known.EVIL,
        known.DENIED,
        known.DENIED,
    )


def test_firings_stand_beside_their_consequences(data: Data) -> None:
    """Errors after them, and the end after the last; each rule has its strip."""
    faults = data["faults"]
    assert faults["count"] == known.DENIED + known.DROPPED
    drop, deny = sorted(faults["listed"], key=lambda row: row["kind"])
    assert (deny["rule"], deny["count"], deny["error"], deny["closed"]) == (
        known.EVIL,
        known.DENIED,
        known.DENIED,
        1,
    )
    assert (drop["rule"], drop["count"], drop["error"], drop["closed"]) == ("lossy", known.DROPPED, 0, 0)
    assert {strip["rule"]: sum(strip["over"]) for strip in faults["strips"]} == {
        known.EVIL: known.DENIED,
        "lossy": known.DROPPED,
    }
    assert drop["during"]["requests"] == known.DROPPED


@pytest.mark.parametrize(
    "apart", [[], pytest.param(["one", "two"], marks=pytest.mark.long)], ids=["together", "apart"]
)
def test_senders_beyond_the_first_are_one(spark: SparkSession, apart: list[str]) -> None:
    """With all of their messages, however many they are; of each recorder too."""
    from natsproxy.spark.report.senders import senders
    from natsproxy.spark.report.tables import Axis

    many = 3_000
    frames = spark.range(2 * many).selectExpr(
        f"if(id < {many}, 'one', 'two') AS recorder",
        f"greatest(id % {many}, 9) AS conn_id",  # 9 stands for ten connections
        "'tele.x' AS template",
        "0 AS dir",
        "'PUB' AS op",
        *(f"0 AS {name}" for name in ("in_ordinal", "out_ordinal", "flags", "t_ns", "delay_ns")),
    )
    tables: Any = SimpleNamespace(recorder_choices=apart, get=lambda name: None)
    (found,) = senders(frames, Axis(0, 1, 1), tables)

    by_recorder = found.pop("by_recorder", {})
    assert found["template"] == "tele.x"
    assert found["to"] == []
    assert found["from"][:3] == [["one#9", 10], ["two#9", 10], ["one#10", 1]]
    assert (len(found["from"]), found["from"][-1]) == (9, ["", 2 * many - 2 * 10 - 6])
    assert sorted(by_recorder) == apart
    for name, sides in by_recorder.items():
        assert (sides["from"][0], len(sides["from"])) == ([f"{name}#9", 10], 9)
        assert sides["from"][-1] == ["", many - 10 - 7]


def test_the_blocks_are_of_the_clients_with_most_frames(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each with all of its rows, or none; the number of all clients is said."""
    from natsproxy.spark.report import needs
    from natsproxy.spark.report.tables import Axis
    from natsproxy.spark.schema import TABLES
    from tests.spark.report.test_needs import used

    rows = [used("few", "a", "1", 5), *(used("many", f"b.x{chr(97 + n)}", "11", 9) for n in range(4))]
    rows += [used(None, "c", "1", 3), used("last", "d", "1", 1)]
    table = spark.createDataFrame(rows, TABLES["permissions"])
    tables: Any = SimpleNamespace(recorder_choices=[])
    monkeypatch.setattr(needs, "ROWS", 3)

    found = needs.permissions(table, Axis(0, 1, 1), tables)

    assert found["clients"] == 4
    assert [row["name"] for row in found["blocks"]] == ["few", "(unnamed)", "last"]
    assert [row["template"] for row in found["listed"]] == ["a", "c", "d"]
    assert needs.permissions(table.where("user = 'nobody'"), Axis(0, 1, 1), tables) == {}


def test_connections_and_gaps_are_listed(data: Data) -> None:
    """Causes of ends, with hostile names; gaps come first of all."""
    assert {end["cause"]: end["count"] for end in data["connections"]["ends"]} == known.ENDS
    victim = data["connections"]["listed"][-1]
    assert (victim["name"], victim["cause"], victim["clean"]) == (known.EVIL, "rule", False)
    assert (data["gaps"]["count"], data["gaps"]["frames"]) == (1, 3)
    assert data["gaps"]["listed"][0]["reason"] == known.EVIL
    assert data["findings"][0]["section"] == "gaps"


def test_each_section_is_on_the_page() -> None:
    """As a row of its own, or as a part of traffic, JetStream or connections."""
    pytest.importorskip("pyspark")
    from natsproxy.spark.report.collect import SECTIONS

    rows = re.findall(r'^  \["(\w+)"', _part("shell.js"), re.MULTILINE)
    parts = {"fanout", "deliveries", "publishes", "js_api", "subscriptions", "hops"}
    names = [section.name for section in SECTIONS]
    assert set(names) == {*rows, *parts} - {"jetstream"}
    assert names == list(test_page.SECTIONS)


def test_a_table_that_was_not_written_is_a_sentence(data: Data) -> None:
    """Its section is empty and says why; no other is."""
    missing = {
        "fanout": "fanout",
        "publishes": "pub_acks",
        "js_api": "js_api",
        "checks": "findings",
        "subscriptions": "subscriptions",
        "hops": "hops",
    }
    assert data["empty"].pop("permissions") == (
        "The table “permissions” was not written by this analysis. natsproxy analyze makes it where --tables "
        "names it."
    )
    assert data["empty"] == {
        name: f"The table “{table}” was not written by this analysis." for name, table in missing.items()
    }
    assert all(data[name] is None for name in (*missing, "permissions"))


def test_a_table_that_is_not_of_this_analysis_is_not_read(spark: SparkSession, out: Path) -> None:
    """Tables that an earlier run left behind, whole or half, are in no list."""
    from natsproxy.spark.report.tables import Tables

    shutil.copytree(out / "errors", out / "subjects")
    tables = Tables(spark, out)

    assert tables.get("subjects") is None
    assert tables.why == {"subjects": "The table “subjects” was not written by this analysis."}
    assert tables.get("errors") is not None


def test_no_tables_and_no_place_are_one_sentence_each(spark: SparkSession, out: Path, tmp_path: Path) -> None:
    """Nothing is written."""
    with pytest.raises(
        NatsproxyError, match="has no tables to report on: The table “frames” was not written"
    ):
        write(spark, tmp_path, tmp_path / "r.html")
    assert not list(tmp_path.iterdir())
    with pytest.raises(NatsproxyError, match=r"cannot be written to .*nowhere/r\.html: No such file"):
        write(spark, out, tmp_path / "nowhere" / "r.html")


def test_a_table_that_cannot_be_read_is_one_sentence(spark: SparkSession, out: Path, tmp_path: Path) -> None:
    """It names the place; there is no page."""
    shutil.copytree(out, tmp_path / "tables")
    for part in (tmp_path / "tables").rglob("part-*.parquet"):
        part.write_bytes(b"not what it was")
    for check in (tmp_path / "tables").rglob(".*.crc"):
        check.unlink()
    with pytest.raises(NatsproxyError, match=r"tables: .*Parquet"):
        write(spark, tmp_path / "tables", tmp_path / "r.html")
    assert [left.name for left in tmp_path.iterdir()] == ["tables"]


@pytest.mark.parametrize("span", [0, 1, 999, 10**9, 3600 * 10**9, 10**17], ids=str)
def test_the_axis_is_bounded_and_covers_all(span: int) -> None:
    """In steps that people can read."""
    pytest.importorskip("pyspark", reason="the tables need pyspark: pip install 'natsproxy[spark]'")
    from natsproxy.spark.report.tables import BUCKETS, axis

    found = axis(7, 7 + span)
    assert 1 <= found.count <= BUCKETS
    assert found.step * (found.count - 1) <= max(1, span) < found.step * found.count


@pytest.mark.long
def test_the_page_is_small_whatever_the_capture_holds(spark: SparkSession, tmp_path: Path) -> None:
    """Of subjects, connections, rules, consumers, errors and gaps it shows the first ones, and counts all."""
    from natsproxy.spark.jobs.analyze import analyze
    from natsproxy.spark.report.collect import collect
    from natsproxy.spark.report.page import render

    many = 300
    analyze(spark, [known.make_wide(tmp_path / "wide.ncap", many)], tmp_path / "tables")
    data = collect(spark, tmp_path / "tables")

    assert data["errors"]["count"] == data["faults"]["count"] == data["gaps"]["count"] == many
    assert data["connections"]["count"] == many
    assert data["latency"]["whole"]["requests"] == data["deliveries"]["whole"]["deliveries"] == many
    lists = [data["templates"], *(data[name]["listed"] for name in ("latency", "errors", "faults", "gaps"))]
    # Of latencies those with most requests, and the slowest.
    assert [len(rows) for rows in lists] == [50, len(data["latency"]["listed"]), 50, 50, 50]
    slowest = sorted((row["latency"][2] for row in data["latency"]["listed"]), reverse=True)
    assert slowest[:50] == [float(many - 1 - place) for place in range(50)]
    assert len(data["connections"]["listed"]) == 60
    assert len(render(data)) < 500_000
