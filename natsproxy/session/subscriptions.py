"""The subscriptions of one connection, by sid, as the server keeps them.

A SUB with a live sid is ignored by the server: the first subject stays.  Auto-unsubscribe counts from the
SUB; deliveries are counted only while a sid is watched, so a count that began late is a lower bound and the
entry may outlive the server's: `late` says so, and a new SUB of that sid replaces it.
"""

from __future__ import annotations

from typing import NamedTuple

from natsproxy.protocol.subjects import is_valid_subscribe
from natsproxy.rules.interface import ConnectionRules, Subscription


def unsub_max(args: bytes) -> int:
    """Return the max of an UNSUB as the server reads it: 0, at once, for anything that is no number."""
    return int(args) if args.isdigit() and len(args) <= 9 else 0


class Resubscription(NamedTuple):
    """The state of a subscription before it was made anew: the rules then, and its subject on the server."""

    rules: ConnectionRules
    upstream: bytes


class Subscriptions(dict[bytes, Subscription]):
    """Live subscriptions by sid."""

    def __init__(self) -> None:
        super().__init__()
        self.version = 0  # another one with each change
        self._late: set[bytes] = set()
        self._named_again: set[bytes] = set()  # live sids that another SUB named
        self._at_limit = False  # the server has refused some SUB without saying which

    def add(self, sid: bytes, subject: bytes, queue: bytes, upstream: bytes) -> bool:
        """Note a SUB; return whether the server takes it (valid subject, sid not live)."""
        if not is_valid_subscribe(upstream):
            return False
        if sid in self and sid not in self._late:
            # The server ignores it, unless it refused the first one without saying which (at a limit).
            self._named_again.add(sid)
            self.doubt()
            return False
        self._late.discard(sid)
        self.version += 1
        self[sid] = Subscription(sid, subject, queue, upstream)
        return True

    def doubt(self, *, at_limit: bool = False) -> None:
        """Note that sids named by two SUBs are uncertain at the server, once it was at a limit."""
        self._at_limit = self._at_limit or at_limit
        if self._at_limit:
            for sid in self._named_again:
                self[sid].certain = False
            self.version += 1

    def remove(self, sid: bytes) -> None:
        """Note that a sid is free again."""
        self.version += 1
        self.pop(sid, None)
        self._late.discard(sid)
        self._named_again.discard(sid)

    def count(self, sub: Subscription) -> None:
        """Note that each delivery of a subscription is looked at from here on."""
        sub.counted = True
        self.version += 1

    def limit(self, sid: bytes, maximum: int, *, counted: bool) -> bool:
        """Note an UNSUB with a max; return whether the subscription goes on (and is to be watched)."""
        sub = self.get(sid)
        if sub is None:
            return False
        if maximum <= sub.delivered:
            self.remove(sid)
            return False
        sub.max = maximum
        self.version += 1
        if not counted:
            self._late.add(sid)
        return True

    def refused(self, subject: bytes, queue: bytes) -> Subscription | None:
        """Forget the latest SUB of a subject and queue, which the server refused; return its subscription."""
        for sid in reversed(self):
            sub = self[sid]
            if sub.upstream == subject and sub.queue == queue:
                self.remove(sid)
                return sub
        return None

    def clear(self) -> None:
        """Forget all (a second CONNECT on newer servers)."""
        self.version += 1
        super().clear()
        self._late.clear()
        self._named_again.clear()
