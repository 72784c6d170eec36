"""Static decisions: what the rules of a connection do to every plain message of one op and subject.

Theory
1. The decision on most messages depends on op and subject alone (s2c: and sid): rewriting changes their
   subject, one rule drops them or holds them for a fixed time, or no rule acts.  Such a decision is made once
   from `Action.static_decision`, and cached.  All other frames take the general path
   (`RuleEngine.decide`), which knows all cases; the two agree byte for byte and count for count.
2. C2s a cached decision holds as long as the rules are bound; s2c until a subscription or a request comes or
   goes.  The native plane reads its own from a table (`_decisions.pyx`) and applies them by itself: any
   number of rules, gates and limits (`native_steps.py`), as long as none acts, or one whose action C knows.
3. Where Python gets the frames of a read, neighbours with the same decision are one batch (`batch.py`).  On
   the native plane an event stands for the reads of one step, of a millisecond or so.
4. Clients choose the subjects and inboxes never repeat, so a cache is bounded.  Between two reads it has
   `MAX_ENTRIES` at most; and after as many small reads as it has entries it is emptied, so that an idle
   connection holds few.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from natsproxy.events import Firing
from natsproxy.protocol.headers import TRACE_DEST
from natsproxy.rules.bounded_cache import MAX_ENTRIES as MOST_IN_A_READ
from natsproxy.rules.bounded_cache import MAX_KEY_BYTES
from natsproxy.rules.engine.batch import (
    REWRITE_CAUSE,
    FrameBatch,
    FrameKey,
    PassingBatch,
    RewritingBatch,
    VerdictBatch,
)
from natsproxy.rules.engine.native_steps import CompiledGates, NativeStep, effect
from natsproxy.rules.engine.rule_index import RuleIndex
from natsproxy.rules.interface import BatchFunction, BatchResult, View
from natsproxy.rules.model.roles import OpenRequests
from natsproxy.rules.model.rule import Admits, Rule, Stage
from natsproxy.rules.model.rule_state import RuleState, subject_text
from natsproxy.rules.model.verdicts import Corrupt, Deny, Drop, Duplicate, Hold
from natsproxy.rules.rewriting.frames import rewritten_subscription
from natsproxy.rules.rewriting.subjects import Rewritten, SubjectRewriter
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, LABELS, OPS, S2C, Direction, Op

BASE_ENTRIES: Final = 32
MAX_ENTRIES: Final = 1024
SYSTEM: Final = b"$SYS."
"""The beginning of all subjects of the system."""
_SUBJECT_HEADERS: Final = b"Nats-"
"""The beginning of all header names whose values are subjects."""
Key = tuple[Op, bytes, bytes]
"""Op, subject and sid."""


class UnchangedDecision(NamedTuple):
    """The decision on the frames of a key that go on with their own bytes, or not at all.

    batch: carries it out on neighbours.  A frame takes the general path where its headers hold `unless`, or
    `admits` says no (see `StaticDecision`).
    """

    batch: PassingBatch | VerdictBatch
    unless: bytes = b""
    admits: Admits | None = None


class RewritingDecision(NamedTuple):
    """The decision on the frames of a key that get another subject.

    head: takes the place of their first `cut` bytes.  before, after: the subject.  A frame takes the general
    path where its headers hold `unless`, or `before` does not stand at `at`: its spacing is unusual.
    """

    batch: RewritingBatch
    unless: bytes
    head: bytes
    cut: int
    at: int
    before: bytes
    after: bytes


CachedDecision = UnchangedDecision | RewritingDecision


class NativeDecision(NamedTuple):
    """The decision of the native plane; Python decides on a frame whose headers hold `unless`."""

    unless: bytes
    steps: Sequence[NativeStep] = ()


class DecisionCache(dict[Key, CachedDecision | None]):
    """The decisions of one direction; None: the frames take the general path.

    frames: how many were decided on since the last read.  seen_once: the keys for which the native plane may
    have a decision of its own, but only where they come again: those that clients use once are many.
    """

    def __init__(self, direction: Direction, rewriter: SubjectRewriter | None) -> None:
        super().__init__()
        self.frames = 0
        self._direction = direction
        self._rewriter = rewriter
        self.seen_once: set[Key] = set()
        self._table: Any = None
        self._small_reads = 0

    def store(self, key: Key, decision: CachedDecision | None) -> None:
        """Store a decision."""
        if len(key[1]) > MAX_KEY_BYTES:
            return
        if len(self) >= MOST_IN_A_READ:
            self.forget()
        self[key] = decision
        # The session looks at each frame on a subject of the system, for secrets.
        if self._table is not None and not key[1].startswith(SYSTEM):
            self.seen_once.add(key)

    def store_native(self, key: Key, decision: NativeDecision | None) -> None:
        """Store the decision of the native plane on a key that is seen again."""
        self.seen_once.discard(key)
        if decision is not None:
            line = b" ".join(part for part in (OPS[key[0]].token, *key[1:]) if part)
            self._table.put(line, *decision)

    def forget(self) -> None:
        """Forget all decisions."""
        self.clear()
        self.seen_once.clear()
        self._small_reads = 0
        if self._table is not None:
            self._table.clear()

    def end_read(self) -> None:
        """Tell the batches what the native plane has done, and shrink after small reads."""
        if self._table is not None:
            self.frames += self._table.tell()
        elif not self:
            self.frames = 0
            return
        frames, self.frames = self.frames, 0
        if frames and len(self) > BASE_ENTRIES + frames:
            self._small_reads += 1
        if len(self) > MAX_ENTRIES or self._small_reads > len(self):
            self.forget()

    def table(self) -> object:
        """Return the decisions as the native plane reads them."""
        if self._table is None:
            # Built with the plane that asks for it.
            from natsproxy.rules.engine import _decisions  # type: ignore[attr-defined, unused-ignore]

            self._table = _decisions.Decisions(*self._reply_prefixes())
            self.forget()  # the table starts empty: decisions made before it existed would never get into it
        return self._table

    def _reply_prefixes(self) -> tuple[tuple[bytes, ...] | None, bool]:
        rewriter = self._rewriter
        if rewriter is None or not rewriter.replies:
            return None, False
        if self._direction == C2S:
            return rewriter.excluded_prefixes, True
        return rewriter.restored_prefixes, False


class StaticDecisions:
    """The static decisions of one connection, made where they are first asked for.

    index, states: the rules and their states.  requests: the open requests of the connection.
    """

    def __init__(
        self, index: RuleIndex, view: View, states: Mapping[Rule, RuleState], requests: OpenRequests
    ) -> None:
        self._index = index
        self._view = view
        self._states = states
        self._requests = requests
        self._rewriter = index.rewriter
        self._cache = (DecisionCache(C2S, index.rewriter), DecisionCache(S2C, index.rewriter))
        self._versions = (0, 0)  # of subscriptions and requests: s2c decisions are of this version
        self._passing = PassingBatch()
        self._known: dict[
            tuple[object, ...], UnchangedDecision
        ] = {}  # one object each: they are compared by identity
        self._compiled = CompiledGates()
        self._passes = self._decision(self._passing)  # of nearly all frames that no rule selects
        self._rewriting: dict[tuple[Direction, Rule], RewritingBatch] = {}
        self._acting: dict[tuple[Direction, Rule], VerdictBatch] = {}
        self._asked: dict[tuple[Direction, Rule], FrameBatch] = {}
        self._rewrites_reply: tuple[Callable[[bytes], bool] | None, ...] = (None, None)
        if (rewriter := self._rewriter) is not None and rewriter.replies:
            self._rewrites_reply = (
                lambda reply: rewriter.reply(reply) != reply,
                lambda reply: rewriter.undo(reply) is not None,
            )

    def function(self, direction: Direction) -> BatchFunction | None:
        """Return the function that decides on batches of a direction, None where no frame would take it."""
        if self._rewriter is None and not self._index.rules[direction]:
            return None
        return self._c2s if direction == C2S else self._s2c

    def table(self, direction: Direction) -> object:
        """Return the decisions that hold now, for the native plane."""
        if direction == S2C:
            self._forget_what_has_changed()
        return self._cache[direction].table()

    def take_firings(self) -> Iterable[Firing]:
        """Return the firings since the last call, at the end of a read, and forget them."""
        for cache in self._cache:
            cache.end_read()
        batches = (*self._rewriting.values(), *self._acting.values())
        firings = [firing for batch in batches if (firing := batch.take_firing()) is not None]
        for asked in self._asked.values():
            firings += asked.take_firings()
        return firings

    def _forget_what_has_changed(self) -> None:
        """Forget the decisions on deliveries where subscriptions or requests have changed."""
        versions = (self._view.subs_version, self._requests.opened)
        if versions != self._versions:
            self._versions = versions
            self._cache[S2C].forget()

    # -- neighbouring frames

    def _c2s(self, frames: Sequence[Frame], at: int, first: int, now: int) -> list[BatchResult]:
        return self._decide(C2S, frames, at, first - at, now)

    def _s2c(self, frames: Sequence[Frame], at: int, first: int, now: int) -> list[BatchResult]:
        self._forget_what_has_changed()
        return self._decide(S2C, frames, at, first - at, now)

    def _decide(
        self, direction: Direction, frames: Sequence[Frame], at: int, base: int, now: int
    ) -> list[BatchResult]:
        """Decide on frames from index `at` on, as far as possible; base: the ordinal of `frames[0]`."""
        found: list[BatchResult] = []
        self._cache[direction].frames += len(frames) - at
        cached = self._cached(direction, frames[at])
        while cached is not None:
            start, decision = at, cached
            if isinstance(decision, RewritingDecision):
                out, cached = self._rewrite(direction, frames, at, decision)
                if out:
                    at += len(out)
                    decision.batch.note(
                        now, base + start, len(out), decision.before, decision.after, LABELS[frames[start].op]
                    )
                    found.append(BatchResult(at, out, None, REWRITE_CAUSE))
            else:
                at, cached = self._end_of_unchanged(direction, frames, at, decision, now)
                if at > start:
                    found += decision.batch.take(frames, start, at, base, now)
        return found

    # The two loops return the decision on the next frame, None where no frame is left or the next takes the
    # general path.  One loop for both cost a sixth more where neighbours have many subjects.

    def _end_of_unchanged(
        self, direction: Direction, frames: Sequence[Frame], at: int, cached: UnchangedDecision, now: int
    ) -> tuple[int, CachedDecision | None]:
        """Return the index behind the frames from `at` on that have this decision, and the next decision."""
        rewrites_reply, (_, unless, admits) = self._rewrites_reply[direction], cached
        asked = unless or admits is not None or rewrites_reply is not None
        size = len(frames)
        frame = frames[at]
        op, subject, sid = frame.op, frame.subject, frame.sid
        while not (
            asked
            and (
                (unless and unless in frame.headers)
                or (rewrites_reply is not None and frame.reply and rewrites_reply(frame.reply))
                # Last: it may note the frame, so no other condition may refuse the frame after it.
                or (admits is not None and not admits(frame, now))
            )
        ):
            at += 1
            if at == size:
                break
            frame = frames[at]
            # The scanner gives neighbours with the same field one object: identity spares the look-up.
            if frame.subject is subject and frame.sid is sid and frame.op is op:
                continue
            following = self._cached(direction, frame)
            if following is not cached:
                return at, following
            op, subject, sid = frame.op, frame.subject, frame.sid
        return at, None

    def _rewrite(
        self, direction: Direction, frames: Sequence[Frame], at: int, cached: RewritingDecision
    ) -> tuple[list[bytes], CachedDecision | None]:
        """Return the new bytes of the frames from `at` on that one rule rewrites, and the next decision."""
        rewrites_reply, size = self._rewrites_reply[direction], len(frames)
        out: list[bytes] = []
        batch, unless, head, cut, place, before, _ = cached
        last_op, last_subject, last_sid = frames[at].op, frames[at].subject, frames[at].sid
        while True:
            # Unpacking reads all fields at once: cheaper than eight attributes.
            buffer, start, end, _, op, subject, reply, sid, _, _, _, _, _, _ = frame = frames[at]
            if not (subject is last_subject and sid is last_sid and op is last_op):
                following = self._cached(direction, frame)
                if not isinstance(following, RewritingDecision) or following.batch is not batch:
                    return out, following
                _, unless, head, cut, place, before, _ = following
                last_op, last_subject, last_sid = op, subject, sid
            if (
                not buffer.startswith(before, start + place)
                or (reply and rewrites_reply is not None and rewrites_reply(reply))
                or (unless and unless in frame.headers)
            ):
                return out, None
            out.append(head + buffer[start + cut : end])
            at += 1
            if at == size:
                return out, None

    def _cached(self, direction: Direction, frame: Frame) -> CachedDecision | None:
        cache, key = self._cache[direction], (frame.op, frame.subject, frame.sid)
        if key in cache:
            decision = cache[key]
            if key in cache.seen_once:
                cache.store_native(key, self._native(direction, frame, decision))
            return decision
        decision = self._find_c2s(frame) if direction == C2S else self._find_s2c(frame)
        cache.store(key, decision)
        return decision

    # -- decisions of the native plane

    def _native(
        self, direction: Direction, frame: Frame, decision: CachedDecision | None
    ) -> NativeDecision | None:
        """Return the native plane's decision on all frames of a key, None where it knows none."""
        if isinstance(decision, RewritingDecision):
            return self._native_rewriting(direction, frame, decision)
        if decision is not None and decision.batch is self._passing and decision.admits is None:
            return NativeDecision(decision.unless)
        # Rewriting would come on top, and a verbose client is owed the +OK of a dropped frame.
        if self._rewriter is not None or (direction == C2S and self._view.connect.verbose):
            return None
        if self._general_path(direction, frame):
            return None
        steps: list[NativeStep] = []
        for place in self._index.candidates(direction, frame.op, frame.subject):
            state = self._states[self._index.rules[direction][place]]
            found = self._compiled.steps(state, direction, frame)
            if found is None:
                return None
            steps += found
            acts = effect(state, frame.op, frame.subject, frame.sid) if found else None
            if acts is not None:
                verdict, members = acts
                fact = subject_text(frame.subject), LABELS[frame.op]
                owner = self._batch(state, direction, verdict)
                steps[-1] = steps[-1]._replace(owner=owner, fact=fact, cause=state.rule.name, **members)
            elif found and state.action.on_frame and not state.action.shadow:
                steps[-1] = steps[-1]._replace(
                    owner=self._asked.setdefault((direction, state.rule), FrameBatch(state, direction)),
                    fact=FrameKey.of(frame, state, direction),
                    cause=state.rule.name,
                    asks=True,
                    holds=state.action.on_frame == "hold",
                )
        return NativeDecision(self._unless(direction, frame.op), steps)

    def _native_rewriting(
        self, direction: Direction, frame: Frame, decision: RewritingDecision
    ) -> NativeDecision | None:
        batch, unless, head, cut, _, before, after = decision
        gate, fact = self._compiled.gate(batch.state, direction), (before, after, LABELS[frame.op])
        step = NativeStep(gate, owner=batch, fact=fact, head=head, cut=cut, cause=REWRITE_CAUSE)
        return None if gate is None else NativeDecision(unless, (step,))

    # -- decisions that are not cached yet

    def _find_c2s(self, frame: Frame) -> CachedDecision | None:
        """Return the decision on all frames of one op and subject."""
        subject, rewriter = frame.subject, self._rewriter
        if self._general_path(C2S, frame):
            return None
        decision = self._without_rewriting(C2S, frame, subject)
        if rewriter is None or decision is None:
            return decision
        target = rewriter.destination(subject)
        if rewriter.translates_answer(subject) or not (target is None or isinstance(target, Rewritten)):
            return None
        return self._with_rewriting(C2S, frame, decision, target)

    def _find_s2c(self, frame: Frame) -> CachedDecision | None:
        """Return the decision on all frames of one op, subject and sid."""
        if self._general_path(S2C, frame):
            return None
        target = None
        subject = frame.subject
        if self._rewriter is not None:
            target = self._rewriter.undo(subject, rewritten_subscription(self._view, frame.sid))
            subject = subject if target is None else target.subject
            if self._requests.waiters(subject):
                return None
        decision = self._without_rewriting(S2C, frame, subject)
        return decision if self._rewriter is None else self._with_rewriting(S2C, frame, decision, target)

    def _general_path(self, direction: Direction, frame: Frame) -> bool:
        """Tell whether frames take the general path, whatever the rules on them are."""
        if direction == C2S:
            return bool(self._index.request_rules(frame.subject))  # it opens the request
        sub = self._view.subs.get(frame.sid)
        if sub is not None and (sub.max or sub.counted):
            return True  # the session counts its deliveries, frame by frame
        # The rules that wait for an answer look at its body or status.
        return self._rewriter is None and bool(self._requests.waiters(frame.subject))

    def _unless(self, direction: Direction, op: Op) -> bytes:
        """Return the bytes in headers that send a frame to the general path: those of a trace."""
        return TRACE_DEST if direction == C2S and op == Op.HPUB and self._index.traced else b""

    def _with_rewriting(
        self, direction: Direction, frame: Frame, decision: UnchangedDecision | None, target: Rewritten | None
    ) -> CachedDecision | None:
        """Return the decision on frames that the other rules pass, with that of rewriting."""
        # Two rules act on these frames: only the general path combines their verdicts.
        if decision is None or decision.batch is not self._passing or decision.admits is not None:
            return None
        # The headers that other rules look at begin like this too, so this condition includes theirs.
        unless = _SUBJECT_HEADERS if OPS[frame.op].headers else b""
        if target is None or target.subject == frame.subject:
            return self._decision(self._passing, unless)
        # A share that is dropped: the general path gives a verbose client its +OK.  A new subject of the
        # system: the session searches both forms of the frame for secrets.
        if not target.subject or target.subject.startswith(SYSTEM):
            return None
        batch = self._rewriting.get((direction, target.rule))
        if batch is None:
            made = RewritingBatch(self._states[target.rule], direction)
            batch = self._rewriting[direction, target.rule] = made
        verb = OPS[frame.op].token + b" "
        at = len(verb)
        return RewritingDecision(
            batch, unless, verb + target.subject, at + len(frame.subject), at, frame.subject, target.subject
        )

    def _without_rewriting(
        self, direction: Direction, frame: Frame, subject: bytes
    ) -> UnchangedDecision | None:
        """Return the decision of the rules other than rewriting on the frames of a subject."""
        acting: VerdictBatch | None = None
        unless, admits = self._unless(direction, frame.op), None
        places = self._index.candidates(direction, frame.op, subject)
        if not places and not unless:
            return self._passes
        for place in places:
            state = self._states[self._index.rules[direction][place]]
            static = state.action.static_decision(frame.op, subject, frame.sid, self._view)
            if static is None or state.dynamic or state.rule.selector.side == "server":
                return None
            if static.verdict is None and state.action.stage in (Stage.PERMISSION, Stage.LIMIT):
                # It counts only the frames that it denies.
                if static.admits is not None and admits is not None:
                    return None
                admits = admits or static.admits
                continue
            # A second rule acts too, or a verbose client is owed the +OK of a dropped frame.
            if acting is not None or (direction == C2S and self._view.connect.verbose):
                return None
            acting = self._batch_for(state, direction, static.verdict)
            if acting is None:
                return None
        if acting is None:
            return self._decision(self._passing, unless, admits)
        return None if unless or admits is not None else self._decision(acting)

    def _decision(
        self, batch: PassingBatch | VerdictBatch, unless: bytes = b"", admits: Admits | None = None
    ) -> UnchangedDecision:
        """Return the one decision for all frames of a batch under these conditions."""
        made = UnchangedDecision(batch, unless, admits)
        return self._known.setdefault(made, made)

    def _batch_for(self, state: RuleState, direction: Direction, verdict: object) -> VerdictBatch | None:
        """Return the batch of a rule with this verdict; None: only the general path knows the verdict."""
        if not isinstance(verdict, Drop) and not (isinstance(verdict, Hold) and not verdict.overtake):
            return None
        return self._batch(state, direction, verdict)

    def _batch(
        self, state: RuleState, direction: Direction, verdict: Drop | Hold | Duplicate | Corrupt | Deny
    ) -> VerdictBatch:
        batch = self._acting.get((direction, state.rule))
        if batch is None:
            batch = self._acting[direction, state.rule] = VerdictBatch(state, direction, verdict)
        return batch
