"""The time slices of a relaying task, so that one busy connection does not starve the others.

A task yields to the others when its slice is over.  Work has two kinds of cost:

1. The session's own work (rules, held frames) is measured while it is done: the session asks `reached`
   between the frames that cost Python work, and stops there.
2. The consequences of a step (events, records, the recording filter, system calls) take their time only after
   the session has returned.  So the number of frames of a step is bounded: a step that took longer than a
   slice sets the next bound from its cost per frame, and a full step that was cheaper doubles it.

The clock is the processor's and not trio's: trio's mock clock does not move while work is done.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from natsproxy.session.values import WorkLimit

LENGTH = 400_000  # ns of one slice
FIRST_STEP = 256  # frames of the first step
SMALLEST_STEP = 16


class Timeslice(WorkLimit):
    """The time slices of one task.

    frames: the bound of the next step.  most_frames: returns the greatest bound, however cheap frames are.
    observe: takes the time (ns) of each step, None while nobody wants to know.
    """

    __slots__ = ("_end", "_most_frames", "_step", "frames", "observe")

    clock = staticmethod(time.perf_counter_ns)

    def __init__(self, most_frames: Callable[[], int]) -> None:
        self.frames = FIRST_STEP
        self.observe: Callable[[int], None] | None = None
        self._most_frames = most_frames
        self._step = self._end = 0
        self.begin()

    def begin(self) -> None:
        """Begin a slice: the task has just yielded to the others, or waited."""
        self._step = self.clock()
        self._end = self._step + LENGTH

    def reached(self) -> bool:
        """Tell whether the slice is over."""
        return self.clock() >= self._end

    def end_step(self, frames: int) -> bool:
        """Set the next bound from the cost of a step of `frames` frames; tell whether the slice is over."""
        now = self.clock()
        took, self._step = now - self._step, now
        if self.observe is not None:
            self.observe(took)
        if took > LENGTH:
            self.frames = max(SMALLEST_STEP, frames * LENGTH // took)
        elif frames >= self.frames:
            self.frames = min(2 * self.frames, self._most_frames())
        return now >= self._end
