"""Light tasks: they go on soon, not at once, and wait in trio for what only trio has."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from natsproxy.net import light_tasks
from natsproxy.net.light_tasks import LightTask, LightTasks, Sleep, Stopped, in_trio


@asynccontextmanager
async def running() -> AsyncIterator[LightTasks]:
    """Run light tasks, and cancel them at the end."""
    light = LightTasks()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(light.run, nursery)
        await trio.testing.wait_all_tasks_blocked()
        yield light
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()


async def test_a_task_goes_on_after_its_waker_and_not_inside_it() -> None:
    seen, sleep = list[object](), Sleep()

    async def work() -> None:
        seen.append("begins")
        seen.append(await sleep.wait())

    async with running() as light:
        light.start(work())
        assert seen == []
        await trio.testing.wait_all_tasks_blocked()
        assert seen == ["begins"]
        sleep.wake()
        sleep.wake()
        assert seen == ["begins"]
        await trio.testing.wait_all_tasks_blocked()
        assert seen == ["begins", True]
        sleep.wake()  # nobody is there


async def test_trio_works_for_a_light_task() -> None:
    """Its outcome comes back, and what it awaits is in a task of trio's."""
    seen: list[object] = []

    async def double(number: int) -> int:
        with trio.move_on_after(1):
            await trio.lowlevel.checkpoint()
        seen.append(LightTask.current)
        if not number:
            raise ValueError("nothing to double")
        return 2 * number

    async def work() -> None:
        seen.append(await in_trio(double, 2))
        assert LightTask.current is not None
        try:
            await in_trio(double, 0)
        except ValueError as error:
            seen.append(str(error))

    async with running() as light:
        light.start(work())
    assert seen == [None, 4, None, "nothing to double"]


async def test_the_same_code_runs_in_a_task_of_trio() -> None:
    seen, sleep = list[object](), Sleep()

    async def work() -> None:
        await in_trio(trio.sleep, 0)
        seen.append(await sleep.wait())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)
        await trio.testing.wait_all_tasks_blocked()
        assert seen == []
        sleep.wake()
    assert seen == [True]


async def test_a_limited_sleep_ends_by_itself(
    autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(light_tasks, "monotonic_ns", lambda: int(trio.current_time() * 1e9))
    seen: list[object] = []
    short, long, endless = Sleep(), Sleep(), Sleep()

    async def work(sleep: Sleep, limited: bool) -> None:
        begun = trio.current_time()
        woken = await sleep.wait(limited=limited)
        seen.append((woken, trio.current_time() - begun >= light_tasks.LONGEST))

    async with running() as light:
        light.start(work(short, True))
        light.start(work(long, True))
        light.start(work(endless, False))
        await trio.testing.wait_all_tasks_blocked()
        short.wake()
        await trio.sleep(10)
        assert seen == [(True, False), (False, True)]
        endless.wake()
    assert seen[2:] == [(True, True)]


async def test_a_cancellation_reaches_every_task_wherever_it_waits() -> None:
    """It may still call trio behind a shield, and a new wait ends at once."""
    seen, sleep = list[str](), Sleep()

    async def sleeps() -> None:
        try:
            await sleep.wait()
        except Stopped:
            with pytest.raises(Stopped):
                await sleep.wait()
            await in_trio(trio.lowlevel.cancel_shielded_checkpoint)
            seen.append("slept")
            raise

    async def waits() -> None:
        try:
            await in_trio(trio.sleep_forever)
        except trio.Cancelled:
            seen.append("waited in trio")
            raise

    async def begins() -> None:
        seen.append("not begun yet")
        with pytest.raises(Stopped):
            await sleep.wait()

    async with trio.open_nursery() as nursery:
        light = LightTasks()
        nursery.start_soon(light.run, nursery)
        await trio.testing.wait_all_tasks_blocked()
        light.start(sleeps())
        light.start(waits())
        await trio.testing.wait_all_tasks_blocked()
        light.start(begins())
        nursery.cancel_scope.cancel()
    assert sorted(seen) == ["not begun yet", "slept", "waited in trio"]


async def test_an_error_that_leaves_a_task_ends_the_nursery() -> None:
    async def fails() -> None:
        await in_trio(trio.lowlevel.checkpoint)
        raise KeyError("a bug")

    with pytest.RaisesGroup(KeyError):
        async with running() as light:
            light.start(fails())
            await trio.sleep(5)


async def test_other_tasks_run_between_many_light_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(light_tasks, "LENGTH", 0)
    ran: list[str] = []

    async def light_one() -> None:
        ran.append("light")

    async def other() -> None:
        while ran.count("light") < 5:
            ran.append("other")
            await trio.lowlevel.checkpoint()

    async with running() as light, trio.open_nursery() as nursery:
        for _ in range(5):
            light.start(light_one())
        nursery.start_soon(other)
    assert ran.count("other") >= 4
