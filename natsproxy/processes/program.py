"""A program that a command runs: its exit code, what it prints, and the end of all its processes."""

from __future__ import annotations

import signal
import subprocess
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import trio

from natsproxy.errors import ConfigError
from natsproxy.processes import reaper
from natsproxy.processes.family import Process, descendants, family, marked, new_mark, processes, send
from natsproxy.processes.starvation import lost_by

_GRACE: Final = 5.0  # seconds between SIGTERM and SIGKILL
_POLL: Final = 0.05
_KEPT: Final = 64 << 10  # bytes of what a program printed
_LAST_WORDS: Final = 1.0  # seconds for its last bytes, which a process that is not ours may hold back


class Tail:
    """The end of what a program printed.  count: bytes so far."""

    def __init__(self, kept: int = _KEPT) -> None:
        self._parts: deque[bytes] = deque()
        self._kept = kept
        self._held = 0
        self.count = 0

    def add(self, data: bytes | bytearray) -> None:
        """Take what it printed next."""
        self._parts.append(bytes(data))
        self.count += len(data)
        self._held += len(data)
        while self._held - len(self._parts[0]) >= self._kept:
            self._held -= len(self._parts.popleft())

    def text(self, since: int = 0) -> str:
        """Return the end of it, of what it printed after so many bytes."""
        most = min(self._kept, self.count - since)
        return b"".join(self._parts)[-most:].decode(errors="replace") if most > 0 else ""


class RunningProgram:
    """A program that runs, in a session of its own, with nothing to read and no terminal."""

    def __init__(self, process: trio.Process, mark: str) -> None:
        self._process = process
        self._mark = mark
        self.printed = trio.Event()  # set when nothing more can come

    async def wait(self) -> int:
        """Wait until it has ended; return its exit code, 128 and the number of the signal that ended it."""
        return _exit_code(await self._process.wait())

    async def family(self) -> set[Process]:
        """Return its processes that run now."""
        # On a busy machine the system takes a second to list its processes: the loop has traffic to pass on.
        return await trio.to_thread.run_sync(family, (self._process.pid,), (self._mark,))

    async def lost(self) -> float:
        """Return the seconds that a busy machine took from it: from that of its processes which lost most."""
        family = await self.family()
        return await trio.to_thread.run_sync(lambda: max((lost_by(one.pid) for one in family), default=0.0))

    async def read(self, tail: Tail) -> None:
        """Keep what it prints."""
        assert self._process.stdout is not None
        try:
            with suppress(trio.BrokenResourceError):
                async for data in self._process.stdout:
                    tail.add(data)
        finally:
            self.printed.set()

    async def end(self, grace: float = _GRACE) -> None:
        """End all its processes.  grace: seconds between SIGTERM and SIGKILL."""
        left = await self.family()
        for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, _GRACE)):
            told: set[Process] = set()
            with trio.move_on_after(seconds):
                while left:
                    send(left - told, number)
                    told |= left
                    await trio.sleep(_POLL)
                    left = await self.family()
        await self._process.wait()


@asynccontextmanager
async def running(
    command: Sequence[str],
    environment: Mapping[str, str],
    tail: Tail,
    *,
    cwd: Path | None = None,
    grace: float = _GRACE,
) -> AsyncIterator[RunningProgram]:
    """Run a program for the length of the block, in a session of its own; then end all its processes.

    tail: keeps what it prints, both streams.  grace: seconds between SIGTERM and SIGKILL.  Raises ConfigError
    where it cannot be started.
    """
    mark = new_mark()
    reaper.guard(mark)
    try:
        process = await trio.lowlevel.open_process(
            list(command),
            env=marked(environment, mark),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        reaper.release(mark)
        raise _cannot_run(command, error) from None
    reaper.guard(mark, process.pid)
    program = RunningProgram(process, mark)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(program.read, tail)
        try:
            yield program
        finally:
            with trio.CancelScope(shield=True):
                await program.end(grace)
                with trio.move_on_after(_LAST_WORDS):
                    await program.printed.wait()
            reaper.release(mark)
            nursery.cancel_scope.cancel()


async def run_program(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a program to its end; return its exit code, 128 and the number of the signal that ended it.

    If it is cancelled, it and its descendants are ended; if this process is killed, the reaper ends them.
    Raises ConfigError where it cannot be started.
    """
    told: set[Process] = set()
    mark = new_mark()
    reaper.guard(mark)

    async def end(process: trio.Process) -> None:
        told.update(descendants((process.pid,), processes()))
        process.terminate()
        send(told, signal.SIGTERM)
        await trio.sleep(_GRACE)
        process.kill()

    try:
        done = await trio.run_process(command, env=marked(environment, mark), check=False, deliver_cancel=end)
    except OSError as error:
        raise _cannot_run(command, error) from None
    finally:
        with trio.CancelScope(shield=True):
            await _end(told)
        reaper.release(mark)
    return _exit_code(done.returncode)


def _cannot_run(command: Sequence[str], error: OSError) -> ConfigError:
    return ConfigError(f"cannot run {command[0]}: {error.strerror or error}")


def _exit_code(returned: int) -> int:
    return returned if returned >= 0 else 128 - returned


async def _end(told: set[Process]) -> None:
    with trio.move_on_after(_GRACE):
        while _living(told):  # noqa: ASYNC110 (no event tells the end of another process's child)
            await trio.sleep(_POLL)
    send(_living(told), signal.SIGKILL)


def _living(told: set[Process]) -> set[Process]:
    known = {(one.pid, one.began) for one in told}
    return {one for one in processes() if (one.pid, one.began) in known} if told else set()
