"""trio in a thread of its own, for tests of any kind: plain, asyncio, trio.

The code under test keeps its own loop; the proxy's never competes with it for a turn.  Control calls return
when they are in force.  A blocking call inside a running event loop would stop the client under test, so it
raises at once and names the awaitable form.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

import trio

from natsproxy.errors import NatsproxyError

T = TypeVar("T")
START = 10.0  # seconds


class BlockingCall(NatsproxyError):
    """A blocking call was made inside a running event loop."""


def refuse_in_loop(name: str) -> None:
    """Raise BlockingCall when an event loop runs in this thread."""
    library = "trio"
    if not trio.lowlevel.in_trio_run():
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        library = "asyncio"
    raise BlockingCall(
        f"{name}() would block {library}'s event loop and so the client under test: await {name}_async()"
    )


class TrioThread:
    """Runs one async function in a thread until it is stopped.

    serve(started, stop) is called in trio; it calls `started()` when it stands and returns at `stop`.
    """

    def __init__(self, serve: Callable[[Callable[[], None], trio.Event], Awaitable[None]]) -> None:
        self._serve = serve
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._stop: trio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="natsproxy", daemon=True)

    def start(self) -> None:
        """Start; returns when it stands.  Raises what it raised."""
        self._thread.start()
        if not self._ready.wait(START):
            raise NatsproxyError(f"natsproxy did not start within {START:.0f} seconds")
        if self._error is not None:
            self._thread.join()
            raise self._error

    def _run(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as error:  # raised again in the caller's thread
            while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
                error = error.exceptions[0]
            self._error = error
        finally:
            self._ready.set()

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._stop = trio.Event()
        await self._serve(self._ready.set, self._stop)

    def call(self, function: Callable[..., T], *args: Any) -> T:
        """Run a plain function in the trio thread and return its result: short, never waits."""
        assert self._token is not None
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(function(*args))
            except Exception as error:  # raised again in the caller's thread
                done.set_exception(error)

        self._token.run_sync_soon(run)
        return done.result(START)

    def wait(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Run an async function in the trio thread and block until it is done."""
        assert self._token is not None
        return trio.from_thread.run(function, *args, trio_token=self._token)

    async def wait_async(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """The same for asyncio and trio: awaits instead of blocking."""
        if trio.lowlevel.in_trio_run():
            return await trio.to_thread.run_sync(self.wait, function, *args, abandon_on_cancel=True)
        return await asyncio.to_thread(self.wait, function, *args)

    def stop(self) -> None:
        """Stop and join; idempotent.  Raises what it died of."""
        if self._thread.is_alive() and self._token is not None and self._stop is not None:
            with suppress(trio.RunFinishedError):  # it ended by itself in between
                self._token.run_sync_soon(self._stop.set)
            self._thread.join()
        if self._error is not None:
            error, self._error = self._error, None
            raise error
