"""Disks for captures that a test can pause or let fail; otherwise they really write."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

_HELD = 60.0  # seconds


class Disk:
    """A replacement of `os.writev` for one test.

    moving: an event; while it is cleared, writes wait.  error: the errno of failing writes, 0 for none; every
    other failing write first takes ten bytes.  attempts: the number of failed writes.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.moving = threading.Event()
        self.moving.set()
        self.error = 0
        self.attempts = 0
        self._short = False
        self._writev = os.writev
        monkeypatch.setattr(os, "writev", self._write)

    def _write(self, fd: int, parts: Sequence[bytes]) -> int:
        assert self.moving.wait(_HELD), "the test never let the disk go on"
        error = self.error  # the test may change it meanwhile
        if not error:
            return self._writev(fd, parts)
        self._short = not self._short
        if self._short:  # a full disk takes what still fits
            return os.write(fd, b"".join(parts)[:10])
        self.attempts += 1
        raise OSError(error, os.strerror(error))

    def fill(self) -> None:
        """Let every write fail with ENOSPC."""
        self.error = errno.ENOSPC


class Killed(BaseException):
    """The process ends here, as by SIGKILL."""


class FaultyDisk:
    """The calls of a writer to the kernel, of which the next ones fail as planned.

    plan: for each call that may fail an errno; 0 for none; a negative number for a write that takes that many
    bytes at most.  Later calls succeed while there is room.  room: bytes that can still be written.
    killed_at: the number of the call at which the process ends.  calls: their number.  unsynced: a file was
    not brought to the disk, though its bytes may all be there.
    """

    def __init__(self, plan: Sequence[int], room: int = 1 << 40, killed_at: int = -1) -> None:
        self.calls = 0
        self.unsynced = False
        self.room = room
        self.on_call: Callable[[int], None] = lambda _: None
        self._plan = list(plan)
        self._killed_at = killed_at
        self._fds: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def _next(self) -> int:
        """Count a call; return how many bytes a write may take, or raise."""
        self.calls += 1
        self.on_call(self.calls)
        if self.calls == self._killed_at:
            raise Killed
        planned = self._plan.pop(0) if self._plan else 0
        if planned > 0:
            raise OSError(planned, os.strerror(planned))
        return -planned or 1 << 30

    def open(self, path: Path, flags: int, mode: int = 0o777) -> int:
        """Open a file."""
        self._next()
        fd = os.open(path, flags, mode)
        self._fds.add(fd)
        return fd

    def writev(self, fd: int, parts: Sequence[bytes]) -> int:
        """Write what is planned and what there is room for."""
        data = b"".join(parts)[: min(self._next(), self.room)]
        if not data:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room -= len(data)
        return os.write(fd, data)

    def ftruncate(self, fd: int, size: int) -> None:
        """Cut a file; what is cut off is room again."""
        self._next()
        self.room += os.fstat(fd).st_size - size
        os.ftruncate(fd, size)

    def fsync(self, _: int) -> None:
        """Bring a file to the disk."""
        try:
            self._next()
        except OSError:
            self.unsynced = True
            raise

    def close(self, fd: int) -> None:
        """Close a file."""
        self._fds.discard(fd)
        os.close(fd)

    def end(self) -> None:
        """Close what a killed process has open."""
        for fd in self._fds:
            os.close(fd)
