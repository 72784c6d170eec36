"""Explanations: the rules that a frame would meet, and their results."""

from __future__ import annotations

from typing import Any

import pytest

from natsproxy.protocol.connect import Connect
from natsproxy.protocol.headers import build
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.engine.explain import explain
from natsproxy.rules.engine.sample import Explanation, SampleView, sample
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


def steps(op: Op | None, subject: bytes, name: str | None = "", **more: Any) -> dict[str, Explanation]:
    """Explain one frame; name: of the client, None where it is open."""
    view = SampleView(Connect(name=name or ""), known=frozenset() if name is None else frozenset({"name"}))
    found = explain(RuleChain(load(TEXT, KINDS)), view, sample(op, subject, **more))
    assert sorted(step.rule.name for step in found if step.rule.name != "tenant") == [
        "beats",
        "eu",
        "hole",
        "map",
        "stuck",
        "third ack",
    ]
    return {step.rule.name: step for step in found}


def ask(op: Op | None, subject: bytes, name: str | None = "", **more: Any) -> dict[str, tuple[bool, str]]:
    return {name: (step.acts, step.result) for name, step in steps(op, subject, name, **more).items()}


def conditions(op: Op | None, subject: bytes, name: str | None = "", **more: Any) -> dict[str, str]:
    found = steps(op, subject, name, **more)
    return {
        rule: step.condition for rule, step in found.items() if step.acts and rule not in ("stuck", "hole")
    }


def test_denials_are_given_word_for_word() -> None:
    denied = "-ERR 'Permissions Violation for Publish to \"secret.a\"'"
    assert ask(Op.PUB, b"secret.a")["map"] == (True, denied)
    assert ask(Op.PUB, b"open")["map"] == (False, "other frames: c2s/s2c PUB HPUB SUB MSG HMSG")
    assert ask(Op.SUB, b"secret.*")["map"] == (False, "admits it")


def test_a_delivery_may_be_filtered() -> None:
    assert ask(Op.MSG, b"secret.x")["map"] == (True, "filtered: it is not delivered")
    wide = "if its subscription reaches further than the permissions"
    assert conditions(Op.MSG, b"secret.x")["map"] == wide
    assert not ask(Op.MSG, b"secret.y")["map"][0]


def test_rewrites_are_given_both_ways() -> None:
    assert ask(Op.PUB, b"a", "a")["tenant"] == (True, "becomes t.a")
    assert ask(Op.SUB, b"a.>", "a")["tenant"] == (True, "becomes t.a.>")
    assert ask(Op.MSG, b"t.a", "a")["tenant"] == (True, "the client sees a")
    assert ask(Op.PUB, b"_INBOX.a", "a", reply=b"_INBOX.b")["tenant"] == (True, "rewrites the subjects in it")
    assert ask(Op.SUB, b"_INBOX.a", "a")["tenant"] == (False, "leaves it as it is")
    assert ask(Op.PUB, b"a", "b")["tenant"] == (False, "it is about other connections")


def test_rules_see_a_delivery_as_the_client_does() -> None:
    assert conditions(Op.MSG, b"t.secret.x", "a")["map"].startswith("if its subscription")
    assert "map" not in conditions(Op.MSG, b"t.secret.x", "b")
    open_name = conditions(Op.MSG, b"t.secret.x", None)
    assert open_name["map"].startswith("if the client sees it as secret.x and its subscription")
    assert open_name["tenant"] == "if its client has name a"


def test_an_open_condition_is_named() -> None:
    assert conditions(Op.HMSG, b"i")["beats"] == "if its role is heartbeat"
    assert conditions(None, b"a", None)["tenant"] == "if its client has name a"
    assert conditions(None, b"orders.a")["eu"] == "if it has header Region: eu* and it has 64 bytes or more"
    acks = "if it answers a publish on orders.> and its role is publish-ack; after the first 2, once at most"
    assert conditions(Op.MSG, b"_INBOX.1")["third ack"] == acks


