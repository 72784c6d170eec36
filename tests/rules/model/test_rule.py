"""The guarantees to every action."""

from __future__ import annotations

from natsproxy.rules.interface import LinkConditions
from natsproxy.rules.model.delivery_filter import DeliveryFilter
from natsproxy.rules.model.roles import ROLES
from natsproxy.rules.model.rule import Action, Hit, LinkAction, Rule
from natsproxy.rules.model.seeded_random import Draws, SeededRandom
from natsproxy.rules.model.selector import Selector
from natsproxy.rules.model.verdicts import StartCondition
from natsproxy.wire.frames import Need
from natsproxy.wire.ops import C2S
from tests.rules.kit import FakeView, parse


def hit(m: int = 1) -> Hit:
    return Hit(C2S, 0, m, Draws(SeededRandom(1, "r", "k", C2S), m), FakeView())


def test_an_action_by_itself_does_nothing() -> None:
    action = Action()
    assert action.act(parse(C2S, "PING"), hit()) is None
    assert action.bind(FakeView(), DeliveryFilter()) is action
    assert action.clauses(Selector()) is None


def test_a_link_action_comes_into_force_with_a_frame() -> None:
    action = LinkAction()
    assert action.act(parse(C2S, "PING"), hit()) == StartCondition()
    assert action.apply(LinkConditions(rate=3), 0) == LinkConditions(rate=3)
    assert action.start(hit()) == ([], None)


def test_an_action_s_draws_are_not_the_gate_s() -> None:
    draws = {hit().draws.draw(), hit().draw(), hit().draw(1), hit(2).draw()}
    assert len(draws) == 4


def test_a_rule_needs_what_its_selector_or_its_action_needs() -> None:
    action = Action()
    assert Rule("r", "k", Selector(role=ROLES["nak"]), action).need == Need.PAYLOAD
    assert Rule("r", "k", Selector(headers=((b"A", None),)), action).need == Need.HEADERS
    action.need = Need.PAYLOAD
    assert Rule("r", "k", Selector(), action).need == Need.PAYLOAD


def test_rules_are_the_same_by_what_was_written() -> None:
    first, second = (Rule("r", "k", Selector(), Action(), table={"a": [1], "b": 2}) for _ in range(2))
    assert first.content == second.content
    assert first != second
