"""trio in a thread of its own: its start and end, errors of calls, and limits of waits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future

import pytest
import trio

from natsproxy.errors import NatsproxyError
from natsproxy.testing import BlockingCall, thread
from natsproxy.testing.thread import TrioThread, limited, refuse_in_loop

Started = Callable[[], None]


async def serve(started: Started, stop: trio.Event) -> None:
    started()
    await stop.wait()


async def answer(value: int) -> int:
    await trio.lowlevel.checkpoint()
    return value


@pytest.fixture
def running() -> Iterator[TrioThread]:
    made = TrioThread(serve, "it")
    made.start()
    yield made
    made.stop()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every limit is short."""
    for name in ("START", "GRACE", "STOP"):
        monkeypatch.setattr(thread, name, 0.05)


def failing(error: BaseException, *, late: bool) -> TrioThread:
    async def fail(started: Started, stop: trio.Event) -> None:
        if late:
            started()
            await stop.wait()
        raise error

    return TrioThread(fail, "it")


# -- life


def test_it_runs_once_and_stops_as_often_as_asked(running: TrioThread) -> None:
    assert running.running
    with pytest.raises(NatsproxyError, match="it cannot be started twice"):
        running.start()
    running.stop()
    running.stop()
    assert not running.running
    with pytest.raises(NatsproxyError, match="it is not running: use it inside its `with`"):
        running.call(int)


def test_an_error_at_the_start_is_raised_by_start() -> None:
    """Unwrapped from the groups that trio makes of it; and the thread is gone."""
    made = failing(NatsproxyError("no such thing"), late=False)
    with pytest.raises(NatsproxyError, match="no such thing"):
        made.start()
    made.stop()
    assert "natsproxy" not in {one.name for one in threading.enumerate()}


def test_a_later_error_is_raised_by_stop_once() -> None:
    made = failing(ValueError("broken"), late=True)
    made.start()
    with pytest.raises(ValueError, match="broken"):
        made.stop()
    made.stop()


def test_a_call_after_a_crash_names_the_error() -> None:
    async def die(started: Started, stop: trio.Event) -> None:
        started()
        raise ValueError("broken")

    made = TrioThread(die, "it")
    made.start()
    with pytest.raises(ValueError, match="broken"):
        made._finished.result(5)
    with pytest.raises(NatsproxyError, match=r"it has ended: ValueError\('broken'\)"):
        made.call(int)
    with pytest.raises(ValueError, match="broken"):
        made.stop()


async def test_it_is_stopped_from_trio() -> None:
    made = TrioThread(serve, "it")
    await made.stop_async()  # it never began: nothing to wait for
    made.start()
    await made.stop_async()
    assert not made.running


# -- calls


def test_calls_and_waits_return_what_they_made_and_raise_what_they_raised(running: TrioThread) -> None:
    assert running.call(max, 1, 2) == 2
    assert running.wait(1, answer, 3) == 3
    assert asyncio.run(running.wait_async(1, answer, 4)) == 4
    for failing in (lambda: running.call(int, "x"), lambda: running.wait(1, raising)):
        with pytest.raises(ValueError, match="x"):
            failing()


async def raising() -> None:
    await trio.lowlevel.checkpoint()
    raise ValueError("x")


async def test_waiting_in_trio(running: TrioThread) -> None:
    assert await running.wait_async(1, answer, 5) == 5


async def test_a_wait_that_is_given_up_hurts_nobody(running: TrioThread) -> None:
    """Its answer comes when the one who asked has gone: the thread goes on."""
    with trio.move_on_after(0):
        await running.wait_async(1, answer, 6)
    assert await running.wait_async(1, answer, 7) == 7


def test_waiting_calls_end_with_an_error_at_stop(running: TrioThread) -> None:
    waiting = running.submit(trio.sleep_forever)
    running.call(int)
    running.stop()
    with pytest.raises(NatsproxyError, match="it was stopped meanwhile"):
        waiting.result(5)


# -- limits


def test_a_thread_that_hangs_is_given_up_with_what_was_waited_for(running: TrioThread, hasty: None) -> None:
    """As one does whose body matcher never returns."""
    hanging, free = threading.Event(), threading.Event()

    async def hang() -> None:
        await trio.lowlevel.checkpoint()
        hanging.set()
        free.wait(20)

    stuck = running.submit(hang)
    assert hanging.wait(5)
    with pytest.raises(NatsproxyError, match=r"it did not take a call within 0\.05 s"):
        running.call(int)
    with pytest.raises(NatsproxyError, match=r"it did not answer within 0\.1 s"):
        running.wait(0.05, answer, 1)
    with pytest.raises(NatsproxyError, match=r"it did not stop within 0\.05 s"):
        running.stop()
    free.set()
    assert stuck.result(5) is None


@pytest.mark.usefixtures("hasty")
def test_a_start_that_is_given_up_before_its_loop_runs_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    given_up, run = threading.Event(), trio.run

    def late(main: Callable[[], Awaitable[None]]) -> None:
        assert given_up.wait(20)
        run(main)

    async def idle(started: Started, stop: trio.Event) -> None:
        await stop.wait()

    monkeypatch.setattr(trio, "run", late)
    made = TrioThread(idle, "it")
    with pytest.raises(NatsproxyError, match=r"it did not start within 0\.05 s"):
        made.start()
    given_up.set()
    made._thread.join(20)
    assert not made._thread.is_alive()


@pytest.mark.usefixtures("hasty")
def test_a_start_that_takes_too_long_is_given_up() -> None:
    async def idle(started: Started, stop: trio.Event) -> None:
        await stop.wait()

    made = TrioThread(idle, "it")
    with pytest.raises(NatsproxyError, match=r"it did not start within 0\.05 s"):
        made.start()
    made._thread.join(5)
    assert not made._thread.is_alive()


def test_a_limit_is_of_the_real_clock_and_the_first_word_counts() -> None:
    never: Future[int] = Future()
    late = limited(never, 0.01, "too late")
    with pytest.raises(NatsproxyError, match="too late"):
        late.result(5)
    never.set_result(1)
    with pytest.raises(NatsproxyError, match="too late"):
        late.result(5)
    there: Future[int] = Future()
    there.set_result(2)
    assert limited(there, 5, "too late").result(5) == 2


async def test_a_limit_is_kept_under_a_mock_clock(running: TrioThread, autojump_clock: object) -> None:
    assert await running.wait_async(60, answer, 8) == 8


# -- event loops


def test_blocking_calls_are_refused_where_a_loop_runs() -> None:
    async def ask() -> None:
        refuse_in_loop("this()", "await that()")

    expected = "this\\(\\) would block {}'s event loop and so the client under test: await that\\(\\)"
    for run, library in ((asyncio.run, "asyncio"), (lambda made: trio.run(lambda: made), "trio")):
        with pytest.raises(BlockingCall, match=expected.format(library)):
            run(ask())
    refuse_in_loop("this()", "await that()")
