"""The deadlines of all connections: one task waits for the earliest and calls its connection.

A task for each, with a scope, would cost a new connection a tenth of its time.  The calls are made in rounds:
a connection with more work than a time slice has goes behind those that are due as well.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final, Protocol

import trio

from natsproxy.net.clock import now_ns
from natsproxy.net.timeslice import LENGTH

NEVER: Final = 1 << 63
"""A time (ns) that never comes."""
EARLY: Final = 1_000
"""The time (ns) by which trio may wake a task too early: its clock is a float."""
_SPARE: Final = 1_000  # entries that are out of date, beside as many as there are connections


class HasDeadline(Protocol):
    """A connection with deadlines.  due: the next one (ns), which its entry in `Deadlines` must name."""

    due: int

    def tick(self) -> None:
        """Do the work that is due, for a time slice at most."""
        ...


class Deadlines:
    """Calls connections at their deadlines.

    timed: the connections by their numbers; one that was taken out is not called any more.
    """

    def __init__(self, timed: Mapping[int, HasDeadline]) -> None:
        self._timed = timed
        # Pairs of a time and a number.  An entry is out of date once its connection has another `due`.
        self._entries: list[tuple[int, int]] = []
        self._earlier = trio.Event()

    def __len__(self) -> int:
        """Return the number of entries, those out of date included."""
        return len(self._entries)

    def add(self, due: int, conn: int) -> None:
        """Call a connection at a time (ns), which must be its `due`."""
        entries = self._entries
        if not entries or due < entries[0][0]:
            self._earlier.set()
        heappush(entries, (due, conn))
        if len(entries) > 2 * len(self._timed) + _SPARE:
            entries[:] = [entry for entry in entries if self._current(*entry) is not None]
            heapify(entries)

    def _current(self, due: int, conn: int) -> HasDeadline | None:
        timed = self._timed.get(conn)
        return timed if timed is not None and timed.due == due else None

    async def run(self) -> None:
        """Call connections until cancelled."""
        while True:
            self._earlier = trio.Event()
            with trio.move_on_at(self._entries[0][0] / 1e9 if self._entries else inf):
                await self._earlier.wait()
            await self._call(self._take_due())

    async def _call(self, due: list[HasDeadline]) -> None:
        # Not a part of `run`: its variables would keep the last connection until the next deadline.
        begun = time.perf_counter_ns()
        for timed in due:
            timed.tick()
            if time.perf_counter_ns() - begun >= LENGTH:  # of one that has much to do, or of many
                await trio.lowlevel.checkpoint()
                begun = time.perf_counter_ns()

    def _take_due(self) -> list[HasDeadline]:
        """Take out the connections that are due, each once."""
        entries, until = self._entries, now_ns() + EARLY
        found: list[HasDeadline] = []
        while entries and ((timed := self._current(*entries[0])) is None or entries[0][0] <= until):
            heappop(entries)  # also those that are out of date, or each would cause a wake-up
            if timed is not None:
                timed.due = NEVER
                found.append(timed)
        return found
