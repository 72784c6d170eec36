"""trio in a thread of its own, for tests of any kind: plain, asyncio, trio.

The code under test keeps its own loop; the proxy's never competes with it for a turn.  Three ways in:

- `call`: a plain function, done between two steps of the proxy.  It never waits for the network, so it is
  safe inside a running event loop.
- `wait`: an async function, and the caller blocks.  Inside a running event loop that would stop the client
  under test, so the public blocking calls go through `refuse_in_loop` first.
- `wait_async`: the same, awaited in asyncio or trio.

Nothing here waits for ever.  What is called keeps its own limit; `GRACE` seconds later the caller gives the
thread up (something of the user's, a body matcher say, may never return).  All limits are of the real clock:
a test's own may be a mock.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, TypeVar

import trio

from natsproxy.errors import NatsproxyError

T = TypeVar("T")
START = 10.0  # seconds until it must stand
GRACE = 10.0  # seconds beyond the limit of what was called
STOP = 20.0  # seconds until it must be gone


class BlockingCall(NatsproxyError):
    """A blocking call was made inside a running event loop."""


def refuse_in_loop(what: str, instead: str) -> None:
    """Raise BlockingCall when an event loop runs in this thread; instead: what to write there."""
    library = _loop()
    if library is not None:
        raise BlockingCall(
            f"{what} would block {library}'s event loop and so the client under test: {instead}"
        )


def _loop() -> str | None:
    if trio.lowlevel.in_trio_run():
        return "trio"
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return None
    return "asyncio"


async def awaited(future: Future[T]) -> T:
    """Return a future's result, in asyncio and trio."""
    if _loop() == "asyncio":
        return await asyncio.wrap_future(future)
    done, token = trio.Event(), trio.lowlevel.current_trio_token()

    def wake(_: Future[T]) -> None:
        with suppress(trio.RunFinishedError):  # the test gave up waiting and is over
            token.run_sync_soon(done.set)

    future.add_done_callback(wake)
    await done.wait()
    return future.result()


def within(future: Future[T], limit: float, late: str) -> Future[T]:
    """Return a future that ends as another one does, or with NatsproxyError(late) after `limit` seconds."""
    made: Future[T] = Future()
    made.set_running_or_notify_cancel()  # who gives up waiting does not cancel it for others

    def settle(error: BaseException | None) -> None:
        timer.cancel()
        with suppress(InvalidStateError):  # the other one came first
            made.set_result(future.result()) if error is None else made.set_exception(error)

    timer = threading.Timer(limit, settle, [NatsproxyError(late)])
    timer.daemon = True
    timer.start()
    future.add_done_callback(lambda done: settle(done.exception()))
    return made


