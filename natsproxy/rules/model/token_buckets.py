"""Token buckets: how much each of many keys may send, at a rate and with a burst.

Theory
1. A bucket is one number: the time at which it will be full again.  A bucket that is full needs no entry, so
   forgetting it changes nothing.
2. There are `most` entries at most.  Where none of the oldest is full, a new key shares one bucket with all
   other new ones: to forget a bucket that is not full would let its key send more.
3. Time is the caller's, ns; nothing here has a clock.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, NamedTuple

from natsproxy.units import SECOND

OTHERS: Final = "(others)"
"""The key of the bucket that keys share for which there is no room."""
_LOOK: Final = 16
"""The oldest entries among which a full one is looked for: amortised, more leave than come."""


class Rate(NamedTuple):
    """`amount` units in `period` ns; burst: the units that a full bucket has, 1 at least."""

    amount: int
    period: int
    burst: int

    def time(self, units: int) -> int:
        """Return the time (ns) in which so many units come."""
        return units * self.period // self.amount

    def describe(self, unit: str) -> str:
        """Return the rate in words."""
        period = {SECOND: "s", 60 * SECOND: "min", 3600 * SECOND: "h"}.get(self.period, f"{self.period} ns")
        return f"{self.amount} {unit}/{period} (burst {self.burst})"


class TokenBuckets:
    """The buckets of one rule, by key.  most: of the entries."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._full_at: dict[Hashable, int] = {}  # the one that was used last stands last

    def __len__(self) -> int:
        return len(self._full_at)

    def known(self, key: Hashable, now: int) -> Hashable:
        """Return the key that a key counts under: itself, or `OTHERS` where there is no room for it."""
        full_at = self._full_at
        if key in full_at or len(full_at) < self.most:
            return key
        for old in [old for old, _ in zip(full_at, range(_LOOK), strict=False)]:
            if full_at[old] <= now:
                del full_at[old]
        return key if len(full_at) < self.most else OTHERS

    def take(self, key: Hashable, units: int, rate: Rate, now: int) -> bool:
        """Take units now if they are there, and tell whether they were.

        More units than the burst need a full bucket, and the next ones wait for the rest.
        """
        full_at = max(self._full_at.pop(key, now), now)
        there = full_at + rate.time(min(units, rate.burst)) - now <= rate.time(rate.burst)
        self._full_at[key] = full_at + rate.time(units) if there else full_at
        return there

    def empty(self, key: Hashable, until: int) -> None:
        """Let a bucket be full at `until` (ns) and not before; its entry stays until then."""
        self._full_at[key] = max(until, self._full_at.pop(key, until))

    def reserve(self, key: Hashable, units: int, rate: Rate, now: int) -> int:
        """Take units as soon as they are there; return that time."""
        full_at = max(self._full_at.pop(key, now), now)
        self._full_at[key] = full_at + rate.time(units)
        return max(now, full_at + rate.time(min(units, rate.burst)) - rate.time(rate.burst))
