"""trio in a separate thread, for plain, asyncio and trio tests.

The code under test keeps its own event loop; the proxy runs in another one.  There are three ways to call in:

- `call` runs a plain function in the trio thread.  It never waits for the network, so it is safe inside a
  running event loop.
- `wait` runs an async function and blocks the caller.  Inside a running event loop that would stop the client
  under test, so the public blocking calls use `refuse_in_loop` first.
- `wait_async` does the same, but is awaited in asyncio or trio.

Every wait has a timeout.  A called function enforces its own; `GRACE` seconds later the caller abandons it,
because user code (a body matcher, say) may never return.  Timeouts use the real clock, since the test's clock
may be a mock.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import suppress
from typing import Any, Literal, TypeVar

import trio

from natsproxy.errors import NatsproxyError

T = TypeVar("T")
Library = Literal["asyncio", "trio"]
START = 10.0  # seconds until the thread must have started
GRACE = 10.0  # seconds beyond the limit of a called function
STOP = 20.0  # seconds until the thread must have ended


class BlockingCall(NatsproxyError):
    """A blocking call was made inside a running event loop."""


def refuse_in_loop(call: str, instead: str) -> None:
    """Raise BlockingCall when an event loop runs in this thread.  instead: the call to use there."""
    library = running_loop()
    if library is not None:
        raise BlockingCall(
            f"{call} would block {library}'s event loop and so the client under test: {instead}"
        )


def running_loop() -> Library | None:
    """Return the library of the event loop that runs in this thread."""
    if trio.lowlevel.in_trio_run():
        return "trio"
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return None
    return "asyncio"


async def await_future(future: Future[T]) -> T:
    """Return a future's result, in asyncio and trio."""
    if running_loop() == "asyncio":
        return await asyncio.wrap_future(future)
    done, token = trio.Event(), trio.lowlevel.current_trio_token()

    def wake(_: Future[T]) -> None:
        with suppress(trio.RunFinishedError):  # the test gave up waiting and has ended
            token.run_sync_soon(done.set)

    future.add_done_callback(wake)
    await done.wait()
    return future.result()


def limited(future: Future[T], limit: float, late: str) -> Future[T]:
    """Return a future with the result of another one, or NatsproxyError(late) after `limit` seconds."""
    made: Future[T] = Future()
    made.set_running_or_notify_cancel()  # so that a caller that gives up cannot cancel it for others

    def resolve(error: BaseException | None) -> None:
        timer.cancel()
        with suppress(InvalidStateError):  # the other one came first
            made.set_result(future.result()) if error is None else made.set_exception(error)

    timer = threading.Timer(limit, resolve, [NatsproxyError(late)])
    timer.daemon = True
    timer.start()
    future.add_done_callback(lambda done: resolve(done.exception()))
    return made


