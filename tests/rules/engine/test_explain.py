"""Explanations: the rules that a frame would meet, and their results."""

from __future__ import annotations

import pytest

from natsproxy.protocol.connect import Connect
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.engine.explain import SampleView, explain, sample
from natsproxy.rules.file.parser import load
from natsproxy.rules.kinds import KINDS
from natsproxy.wire.ops import C2S, S2C, Op

TEXT = """
[[rules]]
name = "map"
kind = "permissions"
publish = { deny = "secret.>" }
subscribe = { deny = "secret.x" }
[[rules]]
name = "beats"
kind = "drop"
role = "heartbeat"
[[rules]]
name = "tenant"
kind = "rewrite"
prefix = "t"
client = { name = "a" }
[[rules]]
name = "stuck"
kind = "pause"
between = ["1s"]
"""


def ask(op: Op, subject: bytes, name: str = "") -> dict[str, tuple[bool, str]]:
    chain = RuleChain(load(TEXT, KINDS))
    direction, frame = sample(op, subject)
    steps = explain(chain, SampleView(connect=Connect(name=name)), direction, frame)
    return {step.rule.name: (step.acts, step.result) for step in steps}


def test_denials_are_given_word_for_word() -> None:
    denied = "-ERR 'Permissions Violation for Publish to \"secret.a\"'"
    assert ask(Op.PUB, b"secret.a")["map"] == (True, denied)
    assert ask(Op.PUB, b"open")["map"] == (False, "other frames: c2s/s2c PUB HPUB SUB MSG HMSG")
    assert ask(Op.SUB, b"secret.*")["map"] == (False, "admits it")


def test_rewrites_are_given_both_ways() -> None:
    assert ask(Op.PUB, b"a", "a")["tenant"] == (True, "becomes t.a")
    assert ask(Op.SUB, b"a.>", "a")["tenant"] == (True, "becomes t.a.>")
    assert ask(Op.MSG, b"t.a", "a")["tenant"] == (True, "the client sees a")
    assert ask(Op.PUB, b"_INBOX.a", "a")["tenant"] == (False, "leaves the subject as it is")
    assert ask(Op.PUB, b"a", "b")["tenant"] == (False, "it is about other connections")


def test_a_condition_on_other_parts_of_the_frame_is_named() -> None:
    chain = RuleChain(load(TEXT, KINDS))
    direction, frame = sample(Op.HMSG, b"i")
    (step,) = [step for step in explain(chain, SampleView(), direction, frame) if step.rule.name == "beats"]
    assert step.condition == "always, if the frame's queue, size, headers, status and role match"


def test_link_rules_act_on_any_frame() -> None:
    assert ask(Op.PING, b"")["stuck"] == (True, "changes the link: pause")


@pytest.mark.parametrize("op", list(Op))
def test_every_operation_can_be_asked_about(op: Op) -> None:
    direction, frame = sample(op, b"a")
    assert frame.op == op
    assert direction in (C2S, S2C)
