"""The deadlines of many connections in one task."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from natsproxy.net.clock import now_ns
from natsproxy.net.deadlines import NEVER, Deadlines

MS = 1_000_000


class Timed:
    """A connection that notes its calls.

    work: ticks that it still needs once it is due.  lasts: the time of a tick (ns).
    """

    def __init__(self, conn: int, rig: Rig) -> None:
        self.conn, self.rig = conn, rig
        self.due = NEVER
        self.work, self.lasts = 1, 0

    def at(self, due: int) -> None:
        """Ask for a call, as a relay does."""
        if due < self.due:
            self.due = due
            self.rig.deadlines.add(due, self.conn)

    def tick(self) -> None:
        """Note the call, and ask for another one while there is work."""
        self.rig.calls.append((self.conn, now_ns() // MS))
        until = time.perf_counter_ns() + self.lasts
        while time.perf_counter_ns() < until:
            continue
        self.work -= 1
        if self.work:
            self.at(now_ns())


class Rig:
    """Connections with deadlines, and their calls as pairs of a number and a time (ms)."""

    def __init__(self, *numbers: int) -> None:
        self.calls: list[tuple[int, int]] = []
        self.timed: dict[int, Timed] = {}
        self.deadlines = Deadlines(self.timed)
        for number in numbers:
            self.timed[number] = Timed(number, self)


@asynccontextmanager
async def running(rig: Rig) -> AsyncIterator[Callable[[int], int]]:
    """Call the connections of a rig; gives a function from ms from now to the time (ns)."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.deadlines.run)
        await wait_all_tasks_blocked()
        yield lambda ms: now_ns() + ms * MS
        nursery.cancel_scope.cancel()


async def test_calls_come_in_the_order_of_their_times(autojump_clock: MockClock) -> None:
    rig = Rig(1, 2, 3)
    async with running(rig) as after:
        for number, ms in ((1, 30), (2, 10), (3, 20)):
            rig.timed[number].at(after(ms))
        await trio.sleep(0.1)
    assert rig.calls == [(2, 10), (3, 20), (1, 30)]


async def test_an_earlier_deadline_takes_the_place_of_a_later_one(autojump_clock: MockClock) -> None:
    rig = Rig(1)
    async with running(rig) as after:
        rig.timed[1].at(after(50))
        await wait_all_tasks_blocked()
        rig.timed[1].at(after(10))
        await trio.sleep(0.1)
    assert rig.calls == [(1, 10)]


async def test_a_connection_that_is_gone_is_not_called(autojump_clock: MockClock) -> None:
    rig = Rig(1, 2)
    async with running(rig) as after:
        rig.timed[1].at(after(10))
        rig.timed[2].at(after(20))
        del rig.timed[1]
        await trio.sleep(0.1)
    assert rig.calls == [(2, 20)]


async def test_work_of_many_slices_does_not_hold_up_the_others(autojump_clock: MockClock) -> None:
    rig = Rig(1, 2)
    rig.timed[1].work = 100
    async with running(rig) as after:
        rig.timed[1].at(after(10))
        rig.timed[2].at(after(10))
        await trio.sleep(0.1)
    assert rig.calls[:2] == [(1, 10), (2, 10)]
    assert len(rig.calls) == 101


async def test_deadlines_that_are_out_of_date_take_no_memory() -> None:
    """Each connection comes with a deadline far ahead, and leaves."""
    rig = Rig()
    most = 0
    for number in range(20_000):
        timed = rig.timed[number] = Timed(number, rig)
        timed.at(now_ns() + 60_000 * MS)
        del rig.timed[number]
        most = max(most, len(rig.deadlines))
    assert most < 2_000


async def test_many_deadlines_at_once_give_other_tasks_their_turn() -> None:
    """Each call takes a tenth of a millisecond: hundreds of them are longer than a time slice."""
    rig, turns = Rig(*range(300)), list[int]()
    async with running(rig) as after:
        for timed in rig.timed.values():
            timed.lasts = MS // 10
            timed.at(after(0))
        while len(rig.calls) < 300:
            await trio.lowlevel.checkpoint()
            turns.append(len(rig.calls))
    assert max(later - before for before, later in pairwise(turns)) < 100


async def test_deadlines_that_are_out_of_date_end_no_wait(autojump_clock: MockClock) -> None:
    """Clients that have left are let go with the first one that is due, and not each at its own deadline."""
    rig = Rig(*range(100))
    async with running(rig) as after:
        for number, timed in rig.timed.items():
            timed.at(after(10 + number))
        for number in range(1, 99):
            del rig.timed[number]
        await trio.sleep(0.015)
        assert rig.calls == [(0, 10)]
        assert len(rig.deadlines) == 1
        await trio.sleep(0.1)
    assert rig.calls == [(0, 10), (99, 109)]
