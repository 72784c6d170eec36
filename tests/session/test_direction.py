"""One direction by itself: frames that pass, that change, that wait, and what is recorded of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproxy.capture.format.records import Frames
from natsproxy.rules.interface import Decision
from natsproxy.session.direction import DirectionPipe
from natsproxy.session.values import UNLIMITED_WORK
from natsproxy.wire.frames import Body
from natsproxy.wire.ops import C2S, S2C, Op
from tests.session.parts import Parts, frame, run

PUB = b"PUB a 2\r\nhi\r\n"
OTHER = b"PUB b 3\r\nhey\r\n"
PING = b"PING\r\n"


def replaced(parts: Parts, decision: Decision, raw: bytes = PUB, now: int = 0) -> None:
    """Let a decision be carried out in the place of a frame."""
    ordinal = parts.c2s.scanner.ordinal
    parts.c2s.replace(frame(parts.c2s, raw), ordinal, decision, now)


def row(record: Frames) -> tuple[object, ...]:
    """Return what says where a record's frames came and went."""
    return record.data, record.in_first, record.out_first, record.cause, (record.extra or {}).get("of")


def test_neighbours_are_sent_and_recorded_as_one() -> None:
    parts = Parts(record=True)
    data = PUB * 3
    parts.c2s.pass_(run(parts.c2s, data), 0, 0)
    assert parts.take() == 0
    parts.c2s.flush(5)
    assert parts.take() == 2  # a send and a record
    assert parts.sent() == data
    (record,) = parts.kept()
    assert (record.frames, record.in_first, record.out_first, record.in_t) == (3, 0, 0, 5)


def test_a_changed_frame_is_two_records_tied_by_its_ordinal() -> None:
    parts = Parts(record=True)
    replaced(parts, Decision((OTHER, OTHER), cause="r"))
    assert parts.sent() == OTHER * 2
    assert [*map(row, parts.kept())] == [
        (PUB, 0, None, "r", None),
        (OTHER, None, 0, "r", 0),
        (OTHER, None, 1, "r", 0),
    ]


@pytest.mark.parametrize("record", [False, True])
def test_a_changed_frame_keeps_its_place_among_those_that_pass(record: bool) -> None:
    parts = Parts(record=record)
    parts.c2s.pass_(run(parts.c2s, PUB), 0, 0)
    replaced(parts, Decision((OTHER,), cause="r"))
    parts.c2s.pass_(run(parts.c2s, PUB), 2, 0)
    assert parts.sent() == PUB + OTHER + PUB
    assert parts.c2s.out_next == 3


def test_a_frame_waits_for_its_time_and_those_behind_it_wait_too() -> None:
    parts = Parts(record=True)
    replaced(parts, Decision(until=10, cause="late"))
    parts.c2s.pass_(frame(parts.c2s, OTHER), 1, 0)
    assert (parts.sent(), parts.kept()) == (b"", [])
    assert parts.release(9) == b""
    assert parts.release(10) == PUB + OTHER
    assert [*map(row, parts.kept())] == [(PUB, 0, 0, "late", None), (OTHER, 1, 1, None, None)]


def test_a_frame_that_may_be_overtaken_is() -> None:
    parts = Parts()
    replaced(parts, Decision(until=10, overtake=True, cause="r"))
    replaced(parts, Decision(until=5, cause="r"), OTHER)
    assert (parts.release(5), parts.release(10)) == (OTHER, PUB)


def test_a_frame_goes_behind_as_many_as_it_is_to_let_pass() -> None:
    parts = Parts()
    replaced(parts, Decision(until=100, defer=2, cause="r"))
    for _ in range(3):
        replaced(parts, Decision(until=1, cause="r"), OTHER)
    assert parts.release(1) == OTHER * 2 + PUB + OTHER


def test_a_ping_keeps_its_place_whatever_rules_say() -> None:
    """Its PONG does not say to which PING it belongs."""
    parts = Parts()
    replaced(parts, Decision(until=5, overtake=True, defer=3, cause="r"), PING)
    replaced(parts, Decision(until=1, cause="r"), OTHER)
    assert parts.release(1) == b""
    assert parts.release(5) == PING + OTHER


