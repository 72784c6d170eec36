"""The tasks of one connection, in a nursery that others use too."""

from __future__ import annotations

import trio
import trio.testing

from natsproxy.net.connection_tasks import ConnectionTasks


async def test_tasks_run_whenever_they_are_given() -> None:
    ran = list[str]()
    async with trio.open_nursery() as nursery:
        tasks = ConnectionTasks(nursery, lambda _: None)

        async def run(name: str, then: str = "") -> None:
            ran.append(name)
            if then:
                tasks.start_soon(run, then)

        assert not tasks
        tasks.start_soon(run, "first", "from a task")
        assert tasks
        await trio.testing.wait_all_tasks_blocked()
        assert not tasks
        tasks.start_soon(run, "later")
    assert ran == ["first", "from a task", "later"]


async def test_a_stop_cancels_the_tasks_and_takes_no_more() -> None:
    ends, others = list[str](), list[str]()

    async def wait(name: str) -> None:
        try:
            await trio.sleep_forever()
        finally:
            ends.append(name)

    async def other() -> None:
        await trio.testing.wait_all_tasks_blocked()
        others.append("goes on")

    async with trio.open_nursery() as nursery:
        tasks = ConnectionTasks(nursery, lambda _: None)
        tasks.start_soon(wait, "runs")
        nursery.start_soon(other)
        await trio.testing.wait_all_tasks_blocked()
        tasks.start_soon(wait, "has not begun")
        tasks.stop()
        assert ends == []
        await tasks.wait_over()
        assert not tasks
        tasks.start_soon(wait, "after it")
        await tasks.wait_over()
    assert (sorted(ends), others) == (["has not begun", "runs"], ["goes on"])


async def test_an_error_of_a_task_is_told_and_the_others_go_on() -> None:
    errors, ended = list[Exception](), list[str]()

    async def fail() -> None:
        raise ValueError("a bug")

    async def wait() -> None:
        await trio.testing.wait_all_tasks_blocked()
        ended.append("whole")

    async with trio.open_nursery() as nursery:
        tasks = ConnectionTasks(nursery, errors.append)
        tasks.start_soon(fail)
        tasks.start_soon(wait)
    assert [type(error) for error in errors] == [ValueError]
    assert ended == ["whole"]


async def test_they_end_with_the_nursery() -> None:
    errors = list[Exception]()
    async with trio.open_nursery() as nursery:
        tasks = ConnectionTasks(nursery, errors.append)
        tasks.start_soon(trio.sleep_forever)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert not tasks
    assert errors == []
