"""Token buckets: how much each of many keys may send, at a rate and with a burst.

Theory
1. A bucket is one number: the time at which it will be full again (`bucket.py`).  A bucket that is full needs
   no entry, so forgetting it changes nothing.
2. There are `most` entries at most.  Where none of the oldest is full, a new key shares one bucket with all
   other new ones: to forget a bucket that is not full would let its key send more.
3. The native plane takes from the bucket of a key by itself (`bucket`).  A bucket that has lost its entry is
   unused: nothing is taken from it there, and Python sees to the next frame.  As long as somebody has it, the
   key gets the same one back, so a key never has two.
4. Time is the caller's, ns; nothing here has a clock.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from natsproxy.rules.model.bucket import Bucket
from natsproxy.units import SECOND

OTHERS: Final = "(others)"
"""The key of the bucket that keys share for which there is no room."""
_LOOK: Final = 16
"""The oldest entries among which a full one is looked for: amortised, more leave than come."""
LONGEST: Final = 1 << 61
"""The longest time (ns) in which tokens come: sums of some stay within 64 bits."""


class Rate(NamedTuple):
    """`amount` units in `period` ns; burst: the units that a full bucket has, 1 at least."""

    amount: int
    period: int
    burst: int

    def time(self, units: int) -> int:
        """Return the time (ns) in which so many units come, `LONGEST` at most."""
        return min(units * self.period // self.amount, LONGEST)

    def times(self, units: int) -> tuple[int, int, int]:
        """Return the times (ns) of the units that must be there, of those taken, and of the burst."""
        return self.time(min(units, self.burst)), self.time(units), self.time(self.burst)

    def describe(self, unit: str) -> str:
        """Return the rate in words."""
        period = {SECOND: "s", 60 * SECOND: "min", 3600 * SECOND: "h"}.get(self.period, f"{self.period} ns")
        return f"{self.amount} {unit}/{period} (burst {self.burst})"


class TokenBuckets:
    """The buckets of one rule, by key.  most: of the entries."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._used: dict[Hashable, Bucket] = {}  # the one that was looked at last stands last
        self._given: WeakValueDictionary[Hashable, Bucket] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._used)

    def known(self, key: Hashable, now: int) -> Hashable:
        """Return the key that a key counts under: itself, or `OTHERS` where there is no room for it."""
        used = self._used
        if key in used or len(used) < self.most:
            return key
        for old in [old for old, _ in zip(used, range(_LOOK), strict=False)]:
            bucket = used.pop(old)
            if not bucket.leave(now):
                used[old] = bucket
        return key if len(used) < self.most else OTHERS

    def bucket(self, key: Hashable) -> Bucket:
        """Return the bucket of a key for the native plane; it is unused while the key has no entry."""
        found = self._given[key] = self._used.get(key) or self._given.get(key) or Bucket()
        return found

    def take(self, key: Hashable, units: int, rate: Rate, now: int) -> bool:
        """Take units now if they are there, and tell whether they were.

        More units than the burst need a full bucket, and the next ones wait for the rest.
        """
        return self._entry(key).take(*rate.times(units), now)

    def suspend(self, key: Hashable, until: int) -> None:
        """Let a key take nothing before a time (ns), when its bucket is full; its entry stays until then."""
        self._entry(key).suspend(until)

    def is_suspended(self, key: Hashable, now: int) -> bool:
        """Tell whether a key may take nothing at a time (ns)."""
        return self._entry(key).is_suspended(now)

    def reserve(self, key: Hashable, units: int, rate: Rate, now: int) -> int:
        """Take units as soon as they are there; return that time."""
        return self._entry(key).reserve(*rate.times(units), now)

    def _entry(self, key: Hashable) -> Bucket:
        found = self._used.get(key)
        if found is None:
            found = self._used[key] = self._given.get(key) or Bucket()
            found.use()
        return found


class Tokens(NamedTuple):
    """The units that a frame takes of a bucket, at a rate; sized: one for each byte, or else one."""

    bucket: Bucket
    rate: Rate
    sized: bool
