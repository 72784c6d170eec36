"""Work limits: a call does as much as its limit lets it, later calls do the rest, with the same result."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from natsproxy.session.values import WorkLimit
from natsproxy.wire.ops import C2S, Direction
from tests.rules.engine.test_static_decisions import RULES, RuleSession, frames, rules_of

MS = 1_000_000


class SmallLimit(WorkLimit):
    """A limit that is reached after so many questions, or frames."""

    def __init__(self, asks: int, frames: int = 1 << 30) -> None:
        self.frames = frames
        self.left = asks

    def reached(self) -> bool:
        self.left -= 1
        return self.left <= 0


class InManyCalls(RuleSession):
    """The same, in calls of any length."""

    def __init__(self, text: str, *, record: bool, seed: int) -> None:
        self.random = random.Random(seed)
        super().__init__(text, record=record)

    def limit(self) -> SmallLimit:
        return SmallLimit(self.random.randint(0, 4), self.random.randint(1, 4))

    def feed(self, direction: Direction, data: bytes, now: int = 0) -> None:
        self.note(self.session.receive(direction, data, now, self.limit()))
        while self.session.pipes[direction].pending:
            self.note(self.session.receive(direction, b"", now, self.limit()))

    def tick(self, now: int) -> None:
        while (due := self.session.next_tick()) is not None and due <= now:
            self.note(self.session.tick(now, self.limit()))

    def close(self, now: int) -> None:
        self.note(self.session.closed(now, self.limit()))
        while any(pipe.unsent for pipe in self.session.pipes):
            self.note(self.session.closed(now, self.limit()))


@given(
    st.lists(st.sampled_from(sorted(RULES)), max_size=3, unique=True),
    st.lists(st.lists(frames(), max_size=12), max_size=5),
    st.integers(0, 1 << 32),
)
def test_many_calls_have_the_result_of_one(
    names: list[str], reads: list[list[tuple[Direction, bytes]]], seed: int
) -> None:
    text = rules_of(names) or "rules = []"
    once, often = RuleSession(text, record=True), InManyCalls(text, record=True, seed=seed)
    for now, read in enumerate(reads):
        for direction in Direction:
            data = b"".join(raw for side, raw in read if side == direction)
            if data:
                once.feed(direction, data, now * 6 * MS)
                often.feed(direction, data, now * 6 * MS)
            once.note(once.session.tick(now * 6 * MS))
            often.tick(now * 6 * MS)
    late = len(reads) * 6 * MS
    once.note(once.session.closed(late))
    often.close(late)

    assert often.sent == once.sent
    assert sorted(often.records, key=repr) == sorted(once.records, key=repr)
    assert sum(one.count for one in often.firings) == sum(one.count for one in once.firings)
    for direction in Direction:
        pipes = once.session.pipes[direction], often.session.pipes[direction]
        assert pipes[0].scanner.counts == pipes[1].scanner.counts
        assert pipes[0].in_bytes == pipes[1].in_bytes


PUBS = b"PUB a 1\r\nx\r\n" * 1000


def test_a_call_ends_between_frames_that_rules_look_at() -> None:
    """The rule is asked about as many frames as there is time for, and the rest keeps its order."""
    run = RuleSession('[[rules]]\nname = "r"\nkind = "corrupt"\nop = "PUB"\n')
    run.note(run.session.receive(C2S, PUBS, 0, SmallLimit(20)))
    assert (len(run.firings), run.session.pipes[C2S].pending) == (20, True)
    assert run.session.pipes[C2S].scanner.counts[0] == 20
    run.note(run.session.receive(C2S, b"", 0))
    assert (len(run.firings), run.session.pipes[C2S].pending) == (1000, False)
    assert [one.ordinal for one in run.firings] == list(range(2, 1002))


def test_a_call_deals_with_no_more_frames_than_its_limit_even_if_no_rule_wants_them() -> None:
    run = RuleSession("rules = []", record=True)
    run.note(run.session.receive(C2S, PUBS, 0, SmallLimit(99, frames=300)))
    assert (len(run.sent[C2S]), run.session.pipes[C2S].pending) == (300 * 12, True)
    run.note(run.session.receive(C2S, b"", 0))
    assert run.sent[C2S] == PUBS


def test_a_call_ends_between_frames_whose_time_has_come() -> None:
    """A thousand frames are due at once: they go out in several calls, in their order."""
    run = RuleSession('[[rules]]\nname = "r"\nkind = "latency"\ndelay = "10ms"\nop = "PUB"\n', fast=False)
    numbered = b"".join(b"PUB a 3\r\n%03d\r\n" % n for n in range(1000))
    run.feed(C2S, numbered)
    run.note(run.session.tick(10 * MS, SmallLimit(50)))
    assert 0 < len(run.sent[C2S]) <= 50 * 14
    due = run.session.next_tick()
    assert due is not None
    assert due <= 10 * MS
    run.note(run.session.tick(10 * MS))
    assert run.sent[C2S] == numbered


def test_the_end_of_a_connection_that_held_much_takes_several_calls() -> None:
    run = RuleSession(
        '[[rules]]\nname = "r"\nkind = "latency"\ndelay = "1h"\nop = "PUB"\n', record=True, fast=False
    )
    run.feed(C2S, PUBS)
    run.records.clear()
    run.note(run.session.closed(1, SmallLimit(100)))
    assert 0 < len(run.records) <= 100
    assert run.session.pipes[C2S].unsent
    run.note(run.session.closed(1))
    assert len(run.records) == 1000
    assert not run.session.pipes[C2S].unsent


def test_bytes_that_no_call_has_come_to_are_not_recorded_as_a_cut_frame() -> None:
    """The connection ends first: those bytes were read, and yet it is as if they had not been."""
    run = RuleSession("rules = []", record=True)
    before = run.session.pipes[C2S].in_bytes
    run.records.clear()
    run.note(run.session.receive(C2S, PUBS, 0, SmallLimit(99, frames=300)))
    run.causes.clear()
    run.note(run.session.closed(1))
    assert len(run.records) == 300
    assert run.causes == []
    assert run.session.pipes[C2S].in_bytes - before == 300 * 12
