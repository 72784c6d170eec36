"""The time that a busy machine takes from programs: their threads could go on, and wait for a processor.

Linux tells it for each thread (`schedstat`); where a system does not, nothing is lost.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import trio

_MOST: Final = 3
"""Times its seconds that a program may have, however much of them it lost."""
_LEAST: Final = 0.1
"""Seconds that are worth waiting for."""


def lost_by(pid: int, thread: int | None = None) -> float:
    """Return the seconds for which the threads of a process waited for a processor, those of the longest one.

    thread: the number of one of them; None for all.
    """
    folder = Path(f"/proc/{pid}/task")
    longest = 0
    with suppress(OSError):  # it has ended, or there is no such folder
        for name in os.listdir(folder) if thread is None else [str(thread)]:  # noqa: PTH208 - names are enough
            longest = max(longest, int((folder / name / "schedstat").read_text().split()[1]))
    return longest / 1e9


async def wait_for(
    end: Callable[[], Awaitable[int]], seconds: float, lost: Callable[[], Awaitable[float]]
) -> tuple[int | None, float]:
    """Wait until a program has ended; return its exit code, and the seconds that it had.

    seconds: that it has, and as many more as it lost, to three times as many.  lost: returns those that it
    lost so far.  The exit code is None where it did not end in time.
    """
    had, more = 0.0, seconds
    while more > _LEAST:
        had += more
        with trio.move_on_after(more):
            return await end(), had
        more = round(min(seconds + await lost(), _MOST * seconds) - had, 1)
    return None, had
