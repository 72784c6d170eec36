"""The shuttle: the short way for plain messages to which one rule does one simple thing.

Theory
1. What becomes of most messages depends on op and subject alone (s2c: and sid): they move to another subject,
   one rule drops them or holds them for a fixed time, or nobody minds them.  Such a *way* is remembered;
   neighbours on the same way are dealt with together.  Whatever else there may be to a frame takes
   the long way (`RuleBound.decide`), which knows all cases; the two agree byte for byte, count for count.
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
from natsproxy.rules.base import Rule, Stage
from natsproxy.rules.lot import Lot
from natsproxy.rules.memo import remember
from natsproxy.rules.rewriter import asked_for
from natsproxy.rules.rewriting import Moved
from natsproxy.rules.seam import Stretch, Swift
from natsproxy.rules.turn import text
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, S2C, Direction, Op

if TYPE_CHECKING:
    from natsproxy.rules.bound import RuleBound

_WITH_HEADERS: Final = (Op.HPUB, Op.HMSG)
_NAMING: Final = b"Nats-"
"""What all headers begin with whose values are subjects."""


@dataclass(slots=True, eq=False)
class Streak:
    """The frames of one read that a rule moves: how many so far, and what is to be said of the first."""

    direction: Direction
    now: int = 0
    count: int = 0
    ordinal: int = 0
    before: bytes = b""
    after: bytes = b""


Admits = Callable[[Frame, int], bool]
"""See `Blanket.admits`."""


class Lift(NamedTuple):
    """The way of frames that move: their new head in place of the first `cut` bytes.

    at: where their subject stands.  unless: bytes in the headers that send a frame the long way.
    """

    head: bytes
    cut: int
    at: int
    before: bytes
    after: bytes
    streak: Streak
    unless: bytes


class Stay(NamedTuple):
    """The way of frames that go on as they are, unless their headers or a judge say otherwise."""

    unless: bytes
    admits: Admits | None = None


Way = Lift | Stay | Lot | None
"""None: the long way."""
Moves = Callable[[bytes], bool]
"""Whether rewriting moves a reply subject."""
WAYS: Final = 32
MOST: Final = 1024
"""How many ways a connection remembers: WAYS, and one for each frame of the last read, MOST at most."""
MOVED: Final = "rewrite"
"""The cause of what moves, in records."""


class Shuttle:
    """The short way of one connection."""

    def __init__(self, bound: RuleBound) -> None:
        self._bound = bound
        self._plan = bound.plan
        self._rewriter = bound.plan.rewriter
        self._ways: tuple[dict[tuple[Op, bytes, bytes], Way], ...] = ({}, {})
        self._seen = [0, 0]  # frames of this read, by direction
        self._known = (0, 0)
        self._streaks: dict[tuple[Direction, Rule], Streak] = {}
        self._stays: dict[tuple[bytes, Admits | None], Stay] = {}
        self._lots: dict[tuple[Direction, Rule], Lot] = {}
        self._moves: tuple[Moves | None, Moves | None] = (None, None)
        if (rewriter := self._rewriter) is not None and rewriter.replies:
            self._moves = (
                lambda reply: rewriter.reply(reply) != reply,
                lambda reply: rewriter.undone(reply) is not None,
            )

    def swift(self, direction: Direction) -> Swift | None:
        """Return the short way of a direction, None where no frame would take it."""
        if self._rewriter is None and not self._plan.rules[direction]:
            return None
        return self._out if direction == C2S else self._back

    def _out(self, frames: Sequence[Frame], at: int, first: int, now: int) -> list[Stretch]:
        return self._go(C2S, frames, at, first - at, now)

    def _back(self, frames: Sequence[Frame], at: int, first: int, now: int) -> list[Stretch]:
        now_known = (self._bound.view.subs_version, self._bound.history.asked)
        if now_known != self._known:
            self._known = now_known
            self._ways[S2C].clear()
        return self._go(S2C, frames, at, first - at, now)

    def _go(
        self, direction: Direction, frames: Sequence[Frame], at: int, base: int, now: int
    ) -> list[Stretch]:
        """base: the ordinal of the frame with the index 0."""
        found: list[Stretch] = []
        self._seen[direction] += len(frames) - at
        way: Way = self._way(direction, frames[at])
        while way is not None:
            if isinstance(way, Lift):
                at, way = self._lift(direction, frames, at, way, base, now, found)
            elif isinstance(way, Stay):
                at, way = self._stay(direction, frames, at, way, now, found)
            else:
                stop, following = self._reach(direction, frames, at, way)
                way.take(frames, at, stop, base, now, found)
                at, way = stop, following
        return found

    def _way(self, direction: Direction, frame: Frame) -> Way:
        known, key = self._ways[direction], (frame[4], frame[5], frame[7])
        if key in known:
            return known[key]
        return remember(known, key, self._find(direction, frame), len(frame[5]))

    def _reach(self, direction: Direction, frames: Sequence[Frame], at: int, way: Way) -> tuple[int, Way]:
        """Return the index behind the neighbours that go the same way, and the way of the next."""
        op, subject, sid = frames[at][4], frames[at][5], frames[at][7]
        for stop in range(at + 1, len(frames)):
            frame = frames[stop]
            if frame[5] is subject and frame[7] is sid and frame[4] is op:
                continue  # the scanner gives neighbours the same objects
            following = self._way(direction, frame)
            if following is not way:
                return stop, following
            op, subject, sid = frame[4], frame[5], frame[7]
        return len(frames), None

    def _stay(
        self,
        direction: Direction,
        frames: Sequence[Frame],
        at: int,
        way: Stay,
        now: int,
        found: list[Stretch],
    ) -> tuple[int, Way]:
        """Let neighbours pass; return the index behind them and the way of the next (see `_lift`)."""
        moves, (unless, admits) = self._moves[direction], way
        if not unless and moves is None and admits is None:
            at, following = self._reach(direction, frames, at, way)
            found.append(Stretch(at))
            return at, following
        start, size = at, len(frames)
        following = way
        while following is way:
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
                following = self._way(direction, nearest)
        if at > start:
            found.append(Stretch(at))
        return at, following

    def _lift(
        self,
        direction: Direction,
        frames: Sequence[Frame],
        at: int,
        way: Way,
        base: int,
        now: int,
        found: list[Stretch],
    ) -> tuple[int, Way]:
        """Move neighbours, each its own way; return the index behind them and the way of the next.

        None: there is none, or the next frame must take the long way.
        """
        moves, out, size = self._moves[direction], [], len(frames)
        while isinstance(way, Lift):
            head, cut, place, before, after, streak, unless = way
            buffer, begin, end, _, op, subject, reply, sid, _, _, _, _, _, _ = frame = frames[at]
            odd = not buffer.startswith(before, begin + place)  # in its spacing: the long way knows it
            if odd or (reply and moves is not None and moves(reply)) or (unless and unless in frame.headers):
                way = None
                break
            if not streak.count:
                streak.now, streak.ordinal, streak.before, streak.after = now, base + at, before, after
            streak.count += 1
            out.append(head + buffer[begin + cut : end])
            at += 1
            if at == size:
                way = None
                break
            following = frames[at]
            if not (following[5] is subject and following[7] is sid and following[4] is op):
                way = self._way(direction, following)
        if out:
            found.append(Stretch(at, out, None, MOVED))
        return at, way

    # -- which way

    def _find(self, direction: Direction, frame: Frame) -> Way:
        """Return the way of the frames of one op and subject (s2c: and sid)."""
        if direction == S2C:
            return self._find_back(frame)
        subject, rewriter = frame.subject, self._rewriter
        if self._plan.asking(subject):
            return None
        rules = self._rules(C2S, frame, subject)
        if rewriter is None or rules is None:
            return rules
        moved = rewriter.destination(subject)
        if rewriter.answers(subject) or not (moved is None or isinstance(moved, Moved)):
            return None
        return self._both(C2S, frame, rules, moved)

    def _find_back(self, frame: Frame) -> Way:
        sub = self._bound.view.subs.get(frame.sid)
        if sub is not None and (sub.max or sub.counted):
            return None  # the session counts them
        moved = None
        subject = frame.subject
        if self._rewriter is not None:
            moved = self._rewriter.undone(subject, asked_for(self._bound.view, frame.sid))
            subject = subject if moved is None else moved.subject
        if self._bound.history.waiting(subject):
            return None
        rules = self._rules(S2C, frame, subject)
        return rules if self._rewriter is None else self._both(S2C, frame, rules, moved)

    def _both(self, direction: Direction, frame: Frame, rules: Way, moved: Moved | None) -> Way:
        """Return the way of frames that rules leave alone, with what rewriting does to them."""
        if type(rules) is not Stay or rules.admits is not None:
            return None
        unless = _NAMING if frame.op in _WITH_HEADERS else b""  # what rules mind begins like that, too
        if moved is None or moved.subject == frame.subject:
            return self._staying(unless)
        if not moved.subject:
            return None
        streak = self._streaks.get((direction, moved.by))
        if streak is None:
            streak = self._streaks[direction, moved.by] = Streak(direction)
        verb = frame.op.label.encode() + b" "
        at = len(verb)
        return Lift(
            verb + moved.subject, at + len(frame.subject), at, frame.subject, moved.subject, streak, unless
        )

    def _rules(self, direction: Direction, frame: Frame, subject: bytes) -> Way:
        """Return what the rules other than rewriting do to the frames of a subject."""
        acting: Lot | None = None
        unless, admits = b"", None
        for place in self._plan.candidates(direction, frame.op, subject):
            item = self._bound.by_place[direction][place]
            blanket = item.action.blanket(frame.op, subject, frame.sid, self._bound.view)
            if blanket is None or item.dynamic or item.rule.selector.side == "server":
                return None
            if frame.op in _WITH_HEADERS:
                unless = unless or blanket.unless
            if item.action.stage == Stage.PERMISSION:  # a judge that lets them be does not count them
                if blanket.admits is not None and admits is not None:
                    return None
                admits = admits or blanket.admits
                continue
            if acting is not None or (direction == C2S and self._bound.view.verbose):
                return None
            acting = self._lots.get((direction, item.rule))
            if acting is None:
                acting = self._lots[direction, item.rule] = Lot(self._bound, item, direction, blanket)
        if acting is None:
            return self._staying(unless, admits)
        return None if unless or admits is not None else acting

    def _staying(self, unless: bytes, admits: Admits | None = None) -> Stay:
        """Return the one way of all frames that go on under these conditions."""
        return self._stays.setdefault((unless, admits), Stay(unless, admits))

    def collect(self) -> Iterable[Firing]:
        """Take out what went this way since the last time."""
        for direction, seen in enumerate(self._seen):
            if seen and len(self._ways[direction]) > WAYS + min(seen, MOST):
                self._ways[direction].clear()
            self._seen[direction] = 0
        found = [self._moved(rule, streak) for (_, rule), streak in self._streaks.items() if streak.count]
        found += [firing for lot in self._lots.values() if (firing := lot.firing()) is not None]
        return found

    def _moved(self, rule: Rule, streak: Streak) -> Firing:
        bound = self._bound
        item = bound.instance(rule)
        count = item.counts[streak.direction]
        m = count.matched + 1
        count.matched += streak.count
        rule.shared.matched += streak.count
        client = streak.after if streak.direction else streak.before
        firing = bound.firing(item, streak.direction, streak.now, m, None, 0, "",
                              f"{text(streak.before)} -> {text(streak.after)}")  # fmt: skip
        told, streak.count = streak.count, 0
        return replace(firing, ordinal=streak.ordinal, subject=text(client), count=told)
