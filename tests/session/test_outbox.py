"""Held items leave in the order that a slow and obvious queue would give it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from natsproxy.session.outbox import OVERHEAD, Item, Outbox


def item(name: int, due: int, *, overtake: bool = False, defer: int = 0) -> Item:
    return Item([b"%d" % name], due, 1, 1, None, None, overtake=overtake, defer=defer)


class ReferenceOutbox:
    """Looks at everything each time."""

    def __init__(self) -> None:
        self.queue: list[Item] = []
        self.aside: list[Item] = []

    def put(self, held: Item) -> None:
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
