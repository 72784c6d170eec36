"""Tables of golden captures and generated traffic equal those of a sequential reader, for any split."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from natsproxy.capture.read.reader import open_capture
from natsproxy.capture.read.recover import recover
from tests.spark.tables.sequential import known_tables, of_table

if TYPE_CHECKING:
    from tests.spark.conftest import Known

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
Row = dict[str, Any]


def counted(rows: list[Row]) -> Counter[str]:
    """Return rows as a multiset."""
    return Counter(json.dumps(row, default=str, sort_keys=True) for row in rows)


def test_tables_equal_those_of_a_sequential_reader(known: Known, tmp_path: Path) -> None:
    """Five tables, row by row, on every capture; of the damaged one, what can be recovered."""
    (damaged,) = (path for path in known.captures if path.stem == "damaged")
    recover(damaged, tmp_path / "whole.ncap")
    whole = [tmp_path / "whole.ncap" if path == damaged else path for path in known.captures]
    unsettled = {"answer": "none", "answered_ns": None}
    undecided = ("wpi", "not asked", "unknown")
    asked = Counter((row["recorder"], row["reply"]) for row in known.rows("requests"))
    same: dict[str, Callable[[Row], Row | None]] = {
        "subjects": lambda row: {**row, "minute": int(row["minute"].timestamp())},
        "headers": lambda row: row if row["position"] else None,
        "js_acks": lambda row: {**row, **unsettled} if row["answer"] in undecided else row,
        "requests": lambda row: (
            row if row["outcome"] != "pull" and asked[row["recorder"], row["reply"]] == 1 else None
        ),
    }
    for name, expected, columns in known_tables(whole):
        rows = filter(None, map(same.get(name, dict), known.rows(name)))
        assert expected, name
        assert of_table(rows, *columns) == expected, name


def test_generated_traffic_counts_up(known: Known) -> None:
    """The counts that the generator knows."""
    counts = known.conversation.known
    asked = [row for row in known.rows("requests") if row["template"] == "svc.*"]
    assert len(asked) == counts["requests"]
    assert Counter(row["outcome"] for row in asked)["no reply"] == counts["unanswered"]
    assert sum(row["latency_ns"] or 0 for row in asked) == counts["latency_ns"]
    assert {row["service_ns"] for row in asked} == {2_000, None}
    stored = [row for row in known.rows("pub_acks") if row["stream"] == "ORDERS"]
    assert (len(stored), {row["outcome"] for row in stored}) == (counts["pub_acks"], {"ack"})
    settled = [row for row in known.rows("js_acks") if row["stream"] == "ORDERS"]
    assert len(settled) == counts["js_acks"]
    assert sum(row["redelivered"] for row in settled) == counts["redelivered"]
    spread = [row for row in known.rows("fanout") if row["subject"].startswith("telemetry.")]
    assert (len(spread), {row["delay_ns"] for row in spread}) == (counts["telemetry"], {50_000})
    lively = [row for row in known.rows("liveness") if row["rtt_mean_ns"] == 5_000]
    assert [row["pings"] for row in lively] == [counts["pings"]]


@pytest.mark.parametrize("version", ["v1", "v1.1"])
def test_golden_captures(known: Known, version: str) -> None:
    """The facts in `recordings/README.md` are in their tables, whatever the version of the format."""
    recorders = {
        segment.recorder.hex()
        for path in known.captures
        if path.stem.endswith(f"-{version}")
        for segment in open_capture(path).segments()
    }

    def rows(table: str) -> list[Row]:
        return [row for row in known.rows(table) if row["recorder"] in recorders]

    outcomes = Counter(
        row["outcome"] for row in rows("requests") if row["template"].startswith(("quotes", "nobody"))
    )
    assert outcomes == {"replied": 2, "no responders": 1}
    demo = [row for row in rows("js_acks") if row["stream"] == "DEMO"]
    assert Counter((row["answer"], row["delivered"]) for row in demo) == {
        ("nak", 1): 1,
        ("ack", 1): 2,
        ("ack", 2): 1,
    }
    kept = Counter(row["stream"] for row in rows("pub_acks"))
    assert (kept["DEMO"], kept["KV_settings"]) == (3, 1)
    (asked,) = (row for row in rows("js_api") if row["verb"] == "CONSUMER.INFO")
    assert (asked["err_code"], asked["error"]) == (10014, "consumer not found")
    fired = [row for row in rows("faults") if row["rule"].startswith("no-")]
    assert {(row["rule"], row["error"]) for row in fired} == {
        ("no-secrets", 'Permissions Violation for Publish to "secret.plan"'),
        ("no-telemetry", None),
    }
    orders = [row for row in rows("fanout") if row["subject"] == "orders.new" and row["published"] == 1]
    assert sum(row["deliveries"] == 2 for row in orders) == 5
    held = {(row["subject"], row["queue"]): row["delivered"] for row in rows("subscriptions")}
    assert (held["orders.>", None], held["orders.new", "workers"]) == (5, 5)
    assert {row["name"] for row in rows("connections")} >= {
        "core",
        "service",
        "client",
        "jetstream",
        "denied",
    }


@pytest.mark.long
def test_cores_and_splits_change_nothing(known: Known, tmp_path: Path) -> None:
    """The whole job as a user runs it, on one core and on two, and with a task for every block."""
    import pyarrow.parquet as pq

    from natsproxy.spark.tables import USUAL

    found = []
    code = (
        "import sys; from natsproxy.spark.jobs import analyze as jobs\n"
        "from natsproxy.spark.session import local_session\n"
        "from natsproxy.spark.storage import executor_writer\n"
        "out, cores, size, *captures = sys.argv[1:]\n"
        "executor_writer.HERE_BYTES = 0\n"
        "for options in jobs.SOURCE_OPTIONS.values(): options['partitionBytes'] = size\n"
        "jobs.analyze(local_session(int(cores)), captures, out)\n"
    )
    for cores, size in (("1", "67108864"), ("2", "67108864"), ("2", "1")):
        out = tmp_path / f"{cores}-{size}"
        command = [sys.executable, "-c", code, str(out), cores, size, *map(str, known.captures)]
        subprocess.run(command, check=True, timeout=280)
        found.append({name: counted(pq.read_table(out / name).to_pylist()) for name in USUAL})
    assert found[0] == found[1] == found[2]
    assert len(found[0]["frames"]) > known.conversation.known["frames"]
