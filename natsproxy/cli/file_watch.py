"""The watch of files: it tells when one of them has become another, by a look every second.

A ConfigMap of Kubernetes changes by the swap of a symbolic link above the file, an editor renames or writes
in place, and network file systems send no notifications: a look at the end of all links finds all of these.
A change counts when all has stayed as it is for one more look: a file is not read while it is written, nor a
certificate before its key is there.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import trio

LOOK: Final = 1.0
"""Seconds between two looks."""
_Mark = tuple[int, int, int, int] | None
"""A file's device, inode, size and time of change; None for no file."""
_Marks = dict[Path, _Mark]


class FileWatch:
    """Watches files.  Who reads them calls `reading` first."""

    def __init__(self, *paths: Path) -> None:
        self._paths = paths
        self._named: tuple[Path, ...] = ()
        self._known: _Marks = {}

    def reading(self) -> None:
        """Take the files as they are now for known."""
        self._known = self._look()

    def have_named(self, paths: Iterable[Path]) -> None:
        """Watch those files too that the ones just read have named; they have been read as well."""
        self._named = tuple(paths)
        known, now = self._known, self._look()
        self._known = {path: known.get(path, mark) for path, mark in now.items()}

    async def changed(self) -> None:
        """Wait until a file is another than the known one, or is gone."""
        last = self._known
        if not self._paths:
            await trio.sleep_forever()
        while True:
            await trio.sleep(LOOK)
            marks = await trio.to_thread.run_sync(self._look)  # a network file system may be slow
            if marks != self._known and marks == last:
                return
            last = marks

    def _look(self) -> _Marks:
        return {path: _mark_of(path) for path in (*self._paths, *self._named)}


def _mark_of(path: Path) -> _Mark:
    try:
        facts = os.stat(path)  # noqa: PTH116 - it follows links, as reading does
    except OSError:
        return None
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns
