"""A nursery that is there only while it has tasks."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from natsproxy.net.lazy_nursery import LazyNursery


async def test_tasks_run_whenever_they_are_given() -> None:
    tasks, ran = LazyNursery(), list[str]()

    async def run(name: str, then: str = "") -> None:
        ran.append(name)
        if then:
            tasks.start_soon(run, then)

    tasks.start_soon(run, "before it runs")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tasks.run)
        await trio.testing.wait_all_tasks_blocked()
        tasks.start_soon(run, "while it sleeps", "from a task")
        tasks.start_soon(run, "while it wakes")
        await trio.testing.wait_all_tasks_blocked()
        tasks.stop()
    assert sorted(ran) == sorted(["before it runs", "while it sleeps", "from a task", "while it wakes"])


async def test_a_task_may_be_given_between_the_end_of_the_last_and_the_sleep() -> None:
    tasks, ran = LazyNursery(), list[int]()

    async def run(number: int) -> None:
        ran.append(number)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(tasks.run)
        for number in range(20):  # at each place that there is between two steps
            tasks.start_soon(run, number)
            for _ in range(number % 5):
                await trio.lowlevel.checkpoint()
        await trio.testing.wait_all_tasks_blocked()
        tasks.stop()
    assert sorted(ran) == list(range(20))


async def test_a_stop_cancels_the_tasks_and_takes_no_more() -> None:
    tasks, ends = LazyNursery(), list[str]()

    async def wait(name: str) -> None:
        try:
            await trio.sleep_forever()
        finally:
            ends.append(name)

    tasks.start_soon(wait, "first")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tasks.run)
        await trio.testing.wait_all_tasks_blocked()
        tasks.stop()
    tasks.start_soon(wait, "after it")
    await tasks.run()
    assert ends == ["first"]


async def test_it_may_be_cancelled_while_it_sleeps() -> None:
    tasks = LazyNursery()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tasks.run)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
    assert scope.cancelled_caught
    tasks.stop()  # nobody is there to be woken


async def test_an_error_of_a_task_is_raised() -> None:
    tasks, cancelled = LazyNursery(), list[bool]()

    async def fail() -> None:
        raise ValueError("a bug")

    async def wait() -> None:
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            cancelled.append(True)
            raise

    tasks.start_soon(wait)
    tasks.start_soon(fail)
    with pytest.raises(BaseExceptionGroup) as raised:
        await tasks.run()
    assert [type(error) for error in raised.value.exceptions] == [ValueError]
    assert cancelled
