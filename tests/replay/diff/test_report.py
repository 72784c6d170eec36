"""Reports of a comparison, as values."""

from __future__ import annotations

import json
import random

from natsproxy.replay.diff.report import DiffReport, DiffRow, DiffSample, Tally


def filled(latencies: list[int]) -> Tally:
    tally, generator = Tally(), random.Random(0)
    for latency in latencies:
        tally.replied(latency, generator)
    return tally


def test_percentiles_are_those_of_the_first_replies() -> None:
    tally = filled([5, 1, 3, 2, 4])
    tally.replied(None, random.Random(0))  # a second reply to one of them
    assert (tally.replies, tally.answered) == (6, 5)
    assert [tally.percentile(share) for share in (0, 0.5, 0.99, 1)] == [1, 3, 5, 5]
    assert Tally().percentile(0.5) is None


def test_a_sample_stays_small_and_fair_and_is_the_same_every_time() -> None:
    latencies = list(range(20_000))
    random.Random(1).shuffle(latencies)
    tally = filled(latencies)
    assert len(tally.latency) == 2048
    assert tally.answered == 20_000
    assert abs((tally.percentile(0.5) or 0) - 10_000) < 1000
    assert abs((tally.percentile(0.99) or 0) - 19_800) < 200
    assert filled(latencies).latency == tally.latency


def test_status_texts_are_bounded() -> None:
    tally = Tally()
    for n in range(200):
        tally.status(f"4{n:02} text {n}")
        tally.status("503")
    assert len(tally.statuses) == 51
    assert (tally.statuses["503"], sum(tally.statuses.values())) == (200, 400)


def test_facts_are_json_with_the_first_difference() -> None:
    row = DiffRow("orders.*", missing=1, sample=DiffSample("body", "PUB orders.1 1\r\nx", ""))
    row.recorded.replied(1_500_000, random.Random(0))
    row.recorded.status("503 No Responders")
    report = DiffReport([row, DiffRow("other")])
    facts = json.loads(json.dumps(report.facts()))
    assert facts["same"] is False
    first, other = facts["groups"]
    assert first["first_difference"]["field"] == "body"
    assert (first["recorded"]["p50_us"], first["observed"]["p50_us"]) == (1500, None)
    assert first["recorded"]["statuses"] == {"503 No Responders": 1}
    assert (other["missing"], other["added"], other["first_difference"]) == (0, 0, None)


def test_a_report_is_the_same_when_every_row_is() -> None:
    assert DiffReport([DiffRow("a"), DiffRow("b")]).same
    assert not DiffReport([DiffRow("a"), DiffRow("b", added=1)]).same
