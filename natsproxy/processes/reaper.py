"""The reaper: a process that ends our programs where we end without doing so (SIGKILL, out of memory).

It reads a pipe whose other end only this process has: a line for each program that begins or ends.  At the
end of the pipe it kills the programs that have not ended, with all their processes, and deletes their
folders.  The kernel's own way (PR_SET_PDEATHSIG) reaches no grandchildren, fires when the thread ends that
has started a program, and is there on Linux alone.

`guard` comes before the program, so that no moment is without it, and again when its number is known: where a
system does not tell environments (macOS), only the number finds its session.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any, Final

from natsproxy.processes.family import family, send

_ROOT: Final = Path(__file__).parents[2]
_START: Final = f"import sys; sys.path.insert(0, {str(_ROOT)!r}); from {__name__} import main; main()"
_LEAVE: Final = 1.0  # seconds that it has to leave when we do
_MOST: Final = 10.0  # seconds in which it tries to end what is left
_POLL: Final = 0.02


class _Reaper:
    """The reaper of this process, started when the first program is."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def tell(self, **facts: Any) -> None:
        with self._lock:
            if self._process is None:
                self._process = self._started()
            assert self._process.stdin is not None
            with suppress(BrokenPipeError):  # somebody has killed it
                os.write(self._process.stdin.fileno(), json.dumps(facts).encode() + b"\n")

    def _started(self) -> subprocess.Popen[bytes]:
        # A session of its own: no signal of a terminal, or for our group, ends it before its work.
        return subprocess.Popen(  # noqa: S603 (our own interpreter and module)
            [sys.executable, "-I", "-S", "-c", _START],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )

    def leave(self) -> None:
        """Close the pipe, and wait until it has ended."""
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired, OSError):
                self._process.stdin.close()  # type: ignore[union-attr]
                self._process.wait(_LEAVE)

    def forked(self) -> None:
        """Drop what a fork has copied: with a second end, the pipe would not end with its owner."""
        self._lock = Lock()
        if self._process is not None:
            with suppress(OSError):
                self._process.stdin.close()  # type: ignore[union-attr]
            self._process.returncode = 0  # it is no child of ours
            self._process = None


_OURS: Final = _Reaper()
atexit.register(_OURS.leave)
os.register_at_fork(after_in_child=_OURS.forked)


def guard(mark: str, pid: int = 0, folder: Path | str = "") -> None:
    """Have the processes of a program killed when this process ends, unless `release` comes before.

    mark: in its environment (`family.marked`).  pid: its number, 0 for not known yet.  folder: goes with it.
    """
    _OURS.tell(mark=mark, pid=pid, folder=str(folder))


def release(mark: str) -> None:
    """Let a program be: it has ended, with all its processes."""
    _OURS.tell(mark=mark, ended=True)


def main() -> None:
    """Be the reaper."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    guarded: dict[str, dict[str, Any]] = {}
    for line in sys.stdin:
        with suppress(ValueError):  # the last line may be torn
            facts = json.loads(line)
            if facts.get("ended"):
                guarded.pop(facts["mark"], None)
            else:
                guarded[facts["mark"]] = facts
    reap({facts["pid"] for facts in guarded.values() if facts["pid"]}, guarded)
    for facts in guarded.values():
        if facts["folder"]:
            shutil.rmtree(facts["folder"], ignore_errors=True)


def reap(pids: set[int], marks: Iterable[str]) -> None:
    """Kill the programs with these numbers or marks until none is left, or a few seconds are over."""
    names = list(marks)
    until = time.monotonic() + _MOST
    while names and (left := family(pids, names)) and time.monotonic() < until:
        send(left, signal.SIGKILL)
        time.sleep(_POLL)
