"""Publishes and their deliveries: the n-th copy on a subscription is that of the n-th publish like it."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

from natsproxy.bounded import LIMIT, BoundedDict

_Numbers = int | deque[int]
"""One publish, as nearly always, or several: an int takes far less memory than a deque."""


class Copies:
    """The publishes by a key, a hash of what is copied, and the copies that were delivered."""

    def __init__(self) -> None:
        self._publishes: BoundedDict[int, _Numbers] = BoundedDict()
        self._copies: BoundedDict[int, int] = BoundedDict()

    def add(self, key: int, number: int) -> None:
        """Note a publish by its number."""
        known = self._publishes.get(key)
        if known is None:
            self._publishes[key] = number
        elif isinstance(known, int):
            self._publishes[key] = deque((known, number), maxlen=LIMIT)
        else:
            known.append(number)

    def copy(self, key: int, subscription: Hashable) -> int | None:
        """Return the number of the publish that a delivery on a subscription is a copy of, None for none."""
        publishes = self._publishes.get(key)
        if publishes is None:
            return None
        count = hash((subscription, key))
        n = self._copies.get(count, 0)
        self._copies[count] = n + 1
        if isinstance(publishes, int):
            return publishes if not n else None
        return publishes[n] if n < len(publishes) else None