def test_a_known_condition_decides() -> None:
    eu: dict[str, Any] = {"headers": [(b"Region", b"eu-1")]}
    assert conditions(None, b"orders.a", **eu, size=64)["eu"] == "always"
    assert conditions(None, b"orders.a", **eu)["eu"] == "if it has 64 bytes or more"
    assert "eu" not in conditions(None, b"orders.a", **eu, size=63)
    assert "eu" not in conditions(None, b"orders.a", **eu, body=b"short")
    assert "eu" not in conditions(None, b"orders.a", headers=[(b"Region", b"us")])
    assert "eu" not in conditions(Op.PUB, b"orders.a")
    assert conditions(None, b"i", status=b"100")["beats"] == "if its role is heartbeat"
    assert conditions(None, b"i", status=b"100 Idle Heartbeat")["beats"] == "always"
    assert "beats" not in conditions(None, b"i", status=b"503 No Responders")


def test_an_answer_is_asked_about_by_its_role() -> None:
    ack = ROLES["publish-ack"]
    assert conditions(None, b"orders.1", role=ack)["third ack"] == "after the first 2, once at most"
    assert "third ack" not in conditions(None, b"other", role=ack)
    assert "third ack" not in conditions(None, b"orders.1", role=ROLES["heartbeat"])
    anything = conditions(None, b"", role=ack)["third ack"]
    assert anything == "if it answers a publish on orders.>; after the first 2, once at most"


def test_link_rules_act_on_any_frame() -> None:
    assert ask(Op.PING, b"")["stuck"] == (True, "changes the link: pause")


def test_a_link_rule_acts_on_later_frames_of_its_direction() -> None:
    step = steps(Op.PUB, b"other")["hole"]
    assert (step.acts, step.result) == (True, "changes the link: swallow")
    assert step.condition == "if it comes after c2s PUB on last, while the rule is in force"
    assert not ask(Op.MSG, b"other")["hole"][0]
    assert steps(Op.PUB, b"last")["hole"].condition == "always"


@pytest.mark.parametrize("op", list(Op))
def test_every_operation_can_be_asked_about(op: Op) -> None:
    found = sample(op, b"a")
    assert found.frame.op == op
    assert found.direction in (C2S, S2C)


@pytest.mark.parametrize("role", ROLES.values(), ids=ROLES)
def test_the_example_of_a_role_has_it(role: Any) -> None:
    (frame,) = frames(role.example, role.direction)
    assert role.admits(frame)
    assert role.ops >> frame.op & 1
    asked = sample(None, b"", role=role)
    assert (asked.frame.raw, asked.direction) == (role.example, role.direction)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"op": Op.SUB, "role": ROLES["ack"]}, "SUB never is ack"),
        ({"op": Op.PUB, "headers": [(b"X", b"y")]}, "PUB has no headers"),
        ({"op": Op.MSG, "status": b"503"}, "MSG has no headers"),
        ({"op": Op.SUB, "size": 3}, "SUB has no payload"),
        ({"op": None, "headers": [(b"X y", b"")]}, "is no header name"),
    ],
)
def test_properties_that_no_frame_has_together(asked: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        sample(subject=b"a", **asked)


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
def test_no_frame_passes_in_words_on_which_a_rule_acts(lines: str, direction: Direction, raw: bytes) -> None:
    """A question that names little never gets `no`, one that names all never a wrong `always`."""
    text = f'[[rules]]\nname = "r"\nkind = "drop"\n{lines}\n'
    wire = Wire(text)
    for setup in (
        "SUB a q1 7",
        "PUB b r 0\n",
        "PUB $JS.API.INFO j 0\n",
        "PUB $JS.API.CONSUMER.MSG.NEXT.S.C p 0\n",
    ):
        wire.c2s(setup)
    fired = wire.fired(direction, raw)
    (frame,) = frames(raw, direction)
    chain = RuleChain(load(text, KINDS))
    little = sample(frame.op, frame.subject)
    (step,) = explain(chain, SampleView(), little)
    assert step.acts or not fired
    if step.acts and step.condition == "always" and chain.rules[0].selector.role is None:
        assert fired
    if frame.op in (Op.PING, Op.SUB):
        return
    headers = [(b"X", b"1")] if b"X: 1" in frame.headers else []
    status = frame.headers.partition(b"\r\n")[0].partition(b" ")[2]
    whole = sample(
        frame.op,
        frame.subject,
        reply=frame.reply,
        headers=headers,
        status=status,
        body=frame.body,
        size=frame.size,
    )
    (step,) = explain(chain, SampleView(), whole)
    assert step.acts or not fired
    if step.condition == "always":
        assert fired
