"""How verdicts add up."""

from __future__ import annotations

import pytest

from natsproxy.rules.engine.decision_builder import DecisionBuilder
from natsproxy.rules.model.verdicts import (
    Answer,
    Close,
    Drop,
    Duplicate,
    Hold,
    Inject,
    Reorder,
    Replace,
    StartCondition,
    Verdict,
)
from natsproxy.wire.ops import C2S
from tests.rules.kit import parse

RAW = b"PUB a 1\r\nx\r\n"
OTHER = b"PUB b 0\r\n\r\n"


def drafted(*verdicts: Verdict) -> DecisionBuilder:
    builder = DecisionBuilder(parse(C2S, RAW), C2S, 100)
    for verdict in verdicts:
        builder.apply(verdict)
    return builder


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ((), {"out": None, "until": None}),
        ((Replace(OTHER),), {"out": (OTHER,)}),
        ((Replace(OTHER + RAW),), {"out": (OTHER, RAW)}),
        ((Duplicate(1), Duplicate(2)), {"out": (RAW,) * 6}),
        ((Replace(OTHER), Duplicate(1)), {"out": (OTHER, OTHER)}),
        ((Hold(50), Hold(30, overtake=True)), {"out": None, "until": 180, "overtake": True}),
        ((Hold(0),), {"until": None}),
        ((Inject(b"1", b"2"), Inject(b"3", b"4")), {"before": b"13", "after": b"24"}),
        ((Reorder(2, 500), Hold(600)), {"defer": 2, "until": 700}),
        ((Drop(),), {"out": (), "ok": True}),
        ((Hold(100), Drop()), {"out": (), "until": None}),
        ((Hold(100), Answer(b"+OK\r\n")), {"out": (), "until": 200, "answer": b"+OK\r\n", "ok": False}),
        ((Close("c", b"raw"),), {"out": (), "close": Close("c", b"raw")}),
        ((StartCondition(),), {"out": None, "conditions_changed": True}),
    ],
)
def test_sums(verdicts: tuple[Verdict, ...], expected: dict[str, object]) -> None:
    decision = drafted(*verdicts).decision()
    assert {name: getattr(decision, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("verdict", "over"),
    [(Drop(), True), (Answer(b""), True), (Close("c"), True), (Hold(1), False), (StartCondition(), False)],
)
def test_some_verdicts_end_it(verdict: Verdict, over: bool) -> None:
    assert drafted(verdict).over is over


def test_a_replacement_is_what_the_next_rule_sees() -> None:
    assert drafted(Replace(OTHER)).frame.subject == b"b"
