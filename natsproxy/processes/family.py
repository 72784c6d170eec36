"""The processes of a program: whom to end.

A program may be a shell, npm or a test runner, whose own children do the work: they would go on for hours.
A process belongs to a program that is its ancestor, whose session it is in, or whose mark is in its
environment: that finds the orphans too, and those in sessions of their own.  Only the standard library is
imported: `reaper` runs this without anything else.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

_PROC: Final = Path("/proc")
_MARK: Final = "_NATSPROXY_"  # each mark is a variable of its own: a program may run a program


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


def new_mark() -> str:
    """Return a mark that no other program has."""
    return _MARK + secrets.token_hex(8)


def marked(environment: Mapping[str, str], mark: str) -> dict[str, str]:
    """Return an environment with a mark in it."""
    return {**environment, mark: "1"}


def family(pids: Container[int], marks: Iterable[str]) -> set[Process]:
    """Return the processes that run now of programs with these numbers, each of a session, or these marks."""
    everybody = list(processes())
    entries = {f"{mark}=1".encode() for mark in marks}
    found = {one for one in everybody if one.session in pids or _is_marked(one, entries)}
    return found | descendants({one.pid for one in found}, everybody)


def send(family: Iterable[Process], number: signal.Signals) -> None:
    """Send each of these processes a signal; one that has ended, or is another user's, gets none."""
    for one in family:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(one.pid, number)


def descendants(pids: Iterable[int], everybody: Iterable[Process]) -> set[Process]:
    """Return the children of these processes, their children and so on."""
    found: set[Process] = set()
    children: dict[int, list[Process]] = {}
    for one in everybody:
        children.setdefault(one.parent, []).append(one)
    parents = list(pids)
    while parents:
        new = [one for one in children.get(parents.pop(), ()) if one not in found]
        found.update(new)
        parents += [one.pid for one in new]
    return found


def _is_marked(process: Process, entries: set[bytes]) -> bool:
    with suppress(OSError):  # it has ended, or is another user's
        return not entries.isdisjoint((_PROC / str(process.pid) / "environ").read_bytes().split(b"\0"))
    return False


def processes() -> Iterator[Process]:
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
