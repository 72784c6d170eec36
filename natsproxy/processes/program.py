"""A program that a command runs: its exit code, what it prints, and the end of all its processes.

A program may be a shell, npm or a test runner, whose own children do the work: they would go on for hours.
A process belongs to a program that is its ancestor, whose session it is in, or whose mark is in its
environment: that finds the orphans too, and those in sessions of their own.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import trio

from natsproxy.errors import ConfigError

_GRACE: Final = 5.0  # seconds between SIGTERM and SIGKILL
_POLL: Final = 0.05
_PROC: Final = Path("/proc")
_MARK: Final = "NATSPROXY_PROGRAM"
_KEPT: Final = 64 << 10  # bytes of what a program printed
_LAST_WORDS: Final = 1.0  # seconds for its last bytes, which a process that is not ours may hold back


class Process(NamedTuple):
    """A process that runs.

    session: its number, or that of the process group.  began: its start time, since the system gives its
    number to others later.
    """

    pid: int
    parent: int
    session: int
    began: str

    @property
    def executable(self) -> Path | None:
        """The file that it runs; None where the system does not tell."""
        with suppress(OSError):
            return (_PROC / str(self.pid) / "exe").readlink()
        return None

    @property
    def command(self) -> str:
        """Its command line; its number where the system does not tell."""
        with suppress(OSError):
            words = (_PROC / str(self.pid) / "cmdline").read_bytes().split(b"\0")
            return b" ".join(words).decode(errors="replace").strip() or str(self.pid)
        return str(self.pid)


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

    def __init__(self, process: trio.Process, mark: bytes) -> None:
        self._process = process
        self._mark = mark
        self.printed = trio.Event()  # set when nothing more can come

    async def wait(self) -> int:
        """Wait until it has ended; return its exit code, 128 and the number of the signal that ended it."""
        return _exit_code(await self._process.wait())

    def family(self) -> set[Process]:
        """Return its processes that run now."""
        everybody, pid = list(_processes()), self._process.pid
        # Once it has ended, its number may be another's.
        found = _descendants(pid, everybody) if self._process.returncode is None else set()
        for one in everybody:
            if one not in found and (pid == one.session or _marked(one, self._mark)):
                found.add(one)
        return found

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
        family = self.family()
        for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, _GRACE)):
            told: set[Process] = set()
            with trio.move_on_after(seconds):
                while family:
                    _signal(family - told, number)
                    told |= family
                    await trio.sleep(_POLL)
                    family = self.family()
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
    mark = secrets.token_hex(8)
    try:
        process = await trio.lowlevel.open_process(
            list(command),
            env={**environment, _MARK: mark},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise _cannot_run(command, error) from None
    program = RunningProgram(process, f"{_MARK}={mark}".encode())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(program.read, tail)
        try:
            yield program
        finally:
            with trio.CancelScope(shield=True):
                await program.end(grace)
                with trio.move_on_after(_LAST_WORDS):
                    await program.printed.wait()
            nursery.cancel_scope.cancel()


async def run_program(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a program to its end; return its exit code, 128 and the number of the signal that ended it.

    If it is cancelled, it and its descendants are ended.  Raises ConfigError where it cannot be started.
    """
    family: set[Process] = set()

    async def end(process: trio.Process) -> None:
        family.update(_descendants(process.pid, _processes()))
        process.terminate()
        _signal(family, signal.SIGTERM)
        await trio.sleep(_GRACE)
        process.kill()

    try:
        done = await trio.run_process(command, env=environment, check=False, deliver_cancel=end)
    except OSError as error:
        raise _cannot_run(command, error) from None
    finally:
        with trio.CancelScope(shield=True):
            await _end(family)
    return _exit_code(done.returncode)


def _cannot_run(command: Sequence[str], error: OSError) -> ConfigError:
    return ConfigError(f"cannot run {command[0]}: {error.strerror or error}")


def _exit_code(returned: int) -> int:
    return returned if returned >= 0 else 128 - returned


async def _end(family: set[Process]) -> None:
    with trio.move_on_after(_GRACE):
        while _living(family):  # noqa: ASYNC110 (no event tells the end of another process's child)
            await trio.sleep(_POLL)
    _signal(_living(family), signal.SIGKILL)


def _signal(family: set[Process], number: signal.Signals) -> None:
    for one in family:
        with suppress(ProcessLookupError, PermissionError):  # it has ended, or is another user's
            os.kill(one.pid, number)


def _living(family: set[Process]) -> set[Process]:
    known = {(one.pid, one.began) for one in family}
    return {one for one in _processes() if (one.pid, one.began) in known} if family else set()


def _descendants(pid: int, processes: Iterable[Process]) -> set[Process]:
    found: set[Process] = set()
    children: dict[int, list[Process]] = {}
    for one in processes:
        children.setdefault(one.parent, []).append(one)
    parents = [pid]
    while parents:
        new = [one for one in children.get(parents.pop(), ()) if one not in found]
        found.update(new)
        parents += [one.pid for one in new]
    return found


def _marked(process: Process, mark: bytes) -> bool:
    with suppress(OSError):  # it has ended, or is another user's
        return mark in (_PROC / str(process.pid) / "environ").read_bytes().split(b"\0")
    return False


def _processes() -> Iterator[Process]:
    """Yield the processes of this machine but for zombies; none where the system does not tell."""
    if (_PROC / "self/stat").exists():
        for path in _PROC.glob("[0-9]*/stat"):
            with suppress(OSError):  # it has ended meanwhile
                pid, _, rest = path.read_text(errors="replace").partition(" ")
                state, parent, *more = rest.rpartition(")")[2].split()
                if state != "Z":
                    yield Process(int(pid), int(parent), int(more[1]), more[17])
        return
    with suppress(OSError):
        command = ["ps", "-A", "-o", "pid=,ppid=,pgid=,stat=,lstart="]
        listed = subprocess.run(command, capture_output=True, check=False, text=True)  # noqa: S603
        for line in listed.stdout.splitlines():
            number, parent, session, state, began = line.split(None, 4)
            if not state.startswith("Z"):
                yield Process(int(number), int(parent), int(session), began)
