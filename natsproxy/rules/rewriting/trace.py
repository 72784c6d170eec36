"""The trace of one rewrite: the counts, random numbers and changed subjects of one frame.

A rule that rewrites counts a frame once, however many of the frame's subjects it changes and random numbers
it draws; the draws of one frame differ by their number.  A frame is one firing, by the rule that changed a
subject first; the detail of the firing names the subjects before and after.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from natsproxy.events import Firing
from natsproxy.rules.model.rule import Rule
from natsproxy.rules.model.rule_state import RuleState, subject_text
from natsproxy.wire.ops import Direction

NAMED_CHANGES: Final = 4
"""Changed subjects that a firing names at most."""


class RewriteTrace:
    """The trace of one frame.  subject: the client's form, for the firing."""

    __slots__ = ("_changes", "_direction", "_drawn", "_label", "_matches", "_now", "_states", "subject")

    def __init__(
        self, states: Mapping[Rule, RuleState], direction: Direction, subject: bytes, now: int
    ) -> None:
        self.subject = subject
        self._states = states
        self._direction = direction
        self._now = now
        self._matches: dict[Rule, int] = {}
        self._drawn = 0
        self._changes: list[tuple[Rule, bytes, bytes]] = []
        self._label = ""

    def draw(self, rule: Rule) -> float:
        """Return the next random number of a rule for this frame, in (0, 1)."""
        self._drawn += 1
        return self._states[rule].random(self._direction).draw(self._match(rule), self._drawn)

    def _match(self, rule: Rule) -> int:
        m = self._matches.get(rule)
        if m is None:
            # Counted at the first use: a rule that only looked at the frame has no match.
            m = self._matches[rule] = self._states[rule].count(self._direction)
        return m

    def add(self, rule: Rule, before: bytes, after: bytes, label: str = "") -> None:
        """Add a subject that a rule changed; after: `b""` where the frame goes nowhere."""
        self._changes.append((rule, before, after))
        self._label = label

    def firings(self) -> tuple[Firing, ...]:
        """Return the one firing of this frame, or none where no subject changed."""
        if not self._changes:
            return ()
        rule = self._changes[0][0]
        changes = dict.fromkeys(
            f"{subject_text(before)} -> {subject_text(after) or 'nothing'}"
            for _, before, after in self._changes[:NAMED_CHANGES]
        )
        firing = self._states[rule].firing(
            self._direction,
            self._now,
            self._match(rule),
            subject_text(self.subject),
            0,
            self._label,
            ", ".join(changes),
        )
        return (firing,)
