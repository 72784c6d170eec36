"""The fast path: one decision for neighbouring plain messages to which one rule does one simple thing.

Theory
1. The decision on most messages depends on op and subject alone (s2c: and sid): rewriting changes their
   subject, one rule drops them or holds them for a fixed time, or no rule acts.  Such a decision is cached,
   and neighbours with the same decision are handled together.  All other frames take the general path
   (`RuleEngine.decide`), which knows all cases; the two agree byte for byte and count for count.
2. C2s a cached decision holds as long as the rules are bound; s2c until a subscription or a request comes or
   goes (`decision_cache.py`).  Those that need no look at the frame are applied by the native plane itself.
3. The frames of one read that one rule rewrites or holds are one firing: ordinal, `m`, subject and detail are
   those of the first, `count` is their number.  Drops are one event too, which names each of them.  On the
   native plane an event stands for the reads of one step, of a millisecond or so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from natsproxy.events import Firing
from natsproxy.protocol.headers import TRACE_DEST
from natsproxy.rules.engine.batch import Batch
from natsproxy.rules.engine.cached_decision import (
    REWRITE_CAUSE,
    Admits,
    CachedDecision,
    CachedPass,
    CachedRewrite,
    RewrittenBatch,
)
from natsproxy.rules.engine.decision_cache import SYSTEM, DecisionCache
from natsproxy.rules.engine.rule_index import RuleIndex
from natsproxy.rules.interface import BatchResult, FastPathFunction, View
from natsproxy.rules.model.roles import OpenRequests
from natsproxy.rules.model.rule import Rule, Stage
from natsproxy.rules.model.rule_state import RuleState
from natsproxy.rules.rewriting.frames import rewritten_subscription
from natsproxy.rules.rewriting.subjects import Rewritten
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, S2C, Direction, Op

_WITH_HEADERS: Final = (Op.HPUB, Op.HMSG)
_SUBJECT_HEADERS: Final = b"Nats-"
"""The beginning of all header names whose values are subjects."""


RewritesReply = Callable[[bytes], bool]
"""Tells whether rewriting changes a reply subject."""


class FastPath:
    """The fast path of one connection.

    index, states: the rules and their states.  requests: the open requests of the connection.
    """

    def __init__(
        self,
        index: RuleIndex,
        view: View,
        states: Mapping[Rule, RuleState],
        requests: OpenRequests,
    ) -> None:
        self._index = index
        self._view = view
        self._states = states
        self._requests = requests
        self._rewriter = index.rewriter
        self._cache = (DecisionCache(C2S, index.rewriter), DecisionCache(S2C, index.rewriter))
        self._versions = (0, 0)  # of subscriptions and requests: s2c decisions are of this version
        self._rewritten: dict[tuple[Direction, Rule], RewrittenBatch] = {}
        self._passes: dict[tuple[bytes, Admits | None], CachedPass] = {}
        self._batches: dict[tuple[Direction, Rule], Batch] = {}
        self._rewrites_reply: tuple[RewritesReply | None, RewritesReply | None] = (None, None)
        if (rewriter := self._rewriter) is not None and rewriter.replies:
            self._rewrites_reply = (
                lambda reply: rewriter.reply(reply) != reply,
                lambda reply: rewriter.undo(reply) is not None,
            )

    def function(self, direction: Direction) -> FastPathFunction | None:
        """Return the function that decides on batches of a direction, None where no frame would take it."""
        if self._rewriter is None and not self._index.rules[direction]:
            return None
        return self._c2s if direction == C2S else self._s2c

    def _c2s(self, frames: Sequence[Frame], at: int, first: int, now: int) -> list[BatchResult]:
        return self._decide(C2S, frames, at, first - at, now)

    def decisions(self, direction: Direction) -> object | None:
        """Return the decisions that hold now, for the native plane."""
        if direction == S2C:
            self._forget_what_has_changed()
        return self._cache[direction].table()

    def _forget_what_has_changed(self) -> None:
        """Forget the decisions on deliveries where subscriptions or requests have changed."""
        versions = (self._view.subs_version, self._requests.opened)
        if versions != self._versions:
            self._versions = versions
            self._cache[S2C].forget()

    def _s2c(self, frames: Sequence[Frame], at: int, first: int, now: int) -> list[BatchResult]:
        self._forget_what_has_changed()
        return self._decide(S2C, frames, at, first - at, now)

    def _decide(
        self, direction: Direction, frames: Sequence[Frame], at: int, base: int, now: int
    ) -> list[BatchResult]:
        """Decide on frames from index `at` on, as far as possible; base: the ordinal of `frames[0]`."""
        found: list[BatchResult] = []
        self._cache[direction].frames += len(frames) - at
        cached: CachedDecision = self._cached(direction, frames[at])
        while cached is not None:
            if isinstance(cached, CachedRewrite):
                at, cached = self._decide_rewrites(direction, frames, at, cached, base, now, found)
            elif isinstance(cached, CachedPass):
                at, cached = self._decide_passes(direction, frames, at, cached, now, found)
            else:
                stop, following = self._batch_end(direction, frames, at, cached)
                cached.take(frames, at, stop, base, now, found)
                at, cached = stop, following
        return found

    def _cached(self, direction: Direction, frame: Frame) -> CachedDecision:
        cache, key = self._cache[direction], (frame.op, frame.subject, frame.sid)
        if key in cache:
            return cache[key]
        return cache.store(key, self._find(direction, frame))

    def _batch_end(
        self, direction: Direction, frames: Sequence[Frame], at: int, cached: CachedDecision
    ) -> tuple[int, CachedDecision]:
        """Return the index behind the neighbours with this decision, and the decision on the next frame."""
        op, subject, sid = frames[at].op, frames[at].subject, frames[at].sid
        for stop in range(at + 1, len(frames)):
            frame = frames[stop]
            # The scanner gives neighbours with the same field one object: identity spares the look-up.
            if frame.subject is subject and frame.sid is sid and frame.op is op:
                continue
            following = self._cached(direction, frame)
            if following is not cached:
                return stop, following
            op, subject, sid = frame.op, frame.subject, frame.sid
        return len(frames), None

    def _decide_passes(
        self,
        direction: Direction,
        frames: Sequence[Frame],
        at: int,
        cached: CachedPass,
        now: int,
        found: list[BatchResult],
    ) -> tuple[int, CachedDecision]:
        """Pass neighbours; return the same as `_decide_rewrites`."""
        rewrites_reply, (unless, admits) = self._rewrites_reply[direction], cached
        if not unless and rewrites_reply is None and admits is None:
            at, following = self._batch_end(direction, frames, at, cached)
            found.append(BatchResult(at))
            return at, following
        start, size = at, len(frames)
        following = cached
        while following is cached:
            frame = frames[at]
            # `admits` comes last: it may take note of the frame, so no other condition may refuse it after.
            if (
                (unless and unless in frame.headers)
                or (rewrites_reply is not None and frame.reply and rewrites_reply(frame.reply))
                or (admits is not None and not admits(frame, now))
            ):
                following = None
                break
            at += 1
            if at == size:
                following = None
                break
            nearest = frames[at]
            if not (nearest.subject is frame.subject and nearest.sid is frame.sid and nearest.op is frame.op):
                following = self._cached(direction, nearest)
        if at > start:
            found.append(BatchResult(at))
        return at, following

    def _decide_rewrites(
        self,
        direction: Direction,
        frames: Sequence[Frame],
        at: int,
        cached: CachedDecision,
        base: int,
        now: int,
        found: list[BatchResult],
    ) -> tuple[int, CachedDecision]:
        """Rewrite neighbours; return the index behind them and the decision on the next frame.

        None: no frame is left, or the next takes the general path.
        """
        rewrites_reply, out, size = self._rewrites_reply[direction], [], len(frames)
        while isinstance(cached, CachedRewrite):
            head, cut, place, before, after, batch, unless = cached
            # Unpacking reads all fields at once: cheaper than eight attributes.
            buffer, begin, end, _, op, subject, reply, sid, _, _, _, _, _, _ = frame = frames[at]
            usual = buffer.startswith(before, begin + place)  # else its spacing is unusual
            if (
                not usual
                or (reply and rewrites_reply is not None and rewrites_reply(reply))
                or (unless and unless in frame.headers)
            ):
                cached = None
                break
            if not batch.count:
                batch.now, batch.ordinal, batch.before, batch.after = now, base + at, before, after
            batch.count += 1
            out.append(head + buffer[begin + cut : end])
            at += 1
            if at == size:
                cached = None
                break
            following = frames[at]
            if not (following.subject is subject and following.sid is sid and following.op is op):
                cached = self._cached(direction, following)
        if out:
            found.append(BatchResult(at, out, None, REWRITE_CAUSE))
        return at, cached

    # -- decisions that are not cached yet

    def _find(self, direction: Direction, frame: Frame) -> CachedDecision:
        """Return the decision on all frames of one op and subject (s2c: and sid)."""
        if direction == S2C:
            return self._find_s2c(frame)
        subject, rewriter = frame.subject, self._rewriter
        # The general path opens the request.
        if self._index.request_rules(subject):
            return None
        decision = self._without_rewriting(C2S, frame, subject)
        if rewriter is None or decision is None:
            return decision
        target = rewriter.destination(subject)
        if rewriter.translates_answer(subject) or not (target is None or isinstance(target, Rewritten)):
            return None
        return self._with_rewriting(C2S, frame, decision, target)

    def _find_s2c(self, frame: Frame) -> CachedDecision:
        sub = self._view.subs.get(frame.sid)
        if sub is not None and (sub.max or sub.counted):
            return None  # the session counts its deliveries, frame by frame
        target = None
        subject = frame.subject
        if self._rewriter is not None:
            target = self._rewriter.undo(subject, rewritten_subscription(self._view, frame.sid))
            subject = subject if target is None else target.subject
        # The rules that wait for this answer look at its body or status.
        if self._requests.waiters(subject):
            return None
        decision = self._without_rewriting(S2C, frame, subject)
        return decision if self._rewriter is None else self._with_rewriting(S2C, frame, decision, target)

    def _with_rewriting(
        self, direction: Direction, frame: Frame, decision: CachedDecision, target: Rewritten | None
    ) -> CachedDecision:
        """Return the decision on frames that the other rules pass, with that of rewriting."""
        # Two rules act on these frames: only the general path combines their verdicts.
        if type(decision) is not CachedPass or decision.admits is not None:
            return None
        # The headers that other rules mind begin like this too, so this condition includes theirs.
        unless = _SUBJECT_HEADERS if frame.op in _WITH_HEADERS else b""
        if target is None or target.subject == frame.subject:
            return self._pass(unless)
        # A lost share: the general path drops it and gives a verbose client its +OK.  A new subject of the
        # system: the session searches both forms of the frame for secrets.
        if not target.subject or target.subject.startswith(SYSTEM):
            return None
        batch = self._rewritten.get((direction, target.rule))
        if batch is None:
            batch = self._rewritten[direction, target.rule] = RewrittenBatch(direction)
        verb = frame.op.label.encode() + b" "
        at = len(verb)
        return CachedRewrite(
            verb + target.subject, at + len(frame.subject), at, frame.subject, target.subject, batch, unless
        )

    def _without_rewriting(self, direction: Direction, frame: Frame, subject: bytes) -> CachedDecision:
        """Return the decision of the rules other than rewriting on the frames of a subject."""
        acting: Batch | None = None
        traced = direction == C2S and frame.op == Op.HPUB and self._index.traced
        unless, admits = TRACE_DEST if traced else b"", None
        for place in self._index.candidates(direction, frame.op, subject):
            state = self._states[self._index.rules[direction][place]]
            static = state.action.static_decision(frame.op, subject, frame.sid, self._view)
            if static is None or state.dynamic or state.rule.selector.side == "server":
                return None
            if state.action.stage == Stage.PERMISSION:  # a permission rule counts only the frames it denies
                if static.admits is not None and admits is not None:
                    return None
                admits = admits or static.admits
                continue
            # A second rule acts too, or a verbose client is owed the +OK of a dropped frame.
            if acting is not None or (direction == C2S and self._view.verbose):
                return None
            acting = self._batches.get((direction, state.rule))
            if acting is None:
                acting = self._batches[direction, state.rule] = Batch(state, direction, static)
        if acting is None:
            return self._pass(unless, admits)
        return None if unless or admits is not None else acting

    def _pass(self, unless: bytes, admits: Admits | None = None) -> CachedPass:
        """Return the one decision for all frames that pass under these conditions (compared by identity)."""
        return self._passes.setdefault((unless, admits), CachedPass(unless, admits))

    # -- firings

    def count_rewritten(self) -> None:
        """Count what has been rewritten in this read, before the general path counts a frame behind it."""
        for (_, rule), batch in self._rewritten.items():
            if batch.count > batch.counted:
                batch.count_matches(self._states[rule])

    def take_firings(self) -> Iterable[Firing]:
        """Return the firings since the last call, at the end of a read, and forget them."""
        for cache in self._cache:
            cache.end_read()
        found: list[Firing] = []
        for (_, rule), rewritten in self._rewritten.items():
            if rewritten.count:
                found.append(rewritten.take_firing(self._states[rule]))
        for batch in self._batches.values():
            if (firing := batch.take_firing()) is not None:
                found.append(firing)
        return found
