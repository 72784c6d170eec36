"""Link conditions: when they hold, in which direction, and their sum."""

from __future__ import annotations

import pytest

from natsproxy import close_reasons
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.file.parser import load
from natsproxy.rules.interface import LinkConditions
from natsproxy.rules.kinds import KINDS
from natsproxy.wire.ops import C2S, S2C
from tests.rules.kit import MS, S, Wire
from tests.session.playbook import Playbook


def rule(kind: str, *lines: str, name: str = "r") -> str:
    return "\n".join(["[[rules]]", f'name = "{name}"', f'kind = "{kind}"', *lines, ""])


CONDITIONS = (
    ("latency", 'delay = "1ms"', LinkConditions(delay=MS)),
    ("bandwidth", 'rate = "1KiB"', LinkConditions(rate=1024)),
    ("slice", 'size = 7\ndelay = "1ms"', LinkConditions(slice_size=7, slice_delay=MS)),
    ("pause", 'lasts = "3s"', LinkConditions(paused=True)),
    ("swallow", "", LinkConditions(swallow=True)),
    ("stop_reading", 'lasts = "3s"', LinkConditions(stop_reading=True)),
    ("half_close", "", LinkConditions(finish=True)),
    ("slow_close", 'delay = "2s"', LinkConditions(fin_delay=2 * S)),
)
"""Each kind with settings under which a connection can end, and the condition that it puts on a link."""


def test_no_kind_is_forgotten() -> None:
    known = {name for name, kind in KINDS.items() if any(one.name == "lasts" for one in kind.settings)}
    assert {kind for kind, _, _ in CONDITIONS} == {"latency", *known}


@pytest.mark.parametrize(("kind", "settings", "conditions"), CONDITIONS)
def test_each_kind_adds_its_condition(kind: str, settings: str, conditions: LinkConditions) -> None:
    wire = Wire(rule(kind, settings, 'direction = "s2c"'))
    assert wire.rules.conditions(S2C, 0)[0] == conditions
    assert wire.rules.conditions(C2S, 0)[0] is None


def test_a_window_opens_and_closes() -> None:
    wire = Wire(rule("pause", 'between = ["5s", "7s"]'))
    assert wire.rules.conditions(C2S, 0) == (None, 5 * S)
    wire.rules.due(5 * S)
    assert wire.rules.conditions(C2S, 5 * S) == (LinkConditions(paused=True), 7 * S)
    assert wire.rules.conditions(C2S, 7 * S) == (None, None)


def test_a_frame_starts_it_and_time_ends_it() -> None:
    wire = Wire(rule("swallow", 'op = "PUB"', "after = 1", "limit = 1", 'lasts = "3s"'), now=S)
    assert wire.decide(C2S, "PUB a 0\n") is None
    decision = wire.decide(C2S, "PUB a 0\n")
    assert decision is not None
    assert (decision.conditions_changed, decision.out, len(decision.firings)) == (True, None, 1)
    assert wire.rules.conditions(C2S, S) == (LinkConditions(swallow=True), 4 * S)
    assert wire.rules.conditions(C2S, 4 * S) == (None, None)


def test_conditions_add_up() -> None:
    text = (
        rule("bandwidth", "rate = 100", name="a")
        + rule("bandwidth", "rate = 50", name="b")
        + rule("pause", name="c")
    )
    assert Wire(text).rules.conditions(C2S, 0)[0] == LinkConditions(rate=50, paused=True)


def test_a_rule_that_is_taken_away_leaves_no_condition() -> None:
    wire = Wire(rule("pause"))
    wire.rebind("rules = []")
    assert wire.rules.conditions(C2S, 0) == (None, None)


def test_a_link_rule_in_force_stays_so_when_others_come() -> None:
    wire = Wire(rule("pause", 'lasts = "5s"'))
    wire.rules.due(0)
    wire.now = 3 * S
    wire.rebind(rule("pause", 'lasts = "5s"') + rule("bandwidth", "rate = 9", name="x"))
    assert wire.rules.conditions(C2S, 3 * S) == (LinkConditions(paused=True, rate=9), 3 * S)
    wire.rules.due(3 * S)
    assert wire.rules.conditions(C2S, 3 * S) == (LinkConditions(paused=True, rate=9), 5 * S)


@pytest.mark.parametrize("direction", ["c2s", "s2c"])
@pytest.mark.parametrize(("kind", "settings"), [row[:2] for row in CONDITIONS])
def test_a_connection_under_conditions_ends_with_its_last_bytes(
    kind: str, settings: str, direction: str
) -> None:
    """Its client leaves, then its server: what waits goes first."""
    text = rule(kind, settings, f'direction = "{direction}"')
    play = Playbook().greeted()
    play.do(play.session.swap(RuleChain(load(text, KINDS)), play.now))
    play.server(b"MSG a 1 5\r\nhello\r\n").eof(C2S).eof(S2C)
    play.at(play.now + 10 * S)
    assert play.end is not None
    # The end of the client itself may be what is kept back.
    assert play.end.cause in (close_reasons.CLIENT_CLOSED, close_reasons.SERVER_CLOSED)
    assert play.session.next_tick() is None
