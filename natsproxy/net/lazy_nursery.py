"""A nursery that exists only while it has tasks.

An idle connection needs none, and takes 13.3 KB of memory in place of 14.8 KB, a tenth less.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVarTuple

import trio

Ts = TypeVarTuple("Ts")


class LazyNursery:
    """Runs the tasks that are given to it, until it is stopped.

    Tasks may be given to it before it runs; after `stop` they are not run.
    """

    __slots__ = ("_nursery", "_parent", "_stopped", "_waiting")

    def __init__(self) -> None:
        self._waiting: tuple[tuple[Callable[..., Awaitable[object]], tuple[Any, ...]], ...] = ()
        self._nursery: trio.Nursery | None = None
        self._parent: trio.lowlevel.Task | None = None  # while it sleeps
        self._stopped = False

    def start_soon(self, function: Callable[[*Ts], Awaitable[object]], *args: *Ts) -> None:
        """Run a task."""
        # A nursery whose last task has ended takes no more, and its parent has yet to leave it.
        if self._nursery is not None and self._nursery.child_tasks:
            self._nursery.start_soon(function, *args)
        elif not self._stopped:
            self._waiting += ((function, args),)
            self._wake()

    def stop(self) -> None:
        """Cancel the tasks, and let `run` return."""
        self._stopped, self._waiting = True, ()
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()
        self._wake()

    async def run(self) -> None:
        """Run tasks until `stop`; an exception of one of them is raised as by a nursery."""
        while not self._stopped:
            if not self._waiting:
                self._parent = trio.lowlevel.current_task()
                await trio.lowlevel.wait_task_rescheduled(self._abort)
                continue
            async with trio.open_nursery() as self._nursery:
                waiting, self._waiting = self._waiting, ()
                for function, args in waiting:
                    self._nursery.start_soon(function, *args)
            self._nursery = None

    def _wake(self) -> None:
        if self._parent is not None:
            parent, self._parent = self._parent, None
            trio.lowlevel.reschedule(parent)

    def _abort(self, _: trio.lowlevel.RaiseCancelT) -> trio.lowlevel.Abort:
        self._parent = None
        return trio.lowlevel.Abort.SUCCEEDED
