"""Batches: frames of one read with the same static decision (see `static_decisions.py`).

The frames of a batch are matches, in their order, and one firing: ordinal, `m`, subject and detail are those
of the first, `count` is their number.  Where frames are dropped, copied or damaged, or a gate chooses some,
it names each.
A gate decides on all matches of a batch at once.  An open gate lets all of them through; a gate with nothing
but a probability draws its numbers in one loop; one that counts or looks at the time decides match by match.
The numbers are those of the general path: a delivered message draws from its substream.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from natsproxy.events import Firing
from natsproxy.rules.interface import BatchResult
from natsproxy.rules.model.gate import Gate
from natsproxy.rules.model.rule_state import RuleState, subject_text
from natsproxy.rules.model.verdicts import Corrupt, Drop, Duplicate, Hold
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, LABELS, Direction

REWRITE_CAUSE: Final = "rewrite"
"""The cause of rewritten frames, in records."""


class PassingBatch:
    """Frames that pass as they are: no rule counts them."""

    def take(self, frames: Sequence[Frame], start: int, stop: int, base: int, now: int) -> list[BatchResult]:
        """Pass them as one; the arguments are those of `VerdictBatch.take`."""
        return [BatchResult(stop)]


class _RuleBatch:
    """The batch of one rule and direction."""

    def __init__(self, state: RuleState, direction: Direction) -> None:
        self.state = state
        self._direction = direction
        self._now = self._fired = 0
        self._facts: list[tuple[int, int, str, str]] = []  # ordinal, m, subject and op
        self._delay = 0
        self._detail = ""

    def _match(self, size: int) -> int:
        """Count matches; return the number of the first."""
        self.state.rule.shared.match(size)
        return self.state.counts[self._direction].match(size)

    def take_firing(self) -> Firing | None:
        """Return one event for everything since the last call, and reset; None for nothing."""
        if not self._facts:
            return None
        (ordinal, m, subject, op), *also = self._facts
        fired, self._fired, self._facts = self._fired, 0, []
        return self.state.firing(
            self._direction,
            self._now,
            m,
            subject,
            self._delay,
            detail=self._detail,
            ordinal=ordinal,
            count=fired,
            also=tuple(also),
            op=op,
        )


class RewritingBatch(_RuleBatch):
    """Frames that get another subject."""

    def add(self, rewritten: Sequence[tuple[int, int, int, int, tuple[bytes, bytes, str]]]) -> None:
        """Note frames that the native plane has rewritten, and counted as matches.

        Each: the time, the first ordinal, their number, the first `m`, and subjects and op.
        """
        for now, ordinal, size, m, fact in rewritten:
            self._note(now, ordinal, size, m, *fact)

    def note(self, now: int, ordinal: int, size: int, before: bytes, after: bytes, op: str) -> None:
        """Count frames that were rewritten: their number, and ordinal, subjects and op of the first."""
        self._note(now, ordinal, size, self._match(size), before, after, op)

    def _note(self, now: int, ordinal: int, size: int, m: int, before: bytes, after: bytes, op: str) -> None:
        if not self._fired:
            client = subject_text(before if self._direction == C2S else after)
            self._now, self._facts = now, [(ordinal, m, client, op)]
            self._detail = f"{subject_text(before)} -> {subject_text(after)}"
        self._fired += size


class VerdictBatch(_RuleBatch):
    """Frames that a rule drops or holds, as far as its gate lets them through.

    Copies and damage are made by the native plane alone, which reports them by `add`: `take` is not called.
    """

    def __init__(
        self, state: RuleState, direction: Direction, verdict: Drop | Hold | Duplicate | Corrupt
    ) -> None:
        super().__init__(state, direction)
        self._delay = verdict.delay if isinstance(verdict, Hold) else 0
        self._drops = isinstance(verdict, Drop)
        self._names_each = not isinstance(verdict, Hold) or state.gated
        self._name = state.rule.name
        gate = state.rule.gate
        self._probability = gate.probability or 0.0
        self._probability_only = gate.probability is not None and gate == Gate(probability=gate.probability)

    def take(self, frames: Sequence[Frame], start: int, stop: int, base: int, now: int) -> list[BatchResult]:
        """Ask the gate about `frames[start:stop]`, and drop or hold those that it lets through.

        base: the ordinal of `frames[0]`.  now: ns.
        """
        self._now = now
        first_m = self.state.counts[self._direction].matched + 1 - start  # an index plus this is its `m`
        fired = self._let_through(frames, start, stop)
        if self._names_each:
            # Each is named: the capture shows which were lost, and exact rules can repeat them.
            self._facts += [(base + index, first_m + index, *_named(frames[index])) for index in fired]
        elif fired and not self._fired:
            first = fired[0]
            self._facts.append((base + first, first_m + first, *_named(frames[first])))
        self._fired += len(fired)
        return self._results(fired, start, stop)

    def _results(self, fired: Sequence[int], start: int, stop: int) -> list[BatchResult]:
        """Return one result for each range of indices that fired, and for each range between them."""
        found: list[BatchResult] = []
        out, until = ((), None) if self._drops else (None, self._now + self._delay)
        at, index, last = start, 0, len(fired)
        while index < last:
            if fired[index] > at:
                found.append(BatchResult(fired[index]))
            at = fired[index] + 1
            index += 1
            while index < last and fired[index] == at:
                at += 1
                index += 1
            found.append(BatchResult(at, out, until, self._name))
        if at < stop:
            found.append(BatchResult(stop))
        return found

    def _let_through(self, frames: Sequence[Frame], start: int, stop: int) -> Sequence[int]:
        """Count the matches and return the indices of those that the gate lets through."""
        state, size = self.state, stop - start
        if state.gated and not self._probability_only:
            return [index for index in range(start, stop) if self._admits(frames[index])]
        m = self._match(size)
        if not state.gated:
            return range(start, stop)
        fired: list[int] = []
        # C2s, all matches draw from one sequence; s2c, each substream has a sequence of its own.
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
        state.counts[self._direction].fired += len(fired)
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
        state, gate, direction = self.state, self.state.rule.gate, self._direction
        m = state.count(direction)
        draws = state.draws(direction, frame, m)
        counted = state.rule.shared if gate.per_proxy else state.counts[direction]
        return gate.admits(counted, m, state.keys, self._now, draws.draw, direction.label)

    def add(self, rows: Sequence[tuple[int, int, int, int, tuple[str, str]]]) -> None:
        """Note frames on which the native plane has acted, and which it has counted as matches.

        Each: the time, the first ordinal, their number (1 where each is named), `m`, and subject and op of
        the first.
        """
        self._now = rows[-1][0]
        self._fired += sum(count for _, _, count, _, _ in rows)
        named = rows if self._names_each else rows[: not self._facts]
        self._facts += [(ordinal, m, *facts) for _, ordinal, _, m, facts in named]


def _named(frame: Frame) -> tuple[str, str]:
    """Return a frame's subject and op, for its firing."""
    return subject_text(frame.subject), LABELS[frame.op]
