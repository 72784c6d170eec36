"""A header block that is read once, a part at a time, for all who ask about it.

A block may have a megabyte of short lines, and any number of rules may want some header of it.  It is read
as `headers.parse` reads it, from where the last call stopped; only the values of the names that somebody
wants are kept.  Whoever reads it says how much to do in one call.
"""

from __future__ import annotations

from collections.abc import Collection
from fnmatch import translate
from functools import lru_cache
from re import Pattern, compile
from typing import Final

from natsproxy.protocol.headers import BLANKS, VERSION_LINE, parse

PART: Final = 256
"""Lines, or values, of one call: less than a tenth of a millisecond."""


class HeaderBlock:
    """The status of a block, and the values of some headers.  names: those headers."""

    __slots__ = ("_answers", "_at", "_block", "_looked", "_names", "_values", "status")

    def __init__(self, block: bytes, names: Collection[bytes]) -> None:
        end = block.find(b"\n") + 1
        line = block[:end] if end else block
        self.status = parse(line).status
        self._block = block
        self._names = names
        # A first line that is no version line is a header, if it has a colon; else nothing.
        self._at = len(line) if line.startswith(VERSION_LINE) or b":" not in line else 0
        if line in (b"\n", b"\r\n") or not names:
            self._at = len(block)
        self._values: dict[bytes, list[bytes]] = {}
        self._answers: dict[tuple[bytes, str | None], bool] = {}
        self._looked: dict[tuple[bytes, str | None], int] = {}

    def read_on(self, lines: int = PART) -> bool:
        """Read so many more lines; return whether all were read."""
        block, at, size, names = self._block, self._at, len(self._block), self._names
        while at < size:
            if not lines:
                self._at = at
                return False
            lines -= 1
            end = block.find(b"\n", at)
            line = block[at:] if end < 0 else block[at : end - 1 if block[end - 1] == 0x0D else end]
            at = size if end < 0 else end + 1
            if not line:  # the blank one
                at = size
            name, colon, value = line.partition(b":")
            if colon and name in names:
                self._values.setdefault(name, []).append(value.strip(BLANKS))
        self._at = size
        return True

    def look_on(self, name: bytes, glob: str | None, values: int = PART) -> bool:
        """Compare so many more values of a header with a shell pattern; return whether `has` knows."""
        key = name, glob
        if key in self._answers:
            return True
        found = self._values.get(name, [])
        if glob is None:
            self._answers[key] = bool(found)
            return True
        at = self._looked.get(key, 0)
        matches = _matcher(glob).match
        part = found[at : at + values]
        if any(matches(value.decode("utf-8", "replace")) for value in part):
            self._answers[key] = True
        elif at + values >= len(found):
            self._answers[key] = False
        self._looked[key] = at + values
        return key in self._answers

    def has(self, name: bytes, glob: str | None) -> bool:
        """Tell whether a header is there with a value that matches a shell pattern (None: any value)."""
        while not self.read_on():
            pass
        while not self.look_on(name, glob):
            pass
        return self._answers[name, glob]


@lru_cache(maxsize=1024)
def _matcher(glob: str) -> Pattern[str]:
    return compile(translate(glob))
