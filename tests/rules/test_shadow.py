"""Denials in shadow: what they would deny is reported, and everything is as without them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from natsproxy.errors import ConfigError
from natsproxy.events import WOULD_DENY, Firing
from natsproxy.rules.file.parser import load
from natsproxy.rules.kinds import KINDS
from natsproxy.wire.ops import C2S, S2C, Direction
from tests.rules.engine.test_static_decisions import RuleSession
from tests.rules.kit import Wire

SHADOW = 'mode = "shadow"\n'
DENY = '[[rules]]\nname = "no"\nkind = "deny"\nsubject = ["a.*", "b"]\n'
MAP = (
    '[[rules]]\nname = "no"\nkind = "permissions"\n'
    'publish = { allow = ["a.>", "c"], deny = "a.b" }\n'
    'subscribe = { allow = [">", "c q"], deny = ["a.*", "b"] }\n'
    "allow_responses = { max = 1 }\n"
)


def test_everything_passes_and_is_told() -> None:
    wire = Wire(DENY + SHADOW)
    for direction, text in ((C2S, "PUB b 0\n"), (C2S, "SUB a.b 1"), (C2S, "SUB > 2"), (S2C, "MSG b 2 0\n")):
        decision = wire.decide(direction, text)
        told = [] if decision is None else [(one.action, one.acted) for one in decision.firings]
        assert told == ([] if text == "SUB > 2" else [(WOULD_DENY, False)])
        assert decision is None or (decision.out, decision.answer, decision.cause) == (None, b"", "")
    assert set(wire.view.subs) == {b"1", b"2"}
    assert not wire.chain.guards
    assert not wire.rules.alters_delivery
    enforced = Wire(DENY)
    assert enforced.chain.guards
    assert enforced.rules.alters_delivery


def test_a_frame_that_nobody_would_deny_has_no_firing() -> None:
    assert Wire(DENY + SHADOW).decide(C2S, "PUB c 0\n") is None


def test_the_gate_counts_as_in_force() -> None:
    wire = Wire(DENY + SHADOW + "after = 1\nlimit = 1\n")
    assert [wire.fired(C2S, "PUB b 0\n") for _ in range(4)] == [False, True, False, False]


def test_rules_behind_it_act() -> None:
    other = '[[rules]]\nname = "other"\nkind = "deny"\nsubject = "b"\n'
    for text in (DENY + SHADOW + other, other + DENY + SHADOW):
        wire = Wire(text)
        decision = wire.decide(C2S, "PUB b 0\n")
        assert decision is not None
        assert decision.out == ()
        assert decision.cause == "other"
        told = ["no", "other"] if text.startswith(DENY) else ["other"]  # which has ended the frame
        assert [one.rule for one in decision.firings] == told


def test_a_rewritten_frame_is_rewritten() -> None:
    wire = Wire(DENY + SHADOW + '[[rules]]\nname = "t"\nkind = "rewrite"\nprefix = "t"\n')
    assert wire.c2s("PUB b 0\n") == b"PUB t.b 0\r\n\r\n"
    assert wire.c2s("SUB b 1") == b"SUB t.b 1\r\n"
    assert wire.s2c("MSG t.b 1 0\n") == b"MSG b 1 0\r\n\r\n"
    decision = wire.decide(S2C, "MSG t.b 1 0\n")  # a SUB that it would refuse arms no filter
    assert decision is not None
    assert [one.rule for one in decision.firings] == ["t"]


def test_a_live_subscription_stays_when_the_rule_comes_and_is_told() -> None:
    wire = Wire("rules = []")
    wire.c2s("SUB b 1")
    wire.c2s("SUB c 2")
    wire.rebind(DENY + SHADOW)
    assert wire.rules.revoked == []
    assert [(one.rule, one.action, one.op, one.subject) for one in wire.rules.fired] == [
        ("no", WOULD_DENY, "SUB", "b")
    ]
    wire.rules.fired.clear()
    wire.rebind()
    assert wire.rules.fired == []
    enforced = Wire("rules = []")
    enforced.c2s("SUB b 1")
    enforced.rebind(DENY)
    assert [sid for sid, _ in enforced.rules.revoked] == [b"1"]


def test_another_mode_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"mode must be 'enforce' or 'shadow', not 'shadw'"):
        load(DENY + 'mode = "shadw"\n', KINDS)
    assert load(DENY + 'mode = "enforce"\n', KINDS)[0].action.guards


SUBJECTS = st.sampled_from(["a.b", "a.c", "b", "c", "d.e", ">", "a.>", "_INBOX.1"])
FRAMES = st.one_of(
    st.tuples(st.just(C2S), SUBJECTS.map(lambda subject: f"PUB {subject} 0\r\n\r\n")),
    st.tuples(st.just(C2S), SUBJECTS.map(lambda subject: f"PUB {subject} r.{subject} 0\r\n\r\n")),
    st.tuples(st.just(C2S), st.builds("SUB {} {}\r\n".format, SUBJECTS, st.integers(1, 3))),
    st.tuples(st.just(C2S), st.builds("UNSUB {}\r\n".format, st.integers(1, 3))),
    st.tuples(st.just(S2C), st.builds("MSG {} {} 0\r\n\r\n".format, SUBJECTS, st.integers(1, 3))),
    st.tuples(st.just(S2C), st.builds("MSG {} {} b 0\r\n\r\n".format, SUBJECTS, st.integers(1, 3))),
)


@settings(deadline=None)
@given(st.lists(FRAMES, max_size=30), st.sampled_from([DENY, MAP]), st.booleans(), st.booleans())
def test_the_bytes_are_those_without_the_rule(
    frames: list[tuple[Direction, str]], rule: str, together: bool, fast: bool
) -> None:
    shadow, without = RuleSession(rule + SHADOW, fast=fast), RuleSession("rules = []")
    for direction, text in frames:
        for session in (shadow, without):
            session.feed(direction, text.encode() * (2 if together else 1))
    assert shadow.sent == without.sent
    assert {one.action for one in shadow.firings} <= {WOULD_DENY}


@settings(deadline=None)
@given(st.lists(FRAMES, max_size=30), st.sampled_from([DENY, MAP]))
def test_what_it_tells_is_what_it_would_deny(frames: list[tuple[Direction, str]], rule: str) -> None:
    """On connections whose subscriptions are the same: those that it admits."""
    shadow, enforced = RuleSession(rule + SHADOW), RuleSession(rule)
    refused = ("SUB a.b", "SUB a.c", "SUB b ", "SUB a.> ")
    for direction, text in frames:
        if not text.startswith(refused):
            shadow.feed(direction, text.encode())
            enforced.feed(direction, text.encode())

    def facts(firings: list[Firing]) -> list[tuple[object, ...]]:
        return [(one.rule, one.direction, one.ordinal, one.m, one.subject, one.op) for one in firings]

    assert facts(shadow.firings) == facts(enforced.firings)
