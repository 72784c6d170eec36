"""Invariant: under any combination of frame rules both streams stay well-formed, and refused input stays out.

Frames, rules and seeds are drawn; the bytes for each side are parsed again.  Whole sessions are asked too,
with frames cut and interleaved, under each of the two scanners.
"""

from __future__ import annotations

import random
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from natsproxy.protocol.connect import Connect
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.file.parser import load
from natsproxy.rules.interface import Decision
from natsproxy.rules.kinds import KINDS
from natsproxy.wire import _interest_py, _scanner_py
from natsproxy.wire.ops import C2S, S2C, Direction
from natsproxy.wire.parse import frames
from natsproxy.wire.scanner import COMPILED, Interest, Scanner
from tests.rules.kit import FakeView, Wire, parse
from tests.session.playbook import Playbook

BODIES = st.binary(max_size=40)
SUBJECTS = st.sampled_from(
    [b"a", b"a.b", b"a.b.c", b"x.1", b"_INBOX.q.1", b"$JS.ACK.S.C.1.2.3.4.5", b"a..b", b"*.x"]
)
BLOCKS = st.sampled_from(
    [b"NATS/1.0\r\n\r\n", b"NATS/1.0\r\nA: b\r\nC:d\r\n\r\n", b"NATS/1.0 503\r\n\r\n", b"junk", b""]
)
KINDS_OF_RULES = [
    'kind = "duplicate"\ncopies = 2',
    'kind = "corrupt"\nbytes = 3',
    'kind = "truncate"\nkeep = 2',
    'kind = "headers"\nset = { X = "y" }\nremove = ["A"]',
    'kind = "drop"\nprobability = 0.3',
    'kind = "latency"\ndelay = "5ms"',
    'kind = "reorder"\nby = 2',
    'kind = "answer"\nstatus_code = 503\nsubject = "a.>"',
    'kind = "error"\ntext = "Invalid Subject"\nop = ["PUB", "MSG"]\nprobability = 0.5',
    'kind = "deny"\nsubject = "a.b.*"',
    'kind = "permissions"\npublish = { deny = "x.*" }\nallow_responses = true',
    'kind = "rewrite"\nprefix = "t"\njetstream = true',
]
RULES = st.lists(st.sampled_from(KINDS_OF_RULES), max_size=6, unique=True)


@st.composite
def conversations(draw: st.DrawFn) -> list[tuple[Direction, bytes]]:
    found = []
    for _ in range(draw(st.integers(1, 8))):
        direction = draw(st.sampled_from([C2S, S2C]))
        subject, reply, body = (
            draw(SUBJECTS),
            draw(st.sampled_from([b"", b" _INBOX.q.1", b" a.r"])),
            draw(BODIES),
        )
        block = draw(BLOCKS) if draw(st.booleans()) else None
        sid = b" 1" if direction else b""
        sizes = b" %d" % len(body) if block is None else b" %d %d" % (len(block), len(block) + len(body))
        op = (b"MSG", b"PUB")[not direction] if block is None else (b"HMSG", b"HPUB")[not direction]
        found.append(
            (direction, op + b" " + subject + sid + reply + sizes + b"\r\n" + (block or b"") + body + b"\r\n")
        )
    return found


@given(RULES, conversations(), st.integers(0, 5), st.booleans())
def test_streams_stay_well_formed(
    kinds: list[str], conversation: list[tuple[Direction, bytes]], seed: int, verbose: bool
) -> None:
    text = "".join(f'[[rules]]\nname = "r{n}"\n{kind}\n' for n, kind in enumerate(kinds)) or NONE
    wire = Wire(
        text, seed=seed, view=FakeView(connect=Connect(verbose=verbose, pedantic=False, headers=True))
    )
    wire.c2s("SUB _INBOX.q.* 1")
    for direction, raw in conversation:
        decision = wire.decide(direction, raw) or Decision()
        out = (parse(direction, raw).raw,) if decision.out is None else decision.out
        for data in (*out, decision.before, decision.after):
            sent = list(frames(data, direction))
            assert len(sent) == 1 or data not in out or not data
        list(frames(decision.answer, direction.opposite))
        assert all(firing.direction == direction.label for firing in decision.firings)


TWINS = {"pure": (_scanner_py.Scanner, _interest_py.Interest)}
if COMPILED:
    TWINS["compiled"] = (Scanner, Interest)
NONE = "rules = []"
GATES = st.sampled_from(["", "every = 2", "probability = 0.5", "after = 1", "first = 2"])
INFO = b'INFO {"server_id":"S","version":"2.15.1","headers":true,"max_payload":1048576} \r\n'


def under(
    twin: str, text: str, seed: int, options: bytes, pieces: list[tuple[Direction, bytes]]
) -> list[bytes]:
    """Return the bytes that leave a session each way, with one of the scanners, after all its deadlines."""
    scanner, interest = TWINS[twin]
    with (
        patch("natsproxy.session.direction.Scanner", scanner),
        patch("natsproxy.rules.engine.rule_index.Interest", interest),
    ):
        play = Playbook(RuleChain(load(text, KINDS), seed=seed))
        play.server(INFO).client(b"CONNECT " + options + b"\r\nPING\r\n").server(b"PONG\r\n")
        play.client(b"SUB _INBOX.q.* 1\r\nSUB a.> 2\r\nUNSUB 2 3\r\n")
        for direction, piece in pieces:
            (play.server if direction else play.client)(piece)
        for _ in range(4):  # fences of ours are answered, held frames go
            play.server(b"PONG\r\n").at(play.now + 10_000_000_000)
        assert play.end is None, play.end
        return [play.to_server, play.to_client]


def takes(kind: str, gate: str) -> bool:
    """Tell whether a rule may have that gate."""
    return "rewrite" not in kind and "permissions" not in kind and gate.partition(" ")[0] not in kind


def interleaved(conversation: list[tuple[Direction, bytes]], seed: int) -> list[tuple[Direction, bytes]]:
    """Cut each frame in two and let the directions overtake each other."""
    seeded = random.Random(seed)
    queues: dict[Direction, list[bytes]] = {C2S: [], S2C: []}
    for direction, raw in conversation:
        at = seeded.randrange(len(raw))
        queues[direction] += [piece for piece in (raw[:at], raw[at:]) if piece]
    order = [direction for direction, queue in queues.items() for _ in queue]
    seeded.shuffle(order)
    return [(direction, queues[direction].pop(0)) for direction in order]


@given(
    st.lists(st.tuples(st.sampled_from(KINDS_OF_RULES), GATES), max_size=5, unique_by=lambda rule: rule[0]),
    conversations(),
    st.integers(0, 5),
    st.booleans(),
    st.integers(0, 1 << 30),
)
def test_sessions_send_whole_frames_whichever_scanner_there_is(
    drawn: list[tuple[str, str]],
    conversation: list[tuple[Direction, bytes]],
    seed: int,
    verbose: bool,
    seeded: int,
) -> None:
    text = "".join(
        f'[[rules]]\nname = "r{n}"\n{kind}\n' + (f"{gate}\n" if takes(kind, gate) else "")
        for n, (kind, gate) in enumerate(drawn)
    )
    text = text or NONE
    options = b'{"verbose":%s,"pedantic":false,"headers":true}' % str(verbose).lower().encode()
    sent = [under(twin, text, seed, options, interleaved(conversation, seeded)) for twin in TWINS]
    for direction in Direction:
        list(frames(sent[0][direction], direction))  # raises where a frame is broken or not whole
    assert all(other == sent[0] for other in sent)
