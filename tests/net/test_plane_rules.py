"""Rules on the native plane: what it does by itself is what the session does, frame by frame.

A conversation of whole frames, cut anywhere, goes through both planes under the same rules.  The twin gives
every frame that a rule wants to the session; the native plane asks once for each subject.
"""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any, Protocol, cast

import pytest
import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st

from natsproxy.capture.filter.recording_filter import PayloadPolicy, Selection
from natsproxy.events import Closed, Firing
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.engine.native_steps import NativeStep
from natsproxy.rules.file.parser import load
from natsproxy.rules.kinds import KINDS
from natsproxy.rules.kinds.corrupt import MOST_BYTES, Corrupting
from natsproxy.rules.model.counts import Count
from natsproxy.rules.model.gate import OPEN
from natsproxy.rules.model.rule import Hit
from natsproxy.rules.model.seeded_random import Draws, SeededRandom
from natsproxy.rules.model.verdicts import Replace
from natsproxy.wire.frames import Need
from natsproxy.wire.interest import Clause
from natsproxy.wire.ops import C2S, MESSAGE_OPS, S2C, Direction, Op, op_mask
from natsproxy.wire.parse import frames as frames_of
from natsproxy.wire.scanner import COMPILED, Interest, Scanner
from tests.kit.stage import receive, stage
from tests.net.test_plane_steps import RULES, Relay, Rig, rig
from tests.net.test_planes import EVERYTHING, Conversation, Piece, on_all, plane
from tests.rules.engine.test_static_decisions import REPLIES, SUBJECTS, frames, rules_of

if not COMPILED:
    pytest.skip("there is one plane only", allow_module_level=True)

_decisions: Any = pytest.importorskip("natsproxy.rules.engine._decisions")
_gates: Any = pytest.importorskip("natsproxy.rules.model._gates")
__all__ = ["rig"]
NAMES = [
    "drop",
    "drop some",
    "drop an x",
    "drop a few",
    "duplicate some",
    "corrupt some",
    "deny some",
    "latency at times",
    "latency varied",
    "truncate some",
    "deny shadow",
    "permissions shadow",
    "headers off",
    "trace",
    "stamp",
    "permissions",
    "permissions to answer once",
    "deny",
    "limit an hour",
    "limit of bytes",
    "headers",
    "rewrite",
    "rewrite pure",
    "rewrite out",
]


@st.composite
def usual(draw: st.DrawFn) -> tuple[Direction, bytes]:
    """A message as clients and servers write it."""
    direction, subject, reply = draw(st.sampled_from(list(Direction))), draw(SUBJECTS), draw(REPLIES)
    line = "MSG {} 1{} 1" if direction == S2C else "PUB {}{} 1"
    return direction, f"{line.format(subject, reply)}\r\nx\r\n".encode()


@st.composite
def conversations(draw: st.DrawFn) -> Conversation:
    """Frames that come again and again, in pieces of one direction that end anywhere."""
    known = draw(st.lists(st.one_of(usual(), usual(), frames()), min_size=1, max_size=6))
    steps: list[list[Piece]] = []
    rests = {C2S: b"", S2C: b""}
    for chosen in draw(st.lists(st.lists(st.sampled_from(known), min_size=1, max_size=12), max_size=6)):
        for direction in Direction:
            data = rests[direction] + b"".join(raw for way, raw in chosen if way == direction)
            cut = max(0, len(data) - draw(st.sampled_from([0, 0, 1, 2, 5, 15, 20])))
            rests[direction] = data[cut:]
            steps.append([Piece(direction, data[:cut], cut == len(data))])
    steps += [[Piece(direction, data, True)] for direction, data in rests.items()]
    return Conversation([[piece] for (piece,) in steps if piece.data], "client", (b"", b""))


RENAMED_OFTEN = Conversation([[Piece(C2S, b"PUB o.a 1\r\nx\r\n", True)]] * 3, "client", (b"", b""))
"""The native plane knows the decision from the second frame on."""


