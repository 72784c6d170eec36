"""Publishes and their deliveries: the n-th copy on a subscription is that of the n-th publish like it.

The latest publishes are known, of all keys together: many a publish is one of thousands of equal heartbeats.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass

from natsproxy.bounded import LIMIT, BoundedDict


@dataclass(slots=True)
class _Several:
    """Publishes of one key.  forgotten: the number of those before them."""

    numbers: deque[int]
    forgotten: int = 0


class Copies:
    """The publishes by a key, a hash of what is copied, and the copies that were delivered."""

    def __init__(self) -> None:
        self._publishes: dict[int, int | _Several] = {}  # an int, as nearly always, takes far less memory
        self._keys: deque[int] = deque()  # of the publishes, oldest first
        self._copies: BoundedDict[int, int] = BoundedDict()

    def add(self, key: int, number: int) -> None:
        """Note a publish by its number."""
        known = self._publishes.get(key)
        if known is None:
            self._publishes[key] = number
        elif isinstance(known, int):
            self._publishes[key] = _Several(deque((known, number)))
        else:
            known.numbers.append(number)
        self._keys.append(key)
        if len(self._keys) > LIMIT:
            self._forget(self._keys.popleft())

    def _forget(self, key: int) -> None:
        """Forget the oldest publish of a key."""
        known = self._publishes[key]
        if isinstance(known, int) or len(known.numbers) == 1:
            del self._publishes[key]
        else:
            known.numbers.popleft()
            known.forgotten += 1

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
        n -= publishes.forgotten
        return publishes.numbers[n] if 0 <= n < len(publishes.numbers) else None
