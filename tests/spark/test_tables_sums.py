"""Tables of golden captures and generated traffic: whatever the split, what a sequential reader finds."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.conftest import load
from tests.spark.sequential import conversation, of_table
from tests.spark.traffic import Talk, record

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
GOLDEN = sorted((Path(__file__).parents[2] / "recordings").glob("*.ncap"))
ROUNDS = 100
Tables = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def talk(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Talk]:
    """Generated traffic in many small blocks."""
    talk = Talk(ROUNDS)
    return record(tmp_path_factory.mktemp("talk") / "talk.ncap", talk, block=20_000), talk


def all_tables(frames: DataFrame, items: DataFrame) -> Tables:
    """Return the rows of every table."""
    from natsproxy.spark.tables import TABLES, derive, exchanges

    paired = exchanges(frames).persist()
    found = {name: derive(name, frames, items, paired).toArrow().to_pylist() for name in TABLES[1:]}
    paired.unpersist()
    return found


@pytest.fixture(scope="module")
def tables(spark: SparkSession, talk: tuple[Path, Talk]) -> Tables:
    """Every table of the golden captures and of the traffic, read as one."""
    return all_tables(*load(spark, [*GOLDEN, talk[0]]))


def counted(rows: list[dict[str, Any]]) -> Counter[str]:
    """Return rows as a multiset."""
    return Counter(json.dumps(row, default=str, sort_keys=True) for row in rows)


def test_they_are_what_a_sequential_reader_finds(tables: Tables, talk: tuple[Path, Talk]) -> None:
    """Five tables, row by row, on every golden capture and the traffic."""
    rows = {name: list(found) for name, found in tables.items()}
    rows["subjects"] = [{**row, "minute": int(row["minute"].timestamp())} for row in rows["subjects"]]
    rows["headers"] = [row for row in rows["headers"] if row["position"]]
    rows["requests"] = [row for row in rows["requests"] if row["outcome"] != "pull"]
    for name, expected, columns in conversation([*GOLDEN, talk[0]]):
        assert expected, name
        assert of_table(rows[name], *columns) == expected, name


def test_generated_traffic_counts_up(tables: Tables, talk: tuple[Path, Talk]) -> None:
    """What the generator knows."""
    known = talk[1].known
    asked = [row for row in tables["requests"] if row["template"] == "svc.*"]
    assert len(asked) == known["requests"]
    assert Counter(row["outcome"] for row in asked)["no reply"] == known["unanswered"]
    assert sum(row["latency_ns"] or 0 for row in asked) == known["latency_ns"]
    assert {row["service_ns"] for row in asked} == {2_000, None}
    stored = [row for row in tables["pub_acks"] if row["stream"] == "ORDERS"]
    assert (len(stored), {row["outcome"] for row in stored}) == (known["pub_acks"], {"ack"})
    settled = [row for row in tables["js_acks"] if row["stream"] == "ORDERS"]
    assert (len(settled), sum(row["redelivered"] for row in settled)) == (
        known["js_acks"],
        known["redelivered"],
    )
    spread = [row for row in tables["fanout"] if row["subject"].startswith("telemetry.")]
    assert (len(spread), {row["delay_ns"] for row in spread}) == (known["telemetry"], {50_000})
    assert max(row["pings"] for row in tables["liveness"]) == max(known["pings"], 4)


def test_golden_captures(tables: Tables) -> None:
    """What `recordings/README.md` says of them is in their tables."""
    outcomes = Counter(
        row["outcome"] for row in tables["requests"] if row["template"].startswith(("quotes", "nobody"))
    )
    assert outcomes == {"replied": 2, "no responders": 1}
    demo = [row for row in tables["js_acks"] if row["stream"] == "DEMO"]
    assert Counter((row["answer"], row["delivered"]) for row in demo) == {
        ("nak", 1): 1,
        ("ack", 1): 2,
        ("ack", 2): 1,
    }
    kept = Counter(row["stream"] for row in tables["pub_acks"])
    assert (kept["DEMO"], kept["KV_settings"]) == (3, 1)
    assert [(row["err_code"], row["error"]) for row in tables["js_api"] if row["error"]] == [
        (10014, "consumer not found")
    ]
    assert {(row["rule"], row["error"]) for row in tables["faults"]} == {
        ("no-secrets", 'Permissions Violation for Publish to "secret.plan"'), ("no-telemetry", None),
    }  # fmt: skip
    orders = [row for row in tables["fanout"] if row["subject"] == "orders.new" and row["published"] == 1]
    assert sum(row["deliveries"] == 2 for row in orders) == 5
    held = {(row["subject"], row["queue"]): row["delivered"] for row in tables["subscriptions"]}
    assert (held["orders.>", None], held["orders.new", "workers"]) == (5, 5)
    assert {row["name"] for row in tables["connections"]} >= {
        "core",
        "service",
        "client",
        "jetstream",
        "denied",
    }


def test_any_split_gives_the_same(spark: SparkSession, tables: Tables, talk: tuple[Path, Talk]) -> None:
    """Through the data source with a task for every block, and shuffled into more partitions."""
    from natsproxy.spark.jobs import read
    from natsproxy.spark.tables import PAYLOAD_BYTES

    captures, small = [*GOLDEN, talk[0]], {"partitionBytes": "1"}
    frames = read(spark, captures, payload=str(PAYLOAD_BYTES), **small).persist()
    items = read(spark, captures, what="items", **small).persist()
    assert frames.rdd.getNumPartitions() > len(captures) + 10
    usual = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "5")
    try:
        split = all_tables(frames, items)
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", usual or "2")
        frames.unpersist()
        items.unpersist()
    for name, rows in tables.items():
        assert counted(split[name]) == counted(rows), name


@pytest.mark.long
def test_one_core_and_two_write_the_same(talk: tuple[Path, Talk], tmp_path: Path) -> None:
    """The whole job, as a user runs it."""
    import pyarrow.parquet as pq

    found = []
    for cores in ("1", "2"):
        out = tmp_path / cores
        command = [sys.executable, "-m", "natsproxy", "analyze", *map(str, [*GOLDEN, talk[0]])]
        subprocess.run([*command, "--out", str(out), "--cores", cores, "--quiet"], check=True, timeout=280)
        tables = sorted(path for path in out.iterdir() if path.is_dir())
        found.append({path.name: counted(pq.read_table(path).to_pylist()) for path in tables})
    assert found[0] == found[1]
    assert sum(map(len, found[0].values())) > talk[1].known["frames"]
