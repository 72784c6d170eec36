"""A program that a command runs."""

from __future__ import annotations

import os
import threading
from collections.abc import Container, Iterable

import pytest
import trio
import trio.testing

from natsproxy.processes import program
from natsproxy.processes.family import Process, family


async def test_the_loop_turns_while_the_system_lists_its_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine that takes a second, and the loop has the traffic of other programs to pass on."""
    turned = threading.Event()

    def slow(pids: Container[int], marks: Iterable[str]) -> set[Process]:
        assert turned.wait(10), "the loop did not turn"
        return family(pids, marks)

    monkeypatch.setattr(program, "family", slow)
    sleep = program.running(["sleep", "100"], os.environ, program.Tail())
    async with sleep as one, trio.open_nursery() as nursery:
        nursery.start_soon(one.family)
        await trio.testing.wait_all_tasks_blocked()
        turned.set()
