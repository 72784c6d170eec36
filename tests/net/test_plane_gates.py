"""Gates on the native plane: which frames fire, their numbers and all counts are as by Python's gates."""

from __future__ import annotations

import time
from collections import Counter
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.engine.native_steps import NativeStep
from natsproxy.rules.file.parser import load
from natsproxy.rules.kinds import KINDS
from natsproxy.rules.model.counts import Count, RecentCounts
from natsproxy.rules.model.gate import Gate, Window
from natsproxy.rules.model.seeded_random import SeededRandom, Substreams
from natsproxy.wire.ops import C2S, S2C, Direction
from natsproxy.wire.scanner import COMPILED

if not COMPILED:
    pytest.skip("there is one plane only", allow_module_level=True)

from tests.kit.stage import receive, stage
from tests.net.test_plane_rules import _decisions, _gates, connected, rig, same
from tests.net.test_plane_steps import RULES, Rig
from tests.net.test_planes import PLANES, Conversation, Piece, plane
from tests.rules.engine.test_static_decisions import rules_of

__all__ = ["rig"]
HOUR = 3600 * 10**9
KEYS = ("app/1", "app-*/1")
GATES = st.builds(
    Gate,
    probability=st.none() | st.sampled_from([0.0, 0.01, 0.3, 0.9, 1.0]),
    every=st.none() | st.integers(1, 5),
    first=st.none() | st.integers(1, 9),
    after=st.sampled_from([0, 0, 1, 7]),
    limit=st.none() | st.integers(1, 4),
    between=st.none()
    | st.sampled_from([Window(0, None), Window(0, HOUR), Window(HOUR, None), Window(HOUR, 2 * HOUR)]),
    only=st.none()
    | st.dictionaries(
        st.sampled_from([*KEYS, "c2s app/1", "s2c app/1", "other"]), st.frozensets(st.integers(1, 20))
    ),
    per_proxy=st.booleans(),
)


class Told:
    """Notes the ordinals and the numbers of the matches that fired."""

    def __init__(self) -> None:
        self.fired: list[tuple[int, int]] = []

    def add(self, rows: list[tuple[int, int, int, int, None]]) -> None:
        self.fired += [(ordinal, m) for _, ordinal, _, m, _ in rows]


class OneRule:
    """A rule that drops what its gate lets through, in C and as Python asks it."""

    def __init__(self, gate: Gate, direction: Direction, number: int) -> None:
        self.gate, self.direction, self.told = gate, direction, Told()
        self.since = time.monotonic_ns()
        self.numbers = SeededRandom(1, f"r{number}", KEYS[0], direction)
        self.native, self.python = self._counts(), self._counts()
        self.recent, self.substreams = RecentCounts(2), Substreams(2)

    def _counts(self) -> tuple[Count, Count]:
        # Another connection has been counted, too.
        return Count(since=self.since), Count(since=self.since, matched=3, fired=1)

    def step(self, subject: bytes) -> NativeStep:
        gate = _gates.native_gate(self.gate, *self.native, KEYS, self.direction.label)
        draws = self.gate.probability is not None
        numbers, substream = self.numbers, None
        if draws and self.direction == S2C:
            digest, numbers = self.substreams.find(self.numbers, subject, b">")
            substream = self.recent, digest
        dice = _gates.NativeDice(numbers.prefix) if draws else None
        return NativeStep(gate, dice, substream, owner=self.told, cause="r")

    def fires(self, subject: bytes) -> bool:
        """Ask Python about the next match."""
        own, shared = self.python
        m = own.match()
        shared.match()
        if self.gate.open:  # then nobody asks it
            return True
        draws = self.numbers, m
        if self.gate.probability is not None and self.direction == S2C:
            draws = self.substreams.draws(self.numbers, subject, b">")
        counted = shared if self.gate.per_proxy else own
        label = self.direction.label
        return self.gate.admits(counted, m, KEYS, self.since + 1, lambda: draws[0].draw(draws[1]), label)


class Gated:
    """Rules on the frames of some subjects, as `connected` takes them."""

    def __init__(self, rules: list[OneRule], subjects: list[bytes]) -> None:
        self.scanners: list[Any] = []
        self.decisions = [_decisions.Decisions() for _ in Direction]
        for direction, subject in product(Direction, subjects):
            line = b"MSG %s 1" if direction else b"PUB %s"
            steps = [rule.step(subject) for rule in rules if rule.direction == direction]
            self.decisions[direction].put(line % subject, b"", steps)


SUBJECTS = [b"a", b"b", b"c"]


