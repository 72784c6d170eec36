"""Limits on how many connections, or live subscriptions, those who share a limit have.

Those that are there when a rule comes into force stay, and count.  A connection counts from its CONNECT to
its end: a client that sends anything else first is refused.
"""

from __future__ import annotations

from collections.abc import Hashable
from copy import copy

from natsproxy.events import WOULD_LIMIT
from natsproxy.protocol.errors import MAX_CONNECTIONS, MAX_SUBSCRIPTIONS, err_frame
from natsproxy.rules.interface import View
from natsproxy.rules.model.limit_keys import above, above_of, key_of
from natsproxy.rules.model.rule import Action, Hit, Stage
from natsproxy.rules.model.verdicts import Close, Deny, Verdict
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import Op


class CountLimit(Action):
    """Limits how many of something there are, by key.  most: the number.  scope: of `SCOPES`.

    label: "deny", with the server's -ERR, or "close", without.
    """

    stage = Stage.LIMIT
    keeps = True
    noun = ""

    def __init__(self, most: int, scope: str, label: str, *, shadow: bool = False) -> None:
        self.most, self.scope, self.label = most, scope, label
        self.guards, self.shadow = not shadow, WOULD_LIMIT if shadow else ""
        self._keys: dict[int, Hashable] = {}  # by connection
        self._members: dict[Hashable, dict[int, View]] = {}
        self._key: Hashable = None

    def succeed(self, former: Action) -> None:
        """Go on with the counts of the rule of this name that it replaces."""
        if isinstance(former, type(self)) and former.scope == self.scope:
            self._keys, self._members = former._keys, former._members

    def exhausted(self) -> Action:
        """Return an action that finds the limit reached, to explain what it does then."""
        other = copy(self)
        other.most = 0
        other._keys, other._members = {}, {}
        return other

    def ended(self, view: View) -> None:
        """Count a connection no more."""
        key = self._keys.pop(view.conn, None)
        if key is None:
            return
        members = self._members[key]
        members.pop(view.conn, None)
        if not members:
            del self._members[key]

    def adopted(self, view: View) -> None:
        """Count a connection that was there before the rule."""
        self._count(view)

    def _count(self, view: View) -> dict[int, View]:
        """Count a connection under its key, and return all of that key."""
        self.ended(view)
        self._key = self._keys[view.conn] = key_of(self.scope, view, b"")
        members = self._members.setdefault(self._key, {})
        members[view.conn] = view
        return members

    def condition(self) -> str:
        """Return the limit in words."""
        return above(f"{self.most} {self.noun}", self.scope)

    def detail(self) -> str:
        """Return whose limit the last frame was above."""
        return above_of(self.condition(), self.scope, self._key, 0)

    def describe(self) -> str:
        """Return its effect in a few words."""
        told = "report, and pass" if self.shadow else "refuse"
        return f"{told} what is {self.condition()}"


class ConnectionLimit(CountLimit):
    """Limits connections."""

    ops = Op.CONNECT.bit
    connect_first = True
    noun = "connections"

    def act(self, frame: Frame, hit: Hit) -> Verdict | None:
        """End a connection above the limit at its CONNECT."""
        if len(self._count(hit.view)) <= self.most:
            return None
        self.ended(hit.view)
        return Close(
            f"a limit was exceeded: {self.condition()}",
            err_frame(MAX_CONNECTIONS.text) if self.label == "deny" else b"",
        )


class SubscriptionLimit(CountLimit):
    """Limits live subscriptions."""

    ops = Op.SUB.bit
    noun = "subscriptions"

    def __init__(self, most: int, scope: str, label: str, *, shadow: bool = False) -> None:
        super().__init__(most, scope, label, shadow=shadow)
        self._known: dict[int, int] = {}  # the subscriptions of each connection when it was last looked at
        self._totals: dict[Hashable, int] = {}  # the sum of those, by key

    def succeed(self, former: Action) -> None:
        """Go on with the counts of the rule of this name that it replaces."""
        super().succeed(former)
        if isinstance(former, SubscriptionLimit) and former.scope == self.scope:
            self._known, self._totals = former._known, former._totals

    def ended(self, view: View) -> None:
        """Count the subscriptions of a connection no more."""
        key = self._keys.get(view.conn)
        if key is not None:
            left = self._totals.pop(key, 0) - self._known.pop(view.conn, 0)
            if left:
                self._totals[key] = left
        super().ended(view)

    def adopted(self, view: View) -> None:
        """Count the subscriptions that were there before the rule."""
        super().adopted(view)
        self._look(view)

    def act(self, frame: Frame, hit: Hit) -> Verdict | None:
        """Refuse a subscription above the limit; the view has it already."""
        view = hit.view
        if self._keys.get(view.conn, self) != key_of(self.scope, view, b""):
            self._count(view)
        self._key = self._keys[view.conn]
        self._look(view)
        if self._totals[self._key] > self.most:
            # Other connections may have given up some of theirs since they were looked at.
            for member in self._members[self._key].values():
                self._look(member)
        if self._totals[self._key] <= self.most:
            return None
        if self.label == "close":
            return Close(f"a limit was exceeded: {self.condition()}")
        return Deny(MAX_SUBSCRIPTIONS.text)

    def _look(self, view: View) -> None:
        self._set(view, len(view.subs))

    def _set(self, view: View, number: int) -> None:
        key = self._keys[view.conn]
        self._totals[key] = self._totals.get(key, 0) + number - self._known.get(view.conn, 0)
        self._known[view.conn] = number
