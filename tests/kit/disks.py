"""A disk for captures that a test can pause or let fail; otherwise it really writes."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence

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
        if not self.error:
            return self._writev(fd, parts)
        self._short = not self._short
        if self._short:  # a full disk takes what still fits
            return os.write(fd, b"".join(parts)[:10])
        self.attempts += 1
        raise OSError(self.error, os.strerror(self.error))

    def fill(self) -> None:
        """Let every write fail with ENOSPC."""
        self.error = errno.ENOSPC
