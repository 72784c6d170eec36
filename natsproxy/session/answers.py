"""The answers that a client still waits for: a drain ends its connection only after them.

The scanners keep the reply subjects of requests without an answer (`wire/awaited.py`).  The client can get
an answer only on a live subscription, so a subject that matches none is no longer waited for: the client
gave up.

A request whose reply subject a rule rewrites is not waited for either: the table holds the client's spelling,
its answer comes by the server's, and cannot be recognized.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from natsproxy.protocol.patternset import PatternSet
from natsproxy.rules.interface import Subscription
from natsproxy.wire.scanner import byte_table

_NOTHING: Final[PatternSet[None]] = PatternSet(())


class Answers:
    """The answers that are due to one client.

    table: the reply subjects that its scanners keep.  then_end: the cause and detail with which the
    connection ends once no answer is due, None while it is not being drained.
    """

    __slots__ = ("_subscribed", "_version", "table", "then_end")

    def __init__(self) -> None:
        self.table = byte_table()
        self.then_end: tuple[str, str] | None = None
        self._version = -1
        self._subscribed = _NOTHING

    def due(self, subs: Mapping[bytes, Subscription], version: int) -> frozenset[bytes]:
        """Return the reply subjects on which an answer is due; the others of the table are forgotten.

        version: that of the subscriptions (`View.subs_version`).
        """
        if self.table and version != self._version:
            self._version = version
            self._subscribed = PatternSet(
                (sub.subject, None) for sub in subs.values() if sub.upstream == sub.subject
            )
        for subject in tuple(self.table):
            if not self._subscribed.matches(subject):
                del self.table[subject]
        return frozenset(self.table)