def totals(firings: list[Firing]) -> Counter[tuple[str, str, str]]:
    """Return how often each rule acted: an event may stand for many frames."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for one in firings:
        counts[one.rule, one.direction, one.action] += one.count
    return counts


def named(firings: list[Firing]) -> list[tuple[object, ...]]:
    """Return the facts of the firings that name each frame."""
    drops = [one for firing in firings if firing.action != "rewrite" for one in firing.each()]
    return sorted(
        (one.rule, one.direction, one.ordinal, one.m, one.op, one.subject, one.delay) for one in drops
    )


SELECTIONS = st.sampled_from(
    [
        EVERYTHING,
        Selection(payloads=(PayloadPolicy(b">", "drop"),)),
        Selection(payloads=(PayloadPolicy(b">", "truncate", 0),)),
        Selection(subjects=(b"o.>",)),
    ]
)
"""What of a conversation is recorded."""


def same(script: Conversation, rules: str, record: bool, selection: Selection = EVERYTHING) -> None:
    """Play a conversation on all planes under some rules, and compare."""
    twin, *natives = on_all(script, rules, record, selection)
    for native in natives:
        assert native.matches == twin.matches
        assert native.received == twin.received
        assert (native.cause, native.counts) == (twin.cause, twin.counts)
        assert native.frames == twin.frames
        assert totals(native.firings) == totals(twin.firings)
        assert named(native.firings) == named(twin.firings)


@given(
    conversations(),
    st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True),
    st.booleans(),
    SELECTIONS,
)
@example(RENAMED_OFTEN, ["rewrite pure"], True, Selection(payloads=(PayloadPolicy(b">", "drop"),)))
@settings(max_examples=30)
def test_rules_do_the_same_on_all_planes(
    script: Conversation, names: list[str], record: bool, selection: Selection
) -> None:
    same(script, rules_of(names), record, selection)


@pytest.mark.long
@given(
    conversations(),
    st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True),
    st.booleans(),
)
@settings(max_examples=500)
def test_rules_do_the_same_in_many_conversations(
    script: Conversation, names: list[str], record: bool
) -> None:
    same(script, rules_of(names), record)


class HasDecisions(Protocol):
    """Decisions for both directions, and the scanners that want their frames."""

    scanners: list[Scanner]
    decisions: list[Any]


def connected(rig: Rig, rules: HasDecisions) -> tuple[Relay, socket.socket, socket.socket]:
    """Return a connection whose messages the rules want."""
    relay, client, server = rig.connect()
    for direction in Direction:
        pipe = SimpleNamespace(full=False, swallowing=False, pending=False, whole=0, out_next=0)
        pipe.scanner = Scanner(direction, Interest((Clause(op_mask(*MESSAGE_OPS)),)))
        rules.scanners.append(pipe.scanner)
        relay.connection.update_flow(direction, True, pipe, False, rules.decisions[direction])
    return relay, client, server


def always() -> object:
    """Return an open gate."""
    return _gates.native_gate(OPEN, Count(), Count(), ("k",), "c2s")


class Owner:
    """Notes ordinal, count and fact of all that it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int, str]] = []

    def add(self, rows: list[tuple[int, int, int, int, str]]) -> None:
        self.told += [(ordinal, count, fact) for _, ordinal, count, _, fact in rows]


class Rules:
    """Decisions for both directions, and the scanners that want their frames."""

    def __init__(self, *prefixes: bytes) -> None:
        self.scanners: list[Scanner] = []
        self.decisions = [_decisions.Decisions(prefixes or None, True) for _ in Direction]
        self.rewrites, self.drops = Owner(), Owner()
        c2s, s2c = self.decisions
        rewrite = partial(NativeStep, always(), owner=self.rewrites, fact="a", cause="rewrite")
        drop = NativeStep(always(), owner=self.drops, fact="b", cause="loss")
        c2s.put(b"PUB a", b"Nats-", [rewrite(head=b"PUB long.a", cut=5)])
        c2s.put(b"HPUB a", b"Nats-", [rewrite(head=b"HPUB long.a", cut=6)])
        c2s.put(b"PUB b", b"", [drop])
        c2s.put(b"PUB c", b"", [])
        s2c.put(b"MSG b 1", b"", [drop])