@given(
    gates=st.lists(GATES, min_size=1, max_size=3),
    direction=st.sampled_from(list(Direction)),
    sent=st.lists(st.sampled_from(SUBJECTS), min_size=1, max_size=40),
    cut=st.integers(1, 40),
)
@settings(max_examples=60)
def test_gates_in_c_are_pythons(gates: list[Gate], direction: Direction, sent: list[bytes], cut: int) -> None:
    rules = [OneRule(gate, direction, number) for number, gate in enumerate(gates)]
    expected: list[list[tuple[int, int]]] = [[] for _ in rules]
    passed = b""
    for ordinal, subject in enumerate(sent):
        firing = [place for place, rule in enumerate(rules) if rule.fires(subject)]
        if firing:
            first = firing[0]  # the frame is lost to the others, which count it
            expected[first].append((ordinal, rules[first].python[0].matched))
        else:
            passed += (b"MSG %s 1 1\r\nx\r\n" if direction else b"PUB %s 1\r\nx\r\n") % subject
    line = b"MSG %s 1 1\r\nx\r\n" if direction else b"PUB %s 1\r\nx\r\n"
    data = b"".join(line % subject for subject in sent)
    plane = Rig()
    try:
        gated = Gated(rules, SUBJECTS)
        relay, client, server = connected(plane, gated)
        source, target = (server, client) if direction else (client, server)
        for part in (data[:cut], data[cut:]):  # the first part ends anywhere
            source.sendall(part)
            plane.run()
        assert (target.recv(10_000) if passed else b"") == passed
        assert {*relay.told} <= {RULES}  # no frame went to Python
        gated.decisions[direction].tell()
    finally:
        plane.close()
    assert [rule.told.fired for rule in rules] == expected
    for rule in rules:
        for native, python in zip(rule.native, rule.python, strict=True):
            assert (native.matched, native.fired) == (python.matched, python.fired)


def test_a_frame_of_which_python_decides_is_counted_once(rig: Rig) -> None:
    """Its gate has let it through, and then Python asks the same gate about the same match."""
    rules = [OneRule(Gate(every=2), C2S, 0), OneRule(Gate(every=4), C2S, 1)]
    gated = Gated([], [])
    steps = [rules[0].step(b"a")._replace(owner=None), rules[1].step(b"a")]
    gated.decisions[C2S].put(b"PUB a", b"", steps)
    relay, client, server = connected(rig, gated)
    client.send(b"PUB a 1\r\n1\r\nPUB a 1\r\n2\r\nPUB a 1\r\n3\r\n")
    rig.run()
    assert server.recv(1000) == b"PUB a 1\r\n1\r\n"
    # By itself: those behind it might pass.  Nobody counts here, so the third is still the second match.
    assert relay.told == [(C2S, b"PUB a 1\r\n2\r\n"), (C2S, b"PUB a 1\r\n3\r\n")]
    assert [[one.matched for one in rule.native] for rule in rules] == [[1, 4], [1, 4]]
    assert [rule.native[0].fired for rule in rules] == [0, 0]


def test_a_gate_that_counts_over_all_connections_is_asked_by_one_thread() -> None:
    for per_proxy in (False, True):
        gated = Gated([OneRule(Gate(every=2, per_proxy=per_proxy), C2S, 0)], [b"a"])
        assert gated.decisions[C2S].per_proxy is per_proxy
        gated.decisions[C2S].clear()
        assert gated.decisions[C2S].per_proxy is False


SENT = [Piece(C2S, b"PUB x 1\r\n%d\r\n" % n, True) for n in range(8)]
DELIVERED = [Piece(S2C, b"MSG %s 1 1\r\n%d\r\n" % ((b"x", b"o")[n % 2], n), True) for n in range(8)]
ROUNDS = Conversation(
    # One direction at a time: some gates count both.
    [*[[piece] for piece in SENT + DELIVERED], SENT, DELIVERED, SENT, DELIVERED],
    "client",
    (b"", b""),
)
CONDITIONS = (
    "probability = 0.3",
    "every = 3",
    "first = 5",
    "after = 4",
    "limit = 2",
    'between = ["0s", "1h"]',
    'between = ["1h", "2h"]',
    'every = 3\nper = "proxy"',
    'probability = 0.5\nafter = 2\nlimit = 3\nper = "proxy"',
)
SETTINGS = {
    "latency": 'delay = "2ms"\n',
    "headers": 'set = { A = "1" }\n',
    "latency varied": 'delay = { distribution = "uniform", min = "1ms", max = "3ms" }\n',
}
GATED = ("drop", "duplicate", "corrupt", "truncate", "latency")


def gated(kind: str, condition: str) -> str:
    lines = f'kind = "{kind.split()[0]}"\nsubject = ["x", "o"]\n{SETTINGS.get(kind, "")}{condition}\n'
    return f'[[rules]]\nname = "{kind}"\n{lines}'


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_gated_rule_does_the_same_on_all_planes(condition: str) -> None:
    """Several kinds at once: a frame that one of them drops is counted by the others."""
    same(ROUNDS, "".join(gated(kind, condition) for kind in GATED), True)


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("kind", ["duplicate", "corrupt", "deny", *SETTINGS])
def test_a_rule_that_acts_alone_does_the_same_on_all_planes(kind: str, condition: str) -> None:
    same(ROUNDS, gated(kind, condition), True)


