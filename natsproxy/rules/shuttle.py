"""The shuttle: the short way through rewriting, for plain messages that nothing but rewriting is about.

Theory
1. A PUB or MSG whose subject moves for certain and whose reply stays needs two things of the long way: the
   new head of its line, and to be counted.  Both depend on its subject alone (s2c: and its sid), so they are
   looked up once per read and subject; all behind the subject is copied as it stood.
2. What is looked up holds for one read, since SUBs, reloads and open API calls may change it in between.
3. The frames of one read and subject are one firing, whose `count` says how many they were: `ordinal` and `m`
   are those of the first.  A capture has each of them, with its ordinal, before and after.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

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
    """The frames of one subject in one read: how many so far, and the first one's time and ordinal."""

    direction: Direction
    head: bytes
    cut: int
    before: bytes
    moved: Moved
    now: int
    ordinal: int
    count: int = 0


class Shuttle:
    """The short way of one connection.  `out` and `back` return what goes on, None for the long way."""

    def __init__(self, rewriter: Rewriter, view: View, history: History) -> None:
        self._rewriter = rewriter
        self._view = view
        self._history = history
        self._outs: dict[bytes, Streak | None] = {}
        self._backs: dict[tuple[bytes, bytes], Streak | None] = {}

    def out(self, frame: Frame, ordinal: int, now: int) -> bytes | None:
        """Return the bytes that go to the server in a PUB's place."""
        buffer, start, end, _, op, subject, reply, _, _, _, _, _, _, _ = frame
        streak = self._outs.get(subject)
        if streak is None or op is not _PUB:
            if op is not _PUB or subject in self._outs:
                return None
            streak = self._outs[subject] = self._begin_out(subject, ordinal, now)
            if streak is None:
                return None
        if reply and self._rewriter.replies and self._rewriter.reply(reply) != reply:
            return None
        if not buffer.startswith(subject, start + _SUBJECT_AT):
            return None  # odd spacing: the long way knows it
        streak.count += 1
        return streak.head + buffer[start + streak.cut : end]

    def _begin_out(self, subject: bytes, ordinal: int, now: int) -> Streak | None:
        moved = self._rewriter.destination(subject)
        if not isinstance(moved, Moved) or moved.subject in (b"", subject) or self._rewriter.answers(subject):
            return None
        cut = _SUBJECT_AT + len(subject)
        return Streak(C2S, b"PUB " + moved.subject, cut, subject, moved, now, ordinal)

    def back(self, frame: Frame, ordinal: int, now: int) -> bytes | None:
        """Return the bytes that go to the client in a MSG's place."""
        buffer, start, end, _, op, subject, reply, sid, _, _, _, _, _, _ = frame
        key = (subject, sid)
        streak = self._backs.get(key)
        if streak is None or op is not _MSG:
            if op is not _MSG or key in self._backs:
                return None
            streak = self._backs[key] = self._begin_back(subject, sid, ordinal, now)
            if streak is None:
                return None
        if reply and self._rewriter.replies and self._rewriter.undone(reply) is not None:
            return None
        if not buffer.startswith(subject, start + _SUBJECT_AT):
            return None
        streak.count += 1
        return streak.head + buffer[start + streak.cut : end]

    def _begin_back(self, subject: bytes, sid: bytes, ordinal: int, now: int) -> Streak | None:
        sub = self._view.subs.get(sid)
        moved = self._rewriter.undone(subject, asked_for(self._view, sid))
        if moved is None or (sub is not None and sub.max) or self._history.waiting(moved.subject):
            return None
        return Streak(S2C, b"MSG " + moved.subject, _SUBJECT_AT + len(subject), subject, moved, now, ordinal)

    def collect(self) -> list[Streak]:
        """Take out what went this way since the last time."""
        if not self._outs and not self._backs:
            return []
        found = [streak for streak in (*self._outs.values(), *self._backs.values()) if streak is not None]
        self._outs.clear()
        self._backs.clear()
        return [streak for streak in found if streak.count]
