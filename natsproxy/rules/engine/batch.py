"""Batches: frames of one read with the same static decision (see `static_decisions.py`).

The frames of a batch are matches, in their order, and one firing: ordinal, `m`, subject and detail are those
of the first, `count` is their number.  Where frames are dropped, copied or damaged, or a gate chooses some,
it names each.
A gate decides on all matches of a batch at once.  An open gate lets all of them through; a gate with nothing
but a probability draws its numbers in one loop; one that counts or looks at the time decides match by match.
The numbers are those of the general path: a delivered message draws from its substream.

`FrameBatch` is no batch of that sort: the native plane asks it about frames one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from natsproxy.events import Firing
from natsproxy.protocol.headers import HeaderEditor, is_bare
from natsproxy.rules.interface import BatchResult
from natsproxy.rules.model.gate import Gate
from natsproxy.rules.model.rule import Hit
from natsproxy.rules.model.rule_state import RuleState, subject_text
from natsproxy.rules.model.seeded_random import Draws, SeededRandom
from natsproxy.rules.model.verdicts import ChangeHeaders, Corrupt, Deny, Drop, Duplicate, Hold, Replace
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, LABELS, Direction, Op, op_of

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
        self._detail = self._label = ""

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
            self._label,
            self._detail,
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
    So are the denials of rules in shadow, whose frames pass.
    """

    def __init__(
        self, state: RuleState, direction: Direction, verdict: Drop | Hold | Duplicate | Corrupt | Deny
    ) -> None:
        super().__init__(state, direction)
        self._label = state.action.shadow
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


class FrameKey(NamedTuple):
    """The facts that the frames of one key have in common.

    numbers: those that their matches draw from.  text: their subject, for firings.
    """

    op: Op
    subject: bytes
    sid: bytes
    numbers: SeededRandom
    text: str

    @classmethod
    def of(cls, frame: Frame, state: RuleState, direction: Direction) -> FrameKey:
        """Return the key of a frame, for a rule."""
        op, subject, sid = frame.op, frame.subject, frame.sid
        found = state.substream(direction, op, subject, sid)
        numbers = state.random(direction) if found is None else found[2]
        return cls(op, subject, sid, numbers, subject_text(subject))


class SessionDecides(Exception):
    """The session is to decide on a frame; nothing has happened yet."""


class FrameBatch:
    """Frames on which the native plane has one rule act, one by one: each is a firing of its own."""

    def __init__(self, state: RuleState, direction: Direction) -> None:
        self._state = state
        self._direction = direction
        self._fired: list[Firing] = []

    def take_firings(self) -> list[Firing]:
        """Return the firings since the last call."""
        fired, self._fired = self._fired, []
        return fired

    def act(
        self,
        key: FrameKey,
        raw: bytes,
        reply: bytes,
        line_end: int,
        head: int,
        size: int,
        ordinal: int,
        m: int,
        drawn: int,
        now: int,
    ) -> tuple[bytes, Op] | int | None:
        """Return what becomes of a whole frame that the gate lets through, the next match.

        raw: its bytes.  reply, line_end, head (its headers), size: as the native plane has read them.
        drawn: the number of the match among those that it draws from.
        Bytes and their op take its place, or it is held (ns), or it passes (None).  Raises SessionDecides
        where only the session can do what the action says; the plane takes any other error for that, too.
        """
        op, subject, sid, numbers, text = key
        frame = Frame(raw, 0, len(raw), line_end, op, subject, reply, sid, b"", b"", head, size)
        state, direction = self._state, self._direction
        action = state.action
        verdict = action.act(frame, Hit(direction, now, m, Draws(numbers, drawn), state.view))
        if verdict is None:
            return None
        delay = 0
        found: tuple[bytes, Op] | int
        if isinstance(verdict, Hold) and not verdict.overtake:
            found = delay = verdict.delay
        else:
            changed = _edited(frame, verdict, action.edits) if isinstance(verdict, ChangeHeaders) else verdict
            if changed is None:
                return None
            if not isinstance(changed, Replace) or changed.raw == raw:
                raise SessionDecides
            found = changed.raw, op_of(changed.raw, op)
        detail, label = action.detail(), LABELS[op]
        self._fired.append(
            state.firing(direction, now, m, text, delay, detail=detail, ordinal=ordinal, op=label)
        )
        return found


def _edited(frame: Frame, verdict: ChangeHeaders, names: frozenset[bytes]) -> Replace | None:
    """Return the frame with other headers, None where that has no effect.  names: all that it may change."""
    editor = HeaderEditor(frame.headers, names)
    while not editor.read_on():
        pass
    if not editor.change(verdict.remove, verdict.put):
        return None
    while not editor.write_on():
        pass
    block = editor.block()
    return Replace(encode.with_payload(frame, headers=b"" if is_bare(block) else block))


def _named(frame: Frame) -> tuple[str, str]:
    """Return a frame's subject and op, for its firing."""
    return subject_text(frame.subject), LABELS[frame.op]
