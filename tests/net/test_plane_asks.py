"""Actions that the native plane asks about single frames, and what it does with their answers.

`test_plane_rules.py` and `test_plane_gates.py` compare the kinds that it asks on all planes.
"""

from __future__ import annotations

from typing import Any

import pytest

from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.engine.native_steps import NativeStep
from natsproxy.rules.file.parser import load
from natsproxy.rules.kinds import KINDS
from natsproxy.session.session import LONG, Session
from natsproxy.wire.ops import C2S, S2C, Direction, Op
from natsproxy.wire.scanner import COMPILED
from tests.kit.stage import receive, stage
from tests.net.test_plane_rules import HasDecisions, always, connected, same
from tests.net.test_plane_steps import RULES, Relay, Rig, rig
from tests.net.test_planes import Conversation, Piece, plane

if not COMPILED:
    pytest.skip("there is one plane only", allow_module_level=True)

_decisions: Any = pytest.importorskip("natsproxy.rules.engine._decisions")
__all__ = ["rig"]
MS = 1_000_000
Answer = tuple[bytes, Op] | int | None
OTHER = b"PUB o 1\r\ny\r\n"


class Asked:
    """Decisions on PUB and HPUB of `a`: it is asked, notes that, and gives one answer to all."""

    def __init__(self, answer: Answer | Exception, *, holds: bool = False) -> None:
        self.scanners: list[Any] = []
        self.decisions = [_decisions.Decisions() for _ in Direction]
        self.answer, self.asked = answer, list[Any]()
        self.gate = always()
        step = NativeStep(self.gate, owner=self, fact="key", cause="r", asks=True, holds=holds)
        for line in (b"PUB a", b"HPUB a"):
            self.decisions[C2S].put(line, b"", [step])
        self.decisions[C2S].put(b"PUB o", b"", [])

    def act(self, *facts: object) -> Answer:
        self.asked.append(facts[:-1])
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def play(rig: Rig, rules: HasDecisions, *reads: bytes) -> tuple[Relay, bytes]:
    """Send reads; return the relay and what went on at once."""
    relay, client, server = connected(rig, rules)
    for data in reads:
        client.send(data)
        rig.run()
    try:
        return relay, server.recv(100_000)
    except BlockingIOError:
        return relay, b""


def test_an_action_gets_the_parts_of_the_frame(rig: Rig) -> None:
    asked = Asked(None)
    frames = b"PUB a 2\r\nhi\r\n", b"HPUB a b.c 14 15\r\nNATS/1.0\r\n\r\n\r\nx\r\n"
    relay, went = play(rig, asked, OTHER + b"".join(frames) + OTHER)
    assert went == OTHER + b"".join(frames) + OTHER
    assert relay.told == []  # nothing was done
    assert asked.asked == [
        ("key", frames[0], b"", 9, 0, 2, 1, 1, 1),
        ("key", frames[1], b"b.c", 18, 14, 15, 2, 2, 2),
    ]
    assert relay.connection.take(C2S)[:4] == (4, 4, len(went), [(Op.PUB, 3), (Op.HPUB, 1)])


def test_other_bytes_take_the_place_of_the_frame(rig: Rig) -> None:
    new = b"HPUB a 12 12\r\nNATS/1.0\r\n\r\n\r\n"
    relay, went = play(rig, Asked((new, Op.HPUB)), OTHER + b"PUB a 2\r\nhi\r\n" + OTHER)
    assert went == OTHER + new + OTHER
    assert relay.told == [RULES]
    frames, sent, size, ops, opened, out, surplus, _ = relay.connection.take(C2S)
    assert (frames, sent, size, ops, opened) == (3, 3, 2 * len(OTHER) + 13, [(Op.PUB, 3)], None)
    assert (out, surplus) == (len(went), [(Op.PUB, -1), (Op.HPUB, 1)])


def test_a_frame_is_held_as_long_as_the_action_says(rig: Rig) -> None:
    asked = Asked(20 * MS, holds=True)
    relay, went = play(rig, asked, OTHER + b"PUB a 2\r\nhi\r\n" + OTHER, b"PUB a 1\r\nx\r\n")
    assert went == OTHER
    assert len(asked.asked) == 2  # behind one that waits, too
    assert relay.told == [RULES] * 2
    (first, *_), *_ = held = relay.connection.give_back(C2S)
    assert first == b"PUB a 2\r\nhi\r\n"
    assert [(due - came, cause) for _, _, _, came, due, cause in held] == [
        (20 * MS, b"r"),
        (0, b""),
        (20 * MS, b"r"),
    ]


def test_a_frame_is_the_sessions_where_the_action_fails(rig: Rig) -> None:
    asked = Asked(ValueError("no"))
    relay, went = play(rig, asked, OTHER + b"PUB a 1\r\nx\r\n" + OTHER)
    assert relay.told == [(C2S, b"PUB a 1\r\nx\r\n")]
    assert went == OTHER * 2
    assert [facts[-3:-1] for facts in asked.asked] == [(1, 1)]
    asked.answer = None
    assert play(rig, asked, b"PUB a 1\r\nx\r\n")[1] == b"PUB a 1\r\nx\r\n"
    assert asked.asked[1][-3:-1] == (0, 1)  # it is still the first match: nothing was counted


