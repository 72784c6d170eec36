"""Fences: an answer of ours goes out where the server has answered all that came before."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from natsproxy import close_reasons
from natsproxy.rules.interface import Decision, LinkConditions
from natsproxy.session.fences import Fences
from natsproxy.session.values import End
from natsproxy.wire.ops import C2S, S2C, Op
from tests.session.parts import Parts, frame, run

PING = b"PING\r\n"
PUB = b"PUB a 2\r\nhi\r\n"


def pong(parts: Parts, now: int = 0) -> bytes:
    """Let a PONG of a fence come; return what the client gets."""
    fence = parts.fences.pong()
    assert fence is not None
    parts.fences.pass_(fence, now)
    return parts.sent(S2C)


def test_neighbours_share_one_fence() -> None:
    parts = Parts()
    parts.fences.answer(b"-ERR 'a'\r\n", 0)
    parts.fences.answer(b"-ERR 'b'\r\n", 0)
    assert parts.sent() == PING
    assert parts.sent(S2C) == b""
    assert pong(parts) == b"-ERR 'a'\r\n-ERR 'b'\r\n"
    assert parts.c2s.owed == 0


def passes(parts: Parts) -> None:
    """Let a frame that nobody wants pass: it is gathered, and not sent yet."""
    parts.c2s.pass_(run(parts.c2s, PUB), 0, 0)


def is_changed(parts: Parts) -> None:
    """Let another frame go in the place of one."""
    parts.c2s.replace(frame(parts.c2s, PUB), 0, Decision((b"PUB b 2\r\nhi\r\n",), cause="r"), 0)


def is_late(parts: Parts) -> None:
    """Let a frame wait for its time."""
    parts.c2s.replace(frame(parts.c2s, PUB), 0, Decision(until=1, cause="r"), 0)


def is_late_run(parts: Parts) -> None:
    """Let neighbours wait for their time."""
    parts.c2s.hold(run(parts.c2s, PUB), 0, 0, 1, "r")


def is_open(parts: Parts) -> None:
    """Let a frame begin, and end."""
    parts.c2s.pass_(frame(parts.c2s, b"PUB a 100000\r\n"), 0, 0)
    parts.c2s.open = None


def is_ours(parts: Parts) -> None:
    """Let a frame of ours go out."""
    parts.c2s.inject(b"UNSUB 1\r\n", Op.UNSUB.bit, 0, "proxy")


def goes_past(parts: Parts) -> None:
    """Let a plane pass a frame by itself."""
    parts.c2s.sender.out_next += 1


@pytest.mark.parametrize(
    "goes_out",
    [passes, is_changed, is_late, is_late_run, is_open, is_ours, goes_past],
)
@pytest.mark.parametrize("record", [False, True])
def test_behind_anything_that_goes_to_the_server_there_is_another_fence(
    goes_out: Callable[[Parts], None], record: bool
) -> None:
    parts = Parts(record=record)
    first = parts.fences.fence(0)
    goes_out(parts)
    assert parts.fences.fence(0) is not first


def test_inside_a_frame_frames_of_ours_part_fences_too() -> None:
    """All of them wait for its end, and go out in their order."""
    parts = Parts()
    parts.c2s.pass_(frame(parts.c2s, b"PUB a 100000\r\n"), 0, 0)
    first = parts.fences.fence(0)
    assert parts.fences.fence(0) is first
    parts.c2s.inject(b"UNSUB 1\r\n", Op.UNSUB.bit, 0, "proxy")
    assert parts.fences.fence(0) is not first


def is_dropped(parts: Parts) -> None:
    """Let a frame go no further."""
    parts.c2s.drop(frame(parts.c2s, PUB), 0, 0, "r")


def is_lost(parts: Parts) -> None:
    """Let a run go no further."""
    parts.c2s.lose(run(parts.c2s, PUB), 0, 0)


def is_for_the_client(parts: Parts) -> None:
    """Send the client something."""
    parts.s2c.inject(b"+OK\r\n", Op.OK.bit, 0, "rule")


def leaves_the_outbox(parts: Parts) -> None:
    """Let a frame that waited in front of the fence leave, and the fence behind it."""
    parts.release(1)


@pytest.mark.parametrize("stays", [is_dropped, is_lost, is_for_the_client, leaves_the_outbox])
def test_a_fence_serves_as_long_as_nothing_goes_to_the_server(stays: Callable[[Parts], None]) -> None:
    parts = Parts()
    is_late(parts)
    first = parts.fences.fence(0)
    stays(parts)
    assert parts.fences.fence(0) is first


def test_a_fence_that_has_passed_serves_nobody() -> None:
    parts = Parts()
    parts.fences.answer(b"+OK\r\n", 0)
    pong(parts)
    parts.fences.answer(b"+OK\r\n", 0)
    assert parts.sent() == PING * 2


def test_a_fence_of_its_own_is_shared_on_neither_side() -> None:
    parts, done = Parts(), list[str]()
    parts.fences.then(lambda now: done.append("before"), 0)
    parts.fences.then_alone(lambda now: done.append("alone"), 0)
    parts.fences.then(lambda now: done.append("behind"), 0)
    assert parts.sent() == PING * 3
    for count in (1, 2, 3):
        pong(parts)
        assert done == ["before", "alone", "behind"][:count]


def test_pongs_have_the_owners_of_the_pings_in_their_order() -> None:
    parts = Parts()
    parts.fences.client_ping()
    first = parts.fences.fence(0)
    passes(parts)
    parts.fences.client_ping()
    second = parts.fences.fence(0)
    assert [parts.fences.pong() for _ in range(5)] == [None, first, None, second, None]


def test_the_connection_ends_behind_the_last_answer() -> None:
    parts = Parts()
    parts.fences.answer(b"-ERR 'a'\r\n", 0)
    parts.fences.end_here(b"-ERR 'b'\r\n", close_reasons.CLIENT_PROTOCOL, "why", 0)
    assert pong(parts) == b"-ERR 'a'\r\n-ERR 'b'\r\n"
    assert parts.end == End(close_reasons.CLIENT_PROTOCOL, "why")


def test_a_client_that_has_not_shown_who_it_is_ends_without_a_fence() -> None:
    parts = Parts()
    parts.session.lifecycle.shut = True
    parts.fences.end_here(b"-ERR 'a'\r\n", close_reasons.UNAUTHORIZED, "why", 0)
    assert (parts.sent(), parts.sent(S2C)) == (b"", b"-ERR 'a'\r\n")
    assert parts.end == End(close_reasons.UNAUTHORIZED, "why")


def test_an_end_waits_for_its_pong_no_longer_than_the_timeout() -> None:
    parts = Parts(fence_timeout=10)
    parts.fences.answer(b"+OK\r\n", 0)
    assert parts.fences.deadlines() == []  # it has time
    parts.fences.end_here(b"-ERR 'a'\r\n", close_reasons.CLIENT_PROTOCOL, "why", 5)
    assert parts.fences.deadlines() == [10]
    parts.fences.pass_overdue(9)
    assert (parts.sent(S2C), parts.end) == (b"", None)
    parts.fences.pass_overdue(10)
    assert parts.sent(S2C) == b"+OK\r\n-ERR 'a'\r\n"
    assert parts.end is not None
    assert pong(parts) == b""  # its own PONG comes late


def answered_suspended(fences: Fences) -> int:
    """Answer a suspended client twice; return the deadline of that."""
    fences.answer_suspended(b"PONG\r\n", 0)
    fences.answer_suspended(b"+OK\r\n", 1)
    (deadline,) = fences.deadlines()
    return deadline


@pytest.mark.parametrize("blocked", [False, True], ids=["the server reads", "the server takes nothing"])
def test_a_suspended_client_is_answered_without_the_server(blocked: bool) -> None:
    parts = Parts()
    parts.c2s.outbox.blocked = blocked
    deadline = answered_suspended(parts.fences)
    assert parts.sent() == (b"" if blocked else PING)
    parts.fences.pass_overdue(deadline - 1)
    assert parts.sent(S2C) == b""
    parts.fences.pass_overdue(deadline)
    assert parts.sent(S2C) == b"PONG\r\n+OK\r\n"
    assert parts.fences.deadlines() == []
    assert parts.c2s.owed == 0


def test_answers_that_are_overdue_at_once_keep_their_order() -> None:
    """Though the first got its deadline last, from a drain."""
    parts = Parts()
    fence = parts.fences.answer(b"-ERR 'a'\r\n", 0)
    parts.c2s.outbox.blocked = True
    parts.fences.answer_suspended(b"PONG\r\n", 0)
    parts.fences.end_at(fence, close_reasons.DRAINED, "why")
    fence.drains = True
    parts.fences.pass_overdue(max(parts.fences.deadlines()))
    assert parts.sent(S2C) == b"-ERR 'a'\r\nPONG\r\n"


def test_many_fences_of_a_suspended_client_take_no_longer_each() -> None:
    """A client makes one of each PING behind another frame, as many as it likes until they are overdue."""

    def seconds(count: int) -> float:
        parts = Parts()
        begun = time.process_time()
        for _ in range(count):
            parts.fences.answer_suspended(b"PONG\r\n", 0)
            passes(parts)
        parts.fences.pass_overdue(max(parts.fences.deadlines()))
        return time.process_time() - begun

    assert min(seconds(16_000) for _ in range(2)) < 16 * max(seconds(2_000) for _ in range(3))


def test_other_work_does_not_go_by_with_a_suspended_client() -> None:
    parts = Parts()
    parts.fences.answer_suspended(b"PONG\r\n", 0)
    parts.fences.answer(b"-ERR 'a'\r\n", 0)
    assert parts.sent() == PING * 2


def test_a_fence_waits_as_the_frames_before_it_do() -> None:
    parts = Parts()
    parts.c2s.outbox.conditions = LinkConditions(delay=7)
    parts.fences.answer(b"+OK\r\n", 0)
    parts.fences.answer(b"+OK\r\n", 0)
    assert parts.sent(C2S) == b""
    assert parts.release(7) == PING
