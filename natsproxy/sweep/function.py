"""A Python callable as the program of a sweep: each run calls it in a thread and a loop of its own.

It is cancelled when its time is over.  A thread cannot be ended: a callable that ignores its cancellation, or
one that is no coroutine function and does not return, goes on until the process ends.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import trio

from natsproxy.processes.program import Tail
from natsproxy.processes.starvation import lost_by
from natsproxy.sweep.hooks.sitecustomize import task_stacks
from natsproxy.sweep.programs import GRACE, Started


class Function:
    """A callable as a program; it is called with the URL.

    It has succeeded (0) when it returns and failed (1) when it raises; its traceback is its output.
    library: of the loop that a coroutine function gets.
    """

    def __init__(
        self, callable_: Callable[[str], Any], library: Literal["asyncio", "trio"] = "asyncio"
    ) -> None:
        self._callable = callable_
        self._library = library

    @property
    def name(self) -> str:
        """The name of the callable."""
        return getattr(self._callable, "__qualname__", repr(self._callable))

    @property
    def line(self) -> str:
        """The name with its module."""
        module = getattr(self._callable, "__module__", None)
        return f"{module}.{self.name}" if module else self.name

    @asynccontextmanager
    async def run(self, url: str, tail: Tail, folder: Path) -> AsyncIterator[Started]:
        """Call it for the length of the block, and cancel it then."""
        call = (_LOOPS[self._library] if inspect.iscoroutinefunction(self._callable) else _Call)(
            self._callable, url, tail
        )
        call.start()
        try:
            yield call
        finally:
            call.cancel()
            with trio.move_on_after(GRACE, shield=True):
                await call.ended.wait()


class _Call:
    """A call in a thread."""

    def __init__(self, callable_: Callable[[str], Any], url: str, tail: Tail) -> None:
        self._callable, self._url, self._tail = callable_, url, tail
        self._code = 1
        self.ended = trio.Event()
        self._token = trio.lowlevel.current_trio_token()
        self._thread = threading.Thread(target=self._main, name="swept", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _main(self) -> None:
        said = ""
        try:
            self._call()
            self._code = 0
        except SystemExit as end:
            self._code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:  # the program's own, for its output
            said = traceback.format_exc()
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._end, said)

    def _end(self, said: str) -> None:
        self._tail.add(said.encode())
        self.ended.set()

    def _call(self) -> None:
        self._callable(self._url)

    def cancel(self) -> None:
        """Nothing ends a callable that is not a coroutine function."""

    def _tasks(self) -> Iterator[Any]:
        """Yield the tasks of its loop."""
        yield from ()

    async def wait(self) -> int:
        await self.ended.wait()
        return self._code

    async def lost(self) -> float:
        return lost_by(os.getpid(), self._thread.native_id)

    async def left(self) -> list[str]:
        return []

    async def stack(self) -> str:
        frame = sys._current_frames().get(self._thread.ident or 0)
        thread = "".join(traceback.format_stack(frame)) if frame is not None else ""
        return "\n".join(
            filter(None, (task_stacks(self._tasks()), f"Thread (most recent call last):\n{thread}"))
        )


class _AsyncioCall(_Call):
    _loop: asyncio.AbstractEventLoop | None = None
    _task: asyncio.Task[Any] | None = None

    def _call(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        self._task, self._loop = asyncio.current_task(), asyncio.get_running_loop()
        await self._callable(self._url)

    def cancel(self) -> None:
        if self._loop is not None and self._task is not None:
            with suppress(RuntimeError):  # the loop is closed: it has ended
                self._loop.call_soon_threadsafe(self._task.cancel)

    def _tasks(self) -> Iterator[Any]:
        if self._loop is not None:
            yield from asyncio.all_tasks(self._loop)


class _TrioCall(_Call):
    _loop: trio.lowlevel.TrioToken | None = None
    _root: trio.lowlevel.Task | None = None

    def _call(self) -> None:
        self._scope = trio.CancelScope()
        trio.run(self._run)

    async def _run(self) -> None:
        self._root, self._loop = trio.lowlevel.current_root_task(), trio.lowlevel.current_trio_token()
        with self._scope:
            await self._callable(self._url)

    def cancel(self) -> None:
        if self._loop is not None:
            with suppress(trio.RunFinishedError):
                self._loop.run_sync_soon(self._scope.cancel)

    def _tasks(self) -> Iterator[Any]:
        waiting = [self._root] if self._root is not None else []
        while waiting:
            task = waiting.pop()
            yield task
            waiting += [child for nursery in task.child_nurseries for child in nursery.child_tasks]


_LOOPS = {"asyncio": _AsyncioCall, "trio": _TrioCall}
