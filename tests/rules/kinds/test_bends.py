"""Links that are bent: when, which way, how much."""

from __future__ import annotations

import pytest

from natsproxy.rules.seam import Shape
from natsproxy.wire.ops import C2S, S2C
from tests.rules.kit import MS, S, Wire


def rule(kind: str, *lines: str, name: str = "r") -> str:
    return "\n".join(["[[rules]]", f'name = "{name}"', f'kind = "{kind}"', *lines, ""])


@pytest.mark.parametrize(
    ("kind", "line", "shape"),
    [
        ("bandwidth", 'rate = "1KiB"', Shape(rate=1024)),
        ("slice", 'size = 7\ndelay = "1ms"', Shape(slice_size=7, slice_delay=MS)),
        ("pause", "", Shape(paused=True)),
        ("swallow", "", Shape(swallow=True)),
        ("stop_reading", "", Shape(stop_reading=True)),
        ("half_close", "", Shape(finish=True)),
        ("slow_close", 'delay = "2s"', Shape(linger=2 * S)),
    ],
)
def test_each_kind_bends_its_way(kind: str, line: str, shape: Shape) -> None:
    wire = Wire(rule(kind, line, 'direction = "s2c"'))
    assert wire.bound.shape(S2C, 0)[0] == shape
    assert wire.bound.shape(C2S, 0)[0] is None


def test_a_window_opens_and_closes() -> None:
    wire = Wire(rule("pause", 'between = ["5s", "7s"]'))
    assert wire.bound.shape(C2S, 0) == (None, 5 * S)
    wire.bound.due(5 * S)
    assert wire.bound.shape(C2S, 5 * S) == (Shape(paused=True), 7 * S)
    assert wire.bound.shape(C2S, 7 * S) == (None, None)


def test_a_frame_starts_it_and_time_ends_it() -> None:
    wire = Wire(rule("swallow", 'op = "PUB"', "after = 1", "limit = 1", 'lasts = "3s"'), now=S)
    assert wire.decide(C2S, "PUB a 0\n") is None
    decision = wire.decide(C2S, "PUB a 0\n")
    assert decision is not None
    assert (decision.bent, decision.out, len(decision.firings)) == (True, None, 1)
    assert wire.bound.shape(C2S, S) == (Shape(swallow=True), 4 * S)
    assert wire.bound.shape(C2S, 4 * S) == (None, None)


def test_bends_add_up() -> None:
    text = (
        rule("bandwidth", "rate = 100", name="a")
        + rule("bandwidth", "rate = 50", name="b")
        + rule("pause", name="c")
    )
    assert Wire(text).bound.shape(C2S, 0)[0] == Shape(rate=50, paused=True)


def test_a_rule_that_is_taken_away_leaves_the_link_straight() -> None:
    wire = Wire(rule("pause"))
    wire.rebind("rules = []")
    assert wire.bound.shape(C2S, 0) == (None, None)


def test_a_link_rule_in_force_stays_so_when_others_come() -> None:
    wire = Wire(rule("pause", 'lasts = "5s"'))
    wire.bound.due(0)
    wire.now = 3 * S
    wire.rebind(rule("pause", 'lasts = "5s"') + rule("bandwidth", "rate = 9", name="x"))
    assert wire.bound.shape(C2S, 3 * S) == (Shape(paused=True, rate=9), 3 * S)
    wire.bound.due(3 * S)
    assert wire.bound.shape(C2S, 3 * S) == (Shape(paused=True, rate=9), 5 * S)
