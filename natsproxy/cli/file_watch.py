"""The watch of one file: it tells when the file has become another, by a look every second.

A ConfigMap of Kubernetes changes by the swap of a symbolic link above the file, an editor renames or writes
in place, and network file systems send no notifications: a look at the end of all links finds all of these.
A change counts when it has lasted for one more look, so that a file is not read while it is written.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import trio

LOOK: Final = 1.0
"""Seconds between two looks."""
_Mark = tuple[int, int, int, int] | None
"""A file's device, inode, size and time of change; None for no file."""


class FileWatch:
    """Watches one file.  Who reads it calls `reading` first."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: _Mark = None

    def reading(self) -> None:
        """Take the file as it is now for known."""
        self._known = self._look()

    async def changed(self) -> None:
        """Wait until the file is another than the known one, or is gone."""
        last = self._known
        while True:
            await trio.sleep(LOOK)
            mark = await trio.to_thread.run_sync(self._look)  # a network file system may be slow
            if mark != self._known and mark == last:
                return
            last = mark

    def _look(self) -> _Mark:
        try:
            facts = os.stat(self._path)  # noqa: PTH116 - it follows links, as reading does
        except OSError:
            return None
        return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns
