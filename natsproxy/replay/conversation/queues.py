"""Queues by key, in the order of what they hold."""

from __future__ import annotations

from collections import deque
from typing import Generic, Protocol, TypeVar


class _Numbered(Protocol):
    seq: int


K = TypeVar("K")
N = TypeVar("N", bound=_Numbered)


class Queues(dict[K, deque[N]], Generic[K, N]):
    """Deques of numbered things; none of them is empty."""

    def put(self, key: K, one: N) -> None:
        """Add a thing behind the others, or back in its place among them."""
        queue = self.setdefault(key, deque())
        queue.append(one)
        if len(queue) > 1 and queue[-2].seq > one.seq:
            self[key] = deque(sorted(queue, key=lambda other: other.seq))

    def take(self, key: K, one: N) -> None:
        """Remove a thing."""
        queue = self[key]
        if queue[0] is one:  # nearly always: clients repeat a conversation in its order
            queue.popleft()
        else:
            queue.remove(one)
        if not queue:
            del self[key]
