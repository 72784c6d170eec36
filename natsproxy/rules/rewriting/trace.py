"""A turn: one frame before the rewriter, with its dice, its counts and what moved.

A rule that rewrites counts a frame once, however many of the frame's subjects it moves or dice it throws; the
draws of one frame are told apart by their number.  A frame is one firing, by the rule that moved something
first, whose detail names the subjects before and after.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from natsproxy.events import Firing
from natsproxy.rules.model.rule import Rule
from natsproxy.wire.ops import Direction

if TYPE_CHECKING:
    from natsproxy.rules.engine.connection_rules import ActiveRules

MOVES: Final = 4  # how many moved subjects a firing names


class RewriteTrace:
    """One frame.  subject: the client's, for the firing."""

    __slots__ = ("_active", "_changes", "_direction", "_label", "_ms", "_now", "_thrown", "subject")

    def __init__(self, active: ActiveRules, direction: Direction, subject: bytes, now: int) -> None:
        self.subject = subject
        self._active = active
        self._direction = direction
        self._now = now
        self._ms: dict[Rule, int] = {}
        self._thrown = 0
        self._changes: list[tuple[Rule, bytes, bytes]] = []
        self._label = ""

    def draw(self, rule: Rule) -> float:
        """Return the next draw of a rule for this frame."""
        item = self._active.state(rule)
        self._thrown += 1
        return self._active.seeded(item, self._direction).u(self._m(rule), self._thrown)

    def _m(self, rule: Rule) -> int:
        m = self._ms.get(rule)
        if m is None:
            m = self._ms[rule] = self._active.count(self._active.state(rule), self._direction)
        return m

    def moved(self, rule: Rule, before: bytes, after: bytes, label: str = "") -> None:
        """Note that a rule moved a subject."""
        self._changes.append((rule, before, after))
        self._label = label

    def firings(self) -> tuple[Firing, ...]:
        """Return the firing of the rule that moved something, with all that moved; none where nothing did."""
        if not self._changes:
            return ()
        rule = self._changes[0][0]
        item = self._active.state(rule)
        moves = dict.fromkeys(
            f"{text(before)} -> {text(after) or 'nothing'}" for _, before, after in self._changes[:MOVES]
        )
        firing = Firing(
            self._now,
            self._active.conn,
            rule.name,
            rule.kind,
            self._direction.label,
            None,
            self._m(rule),
            self._label or item.action.label,
            0,
            item.key,
            text(self.subject),
            ", ".join(moves),
        )
        return (firing,)


def text(subject: bytes) -> str:
    """Return a subject for a person, 256 bytes of it at most."""
    return subject[:256].decode("utf-8", "replace")
