"""The difference of two multisets of any size in bounded memory.

Two captures of one conversation hold nearly the same frames in nearly the same order.  Read side by side,
equal entries cancel out, and few are open at a time (seen on one side only).  If too many stay open,
because order or contents differ, they go to temporary files, split by hash, and each file is resolved by
itself at the end.  The result is exact either way.

An entry is a digest of a frame, the number by which one side has more, a key for its row, and the place of
the first surplus frame.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple

LIMIT: Final = 200_000
_FILES: Final = 256
_ENTRY: Final = struct.Struct("<12sqqq")


class Surplus(NamedTuple):
    """An entry that one side has more often.

    by: the difference of the counts, negative for the second side.  place: of the first such frame.
    """

    key: int
    by: int
    place: int


class MultisetDiff:
    """Counts the entries of two sides; a context manager (of its temporary files).

    limit: the most open entries in memory, about 300 bytes each.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._open: dict[bytes, Surplus] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> MultisetDiff:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    @property
    def spilled(self) -> bool:
        """True when temporary files are in use."""
        return self._folder is not None

    def add(self, digest: bytes, key: int, side: int, place: int) -> None:
        """Count a frame of the first (0) or the second (1) side; digest: 12 bytes."""
        _resolve(self._open, digest, Surplus(key, -1 if side else 1, place))
        if len(self._open) > self._limit:
            self._spill()

    def surplus(self) -> Iterator[Surplus]:
        """Yield the entries that one side has more often than the other; call it once, at the end."""
        if self._folder is None:
            yield from self._open.values()
            return
        self._spill()
        for number in range(_FILES):
            file = self._file(number)
            found: dict[bytes, Surplus] = {}
            if file.exists():
                for digest, key, count, place in _ENTRY.iter_unpack(file.read_bytes()):
                    _resolve(found, digest, Surplus(key, count, place))
            yield from found.values()

    def _file(self, number: int) -> Path:
        assert self._folder is not None
        return Path(self._folder.name, f"{number:03}")

    def _spill(self) -> None:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="natsproxy-")
        parts: list[list[bytes]] = [[] for _ in range(_FILES)]
        for digest, surplus in self._open.items():
            parts[digest[0]].append(_ENTRY.pack(digest, *surplus))
        self._open.clear()
        for number, part in enumerate(parts):
            if part:
                with self._file(number).open("ab") as file:
                    file.write(b"".join(part))


def _resolve(table: dict[bytes, Surplus], digest: bytes, new: Surplus) -> None:
    known = table.get(digest)
    if known is None:
        table[digest] = new
        return
    count = known.by + new.by
    if not count:
        del table[digest]
    elif (known.by > 0) == (count > 0):
        table[digest] = known._replace(by=count)
    else:
        table[digest] = new._replace(by=count)
