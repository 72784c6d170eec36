"""A rule at one frame, named by `only`: each kind acts on that frame, in both directions, and no other one.

The rule is written as TOML and read again, as a rules file that names one frame is.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from natsproxy.events import Firing
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.file.parser import load, parse_rules
from natsproxy.rules.file.serialize import to_toml
from natsproxy.rules.kinds import KINDS
from natsproxy.session.phase import Phase
from natsproxy.wire.ops import C2S, S2C, Direction
from tests.rules.kit import S
from tests.session.playbook import Playbook

BODIES = (b"one", b"two", b"six", b"end")
THIRD = 2
NO_FRAME = {"permissions", "rewrite", "refuse", "announce", "info", "limit", "stamp", "trace"}
"""Kinds that are about connections, subjects, rates or INFO, who the client is, or all of a subject."""
Frames = Sequence[bytes]
Sent = Callable[[Frames], bytes]


@dataclass(frozen=True)
class Row:
    """A kind at the third frame: its settings, what its receiver gets at once, and whether it all ends."""

    kind: str
    settings: dict[str, Any]
    sent: Sent
    ends: bool = False
    directions: tuple[Direction, ...] = (C2S, S2C)

    def __str__(self) -> str:
        return " ".join([self.kind, *(str(value) for value in self.settings.values())])


def the_first_two(frames: Frames) -> bytes:
    return b"".join(frames[:2])


def without_it(frames: Frames) -> bytes:
    return b"".join([*frames[:2], *frames[3:]])


def all_of_them(frames: Frames) -> bytes:
    return b"".join(frames)


def with_body(body: bytes) -> Sent:
    """Return the frames with another body in the third."""
    return lambda frames: b"".join([*frames[:2], _with(frames[2], body), *frames[3:]])


def _with(frame: bytes, body: bytes) -> bytes:
    line = frame.split(b"\r\n")[0].rpartition(b" ")[0]
    return b"%b %d\r\n%b\r\n" % (line, len(body), body)


def _headed(frames: Frames) -> bytes:
    line = frames[2].split(b"\r\n")[0].rpartition(b" ")[0]
    block = b"NATS/1.0\r\nX: y\r\n\r\n"
    third = b"H%b %d %d\r\n%bsix\r\n" % (line, len(block), len(block) + 3, block)
    return b"".join([*frames[:2], third, *frames[3:]])


ROWS = (
    Row("drop", {}, without_it),
    Row("duplicate", {}, lambda f: b"".join([*f[:3], *f[2:]])),
    Row("reorder", {"by": 1}, lambda f: b"".join([*f[:2], f[3], f[2]])),
    Row("latency", {"delay": "1s"}, the_first_two),
    Row("latency", {"delay": "1s", "overtake": True}, without_it),
    Row("truncate", {"keep": 1}, with_body(b"s")),
    Row("corrupt", {}, all_of_them),
    Row("headers", {"set": {"X": "y"}}, _headed),
    Row("answer", {"status_code": 503}, without_it, directions=(C2S,)),
    Row("deny", {}, without_it, directions=(C2S,)),
    Row("error", {"text": "Invalid Subject"}, without_it, directions=(C2S,)),
    Row("error", {"text": "Stale Connection"}, the_first_two, ends=True),
    Row("close", {}, the_first_two, ends=True),
    Row("close", {"at": "head"}, lambda f: the_first_two(f) + f[2][: (len(f[2]) - 5) // 2], ends=True),
    Row("close", {"at": "payload"}, lambda f: the_first_two(f) + f[2][:-4], ends=True),
    Row("close", {"at": "after"}, lambda f: b"".join(f[:3]), ends=True),
    Row("reset", {}, the_first_two, ends=True),
    Row("reset", {"at": "payload"}, lambda f: the_first_two(f) + f[2][:-4], ends=True),
    Row("pause", {}, the_first_two),
    Row("pause", {"both": True}, the_first_two),
    Row("swallow", {}, the_first_two),
    Row("slice", {"size": 5, "delay": "1h"}, lambda f: the_first_two(f) + f[2][:5]),
    Row("bandwidth", {"rate": 1}, lambda f: the_first_two(f) + f[2][:1]),
    Row("stop_reading", {}, all_of_them),
    Row("half_close", {}, the_first_two),
    Row("slow_close", {"delay": "1s"}, all_of_them),
)
CASES = [
    pytest.param(row, direction, id=f"{row} {direction.label}")
    for row in ROWS
    for direction in row.directions
]


def test_no_kind_is_forgotten() -> None:
    assert {row.kind for row in ROWS} == set(KINDS) - NO_FRAME


def table_of(row: Row, direction: Direction) -> dict[str, Any]:
    """Return the rule of a row, as a table of a rules file."""
    selects = {"op": "PUB" if direction == C2S else "MSG", "direction": direction.label, "subject": "a.*"}
    if KINDS[row.kind].selects is not None:
        selects.pop("direction")
    only = {f"{direction.label} app": [THIRD + 1]}
    return {"name": "at one frame", "kind": row.kind, **row.settings, **selects, "only": only}


def frames_of(direction: Direction) -> list[bytes]:
    """Return four messages of a direction."""
    head = b"PUB a.b r" if direction == C2S else b"MSG a.b 1 r"
    return [b"%b %d\r\n%b\r\n" % (head, len(body), body) for body in BODIES]


def play(text: str, direction: Direction, frames: Frames, at_once: bool) -> Playbook:
    """Play the frames under rules, in one read or one by one."""
    played = Playbook(RuleChain(load(text, KINDS), seed=1)).greeted()
    played.client(b"SUB a.* 1\r\nSUB r 2\r\n")
    assert played.to_server == b"SUB a.* 1\r\nSUB r 2\r\n"
    give = played.client if direction == C2S else played.server
    for data in [b"".join(frames)] if at_once else frames:
        if played.end is None:
            give(data).at(played.now)
    return played


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "one by one"])
@pytest.mark.parametrize(("row", "direction"), CASES)
def test_it_acts_on_that_frame(row: Row, direction: Direction, at_once: bool) -> None:
    table, frames = table_of(row, direction), frames_of(direction)
    text = to_toml([table])
    (written,) = tomllib.loads(text)["rules"]
    assert written == table
    assert [rule.content for rule in load(text, KINDS)] == [
        rule.content for rule in parse_rules([table], KINDS)
    ]
    played = play(text, direction, frames, at_once)
    sent = (played.to_server, played.to_client)[direction]
    expected = row.sent(frames)
    if row.kind == "corrupt":
        assert len(sent) == len(expected)
        assert sent != expected
        assert sent.startswith(frames[0] + frames[1])
        assert sent.endswith(frames[3])
    else:
        # Answers of ours have fences, and an -ERR goes to the client.
        assert sent.replace(b"PING\r\n", b"").partition(b"-ERR")[0] == expected
    (firing,) = (event for event in played.events if isinstance(event, Firing))
    first = 2 + 2 if direction == C2S else 2  # behind CONNECT, PING and the SUBs; INFO and PONG
    assert (firing.m, firing.ordinal, firing.op, firing.subject) == (
        THIRD + 1,
        first + THIRD,
        "PUB" if direction == C2S else "MSG",
        "a.b",
    )
    if row.ends:
        played.server(b"PONG\r\n").at(played.now + 6 * S)
        assert played.session.lifecycle.phase is Phase.OVER
    else:
        assert played.end is None


@pytest.mark.parametrize(("row", "direction"), CASES)
def test_another_connection_or_direction_is_left_alone(row: Row, direction: Direction) -> None:
    frames = frames_of(direction)
    for key in ("s2c app" if direction == C2S else "c2s app", f"{direction.label} app/2", "app/2"):
        text = to_toml([{**table_of(row, direction), "only": {key: [THIRD + 1]}}])
        played = play(text, direction, frames, at_once=True)
        assert (played.to_server, played.to_client)[direction] == b"".join(frames)
        assert not [event for event in played.events if isinstance(event, Firing)]


ROLES = (
    ("delivery", S2C, b"MSG a.b 1 $JS.ACK.S.C.1.%d.1.1.0 1\r\nx\r\n"),
    ("ack", C2S, b"PUB $JS.ACK.S.C.1.%d.1.1.0 4\r\n+ACK\r\n"),
    ("pull", C2S, b"PUB $JS.API.CONSUMER.MSG.NEXT.S.C r.%d 2\r\n{}\r\n"),
)


@pytest.mark.parametrize(("role", "direction", "frame"), ROLES)
def test_a_role_names_it_too(role: str, direction: Direction, frame: bytes) -> None:
    frames = [frame % number for number in range(1, 4)]
    table = {"name": "r", "kind": "drop", "role": role, "only": {f"{direction.label} app": [2]}}
    played = play(to_toml([table]), direction, frames, at_once=True)
    assert (played.to_server, played.to_client)[direction] == frames[0] + frames[2]
    (firing,) = (event for event in played.events if isinstance(event, Firing))
    assert (firing.m, firing.role) == (2, role)


def test_the_answer_to_the_second_publish() -> None:
    """A role with history: `subject` is that of the request."""
    only = {"s2c app": [2]}
    table = {"name": "r", "kind": "drop", "role": "publish-ack", "subject": "a.*", "only": only}
    played = Playbook(RuleChain(load(to_toml([table]), KINDS))).greeted()
    played.client(b"SUB r.* 1\r\n" + b"".join(b"PUB a.b r.%d 0\r\n\r\n" % n for n in range(3)))
    acks = [b'MSG r.%d 1 24\r\n{"stream":"S","seq":%d} \r\n' % (n, n) for n in range(3)]
    acks = [ack.replace(b" 24\r\n", b" %d\r\n" % (len(ack.split(b"\r\n")[1]))) for ack in acks]
    played.server(b"".join(acks))
    assert played.to_client == acks[0] + acks[2]