def test_known_decisions_need_no_python(rig: Rig) -> None:
    rules = Rules()
    relay, client, server = connected(rig, rules)
    client.send(
        b"PUB a 1\r\nx\r\nPUB a r 0\r\n\r\nPUB b 1\r\nx\r\nPUB c 0\r\n\r\nPUB a 0\r\n\r\nPUB b 0\r\n\r\n"
    )
    rig.run()
    assert (
        server.recv(1000) == b"PUB long.a 1\r\nx\r\nPUB long.a r 0\r\n\r\nPUB c 0\r\n\r\nPUB long.a 0\r\n\r\n"
    )
    assert relay.told == [RULES]  # the session reports what the rules did
    frames, sent, size, ops, opened, went, surplus, _ = relay.connection.take(C2S)
    assert (frames, sent, size, ops, opened) == (6, 4, 70, [(Op.PUB, 6)], None)
    assert (went, surplus) == (62, [(Op.PUB, -2)])
    for _ in range(2):
        rules.decisions[C2S].tell()
    assert rules.rewrites.told == [(0, 3, "a")]
    assert rules.drops.told == [(2, 1, "b"), (5, 1, "b")]


REFUSED = Conversation(
    [
        [Piece(S2C, b'INFO {"server_id":"x","version":"2.15.1","headers":true,"max_payload":4}\r\n', True)],
        *[[Piece(C2S, b"PUB x 4\r\n0123\r\nPUB x 4\r\n0123\r\n", True)]] * 2,
        [Piece(C2S, b"PUB x 5\r\n01234\r\nPUB x 1\r\nx\r\n", True)],
        [Piece(C2S, b"PUB x 1\r\nx\r\n", True)],
    ],
    "client",
    (b"", b""),
)
"""The fifth message is larger than the server takes, and the native plane knows the decision on others."""


@pytest.mark.parametrize("name", ["drop a few", "duplicate some", "corrupt some", "rewrite out"])
@pytest.mark.parametrize("record", [False, True])
def test_a_payload_above_the_limit_is_refused_on_all_planes(name: str, record: bool) -> None:
    same(REFUSED, rules_of([name]), record)
    for outcome in on_all(REFUSED, rules_of([name]), record, EVERYTHING):
        assert outcome.received[S2C].endswith(b"-ERR 'Maximum Payload Violation'\r\n")
        assert b"01234" not in outcome.received[C2S]


def test_frames_get_copies_and_damage_without_python(rig: Rig) -> None:
    copies, damage = Owner(), Owner()
    rules = Rules()
    dice = _gates.NativeDice(b"numbers")
    twice = NativeStep(always(), owner=copies, fact="twice", copies=2, cause="twice")
    damaged = NativeStep(always(), dice, owner=damage, fact="damaged", damage=2, cause="damaged")
    rules.decisions[C2S].put(b"PUB twice", b"", [twice])
    rules.decisions[C2S].put(b"PUB damaged", b"", [damaged])
    rules.decisions[C2S].put(b"PUB both", b"", [damaged, twice])
    relay, client, server = connected(rig, rules)
    client.send(b"PUB twice 1\r\nx\r\nPUB damaged 3\r\nabc\r\nPUB damaged 0\r\n\r\nPUB c 0\r\n\r\n")
    rig.run()
    went = server.recv(1000)
    assert re.fullmatch(
        rb"(PUB twice 1\r\nx\r\n){3}PUB damaged 3\r\n...\r\nPUB damaged 0\r\n\r\nPUB c 0\r\n\r\n",
        went,
        re.DOTALL,
    )
    assert b"\nabc\r" not in went
    assert relay.told == [RULES]
    frames, sent, _, ops, _, size, surplus, _ = relay.connection.take(C2S)
    assert (frames, sent, ops, size, surplus) == (4, 6, [(Op.PUB, 4)], len(went), [(Op.PUB, 2)])
    rules.decisions[C2S].tell()
    assert (copies.told, damage.told) == ([(0, 1, "twice")], [(1, 1, "damaged")])
    # Only Python puts two verdicts on one frame together; without a body the first has none.
    client.send(b"PUB both 0\r\n\r\nPUB both 1\r\nx\r\n")
    rig.run()
    assert server.recv(1000) == b"PUB both 0\r\n\r\n" * 3
    assert relay.told[1:] == [(C2S, b"PUB both 1\r\nx\r\n"), RULES]


def test_damage_in_c_is_that_of_the_kind(rig: Rig) -> None:
    rules = Rules()
    random = SeededRandom(1, "r", "k", C2S)
    gate = _gates.native_gate(OPEN, Count(), Count(), ("k",), "c2s")
    rules.decisions[C2S].put(
        b"PUB a.b",
        b"",
        [NativeStep(gate, _gates.NativeDice(random.prefix), owner=Owner(), damage=MOST_BYTES)],
    )
    relay, client, server = connected(rig, rules)
    kind = Corrupting(MOST_BYTES)
    for m in range(1, 5):
        (frame,) = frames_of(b"PUB a.b 999\r\n%s\r\n" % (b"%03d" % m * 333), C2S)
        client.send(frame.raw)
        rig.run()
        expected = kind.act(frame, Hit(C2S, 0, m, Draws(random, m), cast("Any", None)))
        assert isinstance(expected, Replace)
        assert server.recv(2000) == expected.raw
    assert relay.told == [RULES] * 4


