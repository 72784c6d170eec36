"""The time for which trio has nothing to do, so that a task may keep the thread.

trio charges some twenty microseconds for a round of its loop, as much as a whole request costs here.  A task
that moves bytes may therefore wait for its own sockets and for trio's epoll at once, outside trio, as long as
no other task is ready (an instrument counts them) and no deadline is due.

A request through the proxy takes 65 µs of the processor so, and 103 µs by trio's loop alone (one client, one
request at a time).  On a busy machine, in eight interleaved rounds: 112 µs and 203 µs; with four clients at
once 67 µs and 108 µs, with 64 of them 69 µs and 75 µs.

trio shows neither its epoll nor its next deadline, so both are read from its internals; where these have
other names, nobody waits outside trio.  The public instrument `before_io_wait` is no way around that: it
tells how long trio would wait only once all tasks are blocked, the one that would keep the thread too, and a
wait inside it could not be ended by a descriptor that only trio's epoll watches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from typing import Any, Final

import trio

_MOST: Final = 20_000_000  # ns: records must not wait for their time limit


class IdleLoop(trio.abc.Instrument):
    """Knows the tasks that are ready to run and have not run yet.

    fd: the descriptor of trio's own epoll, readable when trio has something to do; -1 where it is not known.
    """

    def __init__(self) -> None:
        self.fd, self._next_deadline = _loop_of_trio()
        self._ready: set[trio.lowlevel.Task] = set()
        # Bound methods of the set itself: trio calls them for each step of each task.
        self.task_scheduled = self._ready.add  # type: ignore[assignment, method-assign]
        self.before_task_step = self._ready.discard  # type: ignore[assignment, method-assign]

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Count tasks inside."""
        trio.lowlevel.add_instrument(self)
        try:
            yield
        finally:
            trio.lowlevel.remove_instrument(self)

    def spare(self) -> int:
        """Return the time (ns) for which trio has nothing to do unless its epoll has an event."""
        if self._ready:
            return 0
        deadline = self._next_deadline()
        if deadline == inf:  # nearly always
            return _MOST
        return min(_MOST, int(min(max(deadline - trio.current_time(), 0), 1) * 1e9))


def _loop_of_trio() -> tuple[int, Callable[[], float]]:
    """Return the descriptor of trio's own epoll, and what tells the next deadline.

    -1 and no time at all where this trio does not show them, is the guest of another loop, or has a test's
    clock: then nobody waits outside trio.
    """
    from trio._core import _run

    try:
        runner: Any = _run.GLOBAL_RUN_CONTEXT.runner
        if not runner.is_guest and isinstance(runner.clock, _run.SystemClock):
            return int(runner.io_manager._epoll.fileno()), runner.deadlines.next_deadline
    except AttributeError:
        pass
    return -1, lambda: -inf
