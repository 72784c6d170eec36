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

import trio

from natsproxy.net._plane_py import PythonPlane
from natsproxy.net.admission import Admission
from natsproxy.net.plane_interface import Plane
from natsproxy.wire.scanner import COMPILED


def open_plane(admission: Admission, *, threads: int, record_room: int, record_most: int) -> Plane:
    """Return the best plane that there is.

    admission: tells when no leg may be read.  threads: that pass frames on beside the loop, from 2 on; with 1
    the loop does that.  record_room: the bytes that frames whose end has not come may
    take while they are recorded, all together; record_most: those of one.
    """
    chosen = os.environ.get("NATSPROXY_PLANE")
    native = _native() if chosen != "python" else None
    if native is None or _clock_is_mocked():
        return PythonPlane(admission)
    if eager := os.environ.get("NATSPROXY_PLANE_THREADS"):
        return native(admission, record_room, record_most, int(eager), 1)
    return native(admission, record_room, record_most, threads if threads > 1 else 0)


def _clock_is_mocked() -> bool:
    """Tell whether the clock of this run is a test's."""
    # Importing trio.testing imports pytest too: a proxy would start a third slower, and has no mock clock.
    testing = sys.modules.get("trio.testing")
    return testing is not None and isinstance(trio.lowlevel.current_clock(), testing.MockClock)


def _native() -> Callable[..., Plane] | None:
    """Return the class of the native plane, None where it is not built."""
    if not COMPILED:
        return None
    try:
        from natsproxy.net.native_plane import NativePlane
    except ImportError:  # not built, or no epoll
        return None
    return NativePlane
