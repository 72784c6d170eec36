"""State of one rule on one connection: its action, its counts, its random numbers and its firings.

The engine makes one state per rule and connection and hands states to its parts: the batches, the link
rules and the rewriter.  None of them needs more of the connection than that.  A state outlives a reload of
the rules where its rule has the same name and content.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from natsproxy.events import Firing
from natsproxy.rules.interface import View
from natsproxy.rules.model.counts import Count, RecentCounts
from natsproxy.rules.model.roles import MSGS
from natsproxy.rules.model.rule import Action, Hit, Rule
from natsproxy.rules.model.seeded_random import Draws, SeededRandom, Substreams
from natsproxy.wire.frames import Frame, Need
from natsproxy.wire.ops import Direction, Op

SHOWN: Final = 256
"""The bytes of a subject that a firing quotes at most."""


@dataclass(slots=True, eq=False)
class RuleState:
    """One rule on one connection.

    action: the rule's action as bound to the connection.  counts: matches and firings by direction.  key: the
    connection's key, on which the random numbers depend.  keys: with that of those alike.  need, dynamic,
    gated: copies of properties of the rule.  substreams: only where s2c random numbers are drawn (see
    `seeded_random`).
    """

    rule: Rule
    action: Action
    counts: tuple[Count, Count]
    view: View
    seed: int
    key: str = ""
    keys: tuple[str, str] = ("", "")
    need: Need = Need.LINE
    dynamic: bool = False
    gated: bool = True
    substreams: Substreams | None = None
    _random: list[SeededRandom | None] = field(default_factory=lambda: [None, None])

    def __post_init__(self) -> None:
        # These properties never change but cost a computation, and every frame asks for them.
        selector = self.rule.selector
        self.need, self.dynamic, self.gated = selector.need, selector.dynamic, not self.rule.gate.open
        self.key, self.keys = self.view.key, (self.view.key, self.view.alike)
        self._reset_random()

    def rebind(self, view: View, seed: int) -> None:
        """Move to the connection after a reload, or after its CONNECT has changed its key."""
        self.view, self.seed = view, seed
        if self.key != view.key:
            self.key, self.keys = view.key, (view.key, view.alike)
            self._reset_random()

    def _reset_random(self) -> None:
        self._random = [None, None]
        draws = self.rule.gate.probability is not None or self.action.draws_random
        self.substreams = Substreams() if draws else None

    def count(self, direction: Direction) -> int:
        """Count a match and return its number, from 1."""
        self.rule.shared.match()
        return self.counts[direction].match()

    def match(self, direction: Direction, now: int) -> Hit:
        """Count a match that belongs to no frame, and return it with its random numbers."""
        m = self.count(direction)
        return Hit(direction, now, m, Draws(self.random(direction), m), self.view)

    def random(self, direction: Direction) -> SeededRandom:
        """Return the random numbers of a direction."""
        found = self._random[direction]
        if found is None:
            found = self._random[direction] = SeededRandom(self.seed, self.rule.name, self.key, direction)
        return found

    def draws(self, direction: Direction, frame: Frame, m: int, size: int = 1) -> Draws:
        """Return the random numbers of the m-th match.

        Those of a delivered message belong to its substream, which counts by itself: a server delivers to
        several subscriptions in random order.  size: the neighbouring frames of one substream to count, of
        which `frame` is the first.
        """
        numbers = self.random(direction)
        if self.substreams is None or not MSGS >> frame.op & 1:
            return Draws(numbers, m)
        return self.substreams.draws(numbers, frame.subject, self._subscribed(frame.sid), size)

    def substream(
        self, direction: Direction, op: Op, subject: bytes, sid: bytes
    ) -> tuple[RecentCounts, bytes, SeededRandom] | None:
        """Return counts, digest and random numbers of the substream of frames, None if they have none."""
        if self.substreams is None or not MSGS >> op & 1:
            return None
        return self.substreams.counts, *self.substreams.find(
            self.random(direction), subject, self._subscribed(sid)
        )

    def _subscribed(self, sid: bytes) -> bytes:
        sub = self.view.subs.get(sid)
        return sub.subject if sub is not None else b""

    def firing(
        self,
        direction: Direction,
        now: int,
        m: int,
        subject: str = "",
        delay: int = 0,
        label: str = "",
        detail: str = "",
        ordinal: int | None = None,
        count: int = 1,
        also: tuple[tuple[int, int, str, str], ...] = (),
        op: str = "",
    ) -> Firing:
        """Return the event of a firing.  label: overrides that of the action.  delay: ns.

        ordinal, count, also, op: as in the event.
        """
        role = self.rule.selector.role
        return Firing(
            now,
            self.view.conn,
            self.rule.name,
            self.rule.kind,
            direction.label,
            ordinal,
            m,
            label or self.action.label or self.rule.kind,
            delay,
            self.key,
            subject,
            detail,
            count,
            also,
            op,
            "" if role is None else role.name,
            self.view.who,
        )


def subject_text(subject: bytes) -> str:
    """Return the first 256 bytes of a subject as text."""
    return subject[:SHOWN].decode("utf-8", "replace")
