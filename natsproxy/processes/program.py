"""A program that a command runs: its exit code, and the end of all its processes when it is cancelled.

A program may be a shell, npm or a test runner, whose own children do the work: they would go on for hours.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import trio

from natsproxy.errors import ConfigError

_GRACE: Final = 5.0  # seconds between SIGTERM and SIGKILL
_POLL: Final = 0.1
_PROC: Final = Path("/proc")


class _Process(NamedTuple):
    """A process that runs.  began: its start time, since the system gives its number to others later."""

    pid: int
    parent: int
    began: str


async def run_program(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a program to its end; return its exit code, 128 and the number of the signal that ended it.

    If it is cancelled, it and its descendants are ended.  Raises ConfigError where it cannot be started.
    """
    family: set[_Process] = set()

    async def end(process: trio.Process) -> None:
        family.update(_descendants(process.pid))
        process.terminate()
        _signal(family, signal.SIGTERM)
        await trio.sleep(_GRACE)
        process.kill()

    try:
        done = await trio.run_process(command, env=environment, check=False, deliver_cancel=end)
    except OSError as error:
        raise ConfigError(f"cannot run {command[0]}: {error.strerror or error}") from None
    finally:
        with trio.CancelScope(shield=True):
            await _end(family)
    return done.returncode if done.returncode >= 0 else 128 - done.returncode


async def _end(family: set[_Process]) -> None:
    with trio.move_on_after(_GRACE):
        while _living(family):  # noqa: ASYNC110 (no event tells the end of another process's child)
            await trio.sleep(_POLL)
    _signal(_living(family), signal.SIGKILL)


def _signal(family: set[_Process], number: signal.Signals) -> None:
    for one in family:
        with suppress(ProcessLookupError, PermissionError):  # it has ended, or is another user's
            os.kill(one.pid, number)


def _living(family: set[_Process]) -> set[_Process]:
    known = {(one.pid, one.began) for one in family}
    return {one for one in _processes() if (one.pid, one.began) in known} if family else set()


def _descendants(pid: int) -> set[_Process]:
    found: set[_Process] = set()
    children: dict[int, list[_Process]] = {}
    for one in _processes():
        children.setdefault(one.parent, []).append(one)
    parents = [pid]
    while parents:
        new = [one for one in children.get(parents.pop(), ()) if one not in found]
        found.update(new)
        parents += [one.pid for one in new]
    return found


def _processes() -> Iterator[_Process]:
    """Yield the processes of this machine but for zombies; none where the system does not tell."""
    if (_PROC / "self/stat").exists():
        for path in _PROC.glob("[0-9]*/stat"):
            with suppress(OSError):  # it has ended meanwhile
                pid, _, rest = path.read_text(errors="replace").partition(" ")
                state, parent, *more = rest.rpartition(")")[2].split()
                if state != "Z":
                    yield _Process(int(pid), int(parent), more[17])
        return
    with suppress(OSError):
        command = ["ps", "-A", "-o", "pid=,ppid=,stat=,lstart="]
        listed = subprocess.run(command, capture_output=True, check=False, text=True)  # noqa: S603
        for line in listed.stdout.splitlines():
            number, parent, state, began = line.split(None, 3)
            if not state.startswith("Z"):
                yield _Process(int(number), int(parent), began)