class TrioThread:
    """Runs one async function in a thread until it is stopped; once.

    serve(started, stop) is called in trio; it calls `started()` when it stands and returns at `stop`.
    what: how it is called in errors.
    """

    def __init__(
        self, serve: Callable[[Callable[[], None], trio.Event], Awaitable[None]], what: str = "natsproxy"
    ) -> None:
        self._serve = serve
        self._what = what
        self._standing: Future[None] = Future()
        self._gone: Future[None] = Future()
        self._token: trio.lowlevel.TrioToken | None = None
        self._stop: trio.Event | None = None
        self._calls: trio.Nursery | None = None
        self._thread = threading.Thread(target=self._run, name="natsproxy", daemon=True)

    @property
    def running(self) -> bool:
        """Whether it stands and was not stopped."""
        return self._standing.done() and not self._gone.done()

    def start(self) -> None:
        """Start; returns when it stands.  Raises what it raised, or NatsproxyError."""
        if self._thread.ident is not None:
            raise NatsproxyError(f"{self._what} was started before: each runs once, make another one")
        self._thread.start()
        try:
            self._standing.result(START)
        except BaseException as error:  # Ctrl-C among them
            self._ask()
            if self._standing.done():
                self._thread.join(STOP)
            elif isinstance(error, TimeoutError):
                raise NatsproxyError(f"{self._what} did not start within {START:g} s") from None
            raise

    def _run(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as error:  # raised again in the caller's thread
            while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
                error = error.exceptions[0]
            if self._standing.done():
                self._gone.set_exception(error)
            else:
                self._standing.set_exception(error)
                self._gone.set_result(None)
        else:
            self._gone.set_result(None)

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._stop = trio.Event()
        async with trio.open_nursery() as self._calls:
            await self._serve(lambda: self._standing.set_result(None), self._stop)
            self._calls.cancel_scope.cancel()

    def _soon(self, function: Callable[..., object], *args: Any) -> None:
        """Run a function between two steps.  Raises NatsproxyError when it does not run."""
        if self._token is not None and self.running:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(function, *args)
                return
        fault = self._gone.exception() if self._gone.done() else None
        if fault is None:
            raise NatsproxyError(f"{self._what} is not running: use it inside its `with`")
        raise NatsproxyError(f"{self._what} has ended: {fault!r}") from fault

    def call(self, function: Callable[..., T], *args: Any) -> T:
        """Run a plain function in the trio thread and return its result: short, never waits."""
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(function(*args))
            except Exception as error:  # raised again in the caller's thread
                done.set_exception(error)

        self._soon(run)
        try:
            return done.result(START)
        except TimeoutError:
            raise NatsproxyError(f"{self._what} did not take a call within {START:g} s") from None

    def submit(self, function: Callable[..., Awaitable[T]], *args: Any) -> Future[T]:
        """Begin an async function in the trio thread; it keeps its own time limit."""
        done: Future[T] = Future()

        async def run() -> None:
            try:
                done.set_result(await function(*args))
            except trio.Cancelled:
                done.set_exception(NatsproxyError(f"{self._what} was stopped meanwhile"))
                raise
            except Exception as error:  # raised again where it is waited for
                done.set_exception(error)

        def begin() -> None:
            if self._calls is None or self._calls.cancel_scope.cancel_called:
                done.set_exception(NatsproxyError(f"{self._what} was stopped meanwhile"))
            else:
                self._calls.start_soon(run)

        self._soon(begin)
        return done

    def wait(self, limit: float, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Run an async function in the trio thread and block until it is done; limit: its own, in seconds."""
        return self._limited(limit, function, *args).result()

    async def wait_async(self, limit: float, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """The same for asyncio and trio: awaits instead of blocking."""
        return await awaited(self._limited(limit, function, *args))

    def _limited(self, limit: float, function: Callable[..., Awaitable[T]], *args: Any) -> Future[T]:
        late = f"{self._what} did not answer within {limit + GRACE:g} s"
        return within(self.submit(function, *args), limit + GRACE, late)

    def stop(self) -> None:
        """Stop and join; idempotent.  Raises what it died of."""
        ended = self._ended()
        if ended is not None:
            try:
                ended.result()
            finally:
                self._forget()

    async def stop_async(self) -> None:
        """The same for asyncio and trio: the client under test may still say goodbye meanwhile."""
        ended = self._ended()
        if ended is not None:
            try:
                await awaited(ended)
            finally:
                self._forget()

    def _ended(self) -> Future[None] | None:
        """Ask it to end; return when it has, None where it never began."""
        self._ask()
        if self._thread.ident is None:
            return None
        return within(self._gone, STOP, f"{self._what} did not stop within {STOP:g} s")

    def _ask(self) -> None:
        if self._stop is not None and self._token is not None:
            with suppress(trio.RunFinishedError):  # it ended by itself in between
                self._token.run_sync_soon(self._stop.set)

    def _forget(self) -> None:
        """What it died of is said once; what has ended is gone when this returns."""
        if self._gone.done():
            self._thread.join()
            self._gone = Future()
            self._gone.set_result(None)