@pytest.mark.parametrize(
    "raw",
    [
        b"PUB  a 0\r\n\r\n",
        b"pub a 0\r\n\r\n",
        b"PUB aa 0\r\n\r\n",
        b"PUB a other.r 0\r\n\r\n",
        b"HPUB a 22 22\r\nNATS/1.0\r\nNats-A: b\r\n\r\n",
        b"PUB a 1\r\nxyz",
    ],
)
def test_python_decides_where_the_decision_may_be_another(rig: Rig, raw: bytes) -> None:
    relay, client, server = connected(rig, Rules(b"_INBOX."))
    client.send(b"PUB a _INBOX.r 0\r\n\r\n" + raw)
    rig.run()
    assert server.recv(1000) == b"PUB long.a _INBOX.r 0\r\n\r\n"
    assert relay.told[0] == (C2S, raw)


def test_a_small_frame_with_a_decision_waits_for_its_end(rig: Rig) -> None:
    relay, client, server = connected(rig, Rules())
    raw = b"HPUB a 12 20\r\nNATS/1.0\r\n\r\n01234567\r\n"
    for at in range(len(raw)):
        client.send(raw[at : at + 1])
        rig.run()
    assert server.recv(1000) == b"HPUB long.a 12 20\r\nNATS/1.0\r\n\r\n01234567\r\n"
    assert relay.told == [RULES]


def test_a_large_one_is_the_sessions(rig: Rig) -> None:
    relay, client, _ = connected(rig, Rules())
    begun = b"PUB a 5000\r\n0123"
    client.send(begun)
    rig.run()
    assert relay.told == [(C2S, begun)]


def test_the_beginning_of_a_frame_is_the_sessions_at_the_end_of_the_stream(rig: Rig) -> None:
    relay, client, _ = connected(rig, Rules())
    client.send(b"PUB a 5\r\n01")
    rig.run()
    assert relay.told == []
    client.shutdown(socket.SHUT_WR)
    rig.run()
    assert relay.told == [(C2S, b"PUB a 5\r\n01"), (C2S, "ended")]


def test_a_frame_that_is_dropped_is_no_delivery_and_no_request(rig: Rig) -> None:
    rules = Rules()
    relay, client, server = connected(rig, rules)
    c2s, s2c = rules.scanners
    awaited = c2s.Table()
    s2c.tallies[b"1"] = 5
    for direction, scanner in zip(Direction, rules.scanners, strict=True):
        scanner.awaited = awaited
        pipe = SimpleNamespace(
            full=False, swallowing=False, pending=False, whole=0, out_next=0, scanner=scanner
        )
        relay.connection.update_flow(direction, True, pipe, False, rules.decisions[direction])
    client.send(b"PUB b _INBOX.lost 0\r\n\r\nPUB a _INBOX.asked 0\r\n\r\n")
    server.send(b"MSG b 1 0\r\n\r\n")
    rig.run()
    assert list(awaited) == [b"_INBOX.asked"]
    assert s2c.tallies[b"1"] == 5
    with pytest.raises(BlockingIOError):
        client.recv(1)


def test_watched_frames_are_pythons(rig: Rig) -> None:
    rules = Rules()
    relay, client, server = connected(rig, rules)
    c2s, s2c = rules.scanners
    c2s.watch_subjects[b"a"] = Need.LINE
    s2c.watch_sids[b"1"] = Need.LINE
    client.send(b"PUB a 0\r\n\r\n")
    server.send(b"MSG b 1 0\r\n\r\n")
    rig.run()
    assert sorted(relay.told) == [(C2S, b"PUB a 0\r\n\r\n"), (S2C, b"MSG b 1 0\r\n\r\n")]


