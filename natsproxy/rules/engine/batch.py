"""A lot: the frames of one read to which one rule does the same simple thing (see `shuttle.py`).

The gate is asked about a stretch of matches at once.  An open gate lets all of them through; dice alone are
thrown in one loop; what counts or looks at the clock is asked match by match.  The numbers are the same as
those of the long way: `m` is the count of matches, s2c the dice are those of each frame's strand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from natsproxy.events import Firing
from natsproxy.rules.interface import BatchResult
from natsproxy.rules.model.gate import Gate
from natsproxy.rules.model.rule import StaticDecision
from natsproxy.rules.rewriting.trace import text
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, Direction

if TYPE_CHECKING:
    from natsproxy.rules.engine.connection_rules import ActiveRules, RuleState


class Batch:
    """What one rule does to frames of one read, and what it did."""

    __slots__ = (
        "_active",
        "_count",
        "_delay",
        "_direction",
        "_drawn",
        "_name",
        "_now",
        "_probability",
        "_state",
        "_static",
        "_told",
    )

    def __init__(
        self, active: ActiveRules, state: RuleState, direction: Direction, static_decision: StaticDecision
    ) -> None:
        self._active = active
        self._state = state
        self._direction = direction
        self._static = static_decision
        self._now = 0
        self._name = state.rule.name
        gate = state.rule.gate
        self._probability = gate.probability or 0.0
        self._drawn = gate.probability is not None and gate == Gate(probability=gate.probability)
        self._count = 0
        self._told: list[tuple[int, int, str]] = []  # ordinal, m and subject

    def take(
        self, frames: Sequence[Frame], at: int, stop: int, base: int, now: int, found: list[BatchResult]
    ) -> None:
        """Deal with the frames from index `at` to `stop`; base: the ordinal of the frame at index 0."""
        self._now = now
        ahead = self._state.counts[self._direction].matched + 1 - at  # what makes an index a match's number
        fired = self._fired(frames, at, stop)
        if self._static.drop or self._state.gated:  # each counts: to see what followed, to do it again
            self._told += [(base + place, ahead + place, text(frames[place][5])) for place in fired]
        elif fired and not self._count:
            self._told.append((base + fired[0], ahead + fired[0], text(frames[fired[0]][5])))
        self._count += len(fired)
        place, last = at, len(fired)
        index = 0
        while index < last:
            if fired[index] > place:
                found.append(BatchResult(fired[index]))
            place = fired[index] + 1
            index += 1
            while index < last and fired[index] == place:
                place += 1
                index += 1
            found.append(self._acted(place))
        if place < stop:
            found.append(BatchResult(stop))

    def _acted(self, stop: int) -> BatchResult:
        if self._static.drop:
            return BatchResult(stop, (), None, self._name)
        return BatchResult(stop, None, self._now + self._static.delay, self._name)

    def _fired(self, frames: Sequence[Frame], at: int, stop: int) -> Sequence[int]:
        """Count matches and return the indices of those that the gate lets through."""
        state, size = self._state, stop - at
        if state.gated and not self._drawn:
            return [place for place in range(at, stop) if self._opens(frames[place])]
        count = state.counts[self._direction]
        m = count.matched + 1
        count.matched += size
        state.rule.shared.matched += size
        if not state.gated:
            return range(at, stop)
        fired: list[int] = []
        if self._direction == C2S:
            seeded = self._active.seeded(state, C2S)
            fired += [at + hit - m for hit in seeded.below(m, size, self._probability)]
        else:
            while at < stop:
                end = self._alike(frames, at, stop)
                draws = self._active.draws(state, self._direction, frames[at], m, end - at)
                fired += [
                    at + hit - draws.m for hit in draws.seeded.below(draws.m, end - at, self._probability)
                ]
                at = end
        count.fired += len(fired)
        return fired

    @staticmethod
    def _alike(frames: Sequence[Frame], at: int, stop: int) -> int:
        """Return the index behind the neighbours of one subject and sid."""
        subject, sid = frames[at][5], frames[at][7]
        while at < stop and frames[at][5] == subject and frames[at][7] == sid:
            at += 1
        return at

    def _opens(self, frame: Frame) -> bool:
        """Count one match and ask the gate about it."""
        state, gate, active = self._state, self._state.rule.gate, self._active
        count = state.counts[self._direction]
        m = active.count(state, self._direction)
        draws = active.draws(state, self._direction, frame, m)
        counted = state.rule.shared if gate.per_proxy else count
        return gate.admits(counted, m, state.key, self._now, draws.u, self._direction.label)

    def firing(self) -> Firing | None:
        """Return the one event for all that it did; None for nothing."""
        if not self._told:
            return None
        (ordinal, m, subject), *also = self._told
        count, self._count, self._told = self._count, 0, []
        firing = self._active.firing(self._state, self._direction, self._now, m, None, self._static.delay)
        return replace(firing, ordinal=ordinal, subject=subject, count=count, also=tuple(also))
