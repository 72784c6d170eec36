"""State shared by the permission rules of one connection: the filters on its deliveries.

Which rules filter depends on the subscriptions that were taken, and the rules that one subject arms are the
same on all connections.  So this keeps sets that the index has made (`RuleIndex.armed_by`), and a connection
costs a few references however many rules there are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from natsproxy.rules.interface import Subscription

MAX_QUEUES: Final = 1024
"""Sids of a connection whose queue is remembered; the queue of any other ended sid is unknown."""
_MOST_SETS: Final = 16


class DeliveryFilter:
    """The filters that are armed, by the actions of their rules, and the queues of subscriptions by sid."""

    __slots__ = ("_armed", "_queues")

    def __init__(self) -> None:
        self._armed: list[frozenset[object]] = []
        self._queues: dict[bytes, bytes] = {}  # of queue subscriptions, ended ones too

    def arm(self, filters: frozenset[object]) -> None:
        """Activate filters."""
        if not filters or any(known is filters for known in self._armed):
            return
        self._armed.append(filters)
        if len(self._armed) > _MOST_SETS:
            self._armed = [frozenset().union(*self._armed)]

    def keep(self, still: Callable[[frozenset[object]], frozenset[object]]) -> None:
        """Drop the filters of removed rules; still: returns those of a set that remain."""
        self._armed = [left for left in map(still, self._armed) if left]

    def armed(self, action: object) -> bool:
        """Tell whether the rule of an action filters."""
        return any(action in filters for filters in self._armed)

    def subscribed(self, sid: bytes, queue: bytes) -> None:
        """Note a subscription that goes to the server."""
        self._queues.pop(sid, None)
        if queue and len(self._queues) < MAX_QUEUES:
            self._queues[sid] = queue

    def queue_of(self, sid: bytes, sub: Subscription | None) -> bytes | None:
        """Return the queue of a sid, live (`sub`) or just ended; None if it is not known."""
        if sub is not None:
            return sub.queue if sub.certain else None
        return self._queues.get(sid, b"" if len(self._queues) < MAX_QUEUES else None)