def test_a_frame_that_is_to_change_behind_one_that_waits_is_the_sessions(rig: Rig) -> None:
    asked = Asked((b"PUB a 0\r\n\r\n", Op.PUB))
    hold = NativeStep(always(), owner=asked, cause="r", delay=MS)
    asked.decisions[C2S].put(b"PUB late", b"", [hold])
    relay, went = play(rig, asked, b"PUB late 0\r\n\r\nPUB a 1\r\nx\r\n")
    assert went == b""
    assert asked.asked == []
    assert (C2S, b"PUB a 1\r\nx\r\n") in relay.told


@pytest.mark.parametrize("more", [0, 1])
def test_long_headers_are_the_sessions(rig: Rig, more: int) -> None:
    asked = Asked(None)
    head = b"NATS/1.0\r\nA: " + bytes(LONG + more - 17) + b"\r\n\r\n"
    frame = b"HPUB a %d %d\r\n%s\r\n" % (len(head), len(head), head)
    relay, _ = play(rig, asked, frame)
    assert len(asked.asked) == 1 - more
    assert relay.told == [(C2S, frame)] * more


def test_what_is_asked_in_one_read_is_bounded(rig: Rig) -> None:
    """Behind that the session deals with the frames, which yields to others."""
    frame, asked = b"PUB a 1\r\nx\r\n", Asked(None)
    relay, went = play(rig, asked, (frame + OTHER) * 50)
    assert went.startswith((frame + OTHER) * 32)
    assert len(asked.asked) == 32
    assert relay.told[0] == (C2S, frame)
    relay, went = play(rig, asked, *[frame + OTHER] * 50)
    assert (relay.told, went) == ([], (frame + OTHER) * 50)


RULE = '[[rules]]\nname = "r"\nkind = "{}"\nsubject = "x"\n{}\n'
KINDS_ASKED = {
    "headers": 'set = { A = "1" }',
    "truncate": "keep = 1",
    "trace": "",
    "stamp": "",
    "latency": 'delay = { distribution = "uniform", min = "1ms", max = "2ms" }',
}


@pytest.mark.parametrize("kind", KINDS_ASKED)
async def test_the_session_sees_the_first_two_frames_only(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []
    receive_bytes = Session.receive

    def note(session: Session, direction: Direction, data: bytes, *rest: Any) -> Any:
        if data.startswith(b"HPUB"):
            seen.append(data)
        return receive_bytes(session, direction, data, *rest)

    monkeypatch.setattr(Session, "receive", note)
    frame = b"HPUB x 33 35\r\nNATS/1.0\r\nNats-Sender-User: m\r\n\r\nhi\r\n"
    with plane("native"):
        async with stage(RuleChain(load(RULE.format(kind, KINDS_ASKED[kind]), KINDS), seed=1)) as made:
            client, server = await made.connect()
            for _ in range(6):
                await client.send_all(frame + b"PUB y 0\r\n\r\n")
                went = b""
                while not went.endswith(b"PUB y 0\r\n\r\n"):
                    went += await receive(server, 1)
                assert (went == frame + b"PUB y 0\r\n\r\n") is (kind == "latency")
            await client.aclose()
            await server.aclose()
    assert len(seen) == 2


SENDERS = [
    b"",
    b"Nats-Sender-User: me\r\n",
    b"x-nats-sender-user: me\r\n",
    b"traceparent: 00-a\r\n",
    b"A: b\r\nA: c\r\n",
]


@pytest.mark.parametrize("record", [False, True])
@pytest.mark.parametrize(
    "rules",
    [
        RULE.format("stamp", ""),
        RULE.format("stamp", 'unverified = "deny"'),
        RULE.format("trace", ""),
        RULE.format("headers", 'set = { A = "1" }\nremove = ["traceparent"]'),
        RULE.format("headers", 'remove = ["A"]') + RULE.format("drop", "every = 3").replace('"r"', '"d"'),
        RULE.format("truncate", "keep = 1") + RULE.format("latency", 'delay = "1ms"').replace('"r"', '"l"'),
    ],
)
def test_headers_change_in_the_same_way_on_all_planes(rules: str, record: bool) -> None:
    pieces = []
    for lines in SENDERS * 2:
        head = b"NATS/1.0\r\n" + lines + b"\r\n"
        sizes = b"%d %d" % (len(head), len(head) + 2)
        for verb, direction in ((b"HPUB x ", C2S), (b"HMSG x 1 ", S2C)):
            pieces.append([Piece(direction, (verb + sizes + b"\r\n" + head + b"hi\r\n") * 3, True)])
    same(Conversation(pieces, "client", (b"", b"")), rules, record)