SELECTORS = (
    'op = ["PUB", "MSG"]',
    "min_size = 3",
    "max_size = 2",
    'header = { Nats-A = "*" }',
    'header = { Nats-A = "b*", X = "*" }',
    "status = 503",
    'role = "api"',
    'role = "ack"',
    'role = "delivery"',
    'role = "redelivery"',
    'role = "no-responders"',
    'role = "publish-ack"',
    'queue = "q"',
)
HEADS = (
    b"NATS/1.0\r\n\r\n",
    b"NATS/1.0\r\nNats-A: bc\r\nX: y\r\n\r\n",
    b"NATS/1.0\r\nX: Nats-A\r\n\r\n",
    b"NATS/1.0 503\r\n\r\n",
    b"Nats-A:",
    b"NATS/1.0\r\nnats-a: b\r\n\r\n",
)


def varied() -> list[list[Piece]]:
    """Return frames that selectors tell apart, twice in one piece: the plane knows them then."""
    sent = [b"PUB %s %d\r\n%s\r\n" % (s, len(b), b) for s in (b"x", b"$JS.API.INFO") for b in (b"", b"abc")]
    sent += [
        b"PUB $JS.ACK.S.C.1.2.3.4.5 %d\r\n%s\r\n" % (len(body), body) for body in (b"", b"+ACK", b"-NAK")
    ]
    sent += [b"PUB x _INBOX.r 1\r\n1\r\n"]
    sent += [b"HPUB x %d %d\r\n%sab\r\n" % (len(head), len(head) + 2, head) for head in HEADS]
    came = [b"MSG x 1 %d\r\n%s\r\n" % (len(body), body) for body in (b"", b"abc")]
    came += [
        b"MSG x %s 1\r\n1\r\n" % tail
        for tail in (b"7", b"1 $JS.ACK.S.C.1.2.3.4.5", b"1 $JS.ACK.S.C.2.2.3.4.5")
    ]
    came += [b"HMSG x 1 %d %d\r\n%sab\r\n" % (len(head), len(head) + 2, head) for head in HEADS]
    came += [b'MSG _INBOX.r 1 24\r\n{"stream":"S","seq":1234}\r\n']
    pieces = [[Piece(C2S, b"SUB x q 7\r\n", True)]]
    for direction, frames in ((C2S, sent), (S2C, came)):
        pieces += [[Piece(direction, frame, True)] for frame in frames]
        pieces += [[Piece(direction, b"".join(frames) * 2, True)]] * 2
    return pieces


@pytest.mark.parametrize("selector", SELECTORS)
def test_a_selector_that_looks_at_the_frame_does_the_same_on_all_planes(selector: str) -> None:
    script = Conversation(varied(), "client", (b"", b""))
    text = f'[[rules]]\nname = "drop"\nkind = "drop"\n{selector}\nevery = 2\n'
    same(script, text + f'[[rules]]\nname = "twice"\nkind = "duplicate"\n{selector}\nevery = 3\n', True)


def test_what_a_selector_rules_out_needs_no_python(rig: Rig) -> None:
    gated = Gated([], [])
    step = OneRule(Gate(), C2S, 0).step(b"a")
    gated.decisions[C2S].put(b"PUB a", b"", [step._replace(min_size=2)])
    gated.decisions[C2S].put(b"HPUB a", b"", [step._replace(header=b"A:", unsure=True)])
    relay, client, server = connected(rig, gated)
    without = b"HPUB a 18 18\r\nNATS/1.0\r\nB: c\r\n\r\n\r\n"
    client.send(b"PUB a 1\r\nx\r\n" + without + b"PUB a 2\r\nxy\r\n")
    rig.run()
    assert server.recv(1000) == b"PUB a 1\r\nx\r\n" + without
    assert relay.told == [RULES]
    maybe = without.replace(b"B: c", b"A: c")
    client.send(maybe)
    rig.run()
    assert relay.told[1:] == [(C2S, maybe)]


def test_a_rule_that_is_gated_stands_beside_others() -> None:
    same(ROUNDS, rules_of(["drop an x", "permissions", "limit an hour", "drop some"]), True)


@pytest.mark.parametrize("per", ["connection", "proxy"])
@pytest.mark.parametrize("name", PLANES)
async def test_counts_go_on_behind_a_reload_and_over_connections(name: str, per: str) -> None:
    """On the native plane most of these frames are counted by C."""
    text = f'[[rules]]\nname = "r"\nkind = "drop"\nsubject = "x"\nevery = 3\nper = "{per}"\n'
    other = '[[rules]]\nname = "other"\nkind = "duplicate"\nsubject = "x"\nafter = 1000\n'
    chain = RuleChain(load(text, KINDS), seed=1)
    mark, counts = b"PUB y 0\r\n\r\n", Counter[object]()
    with plane(name):
        async with stage(chain) as made:
            pairs = [await made.connect() for _ in range(2)]
            for added in (other, "", other):
                for client, server in pairs * 5:
                    count = client if per == "connection" else per
                    counts[count] += 1
                    frame = b"PUB x 0\r\n\r\n"
                    await client.send_all(frame + mark)
                    expected = mark if counts[count] % 3 == 0 else frame + mark
                    assert await receive(server, len(expected)) == expected
                chain = RuleChain(load(text + added, KINDS), seed=1, previous=chain)
                made.proxy.swap(chain)
                await made.proxy.rules_in_force()
            for stream in (stream for pair in pairs for stream in pair):
                await stream.aclose()
    assert chain.rules[0].shared.matched == 30
