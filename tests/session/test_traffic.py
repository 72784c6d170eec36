"""Traffic adds up: what the counters say of both legs is what went over them, whatever rules do between."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from natsproxy.capture.format.records import Frames
from natsproxy.session.direction import UNSENT
from natsproxy.session.values import POINTS, WIDTH, Action, Record, Send, Traffic
from natsproxy.wire.ops import C2S, S2C, Direction, Op
from natsproxy.wire.parse import frames as parse_frames
from tests.rules.engine.test_static_decisions import INFO, RULES, RuleSession, frames

MS = 1_000_000
MORE = {
    "duplicate": 'op = ["PUB", "MSG"]\ncopies = 2',
    "reorder": 'subject = "x"\nby = 2\nwithin = "20ms"',
    "truncate": 'subject = "o.>"\nkeep = 0',
    "headers gone": 'remove = ["A", "Nats-Subject", "Nats-Trace-Dest"]',
    "swallow": 'subject = "o.a"',
    "answer": 'subject = "x"\nstatus_code = 503',
    "error": 'subject = "s.>"\ntext = "Invalid Subject"',
    "close": 'subject = "s.a.b"\nevery = 3',
    "bandwidth": 'rate = "20kB"',
    "slice": 'size = 3\ndelay = "1ms"',
}
ALL = RULES | MORE


def rules_of(names: list[str]) -> str:
    return "".join(f'[[rules]]\nname = "{name}"\nkind = "{name.split()[0]}"\n{ALL[name]}\n' for name in names)


class Counted(RuleSession):
    """A session with the frames that came and went by the records, from its greeting on."""

    def __init__(self, text: str, *, record: bool) -> None:
        self.stayed: list[Counter[Op]] = [Counter(), Counter()]
        self.came_late: list[Counter[Op]] = [Counter(), Counter()]
        self.stops: Counter[str | None] = Counter()
        self.fed, self.went = (bytearray(), bytearray()), (bytearray(), bytearray())
        super().__init__(text, record=record)

    def feed(self, direction: Direction, data: bytes, now: int = 0) -> None:
        self.fed[direction].extend(data)
        super().feed(direction, data, now)

    def note(self, actions: list[Action]) -> None:
        super().note(actions)
        for action in actions:
            if isinstance(action, Send):
                self.went[action.direction].extend(action.data)
            if isinstance(action, Record) and isinstance(action.item, Frames) and not action.item.flags:
                self._add(action.item)

    def _add(self, item: Frames) -> None:
        ops = Counter(frame.op for frame in parse_frames(bytes(item.data), item.direction))
        if item.in_first is not None and item.out_first is None:
            self.stayed[item.direction] += ops
            self.stops[item.cause] += item.frames
        elif item.in_first is None:
            self.came_late[item.direction] += ops

    def frames(self, point: int) -> Counter[Op]:
        numbers = self.session.traffic().frames(point)
        return +Counter({op: numbers[op] for op in Op})

    def bytes(self, point: int) -> int:
        return self.session.traffic().bytes(point)

    def finish(self, now: int) -> None:
        """Let everything out that waits, for a while, then end the connection."""
        for _ in range(2_000):
            due = self.session.next_tick()
            if due is None:
                break
            now = max(now, due)
            self.note(self.session.tick(now))
        self.note(self.session.closed(now))


def check(running: Counted, *, record: bool) -> None:
    for point, (direction, leg) in enumerate(POINTS):
        inward = leg == ("client" if direction == C2S else "server")
        data = bytes((running.fed if inward else running.went)[direction])
        assert running.bytes(point) <= len(data)
        if inward and running.session.over:  # it does not read to the end
            continue
        assert running.bytes(point) == len(data)
        # A slow link takes whole frames; what it still had when the connection ended is lost on the way.
        on_link = b"" if inward else b"".join(running.session.pipes[direction].sender.outbox._carry)
        assert running.frames(point) == Counter(frame.op for frame in parse_frames(data + on_link, direction))
    for direction, (came, went) in zip(Direction, ((0, 1), (2, 3)), strict=True):
        assert running.session.pipes[direction].out_next == running.frames(went).total()
        if record:
            expected = Counter(running.stayed[direction])
            expected.subtract(running.came_late[direction])
            expected.subtract(running.frames(came))
            expected.update(running.frames(went))
            # Bytes of a connection that has ended are recorded, though nobody has looked at them.
            assert min(expected.values(), default=0) >= 0
            assert expected.total() <= (running.stops[UNSENT] if running.session.over else 0)


# A frame with which a link condition begins, and which another rule drops, is that rule's.
@example(["swallow", "drop"], [[(C2S, b"PUB o.a 0\r\n\r\n")]], True)
@given(
    st.lists(st.sampled_from(sorted(ALL)), max_size=3, unique=True),
    st.lists(st.lists(frames(), max_size=8), max_size=5),
    st.booleans(),
)
@settings(max_examples=100)
def test_counters_are_what_went_over_both_legs(
    names: list[str], reads: list[list[tuple[Direction, bytes]]], record: bool
) -> None:
    running = Counted(rules_of(names) or "rules = []", record=record)
    for number, read in enumerate(reads):
        for direction in Direction:
            data = b"".join(raw for way, raw in read if way == direction)
            if data and not running.session.over:
                running.feed(direction, data, number * 6 * MS)
            running.note(running.session.tick(number * 6 * MS))
    running.finish(len(reads) * 6 * MS)
    check(running, record=record)
    if record:
        drops = Counter[str]()
        for one in running.firings:
            drops[one.rule] += one.count if one.action == "drop" else 0
        for name in names:
            assert running.stops[name] >= drops[name]
            assert name.split()[0] != "drop" or running.stops[name] == drops[name]


@pytest.mark.parametrize("record", [False, True])
def test_a_message_that_gets_headers_is_counted_as_what_it_became(record: bool) -> None:
    running = Counted(rules_of(["headers"]), record=record)
    running.feed(C2S, b"PUB x 1\r\na\r\nPUB o.a 1\r\na\r\n")
    assert (running.frames(0)[Op.PUB], running.frames(0)[Op.HPUB]) == (2, 0)
    assert (running.frames(1)[Op.PUB], running.frames(1)[Op.HPUB]) == (1, 1)


def test_a_frame_that_waits_is_not_counted_as_sent() -> None:
    running = Counted(rules_of(["latency"]), record=False)
    running.feed(C2S, b"PUB x 1\r\na\r\nHPUB o.a 12 12\r\nNATS/1.0\r\n\r\n\r\nPING\r\n")
    greeting = {Op.CONNECT: 1, Op.PING: 1}
    assert running.frames(1) == greeting
    running.note(running.session.tick(10 * MS))
    assert running.frames(1) == {**greeting, Op.PUB: 1, Op.HPUB: 1, Op.PING: 2}
    assert running.bytes(1) == running.bytes(0)


def test_a_frame_in_pieces_is_counted_once() -> None:
    running = Counted("rules = []", record=False)
    for piece in (b"MSG x 1 200000\r\n", bytes(100_000), bytes(100_000), b"\r\n"):
        running.feed(S2C, piece)
    assert running.frames(2) == running.frames(3) == {Op.INFO: 1, Op.PONG: 1, Op.MSG: 1}
    assert running.bytes(2) == running.bytes(3) == len(INFO) + len(b"PONG\r\n") + 200_018


def test_numbers_add_up() -> None:
    total, one = Traffic(), Traffic(list(range(4 * WIDTH)))
    total.add(one)
    copy = total.copy()
    total.add(one)
    assert copy.numbers == one.numbers
    assert total.bytes(0) == 2 * one.bytes(0) == 2 * len(Op)
    assert total.messages(0) == 2 * (Op.PUB + Op.HPUB)
    assert one.messages(3) == one.frames(3)[Op.MSG] + one.frames(3)[Op.HMSG]
