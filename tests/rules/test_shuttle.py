"""The short way: the same bytes, counts and reports as the long one, whatever the frames."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from natsproxy.events import Firing
from natsproxy.rules.chain import RuleChain
from natsproxy.rules.kinds import KINDS
from natsproxy.rules.spec import load
from natsproxy.session.actions import Emit, Record, Send, SessionSettings
from natsproxy.session.session import Session
from natsproxy.wire.ops import C2S, S2C, Direction

RENAME = '[[rules]]\nname = "r"\nkind = "rewrite"\nfrom = "o.*.*"\nto = "s.$2.$1"\n'
NEVER = '[[rules]]\nname = "n"\nkind = "latency"\nsubject = ">"\ndelay = "1s"\nprobability = 0.0\n'
"""A rule that is asked about every message and does nothing: with it there is no short way."""
INFO = b'INFO {"server_id":"S","version":"2.15.1","headers":true,"max_payload":1048576} \r\n'
CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"name":"app"}\r\nPING\r\n'


class Running:
    """A session past its greeting, what it sent and what it told."""

    def __init__(self, text: str, *, record: bool = False) -> None:
        chain = RuleChain(load(text, KINDS), seed=1)
        self.session = Session(
            SessionSettings(), chain, conn=1, ordinal=1, address="127.0.0.1:1", record=record, now=0
        )
        self.sent = (bytearray(), bytearray())
        self.told: list[Firing] = []
        self.causes: list[str | None] = []
        for direction, data in ((S2C, INFO), (C2S, CONNECT), (S2C, b"PONG\r\n")):
            self.feed(direction, data)
        for sent in self.sent:
            sent.clear()

    def feed(self, direction: Direction, data: bytes, now: int = 0) -> None:
        for action in self.session.receive(direction, data, now):
            if isinstance(action, Send):
                self.sent[action.direction].extend(action.data)
            elif isinstance(action, Emit) and isinstance(action.event, Firing):
                self.told.append(action.event)
            elif isinstance(action, Record):
                self.causes.append(getattr(action.item, "cause", None))


SUBJECTS = st.sampled_from(["o.a.b", "o.b.a", "s.a.b", "o.a", "x", "_INBOX.q.1", "o..b", "o.a.*"])
REPLIES = st.sampled_from(["", " _INBOX.r.1", " o.r.s", " s.r.s", " $JS.ACK.S.C.1.2.3.4.5"])


@st.composite
def frames(draw: st.DrawFn) -> tuple[Direction, bytes]:
    direction = draw(st.sampled_from([C2S, S2C]))
    subject, reply, body = draw(SUBJECTS), draw(REPLIES), draw(st.sampled_from(["", "x", "PUB o.a.b 1"]))
    blank = draw(st.sampled_from([" ", " ", "  ", "\t"]))
    verb = draw(st.sampled_from([("PUB", "MSG"), ("pub", "msg")]))[direction]
    sid = f" {draw(st.integers(1, 3))}" if direction else ""
    line = f"{verb}{blank}{subject}{sid}{reply} {len(body)}\r\n{body}\r\n"
    if draw(st.integers(0, 9)) == 0:
        direction, line = C2S, draw(st.sampled_from(["SUB o.*.* 2\r\n", "UNSUB 2 1\r\n", "SUB x 3\r\n"]))
    return direction, line.encode()


@given(st.lists(st.lists(frames(), max_size=8), max_size=4), st.booleans())
def test_the_short_way_is_the_long_one(reads: list[list[tuple[Direction, bytes]]], record: bool) -> None:
    short, long = Running(RENAME, record=record), Running(NEVER + RENAME, record=record)
    for read in reads:
        for direction in Direction:
            data = b"".join(raw for way, raw in read if way == direction)
            if data:
                short.feed(direction, data)
                long.feed(direction, data)
    assert [sent.upper() for sent in short.sent] == [sent.upper() for sent in long.sent]
    assert sum(firing.count for firing in short.told) == len(long.told)
    assert {firing.detail for firing in short.told} <= {firing.detail for firing in long.told}


def test_one_firing_speaks_for_the_frames_of_one_read() -> None:
    run = Running(RENAME)
    run.feed(C2S, b"PUB  o.a.b 0\r\n\r\nPUB o.c.d 0\r\n\r\nPUB o.a.b 0\r\n\r\nPUB x 0\r\n\r\n", 7)
    run.feed(C2S, b"PUB o.a.b 0\r\n\r\n", 8)
    run.feed(S2C, b"MSG s.b.a 1 0\r\n\r\n", 9)
    assert [
        (told.t, told.direction, told.ordinal, told.m, told.count, told.subject, told.detail)
        for told in run.told
    ] == [
        (7, "c2s", 2, 1, 1, "o.a.b", "o.a.b -> s.b.a"),  # by the long way: two blanks
        (7, "c2s", 3, 2, 2, "o.c.d", "o.c.d -> s.d.c"),
        (8, "c2s", 6, 4, 1, "o.a.b", "o.a.b -> s.b.a"),
        (9, "s2c", 2, 1, 1, "o.a.b", "s.b.a -> o.a.b"),
    ]
    assert {(told.rule, told.kind, told.action, told.key, told.delay) for told in run.told} == {
        ("r", "rewrite", "rewrite", "app", 0)
    }


def test_a_recorded_frame_of_the_short_way_has_its_cause() -> None:
    run = Running(RENAME, record=True)
    run.causes.clear()
    run.feed(C2S, b"PUB o.a.b 0\r\n\r\n")
    assert run.causes == ["rewrite", "rewrite"]


def test_a_limit_of_deliveries_is_counted() -> None:
    run = Running(RENAME)
    run.feed(C2S, b"SUB o.*.* 1\r\nUNSUB 1 2\r\n")
    for _ in range(2):
        run.feed(S2C, b"MSG s.b.a 1 0\r\n\r\n")
    assert not run.session.subs
    assert bytes(run.sent[S2C]) == b"MSG o.a.b 1 0\r\n\r\n" * 2
