"""The place where a program hangs, as its runtime says it when it gets a signal.

| runtime | signals | its answer |
| --- | --- | --- |
| Python | SIGUSR2, SIGABRT | the tasks of its loops (`hooks`); its threads (faulthandler), then it ends |
| Node | SIGUSR2 | its promises (`hooks`), and the handles that keep its loop alive |
| Go | SIGQUIT | its goroutines, then it ends |
| Java | SIGQUIT | its threads |

A signal goes only to a process that catches it: it would end at once and say nothing.  Node answers when its
loop turns, so not while it computes.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import signal
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import trio

from natsproxy.processes.family import Process
from natsproxy.processes.program import Tail

_HOOKS: Final = Path(__file__).with_name("hooks")
_GO: Final = b"\xff Go buildinf:"
_LONGEST: Final = 3.0  # seconds that an answer takes
_QUIET: Final = 0.25  # seconds without output after which an answer has ended
_POLL: Final = 0.05
_NOISE: Final = re.compile(
    r"^(Fatal Python error: Aborted|Extension modules: .*|SIGQUIT: quit)\n+",
    re.MULTILINE,
)


class _Runtime(NamedTuple):
    """A runtime that tells where a program is.

    runs: whether it is in this executable.  signals: in their order.
    """

    runs: Callable[[Path], bool]
    signals: tuple[signal.Signals, ...]


def _named(pattern: str) -> Callable[[Path], bool]:
    return lambda executable: re.fullmatch(pattern, executable.name) is not None


def _is_go(executable: Path) -> bool:
    """True for a program that Go has built; its own commands only wait for others."""
    if executable.name == "go":
        return False
    with (
        suppress(OSError, ValueError),
        executable.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        return data.find(_GO) >= 0
    return False


_RUNTIMES: Final = (
    _Runtime(_named(r"(python|pypy)[\w.-]*"), (signal.SIGUSR2, signal.SIGABRT)),
    _Runtime(_named(r"node(js)?"), (signal.SIGUSR2,)),
    _Runtime(_named("java"), (signal.SIGQUIT,)),
    _Runtime(_is_go, (signal.SIGQUIT,)),
)


def with_stacks(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment in which runtimes answer."""
    node = "--require " + json.dumps(str(_HOOKS / "promises.cjs"))  # quoted as NODE_OPTIONS has it
    return {
        "GOTRACEBACK": "all",
        "PYTHONUNBUFFERED": "1",  # else what a program that hangs has printed is lost
        **environment,
        "PYTHONFAULTHANDLER": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(_HOOKS), environment.get("PYTHONPATH")))),
        "NODE_OPTIONS": " ".join(filter(None, (environment.get("NODE_OPTIONS"), node))),
    }


async def stacks(processes: Iterable[Process], tail: Tail) -> str:
    """Return the stacks of a program's processes, as their runtimes print them on a signal.

    Some of the processes end by it.  tail: of their output.
    """
    found = []
    for process in sorted(processes):
        executable = process.executable
        runtime = next((one for one in _RUNTIMES if executable and one.runs(executable)), None)
        if runtime is None:
            continue
        title, since = process.command, tail.count
        asked = [one for one in runtime.signals if _catches(process, one)]
        for number in asked:
            await _ask(process, number, tail)
        text = _NOISE.sub("", tail.text(since)).strip("\n")
        if asked:
            found.append(f"{title}\n{text or 'it does not answer: its loop does not turn'}\n")
    return "\n".join(found)


def _catches(process: Process, number: signal.Signals) -> bool:
    with suppress(OSError, ValueError, StopIteration):
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        caught = next(line for line in lines if line.startswith("SigCgt:"))
        return bool(int(caught.partition(":")[2], 16) >> (number - 1) & 1)
    return False


async def _ask(process: Process, number: signal.Signals, tail: Tail) -> None:
    """Send a signal, and wait until the output that answers it has ended."""
    _no_core(process.pid)
    before = seen = tail.count
    with suppress(ProcessLookupError):
        os.kill(process.pid, number)
    quiet_since = began = trio.current_time()
    while trio.current_time() - began < _LONGEST:
        await trio.sleep(_POLL)
        if tail.count != seen:
            seen, quiet_since = tail.count, trio.current_time()
        if seen != before and trio.current_time() - quiet_since >= _QUIET:
            return


def _no_core(pid: int) -> None:
    """Let a process that ends by a signal leave no core file."""
    with suppress(ImportError, AttributeError, OSError):
        import resource

        resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
