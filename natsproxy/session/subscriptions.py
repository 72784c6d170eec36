"""The subscriptions of one connection, by sid, as the server keeps them.

A SUB with a live sid is ignored by the server: the first subject stays.  Auto-unsubscribe counts from the
SUB; deliveries are counted only while a sid is watched.  A count that began late has a lower and an upper
bound (`Subscription.unseen`).  Between them the server may have ended the subscription or not: a new SUB of
that sid replaces it, and of many such entries the oldest go (`Deliveries.end_uncertain`).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from natsproxy.protocol.subjects import is_valid_subscribe
from natsproxy.rules.interface import ConnectionRules, Subscription


def unsub_max(args: bytes) -> int:
    """Return the max of an UNSUB as the server reads it: 0, at once, for anything that is no number."""
    return int(args) if args.isdigit() and len(args) <= 9 else 0


class Resubscription(NamedTuple):
    """The state of a subscription before it was made anew: the rules then, and its subject on the server."""

    rules: ConnectionRules
    upstream: bytes


MOST_REFUSED: Final = 16384
"""SUBs of a connection that the server has refused without saying which, and that are still in the table."""


class Subscriptions(dict[bytes, Subscription]):
    """Live subscriptions by sid.

    uncertain: the sids of those that the server may have ended at their limit.
    """

    __slots__ = ("_at_limit", "_fewest", "_refused", "uncertain", "version")

    def __init__(self) -> None:
        super().__init__()
        self.uncertain: dict[bytes, None] = {}
        self._refused = 0  # at most so many of them does the server not have
        self._fewest = 0  # of them, at any of its refusals
        self.version = 0  # another one with each change
        self._at_limit = False  # the server has refused some SUB without saying which

    def add(self, sid: bytes, subject: bytes, queue: bytes, upstream: bytes, came: int) -> bool:
        """Note a SUB; return whether the server takes it (valid subject, sid not live).

        came: the messages that have come on the connection.
        """
        if not is_valid_subscribe(upstream):
            return False
        sub = self.get(sid)
        if sub is not None and sid not in self.uncertain:
            # The server ignores it, unless it refused the first one without saying which (at a limit).
            sub.named_again = True
            if self._at_limit:
                self._doubt(sub)
            return False
        self.version += 1
        again = sub is not None
        self.uncertain.pop(sid, None)
        self[sid] = Subscription(
            sid, subject, queue, upstream, certain=not again, named_again=again, since=came
        )
        return True

    def doubt(self) -> bool:
        """Note that the server was at a limit, and refused a SUB; return whether it refused too many.

        From now on, sids named by two SUBs are uncertain there.
        """
        if not self._at_limit:
            self._at_limit = True
            self._fewest = len(self)
            for sub in self.values():
                if sub.named_again:
                    self._doubt(sub)
        self._fewest = min(self._fewest, len(self))
        # Those that the client has taken back by an UNSUB do not count: by them the table has not grown.
        self._refused = min(self._refused + 1, len(self) - self._fewest)
        return self._refused > MOST_REFUSED

    def _doubt(self, sub: Subscription) -> None:
        sub.certain = False
        self.version += 1

    def remove(self, sid: bytes) -> None:
        """Note that a sid is free again."""
        self.version += 1
        self.pop(sid, None)
        self.uncertain.pop(sid, None)

    def count(self, sub: Subscription) -> None:
        """Note that each delivery of a subscription is looked at from here on."""
        sub.counted = True
        self.version += 1

    def limit(self, sid: bytes, maximum: int, *, unseen: int) -> bool:
        """Note an UNSUB with a max; return whether the subscription goes on (and is to be watched).

        unseen: the deliveries until then that nobody counted, at most.
        """
        sub = self.get(sid)
        if sub is None:
            return False
        if maximum <= sub.delivered:
            self.remove(sid)
            return False
        sub.max = maximum
        self.version += 1
        sub.unseen = max(sub.unseen, unseen)
        self.reconsider(sub)
        return True

    def reconsider(self, sub: Subscription) -> None:
        """Note whether the server may have ended a subscription that has a limit."""
        if sub.unseen and not sub.ours and sub.delivered + sub.unseen >= sub.max:
            self.uncertain[sub.sid] = None

    def refused(self, subject: bytes, queue: bytes) -> Subscription | None:
        """Forget the latest SUB of a subject and queue, which the server refused; return its subscription."""
        for sid in reversed(self):
            sub = self[sid]
            if sub.upstream == subject and sub.queue == queue:
                self.remove(sid)
                return sub
        return None
