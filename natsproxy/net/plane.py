"""The plane: it moves the bytes of all connections of a proxy between their legs.

There are two: the native one (`_plane.pyx`) has an epoll of its own and passes frames that nobody wants
without Python; the one in Python (`_plane_py.py`) has two tasks for each connection and gives all bytes to
the session.  `open_plane` chooses: the native one where it is built, unless `NATSPROXY_PLANE=python` or a
mock clock is used.  With `NATSPROXY_PLANE_THREADS=2` the native one has two threads, and gives them each
connection as soon as it may: for tests.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import trio

from natsproxy.errors import ConfigError
from natsproxy.net._plane_py import PythonPlane
from natsproxy.net.admission import Admission
from natsproxy.net.plane_interface import Plane
from natsproxy.session.values import Budget
from natsproxy.wire.scanner import COMPILED

_QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")


def open_plane(
    admission: Admission, budget: Budget, *, threads: int, record_room: int, record_most: int
) -> Plane:
    """Return the best plane that there is.

    admission: tells when no leg may be read.  budget: of the bytes that wait.  threads: that pass frames on
    beside the loop, from 2 on; with 1 the loop does that; 0: as many as there are cores.  record_room: the
    bytes that frames whose end has not come may take while they are recorded, all together; record_most:
    those of one.
    """
    native = _native()
    if native is None or _clock_is_mocked():
        return PythonPlane(admission)
    if eager := os.environ.get("NATSPROXY_PLANE_THREADS"):
        return native(admission, budget, record_room, record_most, int(eager), 1)
    threads = threads or cores()
    return native(admission, budget, record_room, record_most, threads if threads > 1 else 0)


def check_threads(threads: int) -> None:
    """Raise ConfigError if only the plane in Python is there, which has no threads."""
    if threads > 1 and _native() is None:
        raise ConfigError(
            f"threads = {threads} needs the compiled plane, which is not built here (or switched off by an"
            " environment variable): use threads = 1"
        )


def cores() -> int:
    """Return the number of cores that this process may use, as its affinity and a quota (cgroup v2) say."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = map(int, _QUOTA.read_text().split())
    except (OSError, ValueError):  # there is none ("max")
        return found
    return max(1, min(found, -(-quota // period)))


def _clock_is_mocked() -> bool:
    """Tell whether the clock of this run is a test's."""
    # Importing trio.testing imports pytest too: a proxy would start a third slower, and has no mock clock.
    testing = sys.modules.get("trio.testing")
    return testing is not None and isinstance(trio.lowlevel.current_clock(), testing.MockClock)


def _native() -> Callable[..., Plane] | None:
    """Return the class of the native plane, None where it is not built, or not wanted."""
    if not COMPILED or os.environ.get("NATSPROXY_PLANE") == "python":
        return None
    try:
        from natsproxy.net.native_plane import NativePlane
    except ImportError:  # not built, or no epoll
        return None
    return NativePlane
