"""The subscriptions of one connection, by sid, as the server keeps them.

A SUB with a live sid is ignored by the server: the first subject stays.  Auto-unsubscribe counts from the
SUB; deliveries are counted only while a sid is watched, so a count that began late is a lower bound and the
entry may outlive the server's: `Subscription.late` says so, and a new SUB of that sid replaces it.
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

    __slots__ = ("_at_limit", "version")

    def __init__(self) -> None:
        super().__init__()
        self.version = 0  # another one with each change
        self._at_limit = False  # the server has refused some SUB without saying which

    def add(self, sid: bytes, subject: bytes, queue: bytes, upstream: bytes) -> bool:
        """Note a SUB; return whether the server takes it (valid subject, sid not live)."""
        if not is_valid_subscribe(upstream):
            return False
        sub = self.get(sid)
        if sub is not None and not sub.late:
            # The server ignores it, unless it refused the first one without saying which (at a limit).
            sub.named_again = True
            if self._at_limit:
                self._doubt(sub)
            return False
        self.version += 1
        again = sub is not None and sub.named_again
        certain = not (again and self._at_limit)
        self[sid] = Subscription(sid, subject, queue, upstream, certain=certain, named_again=again)
        return True

    def doubt(self) -> None:
        """Note that the server was at a limit: from now on, sids named by two SUBs are uncertain there."""
        if not self._at_limit:
            self._at_limit = True
            for sub in self.values():
                if sub.named_again:
                    self._doubt(sub)

    def _doubt(self, sub: Subscription) -> None:
        sub.certain = False
        self.version += 1

    def remove(self, sid: bytes) -> None:
        """Note that a sid is free again."""
        self.version += 1
        self.pop(sid, None)

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
        sub.late = sub.late or not counted
        return True

    def refused(self, subject: bytes, queue: bytes) -> Subscription | None:
        """Forget the latest SUB of a subject and queue, which the server refused; return its subscription."""
        for sid in reversed(self):
            sub = self[sid]
            if sub.upstream == subject and sub.queue == queue:
                self.remove(sid)
                return sub
        return None
