"""Explanations: the rules that a frame would meet, and their results."""

from __future__ import annotations

from typing import Any

import pytest

from natsproxy.protocol.connect import Connect
from natsproxy.protocol.headers import build
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.engine.explain import FrameExplanation, explain, question
from natsproxy.rules.engine.trial import TrialView
from natsproxy.rules.file.parser import load
from natsproxy.rules.kinds import KINDS
from natsproxy.rules.model.roles import ROLES
from natsproxy.wire import encode
from natsproxy.wire.ops import C2S, S2C, Direction, Op
from natsproxy.wire.parse import frames
from tests.rules.kit import Wire

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
[[rules]]
name = "third ack"
kind = "drop"
role = "publish-ack"
subject = "orders.>"
after = 2
limit = 1
[[rules]]
name = "eu"
kind = "latency"
subject = "orders.*"
header = { Region = "eu*" }
min_size = 64
delay = "1s"
[[rules]]
name = "hole"
kind = "swallow"
op = "PUB"
subject = "last"
lasts = "1s"
"""


def answer(op: Op | None, subject: bytes, name: str | None = "", **more: Any) -> FrameExplanation:
    """Explain one frame; name: of the client, None where it was not given."""
    view = TrialView(Connect(verbose=False, pedantic=False, name=name or ""))
    unknown = ["name"] if name is None else []
    found = explain(RuleChain(load(TEXT, KINDS)), view, question(op, subject, **more), unknown)
    assert sorted(step.rule.name for step in found.rules) == sorted(
        ["beats", "eu", "hole", "map", "stuck", "tenant", "third ack"]
    )
    return found


def ask(op: Op | None, subject: bytes, name: str | None = "", **more: Any) -> dict[str, tuple[bool, str]]:
    return {step.rule.name: (step.acts, step.result) for step in answer(op, subject, name, **more).rules}


def acting(op: Op | None, subject: bytes, name: str | None = "", **more: Any) -> dict[str, str]:
    """Return the rules that act on a frame (but for that which acts on all), with their gates."""
    steps = answer(op, subject, name, **more).rules
    return {step.rule.name: step.condition for step in steps if step.acts and step.rule.name != "stuck"}


def assumed(op: Op | None, subject: bytes, name: str | None = "", **more: Any) -> list[str]:
    return [text for text in answer(op, subject, name, **more).assumptions if "'" not in text]


def test_denials_are_given_word_for_word() -> None:
    denied = "-ERR 'Permissions Violation for Publish to \"secret.a\"'"
    assert ask(Op.PUB, b"secret.a")["map"] == (True, denied)
    assert ask(Op.PUB, b"open")["map"] == (False, "admits it")
    assert ask(Op.PING, b"")["map"] == (False, "selects other frames: c2s/s2c PUB HPUB SUB MSG HMSG")
    assert ask(Op.SUB, b"secret.*")["map"] == (False, "admits it")


def test_a_delivery_is_filtered() -> None:
    assert ask(Op.MSG, b"secret.x")["map"] == (True, "filtered: it is not delivered")
    assert "the client has subscribed to '>'" in answer(Op.MSG, b"secret.x").assumptions
    assert not ask(Op.MSG, b"secret.y")["map"][0]


def test_rewrites_are_given_both_ways() -> None:
    assert ask(Op.PUB, b"a", "a")["tenant"] == (True, "a -> t.a")
    assert ask(Op.SUB, b"a.>", "a")["tenant"] == (True, "a.> -> t.a.>")
    assert ask(Op.MSG, b"t.a", "a")["tenant"] == (True, "t.a -> a")
    assert ask(Op.PUB, b"_INBOX.a", "a", reply=b"x")["tenant"] == (True, "x -> t.x")
    assert ask(Op.SUB, b"_INBOX.a", "a")["tenant"] == (False, "leaves the frame unchanged")
    others = "applies to other clients: those with name a"
    assert ask(Op.PUB, b"a", "b")["tenant"] == (False, others)


def test_rules_see_a_delivery_as_the_client_does() -> None:
    assert "map" in acting(Op.MSG, b"t.secret.x", "a")
    assert "map" not in acting(Op.MSG, b"t.secret.x", "b")


def test_what_is_open_is_assumed_where_a_rule_looks_at_it() -> None:
    assert assumed(None, b"a", None)[0] == "the client has no name"
    assert assumed(None, b"orders.a") == ["it has no headers", "its payload is empty"]
    assert assumed(None, b"orders.a", headers=[(b"Region", b"eu")]) == ["its payload is empty"]
    assert assumed(None, b"orders.a", headers=[(b"Region", b"eu")], body=b"x") == []
    assert "it answers no earlier request" in assumed(Op.MSG, b"_INBOX.1")
    assert assumed(Op.PING, b"") == []
    gates = answer(None, b"orders.1", role=ROLES["publish-ack"]).assumptions
    assert "the gate of 'third ack' lets it through" in gates


def test_a_frame_that_an_earlier_rule_ends() -> None:
    text = "".join(f'[[rules]]\nname = "{name}"\nkind = "drop"\nsubject = "a"\n' for name in ("one", "two"))
    found = explain(RuleChain(load(text, KINDS)), TrialView(), question(Op.PUB, b"a"))
    assert [step.result for step in found.rules] == ["drop", "comes too late: the frame has ended"]


def test_a_known_property_decides() -> None:
    eu: dict[str, Any] = {"headers": [(b"Region", b"eu-1")]}
    assert acting(None, b"orders.a", **eu, size=64)["eu"] == "always"
    assert "eu" not in acting(None, b"orders.a", **eu)
    assert "eu" not in acting(None, b"orders.a", **eu, size=63)
    assert "eu" not in acting(None, b"orders.a", **eu, body=b"short")
    assert "eu" not in acting(None, b"orders.a", headers=[(b"Region", b"us")], size=64)
    assert "eu" not in acting(Op.PUB, b"orders.a", size=64)
    assert "beats" not in acting(None, b"i", status=b"100")
    assert acting(None, b"i", status=b"100 Idle Heartbeat")["beats"] == "always"
    assert "beats" not in acting(None, b"i", status=b"503 No Responders")


def test_an_answer_is_asked_about_by_its_role() -> None:
    ack = ROLES["publish-ack"]
    assert acting(None, b"orders.1", role=ack)["third ack"] == "after the first 2, once at most"
    assert "third ack" not in acting(None, b"other", role=ack)
    assert "third ack" not in acting(None, b"orders.1", role=ROLES["heartbeat"])


def test_link_rules_act_on_any_frame() -> None:
    assert ask(Op.PING, b"")["stuck"] == (True, "changes the link: pause")


def test_a_link_rule_begins_at_a_frame() -> None:
    assert ask(Op.PUB, b"last")["hole"] == (True, "changes the link: swallow")
    assert not ask(Op.PUB, b"other")["hole"][0]
    assert "no earlier frame has started 'hole'" in answer(Op.PUB, b"other").assumptions


@pytest.mark.parametrize("op", list(Op))
def test_every_operation_can_be_asked_about(op: Op) -> None:
    found = question(op, b"a")
    assert found.frame.op == op
    assert found.direction in (C2S, S2C)


@pytest.mark.parametrize("role", ROLES.values(), ids=ROLES)
def test_the_example_of_a_role_has_it(role: Any) -> None:
    (frame,) = frames(role.example, role.direction)
    assert role.admits(frame)
    assert role.ops >> frame.op & 1
    asked = question(None, b"", role=role)
    assert (asked.frame.raw, asked.direction) == (role.example, role.direction)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"op": Op.SUB, "role": ROLES["ack"]}, "SUB is never ack"),
        ({"op": Op.PUB, "headers": [(b"X", b"y")]}, "PUB has no headers"),
        ({"op": Op.MSG, "status": b"503"}, "MSG has no headers"),
        ({"op": Op.SUB, "size": 3}, "SUB has no payload"),
        ({"op": None, "headers": [(b"X y", b"")]}, "is not a header name"),
    ],
)
def test_properties_that_no_frame_has_together(asked: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        question(subject=b"a", **asked)


# -- held against the engine

RULES = [
    'subject = "a"',
    'subject = "a"\nheader = { X = "1" }',
    'header = { X = "*" }',
    "status = 503",
    "min_size = 3",
    "max_size = 2",
    'queue = "q*"',
    'unless = "a"',
    'op = "PING"',
    *(f'role = "{name}"' for name in ROLES),
    'role = "publish-ack"\nsubject = "b"',
    'role = "api-reply"\nheader = { X = "1" }',
]
X = build(((b"X", b"1"),))
BEAT = build((), code=b"100", description=b"Idle Heartbeat")
FRAMES = [
    (C2S, encode.pub(b"a", b"hello")),
    (C2S, encode.pub(b"a", b"", headers=X)),
    (C2S, encode.pub(b"$JS.ACK.S.C.1.1.1.1.0", b"-NAK")),
    (C2S, encode.pub(b"$JS.API.CONSUMER.MSG.NEXT.S.C", b"1", reply=b"p")),
    (C2S, encode.sub(b"a", b"7", b"q1")),
    (C2S, encode.PING),
    (S2C, encode.msg(b"a", b"7", b"x")),
    (S2C, encode.msg(b"a", b"7", b"x", headers=X)),
    (S2C, encode.msg(b"a", b"1", b"x", reply=b"$JS.ACK.S.C.2.1.1.1.0")),
    (S2C, encode.msg(b"r", b"1", b'{"stream":"S","seq":1}')),
    (S2C, encode.msg(b"r", b"1", b"", headers=build((), code=b"503"))),
    (S2C, encode.msg(b"r", b"1", b"", headers=BEAT)),
    (S2C, encode.msg(b"j", b"1", b"{}", headers=X)),
    (S2C, encode.msg(b"p", b"1", b"{}")),
]


@pytest.mark.parametrize("lines", RULES)
@pytest.mark.parametrize(("direction", "raw"), FRAMES)
def test_a_question_that_names_all_has_the_answer_of_traffic(
    lines: str, direction: Direction, raw: bytes
) -> None:
    text = f'[[rules]]\nname = "r"\nkind = "drop"\n{lines}\n'
    (frame,) = frames(raw, direction)
    chain = RuleChain(load(text, KINDS))
    status = frame.headers.partition(b"\r\n")[0].partition(b" ")[2]
    message = frame.op not in (Op.PING, Op.SUB)
    asked = question(
        frame.op,
        frame.subject,
        reply=frame.reply,
        queue=frame.queue,
        headers=[(b"X", b"1")] if b"X: 1" in frame.headers else [],
        status=status,
        body=frame.body if message else None,
        size=frame.size if message else None,
    )
    wire = Wire(text)
    if direction == S2C:
        wire.c2s("SUB > 1")
    fired = wire.fired(direction, asked.frame.raw)
    (step,) = explain(chain, TrialView(), asked).rules
    assert step.acts is fired
    assert not message or asked.frame.raw == raw.replace(b" 7 ", b" 1 ")
