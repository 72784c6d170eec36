"""The decisions that the fast path caches: rewrite, pass, or the batch of one rule (`batch.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from natsproxy.events import Firing
from natsproxy.rules.engine.batch import Batch
from natsproxy.rules.model.rule_state import RuleState, subject_text
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, Direction

REWRITE_CAUSE: Final = "rewrite"
"""The cause of rewritten frames, in records."""


@dataclass(slots=True, eq=False)
class RewrittenBatch:
    """The frames of one read that a rule rewrites: how many so far, and the firing's facts on the first.

    counted: how many of them are counted as matches.
    """

    direction: Direction
    now: int = 0
    count: int = 0
    counted: int = 0
    m: int = 0
    ordinal: int = 0
    before: bytes = b""
    after: bytes = b""

    def add(self, rewritten: Sequence[tuple[int, int, int, tuple[bytes, bytes]]]) -> None:
        """Count frames that the native plane has rewritten; the facts are those of the first."""
        for now, ordinal, count, subjects in rewritten:
            if not self.count:
                self.now, self.ordinal, (self.before, self.after) = now, ordinal, subjects
            self.count += count

    def count_matches(self, state: RuleState) -> None:
        """Count the frames so far as matches of the rule."""
        count, new = state.counts[self.direction], self.count - self.counted
        if not self.counted:
            self.m = count.matched + 1
        count.matched += new
        state.rule.shared.matched += new
        self.counted = self.count

    def take_firing(self, state: RuleState) -> Firing:
        """Count the frames, return their one firing and forget them."""
        self.count_matches(state)
        client = subject_text(self.before if self.direction == C2S else self.after)
        detail = f"{subject_text(self.before)} -> {subject_text(self.after)}"
        size, self.count, self.counted = self.count, 0, 0
        return state.firing(
            self.direction, self.now, self.m, client, detail=detail, ordinal=self.ordinal, count=size
        )


Admits = Callable[[Frame, int], bool]
"""See `StaticDecision.admits`."""


class CachedRewrite(NamedTuple):
    """The decision to rewrite: `head` takes the place of the first `cut` bytes of each frame.

    at: the offset of the subject in a frame with usual spacing.  before, after: the subject.  unless: bytes
    in the headers that send a frame to the general path; `b""` for none.
    """

    head: bytes
    cut: int
    at: int
    before: bytes
    after: bytes
    batch: RewrittenBatch
    unless: bytes


class CachedPass(NamedTuple):
    """The decision to pass frames as they are, unless their headers hold `unless` or `admits` says no."""

    unless: bytes
    admits: Admits | None = None


CachedDecision = CachedRewrite | CachedPass | Batch | None
"""None: the frames take the general path."""
