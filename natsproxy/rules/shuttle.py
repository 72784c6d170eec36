"""The shuttle: the short way through rewriting, for plain messages that nothing but rewriting is about.

Theory
1. A PUB or MSG whose subject moves for certain and whose reply stays needs two things of the long way: the
   new head of its line, and to be counted.  Both depend on its subject alone (s2c: and its sid), so they are
   looked up once per read and subject; all behind the subject is copied as it stood.
2. What is looked up holds for one read, since SUBs, reloads and open API calls may change it in between.
3. The frames of one read that one rule moves are one firing: ordinal, `m`, subject and detail are those of
   the first, `count` says how many they were.  A capture has each, with its ordinal, before and after.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from natsproxy.rules.base import Rule
from natsproxy.rules.rewriter import Rewriter, asked_for
from natsproxy.rules.rewriting import Moved
from natsproxy.rules.roles import History
from natsproxy.rules.seam import View
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, S2C, Direction, Op

_PUB: Final = Op.PUB
_MSG: Final = Op.MSG
_SUBJECT_AT: Final = 4  # behind "PUB " and "MSG "


@dataclass(slots=True, eq=False)
class Streak:
    """The frames of one read that a rule moves: how many so far, and what is to be said of the first."""

    direction: Direction
    now: int
    count: int = 0
    ordinal: int = 0
    before: bytes = b""
    after: bytes = b""


class Lift(NamedTuple):
    """What a frame of one subject (s2c: and sid) gets: its new head in place of the first `cut` bytes."""

    head: bytes
    cut: int
    after: bytes
    streak: Streak


class Shuttle:
    """The short way of one connection.  `out` and `back` return what goes on, None for the long way."""

    def __init__(self, rewriter: Rewriter, view: View, history: History) -> None:
        self._rewriter = rewriter
        self._view = view
        self._history = history
        self._outs: dict[bytes, Lift | None] = {}
        self._backs: dict[tuple[bytes, bytes], Lift | None] = {}
        self._streaks: dict[tuple[Direction, Rule], Streak] = {}

    def out(self, frame: Frame, ordinal: int, now: int) -> bytes | None:
        """Return the bytes that go to the server in a PUB's place."""
        buffer, start, end, _, op, subject, reply, _, _, _, _, _, _, _ = frame
        lift = self._outs.get(subject)
        if lift is None or op is not _PUB:
            if op is not _PUB or subject in self._outs:
                return None
            lift = self._outs[subject] = self._lift_out(subject, now)
            if lift is None:
                return None
        if reply and self._rewriter.replies and self._rewriter.reply(reply) != reply:
            return None
        if not buffer.startswith(subject, start + _SUBJECT_AT):
            return None  # odd spacing: the long way knows it
        head, cut, after, streak = lift
        if not streak.count:
            streak.ordinal, streak.before, streak.after = ordinal, subject, after
        streak.count += 1
        return head + buffer[start + cut : end]

    def _lift_out(self, subject: bytes, now: int) -> Lift | None:
        moved = self._rewriter.destination(subject)
        if not isinstance(moved, Moved) or moved.subject in (b"", subject) or self._rewriter.answers(subject):
            return None
        return self._lift(C2S, b"PUB ", subject, moved, now)

    def back(self, frame: Frame, ordinal: int, now: int) -> bytes | None:
        """Return the bytes that go to the client in a MSG's place."""
        buffer, start, end, _, op, subject, reply, sid, _, _, _, _, _, _ = frame
        key = (subject, sid)
        lift = self._backs.get(key)
        if lift is None or op is not _MSG:
            if op is not _MSG or key in self._backs:
                return None
            lift = self._backs[key] = self._lift_back(subject, sid, now)
            if lift is None:
                return None
        if reply and self._rewriter.replies and self._rewriter.undone(reply) is not None:
            return None
        if not buffer.startswith(subject, start + _SUBJECT_AT):
            return None
        head, cut, after, streak = lift
        if not streak.count:
            streak.ordinal, streak.before, streak.after = ordinal, subject, after
        streak.count += 1
        return head + buffer[start + cut : end]

    def _lift_back(self, subject: bytes, sid: bytes, now: int) -> Lift | None:
        sub = self._view.subs.get(sid)
        moved = self._rewriter.undone(subject, asked_for(self._view, sid))
        if moved is None or (sub is not None and sub.max) or self._history.waiting(moved.subject):
            return None
        return self._lift(S2C, b"MSG ", subject, moved, now)

    def _lift(self, direction: Direction, verb: bytes, subject: bytes, moved: Moved, now: int) -> Lift:
        streak = self._streaks.get((direction, moved.by))
        if streak is None:
            streak = self._streaks[direction, moved.by] = Streak(direction, now)
        return Lift(verb + moved.subject, _SUBJECT_AT + len(subject), moved.subject, streak)

    def collect(self) -> list[tuple[Rule, Streak]]:
        """Take out what went this way since the last time."""
        self._outs.clear()
        self._backs.clear()
        if not self._streaks:
            return []
        found = [(rule, streak) for (_, rule), streak in self._streaks.items() if streak.count]
        self._streaks.clear()
        return found
