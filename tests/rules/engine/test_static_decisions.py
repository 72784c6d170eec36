"""Batches: the same bytes, counts and firings as the general path, whatever the frames."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from natsproxy.capture.format.records import Frames, Item
from natsproxy.events import Firing
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.engine.rule_engine import RuleEngine
from natsproxy.rules.engine.static_decisions import BASE_ENTRIES, MAX_ENTRIES
from natsproxy.rules.file.parser import load
from natsproxy.rules.interface import Decision
from natsproxy.rules.kinds import KINDS
from natsproxy.session.session import Session
from natsproxy.session.values import Action, Emit, Record, Send, SessionSettings
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, S2C, Direction
from natsproxy.wire.parse import frames as parse_frames

RENAME = '[[rules]]\nname = "r"\nkind = "rewrite"\nfrom = "o.*.*"\nto = "s.$2.$1"\n'
INFO = b'INFO {"server_id":"S","version":"2.15.1","headers":true,"max_payload":1048576} \r\n'
CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"name":"app"}\r\nPING\r\n'


class RuleSession:
    """A session past its greeting, with the bytes, firings and records that it made."""

    def __init__(self, text: str, *, record: bool = False, fast: bool = True) -> None:
        chain = RuleChain(load(text, KINDS), seed=1)
        self.session = Session(
            SessionSettings(), chain, conn=1, ordinal=1, address="127.0.0.1:1", record=record, now=0
        )
        self.sent = (bytearray(), bytearray())
        self.firings: list[Firing] = []
        self.causes: list[str | None] = []
        self.records: list[tuple[object, ...]] = []
        for direction, data in ((S2C, INFO), (C2S, CONNECT), (S2C, b"PONG\r\n")):
            self.feed(direction, data)
        for sent in self.sent:
            sent.clear()
        if not fast:
            self.session.rules.batch_functions = (None, None)

    def feed(self, direction: Direction, data: bytes, now: int = 0) -> None:
        self.note(self.session.receive(direction, data, now))

    def note(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Send):
                self.sent[action.direction].extend(action.data)
            elif isinstance(action, Emit) and isinstance(action.event, Firing):
                self.firings.append(action.event)
            elif isinstance(action, Record):
                self.causes.append(getattr(action.item, "cause", None))
                self.records += frame_by_frame(action.item)


def frame_by_frame(item: Item) -> Iterator[tuple[object, ...]]:
    """Yield the facts of each frame of a record: runs may be cut differently."""
    if not isinstance(item, Frames) or item.flags:
        return
    for place, frame in enumerate(parse_frames(bytes(item.data), item.direction)):
        came = None if item.in_first is None else item.in_first + place
        went = None if item.out_first is None else item.out_first + place
        yield item.direction, bytes(frame.raw), came, item.in_t, went, item.out_t, item.cause


SUBJECTS = st.sampled_from(
    ["o.a.b", "o.b.a", "s.a.b", "o.a", "x", "_INBOX.q.1", "_INBOX.r.1", "o.r.s", "o..b", "o.a.*"]
)
REPLIES = st.sampled_from(["", " _INBOX.r.1", " o.r.s", " s.r.s", " $JS.ACK.S.C.1.2.3.4.5"])
HEADS = st.sampled_from(
    [
        "",
        "",
        "",
        "NATS/1.0\r\nA: b\r\n\r\n",
        "NATS/1.0\r\nNats-Trace-Dest: o.z\r\n\r\n",
        "NATS/1.0\r\nNats-Subject: s.a.b\r\n\r\n",
        "NATS/1.0 503\r\n\r\n",
    ]
)
CONTROL = ["SUB o.*.* 2\r\n", "UNSUB 2 1\r\n", "SUB x 3\r\n", "SUB o.> q 1\r\n", "UNSUB 3 4\r\n", "PING\r\n"]
RULES = {
    "drop": 'op = ["PUB", "MSG"]',
    "drop some": "probability = 0.4",
    "drop an x": 'subject = ["x", "o.a"]\nevery = 2',
    "drop a few": 'first = 3\nper = "proxy"',
    "duplicate some": 'subject = ["x", "o.>"]\nprobability = 0.4\ncopies = 2',
    "corrupt some": "probability = 0.5\nbytes = 2",
    "deny some": 'subject = ["x", "o.b.>"]\nop = "PUB"\nevery = 2',
    "latency": 'op = "PUB"\ndelay = "10ms"',
    "latency at times": 'direction = "s2c"\nop = ["MSG", "HMSG"]\ndelay = "10ms"\nprobability = 0.5',
    "permissions": 'publish = { deny = ["x", "o.z"] }\nsubscribe = { deny = "o.b.*" }',
    "deny shadow": 'subject = ["x", "o.a"]\nop = ["PUB", "HPUB"]\nmode = "shadow"\nprobability = 0.5',
    "permissions shadow": 'mode = "shadow"\npublish = { deny = ["x", "o.b.>"] }\nsubscribe = ">"',
    "permissions to answer": 'publish = "x"\nallow_responses = { max = 2, expires = "10ms" }',
    "permissions to answer once": 'subscribe = { deny = "o.b.*" }\nallow_responses = true',
    "deny": 'subject = "o.a"',
    "limit": 'messages = "100/s"\nburst = 2\naction = "drop"',
    "limit an hour": 'subject = ["o.>", "x"]\nmessages = "3/h"\nburst = 3\nper = "template"\naction = "drop"',
    "limit of bytes": 'subject = ["o.>", "x"]\nbytes = "90/h"\nburst = 90\naction = "deny"\nmode = "shadow"',
    "limit held": 'subject = ["x", "o.a.b"]\nmessages = "100/s"\nburst = 2',
    "limit by subject": 'bytes = "1KiB/s"\nburst = 40\nper = "template"\naction = "deny"',
    "headers": 'subject = "x"\nset = { A = "1" }',
    "headers off": 'remove = ["A", "Nats-Subject"]',
    "truncate some": "keep = 0\nprobability = 0.5",
    "trace": 'subject = ["x", "o.>"]',
    "stamp": 'subject = ["x", "o.a"]\nfacts = ["client"]',
    "latency varied": (
        'op = ["PUB", "MSG"]\nprobability = 0.5\n'
        'delay = { distribution = "lognormal", median = "2ms", sigma = 0.5 }'
    ),
    "rewrite": 'from = "o.*.*"\nto = "s.$2.$1"',
    "rewrite pure": 'from = "o.a"\nto = "s.a"\nreplies = false',
    "rewrite out": 'from = "x"\nto = "y"\ntwo_way = false',
}


def rules_of(names: list[str]) -> str:
    return "".join(
        f'[[rules]]\nname = "{name}"\nkind = "{name.split()[0]}"\n{RULES[name]}\n' for name in names
    )


@st.composite
def frames(draw: st.DrawFn) -> tuple[Direction, bytes]:
    direction = draw(st.sampled_from([C2S, S2C]))
    if draw(st.integers(0, 9)) == 0:
        return (S2C, b"PONG\r\n") if direction else (C2S, draw(st.sampled_from(CONTROL)).encode())
    subject, reply, body = draw(SUBJECTS), draw(REPLIES), draw(st.sampled_from(["", "x", "PUB o.a.b 1"]))
    head, blank = draw(HEADS), draw(st.sampled_from([" ", " ", "  ", "\t"]))
    verb = draw(st.sampled_from([("PUB", "MSG"), ("pub", "msg")]))[direction]
    sid = f" {draw(st.integers(1, 3))}" if direction else ""
    sizes = f"{len(head)} {len(head + body)}" if head else f"{len(body)}"
    line = f"{'H' if head else ''}{verb}{blank}{subject}{sid}{reply} {sizes}\r\n{head}{body}\r\n"
    return direction, line.encode()


def single_firings(firings: list[Firing]) -> list[tuple[object, ...]]:
    """Return the facts of the firings that stand for one frame each."""
    singly = [one for firing in firings for one in firing.each() if one.kind != "rewrite" and one.count == 1]
    return sorted(
        (one.rule, one.direction, one.m, one.ordinal, one.op, one.subject, one.delay) for one in singly
    )


@given(
    st.lists(st.sampled_from(sorted(RULES)), min_size=1, max_size=3, unique=True),
    st.lists(st.lists(frames(), max_size=8), max_size=5),
    st.booleans(),
)
@settings(max_examples=80)
def test_the_fast_path_agrees_with_the_general_path(
    names: list[str], reads: list[list[tuple[Direction, bytes]]], record: bool
) -> None:
    text = rules_of(names)
    fast, general = RuleSession(text, record=record), RuleSession(text, record=record, fast=False)
    for now, read in enumerate(reads):
        for direction in Direction:
            data = b"".join(raw for way, raw in read if way == direction)
            for running in (fast, general) if data else ():
                running.feed(direction, data, now * 6_000_000)
                running.note(running.session.tick(now * 6_000_000))
    for running in (fast, general):
        running.note(running.session.tick(10**9))
        running.note(running.session.closed(10**9))
    assert [sent.upper() for sent in fast.sent] == [sent.upper() for sent in general.sent]
    assert sorted(fast.records, key=repr) == sorted(general.records, key=repr)
    assert sum(one.count for one in fast.firings) == sum(one.count for one in general.firings)
    assert {one.detail for one in fast.firings} <= {one.detail for one in general.firings}
    if not any(one.count > 1 and not one.also for one in fast.firings):
        assert single_firings(fast.firings) == single_firings(general.firings)
    else:
        assert set(single_firings(fast.firings)) <= set(single_firings(general.firings))


def test_one_firing_stands_for_the_frames_of_one_read() -> None:
    run = RuleSession(RENAME)
    run.feed(C2S, b"PUB  o.a.b 0\r\n\r\nPUB o.c.d 0\r\n\r\nPUB o.a.b 0\r\n\r\nPUB x 0\r\n\r\n", 7)
    run.feed(C2S, b"PUB o.a.b 0\r\n\r\n", 8)
    run.feed(S2C, b"MSG s.b.a 1 0\r\n\r\n", 9)
    assert [
        (one.t, one.direction, one.ordinal, one.m, one.count, one.subject, one.detail) for one in run.firings
    ] == [
        (7, "c2s", 2, 1, 1, "o.a.b", "o.a.b -> s.b.a"),  # by the general path: two blanks
        (7, "c2s", 3, 2, 2, "o.c.d", "o.c.d -> s.d.c"),
        (8, "c2s", 6, 4, 1, "o.a.b", "o.a.b -> s.b.a"),
        (9, "s2c", 2, 1, 1, "o.a.b", "s.b.a -> o.a.b"),
    ]
    assert {(one.rule, one.kind, one.action, one.key, one.delay) for one in run.firings} == {
        ("r", "rewrite", "rewrite", "app", 0)
    }


def test_matches_are_counted_in_the_order_of_frames_whatever_their_path() -> None:
    run = RuleSession(RENAME)
    run.feed(C2S, b"PUB o.a.b 0\r\n\r\nPUB  o.a.b 0\r\n\r\nPUB o.a.b 0\r\n\r\nPUB  o.a.b 0\r\n\r\n")
    # The first and the third frame are one firing, which has the first one's number.
    assert sorted((one.ordinal, one.m, one.count) for one in run.firings) == [(2, 1, 2), (3, 2, 1), (5, 4, 1)]


def test_a_recorded_frame_of_the_fast_path_has_its_cause() -> None:
    run = RuleSession(RENAME, record=True)
    run.causes.clear()
    run.feed(C2S, b"PUB o.a.b 0\r\n\r\n")
    assert run.causes == ["rewrite", "rewrite"]


def test_requests_and_their_answers_take_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that may only answer: the general path sees only the frames that it may not send."""
    judged: list[bytes] = []
    decide = RuleEngine.decide

    def judge(active: RuleEngine, direction: Direction, frame: Frame, now: int) -> Decision | None:
        judged.append(frame.raw)
        return decide(active, direction, frame, now)

    monkeypatch.setattr(RuleEngine, "decide", judge)
    run = RuleSession('[[rules]]\nname = "r"\nkind = "permissions"\npublish = "x"\nallow_responses = true\n')
    run.feed(C2S, b"SUB svc 1\r\n")
    judged.clear()
    requests = b"".join(b"MSG svc 1 _INBOX.%d 0\r\n\r\n" % n for n in range(300))
    answers = b"".join(b"PUB _INBOX.%d 0\r\n\r\n" % n for n in range(300))
    for half in (requests[: len(requests) // 2], requests[len(requests) // 2 :], b"MSG svc 1 0\r\n\r\n"):
        run.feed(S2C, half)
    run.sent[C2S].clear()
    run.feed(C2S, answers + b"PUB _INBOX.7 0\r\n\r\nPUB x 0\r\n\r\n")
    assert run.sent[S2C] == requests + b"MSG svc 1 0\r\n\r\n"
    assert run.sent[C2S] == answers + b"PING\r\nPUB x 0\r\n\r\n"
    assert judged == [b"PUB _INBOX.7 0\r\n\r\n"]


def test_a_limit_of_deliveries_is_counted() -> None:
    run = RuleSession(RENAME)
    run.feed(C2S, b"SUB o.*.* 1\r\nUNSUB 1 2\r\n")
    for _ in range(2):
        run.feed(S2C, b"MSG s.b.a 1 0\r\n\r\n")
    assert not run.session.subs
    assert bytes(run.sent[S2C]) == b"MSG o.a.b 1 0\r\n\r\n" * 2


def test_drops_of_one_read_are_one_event_with_each_of_them() -> None:
    run = RuleSession('[[rules]]\nname = "r"\nkind = "drop"\nsubject = "o.*"\nevery = 2\n')
    run.feed(C2S, b"PUB o.a 0\r\n\r\nPUB o.b 0\r\n\r\nPUB x 0\r\n\r\nPUB o.c 0\r\n\r\nPUB o.d 0\r\n\r\n")
    assert bytes(run.sent[C2S]) == b"PUB o.a 0\r\n\r\nPUB x 0\r\n\r\nPUB o.c 0\r\n\r\n"
    (event,) = run.firings
    assert (event.count, event.action) == (2, "drop")
    each = list(event.each())
    assert [(one.ordinal, one.m, one.subject, one.count) for one in each] == [
        (3, 2, "o.b", 1),
        (6, 4, "o.d", 1),
    ]
    assert list(each[0].each()) == [each[0]]


def test_frames_held_together_go_together_and_are_one_firing() -> None:
    run = RuleSession('[[rules]]\nname = "r"\nkind = "latency"\nop = "PUB"\ndelay = "1ms"\n', record=True)
    run.records.clear()
    three = b"PUB o.a 1\r\nx\r\n" * 3
    run.feed(C2S, three + b"SUB x 1\r\n" + three)
    run.feed(C2S, b"PING\r\n", 5)
    assert not run.sent[C2S]
    run.note(run.session.tick(1_000_000))
    assert bytes(run.sent[C2S]) == three + b"SUB x 1\r\n" + three + b"PING\r\n"
    (event,) = run.firings
    assert (event.count, event.m, event.ordinal, event.delay, event.also) == (6, 1, 2, 1_000_000, ())
    assert [record[-1] for record in run.records] == ["r", "r", "r", None, "r", "r", "r", None]


def test_a_cached_decision_ends_with_the_state_it_depends_on() -> None:
    run = RuleSession('[[rules]]\nname = "d"\nkind = "deny"\nsubject = "a.secret"\n')
    secret = b"MSG a.secret 1 0\r\n\r\n"
    run.feed(C2S, b"SUB a.x 1\r\n")
    run.feed(S2C, secret)
    assert bytes(run.sent[S2C]) == secret  # it was routed otherwise: nobody asked for it by a wider subject
    for more in (b"UNSUB 1\r\nSUB a.* 1\r\n", b"SUB a.* 1\r\n"):  # anew, and once more of a live sid
        run.sent[S2C].clear()
        run.feed(C2S, more)
        run.feed(S2C, secret + b"MSG a.open 1 0\r\n\r\n")
        assert bytes(run.sent[S2C]) == b"MSG a.open 1 0\r\n\r\n"


def test_a_limit_that_is_about_to_be_counts_what_comes_before_it() -> None:
    run = RuleSession('[[rules]]\nname = "d"\nkind = "drop"\nsubject = "o.b"\n')
    run.feed(C2S, b"SUB o.* 1\r\nUNSUB 1 2\r\n")
    run.feed(S2C, b"MSG o.a 1 0\r\n\r\n" * 2 + b"PONG\r\n" + b"MSG o.a 1 0\r\n\r\n")
    assert bytes(run.sent[S2C]) == b"MSG o.a 1 0\r\n\r\n" * 2
    assert not run.session.subs


def test_an_idle_connection_caches_few_decisions() -> None:
    run = RuleSession('[[rules]]\nname = "r"\nkind = "drop"\nop = "PUB"\nprobability = 0.5\n')
    many = [b"PUB o.%d 0\r\n\r\n" % n for n in range(3000)]
    known = run.session.rules._static._cache[C2S]  # type: ignore[attr-defined]
    run.feed(C2S, b"".join(many[:700]))
    assert len(known) > BASE_ENTRIES
    run.feed(C2S, b"".join(many))
    assert len(known) <= MAX_ENTRIES
    run.feed(C2S, b"".join(many[:700]))
    for _ in range(MAX_ENTRIES):
        run.feed(C2S, b"PUB x 0\r\n\r\nPUB " + b"y" * 1000 + b" 0\r\n\r\n")
    assert len(known) <= BASE_ENTRIES
    assert all(len(subject) < 1000 for _, subject, _ in known)