class TrioThread:
    """One async function that runs once, in a thread, until it is stopped.

    serve(started, stop) runs in trio; it calls `started()` when it is ready and returns after `stop` is set.
    title: its name in errors.
    """

    def __init__(
        self, serve: Callable[[Callable[[], None], trio.Event], Awaitable[None]], title: str = "natsproxy"
    ) -> None:
        self._serve = serve
        self._title = title
        self._started: Future[None] = Future()
        self._finished: Future[None] = Future()
        self._finished.set_running_or_notify_cancel()  # a caller that gives up cannot cancel it
        self._token: trio.lowlevel.TrioToken | None = None
        self._stop: trio.Event | None = None
        self._stop_requested = threading.Event()  # perhaps before the thread has made `_stop`
        self._calls: trio.Nursery | None = None
        self._thread = threading.Thread(target=self._run, name="natsproxy", daemon=True)

    @property
    def running(self) -> bool:
        """True from a successful start until the function has ended."""
        return self._started.done() and not self._finished.done()

    def start(self) -> None:
        """Start the thread and return when the function is ready.

        Raises the error of the function, or NatsproxyError when it takes too long.
        """
        if self._thread.ident is not None:
            raise NatsproxyError(f"{self._title} cannot be started twice: make a new one")
        self._thread.start()
        try:
            self._started.result(START)
        except BaseException as error:  # including Ctrl-C
            self._request_stop()
            if self._started.done():
                self._thread.join(STOP)
            elif isinstance(error, TimeoutError):
                raise NatsproxyError(f"{self._title} did not start within {START:g} s") from None
            raise

    def _run(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as error:  # raised again in the caller's thread
            while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
                error = error.exceptions[0]
            if self._started.done():
                self._finished.set_exception(error)
            else:
                self._started.set_exception(error)
                self._finished.set_result(None)
        else:
            self._finished.set_result(None)

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._stop = trio.Event()
        if self._stop_requested.is_set():
            self._stop.set()
        async with trio.open_nursery() as self._calls:
            await self._serve(lambda: self._started.set_result(None), self._stop)
            self._calls.cancel_scope.cancel()

    def _run_soon(self, function: Callable[..., object], *args: Any) -> None:
        """Schedule a function in the trio thread.  Raises NatsproxyError when the thread does not run."""
        if self._token is not None and self.running:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(function, *args)
                return
        error = self._finished.exception() if self._finished.done() else None
        if error is None:
            raise NatsproxyError(f"{self._title} is not running: use it inside its `with`")
        raise NatsproxyError(f"{self._title} has ended: {error!r}") from error

    def call(self, function: Callable[..., T], *args: Any) -> T:
        """Run a short plain function in the trio thread and return its result."""
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(function(*args))
            except Exception as error:  # raised again in the caller's thread
                done.set_exception(error)

        self._run_soon(run)
        try:
            return done.result(START)
        except TimeoutError:
            raise NatsproxyError(f"{self._title} did not take a call within {START:g} s") from None

    def submit(self, function: Callable[..., Awaitable[T]], *args: Any) -> Future[T]:
        """Start an async function in the trio thread; it must have a time limit of its own."""
        done: Future[T] = Future()

        async def run() -> None:
            try:
                done.set_result(await function(*args))
            except trio.Cancelled:
                done.set_exception(NatsproxyError(f"{self._title} was stopped meanwhile"))
                raise
            except Exception as error:  # raised again by the waiter
                done.set_exception(error)

        def begin() -> None:
            if self._calls is None or self._calls.cancel_scope.cancel_called:
                done.set_exception(NatsproxyError(f"{self._title} was stopped meanwhile"))
            else:
                self._calls.start_soon(run)

        self._run_soon(begin)
        return done

    def wait(self, limit: float, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Run an async function in the trio thread and block until it is done.

        limit: the function's own time limit, in seconds.
        """
        return self._submit_limited(limit, function, *args).result()

    async def wait_async(self, limit: float, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Do the same as `wait` in asyncio and trio, without blocking."""
        return await await_future(self._submit_limited(limit, function, *args))

    def _submit_limited(self, limit: float, function: Callable[..., Awaitable[T]], *args: Any) -> Future[T]:
        late = f"{self._title} did not answer within {limit + GRACE:g} s"
        return limited(self.submit(function, *args), limit + GRACE, late)

    def finish(self) -> None:
        """Block until the function has ended by itself, and raise its error; Ctrl-C stops it."""
        try:
            wait([self._finished])
        finally:
            self.stop()

    async def finish_async(self) -> None:
        """Do the same as `finish` in asyncio and trio; one that is cancelled stops the function."""
        try:
            await await_future(self._finished)
        finally:
            self.stop()  # it has ended, or it must have when a cancelled call returns

    def stop(self) -> None:
        """Stop the function and join the thread; idempotent.  Raises the error that ended the function."""
        ended = self._stopping()
        if ended is not None:
            try:
                ended.result()
            finally:
                self._mark_reported()

    async def stop_async(self) -> None:
        """Do the same as `stop` in asyncio and trio; meanwhile the client under test can disconnect."""
        ended = self._stopping()
        if ended is not None:
            try:
                await await_future(ended)
            finally:
                self._mark_reported()

    def _stopping(self) -> Future[None] | None:
        """Request the stop and return a future for it, None if the thread never started."""
        self._request_stop()
        if self._thread.ident is None:
            return None
        return limited(self._finished, STOP, f"{self._title} did not stop within {STOP:g} s")

    def _request_stop(self) -> None:
        self._stop_requested.set()
        if self._stop is not None and self._token is not None:
            with suppress(trio.RunFinishedError):  # it ended on its own in between
                self._token.run_sync_soon(self._stop.set)

    def _mark_reported(self) -> None:
        """Join an ended thread and forget its error, which was raised once."""
        if self._finished.done():
            self._thread.join()
            self._finished = Future()
            self._finished.set_result(None)