@pytest.mark.parametrize("until", [None, 5])
def test_a_frame_whose_payload_is_still_coming_is_recorded_at_its_end(until: int | None) -> None:
    parts = Parts(record=True)
    head, rest = b"PUB b 100000\r\n", b"x" * 100_000 + b"\r\n"
    whole = b"PUB a 100000\r\n"
    replaced(parts, Decision((head,), until=until, cause="r"), whole)
    assert parts.sent() == (head if until is None else b"")
    parts.c2s.body(Body(rest[:7], 0, 7, False), 1)
    assert parts.kept() == []
    parts.c2s.body(Body(rest[7:], 0, len(rest) - 7, True), 2)
    out = parts.release(5) if until else parts.sent()
    assert out == (head + rest if until else rest)
    came, went = parts.kept()
    assert row(came) == (whole + rest, 0, None, "r", None)
    assert row(went) == (head + rest, None, 0, "r", 0)


def test_frames_of_ours_wait_for_the_end_of_a_frame_that_is_half_sent() -> None:
    parts = Parts(boundary_timeout=30)
    parts.c2s.pass_(frame(parts.c2s, b"PUB a 100000\r\n"), 0, 0)
    parts.c2s.inject(PING, Op.PING.bit, 4, "proxy")
    assert (parts.c2s.mid_frame, parts.c2s.boundary_by) == (True, 34)
    assert parts.sent() == b"PUB a 100000\r\n"
    rest = b"x" * 100_000 + b"\r\n"
    parts.c2s.body(Body(rest, 0, len(rest), True), 5)
    assert parts.sent() == rest + PING
    assert (parts.c2s.mid_frame, parts.c2s.boundary_by) == (False, None)


def test_a_dropped_frame_may_be_interrupted() -> None:
    """None of it goes out."""
    parts = Parts()
    parts.c2s.drop(frame(parts.c2s, b"PUB a 100000\r\n"), 0, 0, "r")
    parts.c2s.inject(PING, Op.PING.bit, 0, "proxy")
    assert parts.sent() == PING


def test_frames_that_a_lost_connection_held_are_recorded_as_unsent() -> None:
    parts = Parts(record=True)
    replaced(parts, Decision(until=10, cause="late"))
    parts.c2s.pass_(frame(parts.c2s, OTHER), 1, 0)
    parts.sent()
    parts.c2s.abandon(20, UNLIMITED_WORK)
    assert [*map(row, parts.kept())] == [(PUB, 0, None, "late", None), (OTHER, 1, None, "unsent", None)]


def test_the_two_directions_are_alike() -> None:
    parts = Parts()
    parts.s2c.inject(PING, Op.PING.bit, 0, "rule")
    assert (parts.sent(C2S), parts.sent(S2C)) == (b"", PING)


STEPS = st.lists(
    st.sampled_from(["pass", "run", "change", "late", "drop", "inject", "flush", "release", "open", "end"]),
    max_size=30,
)


def step(pipe: DirectionPipe, name: str, now: int) -> int:
    """Do something with a pipe; return how many frames that are to go it has got."""
    ordinal = pipe.scanner.ordinal
    if name == "inject":
        pipe.inject(PING, Op.PING.bit, now, "proxy")
        return 1
    if name == "flush":
        pipe.flush(now)
    elif name == "release":
        pipe.sender.release(now, UNLIMITED_WORK)
    elif name == "end" and pipe.open is not None:
        pipe.scanner.feed(b"\r\n")
        body = pipe.scanner.next()
        assert isinstance(body, Body)
        pipe.body(body, now)
    elif pipe.open is not None or name == "end":
        return 0
    elif name == "run":
        pipe.pass_(run(pipe, PUB * 2), ordinal, now)
        return 2
    elif name == "drop":
        pipe.drop(frame(pipe, PUB), ordinal, now, "r")
    elif name == "pass":
        pipe.pass_(frame(pipe, PUB), ordinal, now)
        return 1
    elif name == "open":
        pipe.pass_(frame(pipe, b"PUB a 0\r\n"), ordinal, now)  # its terminator is still to come
        return 1
    else:
        until = now + 3 if name == "late" else None
        pipe.replace(frame(pipe, PUB), ordinal, Decision((OTHER, OTHER), until=until, cause="r"), now)
        return 2
    return 0


@given(STEPS, st.booleans())
def test_the_position_counts_what_goes_to_the_receiver(steps: list[str], record: bool) -> None:
    """Gathered, sent, held or kept back: fences rely on it."""
    parts = Parts(record=record)
    expected = 0
    for now, name in enumerate(steps):
        expected += step(parts.c2s, name, now)
        assert parts.c2s.position == expected
