"""Publishes and their deliveries: the n-th copy on a subscription belongs to the n-th identical publish.

Only the latest publishes are remembered, over all keys: a publish may be one of thousands of equal
heartbeats.
"""

from __future__ import annotations

from bisect import bisect_right
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
    """The publishes by key (a hash of the content), and the copies that were delivered."""

    def __init__(self) -> None:
        self._publishes: dict[int, int | _Several] = {}  # nearly always an int, which takes far less memory
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

    def copy(self, key: int, subscription: Hashable, since: int = -1) -> int | None:
        """Return the number of the publish that a delivery on a subscription copies, None if unknown.

        since: the subscription gets those with a greater number, -1 for all.
        """
        publishes = self._publishes.get(key)
        if publishes is None:
            return None
        count = hash((subscription, key))
        known = self._copies.get(count)
        n = _before(publishes, since) if known is None else known
        if known is None and n == _count(publishes):  # the next equal publish will be the first
            return None
        self._copies[count] = n + 1
        if isinstance(publishes, int):
            return publishes if not n else None
        n -= publishes.forgotten
        return publishes.numbers[n] if 0 <= n < len(publishes.numbers) else None


def _count(publishes: int | _Several) -> int:
    return 1 if isinstance(publishes, int) else publishes.forgotten + len(publishes.numbers)


def _before(publishes: int | _Several, since: int) -> int:
    """Return how many publishes are not after a number."""
    if since < 0:
        return 0
    if isinstance(publishes, int):
        return int(publishes <= since)
    return publishes.forgotten + bisect_right(publishes.numbers, since)
