"""Requests that share a reply subject: what the table says of them is true, or `unknown`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from natsproxy.capture.read.reader import open_capture
from tests.kit.captures import write
from tests.spark.conftest import load
from tests.spark.shared_replies import FIRST, MS, SECOND, Traffic, Truth, hostile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.conftest import Known

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
Row = dict[str, Any]
SEEDS = 4


def test_a_reply_is_that_of_the_request_its_responder_got(known: Known) -> None:
    """The fast service answers the second request before the slow one answers the first."""
    rows = [row for row in known.rows("requests") if row["subject"] in ("slow.op", "fast.op")]
    found = [
        (row["subject"], row["responder"], row["service_ns"] // MS, row["latency_ns"] // MS)
        for row in sorted(rows, key=lambda row: row["t1"])
    ]
    assert found == [("slow.op", FIRST, 500, 500), ("fast.op", SECOND, 100, 100)] * 3


def test_hostile_traffic_gets_no_invented_answer(known: Known) -> None:
    """Requests that overlap, get lost, go to many, or to a server that is not recorded."""
    check(known.rows("requests"), {known.hostile_capture: known.hostile})


@pytest.mark.long
def test_more_hostile_traffic_gets_none_either(spark: SparkSession, tmp_path: Path) -> None:
    """With other seeds."""
    from natsproxy.spark.tables import derive

    traffic = {tmp_path / f"{seed}.ncap": hostile(seed) for seed in range(1, 1 + SEEDS)}
    for path, one in traffic.items():
        write(path, one.items().items)
    check(derive("requests", *load(spark, traffic)).toArrow().to_pylist(), traffic)


def check(rows: list[Row], traffic: Mapping[Path, Traffic]) -> None:
    """Check responder and times wherever a row names any, and numbers of replies at least in sum."""
    truths: dict[tuple[str, str, int], Truth] = {}
    for path, one in traffic.items():
        (segment,) = open_capture(path).segments()
        truths |= {(segment.recorder.hex(), truth.reply, truth.t1): truth for truth in one.truths}
    recorders = {recorder for recorder, *_ in truths}
    rows = [row for row in rows if row["recorder"] in recorders]
    assert {(row["recorder"], row["reply"], row["t1"]) for row in rows} == truths.keys()
    found, replies = Counter[str](), Counter[tuple[str, str]]()
    askers = defaultdict[tuple[str, str], set[int]](set)
    for row in rows:
        truth = truths[row["recorder"], row["reply"], row["t1"]]
        assert (row["subject"], row["requester"]) == (truth.subject, truth.asker), (row, truth)
        replies[row["recorder"], row["reply"]] += row["replies"] - len(truth.replies)
        askers[row["recorder"], row["reply"]].add(row["requester"])
        found[row["outcome"]] += 1
        assert row["responder"] in (None, *truth.got), (row, truth)
        if row["outcome"] == "unknown":
            assert (row["t4"], row["latency_ns"], row["status"]) == (None, None, None), (row, truth)
        else:
            answered(row, truth)
    # With several of them, each subscription counts its copy of a reply that cannot be told apart.
    single = [key for key, asking in askers.items() if len(asking) == 1 and ".twice." not in key[1]]
    assert {replies[key] for key in single} == {0}
    assert min(replies.values()) == 0
    assert found["unknown"] < 0.6 * len(rows)


def answered(row: Row, truth: Truth) -> None:
    """Check what a row says of an answer; a service that was not told from others has no time."""
    assert row["outcome"] == ("replied" if truth.replies else "no reply"), (row, truth)
    for at, responder, took in truth.replies[:1]:
        assert row["latency_ns"] == at - truth.t1, (row, truth)
        assert row["responder"] in (None, responder), (row, truth)
        assert row["service_ns"] in (None, took), (row, truth)
