"""The data of the report for two proxies in a row: counts of each alone, and values over time."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.report import two_proxies as known

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
WANTED = ("requests", "errors", "js_acks", "hops")
POINT = 3 * known.STEP
"""The width of a point of a small line: 121 steps are at most 60 points."""
Data = dict[str, Any]


@pytest.fixture(scope="module")
def data(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Data:
    """Return the data of the page."""
    from natsproxy.spark.jobs.analyze import analyze
    from natsproxy.spark.report.collect import collect

    folder = tmp_path_factory.mktemp("several")
    analyze(spark, known.make(folder), folder / "tables", WANTED)
    return collect(spark, folder / "tables")


def row(rows: Iterable[Data], name: str, key: str = "template") -> Data:
    """Return the one row of that name."""
    (found,) = (row for row in rows if row[key] == name)
    return found


def nearest(values: list[int], share: float) -> int:
    """Return a percentile: the value of the nearest rank."""
    return sorted(values)[math.ceil(share * len(values)) - 1]


def test_of_requests_that_cannot_be_told_apart_no_time_is_guessed(data: Data) -> None:
    """Two in one read with one reply subject, whose responder was not recorded: counted, at each recorder."""
    assert data["latency"]["whole"]["unknown"] == 2 * 2
    assert "svc.piped" not in {row["subject"] for row in data["slowest"]}


def test_the_same_traffic_is_said_to_be_there_twice(data: Data) -> None:
    """First of all; with the time from the one to the other, each way."""
    near, far = data["recorder_choices"]
    first = data["findings"][0]
    there = len(known.QUICK) + 2 + 1
    back = len(known.QUICK) + 2 + known.ERRORS
    assert first["section"] == "hops"
    assert first["text"].startswith(
        f"`{min(near, far)}` and `{max(near, far)}` recorded the same traffic ({there + back} frames)"
    )
    usual, once = float(known.TOOK), float(known.TOOK_ONCE)
    assert sorted(data["hops"], key=lambda hop: hop["sent_by"] == far) == [
        {"sent_by": near, "got_by": far, "frames": there, "latency": [usual, usual, once, once]},
        {"sent_by": far, "got_by": near, "frames": back, "latency": [usual] * 4},
    ]


def test_rows_have_the_counts_of_each_recorder(data: Data) -> None:
    """Requests with their latencies, errors, messages, senders; and none where it saw nothing."""
    near, far = data["recorder_choices"]
    quick = row(data["latency"]["listed"], "svc.quick")
    seen = {near: [*known.QUICK.values(), *known.ONLY_NEAR.values()]}
    seen[far] = [latency - 2 * known.TOOK for latency in known.QUICK.values()]
    for counted, values in (
        (quick, seen[near] + seen[far]),
        *((quick["by_recorder"][one], seen[one]) for one in seen),
    ):
        assert (counted["requests"], counted["unanswered"]) == (len(values), 0)
        assert counted["latency"] == [nearest(values, share) for share in (0.5, 0.9, 0.99, 1)]
    assert set(row(data["latency"]["listed"], "svc.some")["by_recorder"]) == {near}
    (errors,) = data["errors"]["listed"]
    assert [errors["count"], *(part["count"] for part in errors["by_recorder"].values())] == [
        2 * known.ERRORS,
        known.ERRORS,
        known.ERRORS,
    ]
    messages = row(data["templates"], "svc.quick")
    for counted, many in (
        (messages, 24),
        (messages["by_recorder"][near], 16),
        (messages["by_recorder"][far], 8),
    ):
        assert counted["published"] == sum(counted["over"]) == many
    sender = row(data["senders"], "svc.quick")
    assert sum(n for _, n in sender["from"]) == 24
    assert sender["by_recorder"][far] == {"from": [[f"{far}#{known.BEHIND}", 8]], "to": []}


def test_latencies_of_a_subject_over_time(data: Data) -> None:
    """The p50 and the p99 of the requests that began in each step; nothing in the others."""
    near, far = data["recorder_choices"]
    quick = row(data["latency"]["listed"], "svc.quick")
    asked = known.QUICK | known.ONLY_NEAR
    steps: dict[int, list[int]] = defaultdict(list)
    for t, latency in asked.items():
        steps[t // POINT].append(latency)
    expected = [
        [nearest(steps[at], 0.5), nearest(steps[at], 0.99)] if at in steps else None
        for at in range(len(quick["over"]))
    ]
    assert quick["by_recorder"][near]["over"] == expected
    assert quick["by_recorder"][far]["over"][1] == [known.QUICK[2_000] - 2 * known.TOOK] * 2
    assert quick["over"][1] == [known.QUICK[2_000] - 2 * known.TOOK, known.QUICK[2_000]]


def test_messages_that_wait_over_time(data: Data) -> None:
    """The most in each step that has a delivery."""
    (consumer,) = data["deliveries"]["listed"]
    assert {at: most for at, most in enumerate(consumer["over"]) if most is not None} == {
        0: 9,
        1: 7,
        2: 8,
        20: 2,
    }
    assert consumer["pending"] == max(waiting for _, waiting in known.PENDING)


def test_failed_requests_over_time(data: Data) -> None:
    """How many there were in each second, and how many of them failed."""
    assert data["latency"]["coarse"] * data["axis"]["step"] == 1_000
    rate = data["latency"]["rate"]
    assert {second: tuple(rate[second]) for second in known.FAILED} == known.FAILED
    assert sum(failed for _, failed in rate) == sum(failed for _, failed in known.FAILED.values())
    whole = data["latency"]["whole"]
    assert sum(asked for asked, _ in rate) == whole["requests"] - whole["unknown"]


def test_different_subjects_are_counted(data: Data) -> None:
    """An estimate, exact for a few."""
    many = row(data["templates"], "many.*")
    assert (many["subjects"], many["connections"], many["published"]) == (known.NAMES, 1, known.NAMES)
