"""The retention of a recording: beyond the limits of `--record-keep` the oldest segments are deleted.

It runs in the writer's thread.  Before a block is written, segments are deleted until it fits: the files
exceed the size by no more than the index of one segment, unless the open segment alone exceeds it (it gets
what waits for the disk when it is due to end).

The age of a segment is the time since its last write, by a clock that cannot be set: since the segment was
finished, or, for segments of earlier runs, as the times of the files said when this run began.  Between two
writes of earlier runs, and before this run, at most half of the limit counts (`_STEP`): over a long time, a
clock that was set cannot be told from a proxy that was not running, and a deletion cannot be undone.  The
oldest segment is the first one of the earliest run.

A segment may be deleted if
1. its header has the owner of this recording.  The owner is the host and the listening addresses, so that a
   proxy that begins again goes on with the limits of its earlier runs; recordings without `--record-keep`
   have no owner, and keep what they wrote;
2. it is finished: it has its index, or its writer is gone.  A writer holds a lock on its open segment
   (`capture/write/writer.py`), which the kernel releases when it dies;
3. it is still the same file, by its inode.

Readers hold no locks: an open file can be read to its end after it was deleted, and a reader that comes too
late to open one says so (`MissingCapture`).
"""

from __future__ import annotations

import fcntl
import os
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from natsproxy.capture.names import name_of
from natsproxy.capture.read.segment import CaptureFile
from natsproxy.config.recording import RecordSettings
from natsproxy.errors import CaptureError, TruncatedCapture
from natsproxy.events import Notice
from natsproxy.net.clock import now_ns

_Key = tuple[str, int]
"""A file by its name and inode."""


class Expired(NamedTuple):
    """The segments that were deleted together.  failure: the reason why one could not be, or ""."""

    segments: int
    bytes: int
    last: str
    failure: str = ""

    def notices(self) -> Iterator[Notice]:
        """Yield the lines about it for the log."""
        if self.segments:
            facts: dict[str, object] = {"segments": self.segments, "bytes": self.bytes, "last": self.last}
            yield Notice(now_ns(), None, "info", "old segments of the capture are deleted", facts)
        if self.failure:
            yield Notice(now_ns(), None, "error", f"the capture exceeds record-keep: {self.failure}")


_STEP: Final = 2
"""The part of an age that the time between two files adds at most; within a run it is at most a quarter."""


class _Finished(NamedTuple):
    """A finished segment: its place in its run, and when it was begun and last written by the wall clock.

    since: the moment from which its age counts, by the clock that cannot be set (ns).
    """

    recorder: bytes
    number: int
    began: int
    ended: int
    path: str
    inode: int
    size: int
    since: int = 0


