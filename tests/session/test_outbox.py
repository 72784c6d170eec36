"""Held items leave in the order that a slow and obvious queue would give it."""

from __future__ import annotations

import gc
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproxy.rules.interface import LinkConditions
from natsproxy.session.outbox import OVERHEAD, Origin, Outbox, Outgoing


def item(name: int, due: int, *, overtake: bool = False, defer: int = 0) -> Outgoing:
    return Outgoing([b"%d" % name], 1, 1, Origin(), due, overtake, defer)


class ReferenceOutbox:
    """Looks at everything each time."""

    def __init__(self) -> None:
        self.queue: list[Outgoing] = []
        self.aside: list[Outgoing] = []

    def put(self, held: Outgoing) -> None:
        (self.aside if held.overtake or held.defer else self.queue).append(held)

    def due_aside(self, now: int) -> list[bytes]:
        ready = sorted((held for held in self.aside if held.due <= now), key=lambda held: held.due)
        self.aside = [held for held in self.aside if held not in ready]
        return [held.parts[0] for held in ready]

    def release(self, now: int) -> list[bytes]:
        found = self.due_aside(now)
        while self.queue and self.queue[0].due <= now:
            found.append(self.queue.pop(0).parts[0])
            for held in self.aside:
                held.defer -= 1
                held.due = 0 if held.defer == 0 else held.due
            found += self.due_aside(now)
        return found


STEPS = st.lists(
    st.tuples(st.just("put"), st.integers(1, 9), st.booleans(), st.integers(0, 3))
    | st.tuples(st.just("at"), st.integers(0, 3), st.just(False), st.just(0)),
    max_size=40,
)


@given(STEPS)
def test_held_frames_leave_as_of_a_slow_and_obvious_queue(steps: list[tuple[str, int, bool, int]]) -> None:
    box, obvious, now = Outbox(), ReferenceOutbox(), 0
    for name, (step, number, overtake, defer) in enumerate([*steps, ("at", 99, False, 0)]):
        if step == "put":
            box.put(item(name, now + number, overtake=overtake, defer=defer))
            obvious.put(item(name, now + number, overtake=overtake, defer=defer))
            continue
        now += number
        assert [held.parts[0] for held in box.release(now)] == obvious.release(now)
        dues = [held.due for held in obvious.aside] + [held.due for held in obvious.queue[:1]]
        assert box.next_due() == min(dues, default=None)
    assert (box.bytes, box.active, box.left()) == (0, False, [])


def test_items_that_are_left_are_returned_once() -> None:
    box = Outbox()
    for name, defer in enumerate((0, 1, 2)):
        box.put(item(name, 5, defer=defer))
    assert [held.parts for held in box.left()] == [[b"0"], [b"1"], [b"2"]]


def test_small_frames_are_not_held_for_the_price_of_their_bytes() -> None:
    box = Outbox()
    for name in range(10):
        box.put(item(name, 5))
    assert box.bytes == 10 * (1 + OVERHEAD)


def items_in_memory() -> int:
    gc.collect()
    return sum(type(found) is Outgoing for found in gc.get_objects())


@pytest.mark.parametrize("by_time", [True, False])
def test_items_that_went_are_forgotten_although_others_wait(by_time: bool) -> None:
    """Each waits for a time and for a count of frames, and leaves by one of them."""
    box, before = Outbox(), items_in_memory()
    box.put(item(0, 500_000, defer=10_000))
    for now in range(3_000):
        box.put(item(now, now if by_time else 1_000_000, defer=9_000 if by_time else 1))
        if not by_time:
            box.put(item(now, now))
        assert list(box.release(now))
    assert items_in_memory() - before < 300


def test_a_payload_in_tiny_pieces_is_held_for_the_price_of_its_bytes() -> None:
    box, held = Outbox(), item(1, 5)
    held.open = True
    box.put(held)
    for last in [False] * 20_000 + [True]:
        box.grow(held, b"xy", last=last)
    assert sum(map(sys.getsizeof, held.parts)) < 1.1 * 40_003
    assert b"".join(next(box.release(5)).parts) == b"1" + b"xy" * 20_001


def test_released_pieces_of_a_slow_link_are_not_held_for_the_price_of_their_bytes() -> None:
    box = Outbox()
    box.conditions = LinkConditions(slice_size=2, slice_delay=1)
    for _ in range(10):
        box.carry(b"xyz")
    assert box.bytes == 10 * (3 + OVERHEAD)
    assert [bytes(piece) for piece in box.slices(1_000_000_000)][:3] == [b"xy", b"z", b"xy"]
    for now in range(1_000_000_001, 1_000_000_100):
        list(box.slices(now))
    assert (box.bytes, box.active) == (0, True)


@given(
    st.lists(st.tuples(st.integers(1, 9), st.booleans(), st.integers(0, 3)), max_size=20), st.integers(1, 9)
)
def test_what_is_made_due_leaves_at_once(puts: list[tuple[int, bool, int]], now: int) -> None:
    """What may be overtaken leaves in its own order, and so does the rest."""
    box = Outbox()
    for name, (due, overtake, defer) in enumerate(puts):
        box.put(item(name, due, overtake=overtake, defer=defer))
    box.make_due(now)
    left = [int(held.parts[0]) for held in box.release(now)]
    assert sorted(left) == list(range(len(puts)))
    queued = [name for name, (_, overtake, defer) in enumerate(puts) if not (overtake or defer)]
    assert [name for name in left if name in queued] == queued
    assert box.next_due() is None
    assert (box.bytes, box.frames) == (0, 0)
