"""The check of a connection's live subscriptions under rules that are about to come into force.

Theory
1. New permission rules end the subscriptions that they do not allow, and those that they allow may arm
   filters; new mappings move subscriptions to other subjects.  The check takes one subscription after the
   other, and stops when its caller says so: a client with many of them does not hold up other connections.
2. Until it is done, the connection keeps its old rules.  Subscriptions that are added meanwhile are checked
   in another round; the check is done after a round that finds none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from natsproxy.protocol.errors import subscription_revoked
from natsproxy.protocol.permissions import may_arm
from natsproxy.rules.engine.rule_index import RuleIndex
from natsproxy.rules.interface import Subscription, View
from natsproxy.rules.model.rule import Rule
from natsproxy.rules.rewriting.subjects import Refused

LEAST: Final = 64
"""Subscriptions that are checked between two looks at the clock."""


def _never() -> bool:
    return False


class LiveSubscriptions:
    """The check for one connection; see `interface.SubscriptionCheck`.

    index: the rules that are about to come into force.  before: those in force, None for none.
    done: all live subscriptions were checked.  filters: those that they arm.  queues: by sid.
    looks: how many subscriptions were checked.  shadowed: the rules in shadow that would end one, each with
    its subject.
    """

    def __init__(self, index: RuleIndex, before: RuleIndex | None, view: View) -> None:
        self.done = False
        self.filters: set[frozenset[object]] = set()
        self.queues: dict[bytes, bytes] = {}
        self.looks = 0
        self.shadowed: list[tuple[Rule, bytes]] = []
        self._index, self._before, self._view = index, before, view
        self._seen: dict[bytes, Subscription] = {}
        self._moved: list[tuple[Subscription, bytes]] = []
        self._version: int | None = None
        self._left: Iterator[bytes] = iter(())
        rewritten = before is not None and before.rewriter is not None
        self._needed = index.depends_on_subscriptions or rewritten

    def holds(self, index: RuleIndex, before: RuleIndex | None) -> bool:
        """Tell whether it was made for a swap from `before` to `index`."""
        return index is self._index and before is self._before

    def step(self, reached: Callable[[], bool] = _never) -> list[tuple[bytes, str]]:
        """Continue until `reached`; return the sids of subscriptions to end, with the texts of their -ERR."""
        revoked: list[tuple[bytes, str]] = []
        subs = self._view.subs
        while self._needed:
            for sid in self._left:
                sub = subs.get(sid)
                if sub is None or self._seen.get(sid) is sub:
                    continue
                self._seen[sid] = sub
                if (text := self._look(sub)) is not None:
                    revoked.append((sid, text))
                if self.looks % LEAST == 0 and reached():
                    return revoked
            if self._version == self._view.subs_version:
                break
            self._version = self._view.subs_version
            self._left = iter([sid for sid in subs if self._seen.get(sid) is not subs[sid]])
        self.done = True
        return revoked

    @property
    def resubscribed(self) -> list[tuple[bytes, bytes]]:
        """The subscriptions that the rules map to another subject, and that subject."""
        subs = self._view.subs
        return [(sub.sid, subject) for sub, subject in self._moved if subs.get(sub.sid) is sub]

    def _look(self, sub: Subscription) -> str | None:
        """Check one subscription; return the text of the -ERR that ends it, None if it is allowed."""
        self.looks += 1
        refusing = self._index.refusing(sub.subject, sub.queue)
        if self._index.filters:
            if may_arm(sub.subject, sub.queue):
                refused = frozenset[object](rule.action for rule in refusing)
                armed = self._index.armed_by(sub.subject)
                self.filters.add(armed - refused if refused else armed)
            if sub.queue:
                self.queues[sub.sid] = sub.queue
        before = self._before
        new = [rule for rule in refusing if rule.gate.open and (before is None or rule not in before.present)]
        self.shadowed += [(rule, sub.subject) for rule in new if rule.action.shadow]
        if any(not rule.action.shadow for rule in new):
            return subscription_revoked(sub.subject, sub.sid, sub.queue)
        rewriter = self._index.rewriter
        to = rewriter.subscribe(sub.subject) if rewriter is not None else None
        subject = sub.subject if to is None or isinstance(to, Refused) else to.subject
        if subject == sub.upstream and not isinstance(to, Refused):
            return None
        if isinstance(to, Refused) or not sub.certain:
            return subscription_revoked(sub.subject, sub.sid, sub.queue)
        self._moved.append((sub, subject))
        return None
