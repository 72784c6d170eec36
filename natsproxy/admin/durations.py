"""A histogram of durations."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from natsproxy.units import MICROSECOND, MILLISECOND, SECOND

_UNITS: Final = (
    10 * MICROSECOND,
    100 * MICROSECOND,
    MILLISECOND,
    10 * MILLISECOND,
    100 * MILLISECOND,
    SECOND,
    10 * SECOND,
)
BOUNDS: Final = tuple(number * unit for unit in _UNITS for number in (1, 2, 5))
"""The upper bounds of the buckets, in ns."""


class Durations:
    """Durations by bucket.  counts: by bucket, those above the last bound at the end.  total: their sum."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.total = 0

    def observe(self, ns: int, times: int = 1) -> None:
        """Count a duration."""
        self.counts[bisect_left(BOUNDS, ns)] += times
        self.total += ns * times
