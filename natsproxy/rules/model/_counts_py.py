"""Counts of matches, in Python (see `counts.py`)."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass


@dataclass(slots=True)
class Count:
    """The numbers of matches and firings since a time (ns)."""

    since: int = 0
    matched: int = 0
    fired: int = 0

    def match(self, size: int = 1) -> int:
        """Count matches; return the number of the first, from 1."""
        first = self.matched + 1
        self.matched += size
        return first


class RecentCounts:
    """Counts by digest (eight bytes), of the `limit` that were counted last."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._counts: OrderedDict[bytes, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, digest: bytes, count: int) -> int:
        """Count matches; return how many there were before."""
        # Taken out and put back at the end, so the first one is the least recently used.
        before = self._counts.pop(digest, 0)
        self._counts[digest] = before + count
        if len(self._counts) > self.limit:
            self._counts.popitem(last=False)
        return before
