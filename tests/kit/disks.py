"""A disk under captures that stands still, or fails, until the test says otherwise; else it really writes."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence

import pytest

_HELD = 60.0  # seconds


class Disk:
    """What `os.writev` is while a test runs.

    moving: cleared, writes wait.  error: what a write fails with (an errno), after some bytes of it.
    attempts: how many writes have failed.
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
        if self._short:  # the last bytes that there was room for
            return os.write(fd, b"".join(parts)[:10])
        self.attempts += 1
        raise OSError(self.error, os.strerror(self.error))

    def fill(self) -> None:
        """Let it be full."""
        self.error = errno.ENOSPC
