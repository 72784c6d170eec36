"""A token bucket, in Python (see `bucket.py`)."""

from __future__ import annotations

from typing import Final

LATEST: Final = 1 << 62
"""The latest time at which a bucket is full."""
_UNUSED: Final = -1 << 63


class Bucket:
    """The tokens of one key; times in ns, 2**62 at most.  A new one is unused."""

    __slots__ = ("__weakref__", "_full_at", "_suspended")

    def __init__(self) -> None:
        self._full_at = _UNUSED
        self._suspended = 0  # until when

    @property
    def full_at(self) -> int | None:
        """When it will be full again; None if it is unused."""
        return None if self._full_at == _UNUSED else self._full_at

    def use(self) -> None:
        """Take it into use, full."""
        self._full_at = 0

    def leave(self, now: int) -> bool:
        """Make it unused if it is full, and tell whether it was."""
        if self._full_at > now or self.is_suspended(now):
            return False
        self._full_at = _UNUSED
        return True

    def take(self, need: int, cost: int, full: int, now: int) -> bool:
        """Take tokens now if they are there, and tell whether they were; False if it is unused.

        need: the time in which those come that must be there; cost: in which those come that are taken; full:
        in which a whole bucket comes.
        """
        full_at = max(self._full_at, now)
        if now < self._suspended or self._full_at == _UNUSED or full_at + need - now > full:
            return False
        self._full_at = min(full_at + cost, LATEST)
        return True

    def reserve(self, need: int, cost: int, full: int, now: int) -> int:
        """Take tokens as soon as they are there; return that time."""
        full_at = max(self._full_at, now)
        self._full_at = min(full_at + cost, LATEST)
        return max(now, full_at + need - full)

    def suspend(self, until: int) -> None:
        """Let nobody take before a time, when it is full at the earliest."""
        self._suspended = until
        self._full_at = max(self._full_at, until)

    def is_suspended(self, now: int) -> bool:
        """Tell whether nobody may take at a time."""
        return now < self._suspended
