"""The shuttle: the short way for plain messages to which one rule does one simple thing.

Theory
1. What becomes of most messages depends on op and subject alone (s2c: and sid): they move to another subject,
   one rule drops them or holds them for a fixed time, or nobody minds them.  Such a *way* is remembered;
   neighbours on the same way are dealt with together.  Whatever else there may be to a frame takes
   the long way (`ActiveRules.decide`), which knows all cases; the two agree byte for byte, count for count.
2. C2s a way holds as long as the rules are bound; s2c until a subscription or a request comes or goes.  A
   connection remembers no more ways than its last read had frames: one that is idle holds next to nothing.
3. The frames of one read that one rule moves or holds are one firing: ordinal, `m`, subject and detail are
   those of the first, `count` says how many they were.  Drops are one event too, which tells each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from natsproxy.events import Firing
from natsproxy.rules.bounded_cache import remember
from natsproxy.rules.engine.batch import Batch
from natsproxy.rules.interface import BatchResult, FastPathFunction
from natsproxy.rules.model.rule import Rule, Stage
from natsproxy.rules.rewriting.frames import asked_for
from natsproxy.rules.rewriting.subjects import Moved
from natsproxy.rules.rewriting.trace import text
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, S2C, Direction, Op

if TYPE_CHECKING:
    from natsproxy.rules.engine.connection_rules import ActiveRules

_WITH_HEADERS: Final = (Op.HPUB, Op.HMSG)
_NAMING: Final = b"Nats-"
"""What all headers begin with whose values are subjects."""


@dataclass(slots=True, eq=False)
class RewrittenBatch:
    """The frames of one read that a rule moves: how many so far, and what is to be said of the first."""

    direction: Direction
    now: int = 0
    count: int = 0
    ordinal: int = 0
    before: bytes = b""
    after: bytes = b""


Admits = Callable[[Frame, int], bool]
"""See `StaticDecision.admits`."""


class CachedRewrite(NamedTuple):
    """The way of frames that move: their new head in place of the first `cut` bytes.

    at: where their subject stands.  unless: bytes in the headers that send a frame the long way.
    """

    head: bytes
    cut: int
    at: int
    before: bytes
    after: bytes
    rewritten: RewrittenBatch
    unless: bytes


class CachedPass(NamedTuple):
    """The way of frames that go on as they are, unless their headers or a judge say otherwise."""

    unless: bytes
    admits: Admits | None = None


CachedDecision = CachedRewrite | CachedPass | Batch | None
"""None: the long way."""
Moves = Callable[[bytes], bool]
"""Whether rewriting moves a reply subject."""
CACHED: Final = 32
MOST: Final = 1024
"""How many ways a connection remembers: WAYS, and one for each frame of the last read, MOST at most."""
MOVED: Final = "rewrite"
"""The cause of what moves, in records."""


class FastPath:
    """The short way of one connection."""

    def __init__(self, active: ActiveRules) -> None:
        self._active = active
        self._index = active.index
        self._rewriter = active.index.rewriter
        self._cache: tuple[dict[tuple[Op, bytes, bytes], CachedDecision], ...] = ({}, {})
        self._seen = [0, 0]  # frames of this read, by direction
        self._known = (0, 0)
        self._rewritten: dict[tuple[Direction, Rule], RewrittenBatch] = {}
        self._stays: dict[tuple[bytes, Admits | None], CachedPass] = {}
        self._batches: dict[tuple[Direction, Rule], Batch] = {}
        self._moves: tuple[Moves | None, Moves | None] = (None, None)
        if (rewriter := self._rewriter) is not None and rewriter.replies:
            self._moves = (
                lambda reply: rewriter.reply(reply) != reply,
                lambda reply: rewriter.undone(reply) is not None,
            )

    def fastpath(self, direction: Direction) -> FastPathFunction | None:
        """Return the short way of a direction, None where no frame would take it."""
        if self._rewriter is None and not self._index.rules[direction]:
            return None
        return self._out if direction == C2S else self._back

    def _out(self, frames: Sequence[Frame], at: int, first: int, now: int) -> list[BatchResult]:
        return self._decide_all(C2S, frames, at, first - at, now)

    def _back(self, frames: Sequence[Frame], at: int, first: int, now: int) -> list[BatchResult]:
        now_known = (self._active.view.subs_version, self._active.history.asked)
        if now_known != self._known:
            self._known = now_known
            self._cache[S2C].clear()
        return self._decide_all(S2C, frames, at, first - at, now)

    def _decide_all(
        self, direction: Direction, frames: Sequence[Frame], at: int, base: int, now: int
    ) -> list[BatchResult]:
        """base: the ordinal of the frame with the index 0."""
        found: list[BatchResult] = []
        self._seen[direction] += len(frames) - at
        cached: CachedDecision = self._cached(direction, frames[at])
        while cached is not None:
            if isinstance(cached, CachedRewrite):
                at, cached = self._rewrite_all(direction, frames, at, cached, base, now, found)
            elif isinstance(cached, CachedPass):
                at, cached = self._pass_all(direction, frames, at, cached, now, found)
            else:
                stop, following = self._reach(direction, frames, at, cached)
                cached.take(frames, at, stop, base, now, found)
                at, cached = stop, following
        return found

    def _cached(self, direction: Direction, frame: Frame) -> CachedDecision:
        known, key = self._cache[direction], (frame[4], frame[5], frame[7])
        if key in known:
            return known[key]
        return remember(known, key, self._find(direction, frame), len(frame[5]))

    def _reach(
        self, direction: Direction, frames: Sequence[Frame], at: int, cached: CachedDecision
    ) -> tuple[int, CachedDecision]:
        """Return the index behind the neighbours that go the same way, and the way of the next."""
        op, subject, sid = frames[at][4], frames[at][5], frames[at][7]
        for stop in range(at + 1, len(frames)):
            frame = frames[stop]
            if frame[5] is subject and frame[7] is sid and frame[4] is op:
                continue  # the scanner gives neighbours the same objects
            following = self._cached(direction, frame)
            if following is not cached:
                return stop, following
            op, subject, sid = frame[4], frame[5], frame[7]
        return len(frames), None

    def _pass_all(
        self,
        direction: Direction,
        frames: Sequence[Frame],
        at: int,
        cached: CachedPass,
        now: int,
        found: list[BatchResult],
    ) -> tuple[int, CachedDecision]:
        """Let neighbours pass; return the index behind them and the way of the next (see `_lift`)."""
        moves, (unless, admits) = self._moves[direction], cached
        if not unless and moves is None and admits is None:
            at, following = self._reach(direction, frames, at, cached)
            found.append(BatchResult(at))
            return at, following
        start, size = at, len(frames)
        following = cached
        while following is cached:
            frame = frames[at]
            if (
                (unless and unless in frame.headers)
                or (moves is not None and frame[6] and moves(frame[6]))
                or (
                    admits is not None and not admits(frame, now)
                )  # asked last: it may take note of the frame
            ):
                following = None
                break
            at += 1
            if at == size:
                following = None
                break
            nearest = frames[at]
            if not (nearest[5] is frame[5] and nearest[7] is frame[7] and nearest[4] is frame[4]):
                following = self._cached(direction, nearest)
        if at > start:
            found.append(BatchResult(at))
        return at, following

    def _rewrite_all(
        self,
        direction: Direction,
        frames: Sequence[Frame],
        at: int,
        cached: CachedDecision,
        base: int,
        now: int,
        found: list[BatchResult],
    ) -> tuple[int, CachedDecision]:
        """Move neighbours, each its own way; return the index behind them and the way of the next.

        None: there is none, or the next frame must take the long way.
        """
        moves, out, size = self._moves[direction], [], len(frames)
        while isinstance(cached, CachedRewrite):
            head, cut, place, before, after, rewritten, unless = cached
            buffer, begin, end, _, op, subject, reply, sid, _, _, _, _, _, _ = frame = frames[at]
            odd = not buffer.startswith(before, begin + place)  # in its spacing: the long way knows it
            if odd or (reply and moves is not None and moves(reply)) or (unless and unless in frame.headers):
                cached = None
                break
            if not rewritten.count:
                rewritten.now, rewritten.ordinal, rewritten.before, rewritten.after = (
                    now,
                    base + at,
                    before,
                    after,
                )
            rewritten.count += 1
            out.append(head + buffer[begin + cut : end])
            at += 1
            if at == size:
                cached = None
                break
            following = frames[at]
            if not (following[5] is subject and following[7] is sid and following[4] is op):
                cached = self._cached(direction, following)
        if out:
            found.append(BatchResult(at, out, None, MOVED))
        return at, cached

    # -- which way

    def _find(self, direction: Direction, frame: Frame) -> CachedDecision:
        """Return the way of the frames of one op and subject (s2c: and sid)."""
        if direction == S2C:
            return self._find_back(frame)
        subject, rewriter = frame.subject, self._rewriter
        if self._index.asking(subject):
            return None
        rules = self._rules(C2S, frame, subject)
        if rewriter is None or rules is None:
            return rules
        moved = rewriter.destination(subject)
        if rewriter.answers(subject) or not (moved is None or isinstance(moved, Moved)):
            return None
        return self._both(C2S, frame, rules, moved)

    def _find_back(self, frame: Frame) -> CachedDecision:
        sub = self._active.view.subs.get(frame.sid)
        if sub is not None and (sub.max or sub.counted):
            return None  # the session counts them
        moved = None
        subject = frame.subject
        if self._rewriter is not None:
            moved = self._rewriter.undone(subject, asked_for(self._active.view, frame.sid))
            subject = subject if moved is None else moved.subject
        if self._active.history.waiting(subject):
            return None
        rules = self._rules(S2C, frame, subject)
        return rules if self._rewriter is None else self._both(S2C, frame, rules, moved)

    def _both(
        self, direction: Direction, frame: Frame, rules: CachedDecision, moved: Moved | None
    ) -> CachedDecision:
        """Return the way of frames that rules leave alone, with what rewriting does to them."""
        if type(rules) is not CachedPass or rules.admits is not None:
            return None
        unless = _NAMING if frame.op in _WITH_HEADERS else b""  # what rules mind begins like that, too
        if moved is None or moved.subject == frame.subject:
            return self._staying(unless)
        if not moved.subject:
            return None
        rewritten = self._rewritten.get((direction, moved.by))
        if rewritten is None:
            rewritten = self._rewritten[direction, moved.by] = RewrittenBatch(direction)
        verb = frame.op.label.encode() + b" "
        at = len(verb)
        return CachedRewrite(
            verb + moved.subject, at + len(frame.subject), at, frame.subject, moved.subject, rewritten, unless
        )

    def _rules(self, direction: Direction, frame: Frame, subject: bytes) -> CachedDecision:
        """Return what the rules other than rewriting do to the frames of a subject."""
        acting: Batch | None = None
        unless, admits = b"", None
        for place in self._index.candidates(direction, frame.op, subject):
            state = self._active.by_place[direction][place]
            static_decision = state.action.static_decision(frame.op, subject, frame.sid, self._active.view)
            if static_decision is None or state.dynamic or state.rule.selector.side == "server":
                return None
            if frame.op in _WITH_HEADERS:
                unless = unless or static_decision.unless
            if state.action.stage == Stage.PERMISSION:  # a judge that lets them be does not count them
                if static_decision.admits is not None and admits is not None:
                    return None
                admits = admits or static_decision.admits
                continue
            if acting is not None or (direction == C2S and self._active.view.verbose):
                return None
            acting = self._batches.get((direction, state.rule))
            if acting is None:
                acting = self._batches[direction, state.rule] = Batch(
                    self._active, state, direction, static_decision
                )
        if acting is None:
            return self._staying(unless, admits)
        return None if unless or admits is not None else acting

    def _staying(self, unless: bytes, admits: Admits | None = None) -> CachedPass:
        """Return the one way of all frames that go on under these conditions."""
        return self._stays.setdefault((unless, admits), CachedPass(unless, admits))

    def collect(self) -> Iterable[Firing]:
        """Take out what went this way since the last time."""
        for direction, seen in enumerate(self._seen):
            if seen and len(self._cache[direction]) > CACHED + min(seen, MOST):
                self._cache[direction].clear()
            self._seen[direction] = 0
        found = [
            self._moved(rule, rewritten)
            for (_, rule), rewritten in self._rewritten.items()
            if rewritten.count
        ]
        found += [firing for batch in self._batches.values() if (firing := batch.firing()) is not None]
        return found

    def _moved(self, rule: Rule, rewritten: RewrittenBatch) -> Firing:
        active = self._active
        state = active.state(rule)
        count = state.counts[rewritten.direction]
        m = count.matched + 1
        count.matched += rewritten.count
        rule.shared.matched += rewritten.count
        client = rewritten.after if rewritten.direction else rewritten.before
        firing = active.firing(
            state,
            rewritten.direction,
            rewritten.now,
            m,
            None,
            0,
            "",
            f"{text(rewritten.before)} -> {text(rewritten.after)}",
        )
        told, rewritten.count = rewritten.count, 0
        return replace(firing, ordinal=rewritten.ordinal, subject=text(client), count=told)
