"""A batch: the frames of one read to which one rule does the same simple thing (see `fastpath.py`).

The gate decides on all matches of a batch at once.  An open gate lets all of them through; a gate with
nothing but a probability draws its numbers in one loop; a gate that counts or looks at the time decides match
by match.  The numbers are those of the general path: `m` counts the matches, and a delivered message draws
from its substream.
"""

from __future__ import annotations

from collections.abc import Sequence

from natsproxy.events import Firing
from natsproxy.rules.interface import BatchResult
from natsproxy.rules.model.gate import Gate
from natsproxy.rules.model.rule import StaticDecision
from natsproxy.rules.model.rule_state import RuleState, subject_text
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, Direction


class Batch:
    """One rule's decision on the frames of one read, and the firings that the read will report.

    name: of the rule.
    """

    __slots__ = (
        "_count",
        "_details",
        "_direction",
        "_now",
        "_probability",
        "_probability_only",
        "_state",
        "_static",
        "name",
    )

    def __init__(self, state: RuleState, direction: Direction, static_decision: StaticDecision) -> None:
        self._state = state
        self._direction = direction
        self._static = static_decision
        self._now = 0
        self.name = state.rule.name
        gate = state.rule.gate
        self._probability = gate.probability or 0.0
        self._probability_only = gate.probability is not None and gate == Gate(probability=gate.probability)
        self._count = 0
        self._details: list[tuple[int, int, str]] = []  # ordinal, m and subject

    def take(
        self, frames: Sequence[Frame], start: int, stop: int, base: int, now: int, found: list[BatchResult]
    ) -> None:
        """Decide on `frames[start:stop]` and add the results; base: the ordinal of `frames[0]`; now: ns."""
        self._now = now
        first_m = self._state.counts[self._direction].matched + 1 - start  # an index plus this is its `m`
        fired = self._fired(frames, start, stop)
        if self._static.drop or self._state.gated:
            # Each is named: a reader of the capture sees which were lost, a script repeats exactly these.
            self._details += [
                (base + index, first_m + index, subject_text(frames[index].subject)) for index in fired
            ]
        elif fired and not self._count:
            first = fired[0]
            self._details.append((base + first, first_m + first, subject_text(frames[first].subject)))
        self._count += len(fired)
        self._add_results(fired, start, stop, found)

    def _add_results(self, fired: Sequence[int], start: int, stop: int, found: list[BatchResult]) -> None:
        """Add one result for each range of indices that fired, and for each range between them."""
        at, index, last = start, 0, len(fired)
        while index < last:
            if fired[index] > at:
                found.append(BatchResult(fired[index]))
            at = fired[index] + 1
            index += 1
            while index < last and fired[index] == at:
                at += 1
                index += 1
            if self._static.drop:
                found.append(BatchResult(at, (), None, self.name))
            else:
                found.append(BatchResult(at, None, self._now + self._static.delay, self.name))
        if at < stop:
            found.append(BatchResult(stop))

    def _fired(self, frames: Sequence[Frame], start: int, stop: int) -> Sequence[int]:
        """Count the matches and return the indices of those that the gate lets through."""
        state, size = self._state, stop - start
        if state.gated and not self._probability_only:
            return [index for index in range(start, stop) if self._admits(frames[index])]
        count = state.counts[self._direction]
        m = count.matched + 1
        count.matched += size
        state.rule.shared.matched += size
        if not state.gated:
            return range(start, stop)
        fired: list[int] = []
        # C2s all matches of the direction draw from one sequence; s2c each substream has its own.
        if self._direction == C2S:
            numbers = state.random(C2S)
            fired += [start + hit - m for hit in numbers.below(m, size, self._probability)]
        else:
            at = start
            while at < stop:
                end = self._substream_end(frames, at, stop)
                numbers, first = state.draws(self._direction, frames[at], m, end - at)
                fired += [at + hit - first for hit in numbers.below(first, end - at, self._probability)]
                at = end
        count.fired += len(fired)
        return fired

    @staticmethod
    def _substream_end(frames: Sequence[Frame], at: int, stop: int) -> int:
        """Return the index behind the neighbours that share subject and sid, and so a substream."""
        subject, sid = frames[at].subject, frames[at].sid
        while at < stop and frames[at].subject == subject and frames[at].sid == sid:
            at += 1
        return at

    def _admits(self, frame: Frame) -> bool:
        """Count one match and ask the gate about it."""
        state, gate, direction = self._state, self._state.rule.gate, self._direction
        m = state.count(direction)
        draws = state.draws(direction, frame, m)
        counted = state.rule.shared if gate.per_proxy else state.counts[direction]
        return gate.admits(counted, m, state.key, self._now, draws.draw, direction.label)

    @property
    def drops_all(self) -> bool:
        """True if each frame is dropped, whatever came before it."""
        return self._static.drop and not self._state.gated

    def add(self, dropped: Sequence[tuple[int, int, int, str]]) -> None:
        """Count frames that the native plane has dropped; the last fact of each is its subject."""
        state, size = self._state, len(dropped)
        count = state.counts[self._direction]
        m = count.matched + 1
        count.matched += size
        state.rule.shared.matched += size
        self._now = dropped[-1][0]
        self._count += size
        self._details += [
            (ordinal, m + place, subject) for place, (_, ordinal, _, subject) in enumerate(dropped)
        ]

    def take_firing(self) -> Firing | None:
        """Return one event for everything since the last call, and forget it; None for nothing."""
        if not self._details:
            return None
        (ordinal, m, subject), *also = self._details
        count, self._count, self._details = self._count, 0, []
        return self._state.firing(
            self._direction,
            self._now,
            m,
            subject,
            self._static.delay,
            ordinal=ordinal,
            count=count,
            also=tuple(also),
        )
