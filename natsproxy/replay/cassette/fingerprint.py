"""Fingerprints of cassettes: the hash of the bytes that were played, and whether they have changed since.

The hash is that of `sha256sum`; a capture of several files has one hash over all of them in order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from natsproxy.capture.read.reader import open_capture

_STEP: Final = 1 << 20
_VERSIONS: Final = 10  # of recorders that are kept
_Stamp = tuple[str, int, int, int]


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A capture at one point in time.  sha256: in hexadecimal.  recorders: their versions of natsproxy."""

    sha256: str
    recorders: tuple[str, ...]
    stamps: tuple[_Stamp, ...]

    def changed(self) -> bool:
        """Return whether the bytes have changed since."""
        paths = [Path(name) for name, *_ in self.stamps]
        try:
            return _stamps(paths) != self.stamps and _hash(paths) != self.sha256
        except OSError:  # it was removed
            return True


def fingerprint(path: Path | str) -> Fingerprint:
    """Return the fingerprint of a capture.  Raises CaptureError where it cannot be read."""
    reader = open_capture(path)
    recorders = dict.fromkeys(segment.natsproxy for segment in reader.segments())
    stamps = _stamps(reader.paths)  # before it is read: a change during the read is seen
    return Fingerprint(_hash(reader.paths), tuple(recorders)[:_VERSIONS], stamps)


def _stamps(paths: Sequence[Path]) -> tuple[_Stamp, ...]:
    found = ((path, path.stat()) for path in paths)
    return tuple((str(path), stat.st_ino, stat.st_size, stat.st_mtime_ns) for path, stat in found)


def _hash(paths: Sequence[Path]) -> str:
    made = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while part := file.read(_STEP):
                made.update(part)
    return made.hexdigest()
