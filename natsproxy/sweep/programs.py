"""The program of a sweep: each run starts it anew with an address in NATS_URL.

A program that is a command has a session of its own: it has no terminal, and reads nothing from its standard
input.
"""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Final, Protocol

from natsproxy.processes.program import RunningProgram, Tail, running
from natsproxy.sweep.stacks import stacks, with_stacks

GRACE: Final = 1.0
"""Seconds between SIGTERM and SIGKILL for a program whose time is over."""


class Started(Protocol):
    """A program that runs."""

    def wait(self) -> Awaitable[int]:
        """Wait until it has ended; return its exit code."""

    def lost(self) -> Awaitable[float]:
        """Return the seconds for which it waited for a processor so far."""

    def left(self) -> Awaitable[Sequence[str]]:
        """Return the commands of its processes that go on although it has ended."""

    def stack(self) -> Awaitable[str]:
        """Return where it is now, as its runtime says it; "" where it does not.  It may end of that."""


class Program(Protocol):
    """A program that can be run again and again.

    name: for people.  line: what tells it from others, its command line.
    """

    @property
    def name(self) -> str:
        """The name for people."""

    @property
    def line(self) -> str:
        """The command line, or the name of a callable."""

    def run(self, url: str, tail: Tail, folder: Path) -> AbstractAsyncContextManager[Started]:
        """Run it for the length of the block, and end all of it then.

        url: of the server.  tail: takes what it prints.  folder: for files of the run.
        """


class Command:
    """A command line as a program.

    environment: of each run, without NATS_URL.  cwd: the folder that it runs in; None for the current one.
    """

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str], cwd: Path | None = None
    ) -> None:
        self._arguments = list(arguments)
        self._environment = environment
        self._cwd = cwd

    @property
    def name(self) -> str:
        """The first word of the command."""
        return self._arguments[0]

    @property
    def line(self) -> str:
        """The command as a shell has it."""
        return shlex.join(self._arguments)

    @asynccontextmanager
    async def run(self, url: str, tail: Tail, folder: Path) -> AsyncIterator[Started]:
        """Run it for the length of the block, and end all of it then."""
        environment = with_stacks({**self._environment, "NATS_URL": url})
        async with running(self._arguments, environment, tail, cwd=self._cwd, grace=GRACE) as program:
            yield _Started(program, tail)


class _Started:
    def __init__(self, program: RunningProgram, tail: Tail) -> None:
        self._program = program
        self._tail = tail

    async def wait(self) -> int:
        return await self._program.wait()

    async def lost(self) -> float:
        return await self._program.lost()

    async def left(self) -> list[str]:
        return [one.command for one in await self._program.family()]

    async def stack(self) -> str:
        return await stacks(await self._program.family(), self._tail)
