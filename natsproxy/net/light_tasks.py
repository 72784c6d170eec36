"""Light tasks: coroutines that have no task of trio until they wait for something that only trio has.

A connection waits for the first line of its server, and then for its own end; what happens between is called
by the plane.  Tasks of trio for that would cost a third of a new connection, and a fifth of the memory of an
idle one.

Theory
1. A light task runs until it waits.  Whoever wakes it has it go on soon, never at once: the caller is in the
   middle of work of its own.  The plane lets those that are ready go on between two of its steps; `run` does
   it where they became ready elsewhere.
2. It waits in two ways: in a `Sleep`, until that is woken or for `LONGEST` at most, or in `in_trio`, which
   calls an async function in a task of trio and comes back with its outcome.  Everything of trio's that needs
   a task (scopes, nurseries, sockets, time) must be inside of such a function.
3. The same code may also run in a task of trio: `Sleep` and `in_trio` wait as trio does there.
4. Once `run` is cancelled, each light task is, as a task of trio in the same nursery: `Stopped` is raised
   where it waits, and wherever it begins to wait.  An exception that leaves a light task ends the nursery.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from math import inf
from time import monotonic_ns, perf_counter_ns
from types import coroutine
from typing import Any, Final, TypeVar, TypeVarTuple

import trio

from natsproxy.net.timeslice import LENGTH

LONGEST: Final = 0.25
"""Seconds that a sleep with a limit lasts at least; twice as long at most."""

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Stopped(BaseException):
    """A light task is cancelled."""


class LightTask:
    """One light task.  ready: it has been woken.  asleep: it waits in a `Sleep`."""

    __slots__ = ("_coroutine", "_error", "_owner", "_result", "asleep", "ready")

    current: LightTask | None = None
    """The one that runs now."""

    def __init__(self, owner: LightTasks, work: Coroutine[Callable[[], object], Any, object]) -> None:
        self._owner = owner
        self._coroutine = work
        self._result: object = None
        self._error: BaseException | None = None
        self.ready = self.asleep = False

    def wake(self, result: object = None, error: BaseException | None = None) -> None:
        """Let a task that waits go on soon, with the result of its wait or an exception; idempotent."""
        if not self.ready:
            self.ready = True
            self._result, self._error = result, error
            self._owner.is_ready(self)

    def step(self) -> bool:
        """Run until it waits; return whether it has ended.  Raises what it raises."""
        self.ready, error, result = False, self._error, self._result
        self._error = self._result = None
        LightTask.current = self
        try:
            if error is not None:
                begin = self._coroutine.throw(error)
            else:
                begin = self._coroutine.send(result)
        except StopIteration:
            return True
        finally:
            LightTask.current = None
        begin()
        return False

    def start_in_trio(self, function: Callable[..., Awaitable[object]], args: tuple[Any, ...]) -> None:
        """Call a function in a task of trio, and wake this one with its outcome."""
        self._owner.nursery.start_soon(self._call, function, args)

    async def _call(self, function: Callable[..., Awaitable[object]], args: tuple[Any, ...]) -> None:
        try:
            self.wake(await function(*args))
        except BaseException as error:
            self.wake(error=error)

    @property
    def stopping(self) -> bool:
        """True once all light tasks are cancelled."""
        return self._owner.stopping

    def limit(self, on: bool) -> None:
        """Wake it after `LONGEST`, with False, or no longer."""
        self._owner.limit(self, on)


class LightTasks:
    """The light tasks of one proxy.

    nursery: has their tasks of trio.  stopping: they are cancelled.  attended: whoever set it calls
    `step_ready` soon.
    """

    def __init__(self) -> None:
        self.nursery: trio.Nursery
        self.stopping = self.attended = False
        self._all: set[LightTask] = set()
        self._ready: deque[LightTask] = deque()
        self._limited: dict[LightTask, int] = {}  # since when (ns), oldest first
        self._wake = trio.Event()

    def start(self, work: Coroutine[Any, Any, object]) -> None:
        """Begin a light task, soon."""
        task = LightTask(self, work)
        self._all.add(task)
        task.wake()

    def is_ready(self, task: LightTask) -> None:
        """Take a task that is to go on."""
        self._ready.append(task)
        if not self.attended:
            self._wake.set()

    def limit(self, task: LightTask, on: bool) -> None:
        """See `LightTask.limit`."""
        if on:
            if not self._limited:
                self._wake.set()  # `run` may wait without a limit
            self._limited[task] = monotonic_ns()
        else:
            self._limited.pop(task, None)

    def step_ready(self) -> None:
        """Let the tasks that are ready go on, for a time slice; `run` goes on with the others."""
        until = perf_counter_ns() + LENGTH
        while self._ready:
            task = self._ready.popleft()
            try:
                over = task.step()
            except (Stopped, trio.Cancelled):
                over = True
            except BaseException as error:
                over = True
                self.nursery.start_soon(_raise, error)
            if over:
                self._all.discard(task)
            if perf_counter_ns() >= until:
                break
        if self._ready:
            self._wake.set()

    async def run(self, nursery: trio.Nursery) -> None:
        """Step light tasks until cancelled.  nursery: has their tasks of trio, and this one."""
        self.nursery = nursery
        try:
            while True:
                with trio.move_on_after(LONGEST if self._limited else inf):
                    await self._wake.wait()
                await trio.lowlevel.checkpoint_if_cancelled()
                self._wake_overdue()
                await self._step_and_yield()
        finally:
            self.stopping = True
            with trio.CancelScope(shield=True):
                for task in self._all:
                    if task.asleep:  # what the others wait for in trio is cancelled there
                        task.wake(error=Stopped())
                while self._all:
                    await self._wake.wait()
                    await self._step_and_yield()

    async def _step_and_yield(self) -> None:
        self._wake = trio.Event()
        self.step_ready()
        await trio.lowlevel.checkpoint()

    def _wake_overdue(self) -> None:
        until = monotonic_ns() - int(LONGEST * 1e9)
        while self._limited and next(iter(self._limited.values())) <= until:
            task = next(iter(self._limited))
            del self._limited[task]
            task.wake(False)


async def _raise(error: BaseException) -> None:
    raise error


@coroutine
def _suspend(begin: Callable[[], object]) -> Generator[Callable[[], object], Any, Any]:
    """Leave the light task; return the result with which it is woken.  begin: called once it is left."""
    return (yield begin)


async def in_trio(function: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
    """Call an async function in a task of trio; return what it returns, and raise what it raises."""
    task = LightTask.current
    if task is None:
        return await function(*args)
    found: T = await _suspend(lambda: task.start_in_trio(function, args))
    return found


def stopping() -> bool:
    """Tell whether the light task that runs now is cancelled; no task of trio's is one."""
    task = LightTask.current
    return task is not None and task.stopping


class Sleep:
    """A place where one task waits to be woken, light or not."""

    __slots__ = ("_sleeper",)

    def __init__(self) -> None:
        self._sleeper: LightTask | trio.lowlevel.Task | None = None

    async def wait(self, *, limited: bool = False) -> bool:
        """Wait for `wake`; return False where a limited wait has taken `LONGEST`."""
        task = LightTask.current
        if task is None:
            self._sleeper = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)
            return True
        if task.stopping:
            raise Stopped
        self._sleeper, task.asleep = task, True
        if limited:
            task.limit(True)
        try:
            woken: bool = await _suspend(_nothing)
        finally:
            self._sleeper, task.asleep = None, False
            if limited:
                task.limit(False)
        return woken

    def wake(self) -> None:
        """Wake the task that waits here, if one does."""
        sleeper, self._sleeper = self._sleeper, None
        if isinstance(sleeper, LightTask):
            sleeper.wake(True)
        elif sleeper is not None:
            trio.lowlevel.reschedule(sleeper)

    def _abort(self, _: trio.lowlevel.RaiseCancelT) -> trio.lowlevel.Abort:
        self._sleeper = None
        return trio.lowlevel.Abort.SUCCEEDED


def _nothing() -> None:
    return None
