"""The tasks of one connection: they exist only while it waits for something.

An idle connection has none, and so takes less memory.  All run in one nursery of the proxy.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVarTuple

import trio

Ts = TypeVarTuple("Ts")


class ConnectionTasks:
    """Runs the tasks of one connection in a nursery.  failed: takes the exception of one that fails."""

    __slots__ = ("_failed", "_nursery", "_over", "_scopes", "_stopped")

    def __init__(self, nursery: trio.Nursery, failed: Callable[[Exception], None]) -> None:
        self._nursery = nursery
        self._failed = failed
        self._scopes: tuple[trio.CancelScope, ...] = ()
        self._stopped = False
        self._over: trio.Event | None = None

    def __bool__(self) -> bool:
        """True while there is a task."""
        return bool(self._scopes)

    def start_soon(self, function: Callable[[*Ts], Awaitable[object]], *args: *Ts) -> None:
        """Run a task, unless they are stopped."""
        if not self._stopped:
            scope = trio.CancelScope()
            self._scopes += (scope,)
            self._nursery.start_soon(self._run, scope, function, args)

    def dispose(self) -> None:
        """Break the cycle with whoever takes the exceptions; call when all tasks have ended."""
        self._failed = _ignore

    def stop(self) -> None:
        """Cancel the tasks; later ones are not run."""
        self._stopped = True
        for scope in self._scopes:
            scope.cancel()

    async def wait_over(self) -> None:
        """Wait until all tasks have ended; call after `stop`."""
        if self._scopes:
            self._over = trio.Event()
            await self._over.wait()

    async def _run(
        self, scope: trio.CancelScope, function: Callable[[*Ts], Awaitable[object]], args: tuple[*Ts]
    ) -> None:
        try:
            with scope:
                await function(*args)
        except Exception as error:  # a bug in one connection must not end the others
            self._failed(error)
        finally:
            self._scopes = tuple(one for one in self._scopes if one is not scope)
            if self._over is not None and not self._scopes:
                self._over.set()


def _ignore(_: Exception) -> None:
    return None