def test_what_rules_did_is_told_while_a_frame_is_passing(rig: Rig) -> None:
    relay, client, server = connected(rig, Rules())
    client.send(b"PUB b 1\r\nx\r\nPUB a 100000\r\n" + bytes(10))
    rig.run()
    assert relay.told == [(C2S, b"PUB a 100000\r\n" + bytes(10)), RULES]
    relay.told.clear()
    relay.clear()  # from here on nobody wants the frames
    client.send(b"PUB z 8\r\n0123")
    rig.run()
    assert server.recv(1000) == b"PUB z 8\r\n0123"
    assert relay.told == []  # once is enough


@pytest.mark.parametrize("leaves", [False, True])
def test_rules_that_acted_on_another_thread_are_told_in_the_next_step(leaves: bool) -> None:
    rig = Rig(workers=1)
    thread = threading.Thread(target=rig.plane.workers[0].run)
    thread.start()
    try:
        rules = Rules()
        relay, client, server = connected(rig, rules)
        for _ in range(2):  # after a read a connection goes to the worker
            client.send(b"PUB c 0\r\n\r\n")
            rig.run()
        client.send(b"PUB b 1\r\nx\r\nPUB c 1\r\ny\r\n")
        passed = b""
        while not passed.endswith(b"y\r\n"):
            with suppress(BlockingIOError):
                passed += server.recv(1000)
        rig.plane.recall_all()
        assert relay.told == []
        if leaves:
            assert relay.connection.take(C2S)[:2] == (4, 3)
            relay.leave()
            del relay.connection
        rig.run()
        assert relay.told == ([] if leaves else [RULES])
        rules.decisions[C2S].tell()
        assert rules.drops.told == [(2, 1, "b")]
    finally:
        rig.plane.workers[0].stop()
        thread.join()
        rig.close()


def test_a_failure_to_tell_ends_one_connection(rig: Rig) -> None:
    def fail() -> None:
        raise error

    error = RuntimeError("no")
    first, client, _ = connected(rig, Rules())
    second, other, _ = connected(rig, Rules())
    first.then = fail
    for peer in (client, other):
        peer.send(b"PUB b 1\r\nx\r\n")
    rig.run()
    assert first.told == [RULES, (error,)]
    assert second.told == [RULES]


def test_decisions_that_were_forgotten_are_still_told(rig: Rig) -> None:
    rules = Rules()
    _, client, _ = connected(rig, rules)
    client.send(b"PUB b 0\r\n\r\n")
    rig.run()
    rules.decisions[C2S].clear()
    client.send(b"PUB b 0\r\n\r\n")
    rig.run()
    assert len(rules.decisions[C2S]) == 0
    assert rules.drops.told == []
    rules.decisions[C2S].tell()
    assert rules.drops.told == [(0, 1, "b")]


@pytest.mark.parametrize("touch", ["catch_up", "snapshot", "record", "kill"])
async def test_whoever_looks_at_a_connection_that_a_thread_has_tells_of_its_rules(touch: str) -> None:
    """What the rules did there is told at once: nothing else may ever happen on the connection."""
    chain = RuleChain(load('[[rules]]\nname = "r"\nkind = "drop"\nsubject = "x"\n', KINDS), seed=1)
    events: list[object] = []
    dropped, passes = b"PUB x 0\r\n\r\n", b"PUB y 0\r\n\r\n"

    def told() -> int:
        return sum(one.count for one in events if isinstance(one, Firing))

    with plane("threads"):
        async with stage(chain) as made:
            made.proxy.subscribe(events.append)
            client, server = await made.connect()
            relay, shared = made.proxy.relays[1], chain.rules[0].shared
            for _ in range(30):
                await client.send_all(dropped + passes)
                assert await receive(server, len(passes)) == passes
            for _ in range(30):  # until a thread has the connection
                await client.send_all(passes)
                assert await receive(server, len(passes)) == passes
            relay.catch_up()
            before = shared.matched
            events.clear()
            await client.send_all(passes)  # it may have been taken back just now
            assert await receive(server, len(passes)) == passes
            os.write(client.socket.fileno(), dropped * 3)
            until = time.monotonic() + 10
            while shared.matched < before + 3:  # the loop does nothing meanwhile
                assert time.monotonic() < until
            match touch:
                case "kill":
                    relay.kill("killed")
                case "record":
                    relay.record(False)
                case _:
                    getattr(relay, touch)()
            if touch == "kill":
                while not any(isinstance(one, Closed) for one in events):
                    await trio.lowlevel.checkpoint()
                assert isinstance(events[-1], Closed)
            assert told() == 3
            await client.aclose()
            await server.aclose()