class Retention:
    """Deletes the segments of a recording that exceed its limits, the oldest first."""

    def __init__(self, settings: RecordSettings, owner: str) -> None:
        self._keep = settings.keep
        self._owner = owner
        path = settings.path
        single = path.suffix == ".ncap"
        self._folder = path.parent if single else path
        self._stem = path.stem if single else None
        self._finished: deque[_Finished] = deque()
        self._size = 0
        self._others: set[_Key] = set()  # files that are not of this recording
        self._looked = False

    def described(self) -> dict[str, object]:
        """Return the owner and the limits, for the header of a segment."""
        limits = {"size": self._keep.size, "count": self._keep.count, "age": self._keep.age}
        return {"owner": self._owner, **{name: limit for name, limit in limits.items() if limit}}

    # -- the files

    def look(self, current: Path) -> None:
        """Look for finished segments.  current: the one that is being written.  Raises OSError."""
        keys = {key for key in self._files() if key[0] != current.name}
        self._others &= keys
        known = {(Path(one.path).name, one.inode): one for one in self._finished}
        found = [self._examine(key) for key in keys - self._others - known.keys()]
        new = _by_age([one for one in found if one is not None])
        now = _elapsed()
        new = [one._replace(since=now) for one in new] if self._looked else self._aged(new, now)
        self._looked = True
        self._finished = deque([*(one for key, one in known.items() if key in keys), *new])
        self._size = sum(one.size for one in self._finished)

    def _aged(self, found: list[_Finished], now: int) -> list[_Finished]:
        """Return the segments of earlier runs with their ages, by the times of the files."""
        since, later, aged = now, time.time_ns(), list[_Finished]()
        for one in reversed(found):
            since -= min(max(0, later - one.ended), self._keep.age // _STEP)
            later = one.ended
            aged.append(one._replace(since=since))
        return aged[::-1]

    def _files(self) -> Iterator[_Key]:
        """Yield the files that may be segments of this recording, by their names."""
        with os.scandir(self._folder) as entries:
            for entry in entries:
                stem, dot, suffix = entry.name.rpartition(".")
                if not dot or suffix != "ncap" or not entry.is_file(follow_symlinks=False):
                    continue
                if self._stem not in (None, stem, name_of(Path(entry.name)).base):
                    continue
                yield entry.name, entry.inode()

    def _examine(self, key: _Key) -> _Finished | None:
        """Return a finished segment; None for one that is still written to, or of another recording."""
        path = self._folder / key[0]
        try:
            with CaptureFile(path) as file:
                kept = file.segment.settings.get("keep")
                owned = isinstance(kept, dict) and kept.get("owner") == self._owner
                if owned and (file.indexed() is not None or _writer_is_gone(path)):
                    facts = path.lstat()
                    segment, ended = file.segment, facts.st_mtime_ns
                    place = segment.recorder, segment.number, segment.wall, ended
                    return _Finished(*place, str(path), key[1], facts.st_size)
        except TruncatedCapture:
            return None  # its writer has just created it
        except (CaptureError, OSError):
            owned = False  # nothing says that it is ours
        if not owned:
            self._others.add(key)
        return None

    # -- the limits

    def make_room(self, more: int) -> Expired | None:
        """Delete segments beyond the limits; None if there are none.

        more: the size of the open segment, with the bytes that will be written to it next.
        """
        segments = size = 0
        last = failure = ""
        while self._finished and self._is_over(self._size + more):
            one = self._finished.popleft()
            self._size -= one.size
            try:
                if _delete(one):
                    segments, size, last = segments + 1, size + one.size, one.path
            except OSError as error:
                failure = f"cannot delete {one.path}: {error.strerror}"
        return Expired(segments, size, last, failure) if segments or failure else None

    def _is_over(self, size: int) -> bool:
        keep = self._keep
        return bool(
            (keep.size and size > keep.size)
            or (keep.count and len(self._finished) + 1 > keep.count)
            or (keep.age and self._until_old() <= 0)
        )

    def _until_old(self) -> float:
        """Return the seconds until the oldest segment exceeds its age."""
        return (self._finished[0].since + self._keep.age - _elapsed()) / 1e9

    def due(self) -> float | None:
        """Return the seconds until `make_room` has something to do if nothing is written; None for never."""
        return max(0.0, self._until_old()) if self._keep.age and self._finished else None


def _elapsed() -> int:
    """Return a clock in ns that cannot be set, and that runs while the machine is suspended if possible."""
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _by_age(found: list[_Finished]) -> list[_Finished]:
    """Return segments by their runs, and those of a run by their numbers, whatever the clock said then."""
    begun = dict[bytes, int]()
    for one in sorted(found, key=lambda one: -one.number):
        begun[one.recorder] = one.began
    return sorted(found, key=lambda one: (begun[one.recorder], one.recorder, one.number))


def _delete(one: _Finished) -> bool:
    """Delete a segment; False if somebody else has, or has put another file in its place."""
    path = Path(one.path)
    try:
        if path.lstat().st_ino != one.inode:
            return False
        path.unlink()
    except FileNotFoundError:
        return False
    return True


def _writer_is_gone(path: Path) -> bool:
    """Tell whether nobody holds a segment's lock; False where the file system has no locks."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
