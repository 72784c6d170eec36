"""The pace of a task that relays: its turns end by time, so that one busy connection does not starve others.

The session asks `spent` between the frames that cost Python work.  What follows from a step (events, records,
the filters of a recording, system calls) shows its price only when it is paid: so a step has no more frames
than a turn has time for at the price of the last step that was too long, and at most twice as many as the
step before.  The clock is the processor's, not trio's: a mock clock does not move while work is done.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from natsproxy.session.turn import Turn

TURN = 1_000_000  # ns
FIRST = 256  # frames of the first step
LEAST = 16


class Pace(Turn):
    """The turns of one task.  most: frames of one step, however cheap they were so far."""

    clock = staticmethod(time.perf_counter_ns)

    def __init__(self, most: Callable[[], int]) -> None:
        self.frames = FIRST
        self._most = most
        self._step = self._end = 0
        self.begin()

    def begin(self) -> None:
        """A turn begins."""
        self._step = self.clock()
        self._end = self._step + TURN

    def spent(self) -> bool:
        """Tell whether the turn is over."""
        return self.clock() >= self._end

    def stepped(self, frames: int) -> bool:
        """Learn what a step of so many frames took; tell whether the turn is over."""
        now = self.clock()
        took, self._step = now - self._step, now
        if took > TURN:
            self.frames = max(LEAST, frames * TURN // took)
        elif frames >= self.frames:
            self.frames = min(2 * self.frames, self._most())
        return now >= self._end
