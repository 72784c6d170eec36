"""Delays are drawn, absolute, and as distributed."""

from __future__ import annotations

import math
from statistics import fmean, median

from natsproxy.rules.interface import LinkConditions
from natsproxy.wire.ops import C2S
from tests.rules.kit import MS, Wire


def delays(delay: str, count: int = 2000) -> list[float]:
    wire = Wire(f'[[rules]]\nname = "r"\nkind = "latency"\nop = "PUB"\ndelay = {delay}\n', now=7 * MS)
    found = [wire.decide(C2S, "PUB a 0\n") for _ in range(count)]
    return [((decision.until or wire.now) - wire.now) / MS if decision else 0.0 for decision in found]


def test_constant() -> None:
    assert set(delays('"25ms"', 10)) == {25.0}


def test_uniform() -> None:
    found = delays('{ distribution = "uniform", min = "10ms", max = "30ms" }')
    assert 10 <= min(found) < 10.2
    assert 29.8 < max(found) <= 30
    assert abs(fmean(found) - 20) < 0.5


def test_normal_is_cut_at_zero() -> None:
    found = delays('{ distribution = "normal", mean = "10ms", stddev = "10ms" }')
    assert min(found) == 0
    assert abs(median(found) - 10) < 1


def test_lognormal() -> None:
    found = delays('{ distribution = "lognormal", median = "40ms", sigma = 0.5 }')
    assert abs(median(found) - 40) < 2
    assert abs(fmean(math.log(value / 40) ** 2 for value in found) ** 0.5 - 0.5) < 0.05


def test_pareto_has_a_floor_and_a_tail() -> None:
    found = delays('{ distribution = "pareto", scale = "10ms", shape = 2.0 }')
    assert min(found) >= 10
    assert abs(median(found) - 10 * 2**0.5) < 0.5
    assert max(found) > 100


def test_empirical_gives_back_what_was_measured() -> None:
    found = delays('{ distribution = "empirical", values = ["1ms", "2ms", "3ms", "100ms"] }')
    assert 1 <= min(found) <= max(found) <= 100
    assert abs(median(found) - 2.5) < 0.2


def test_overtaking_needs_its_setting() -> None:
    wire = Wire('[[rules]]\nname = "r"\nkind = "latency"\ndelay = "1s"\novertake = true\n')
    decision = wire.decide(C2S, "PING")
    assert decision is not None
    assert decision.overtake


def test_a_constant_delay_of_everything_is_the_link_s() -> None:
    wire = Wire('[[rules]]\nname = "r"\nkind = "latency"\ndelay = "100ms"\n')
    assert not wire.rules.interest[C2S].clauses
    assert wire.rules.conditions(C2S, 0)[0] == LinkConditions(delay=100 * MS)
    wire.rules.due(0)
    assert [firing.delay for firing in wire.rules.fired] == [100 * MS]


def test_a_gate_that_counts_needs_frames() -> None:
    wire = Wire('[[rules]]\nname = "r"\nkind = "latency"\ndelay = "100ms"\nfirst = 1\n')
    assert wire.rules.conditions(C2S, 0)[0] is None
    assert [wire.decide(C2S, "PING") is None for _ in range(2)] == [False, True]
