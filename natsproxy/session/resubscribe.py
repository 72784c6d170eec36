"""Subscriptions that move: rewrite rules have changed, and the server has them under another subject.

Theory
1. A subscription that the new rules send elsewhere is made anew, at the place of the c2s stream at which they
   come into force: UNSUB, a fence, SUB of the new subject with the same sid.  The client notices nothing.
2. What comes on that sid before the fence's PONG came by the old subject, and goes through the old rules: the
   client never sees a subject that only the server knows.  Changes that follow closely queue up.
3. The server counts deliveries from its SUB; so of a subscription that moved the session keeps the limit
   itself, and what it counted before stays counted.
4. What cannot be sent whole under the new rules (covered in part; a sid that was named by two SUBs) ends, and
   the client is told as if permissions had taken it away.
5. What is not moved: requests under way whose reply subject was rewritten, and deliver subjects that the
   server remembers (push consumers).  Answers to those come under the old subject, where nobody listens.
"""

from __future__ import annotations

from collections import deque

from natsproxy.events import Notice
from natsproxy.rules.interface import ConnectionRules, Decision, Subscription
from natsproxy.session.actions import Emit
from natsproxy.session.core import Core
from natsproxy.session.subscriptions import Resubscription
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame, Need
from natsproxy.wire.ops import C2S, S2C, Direction, Op


class Resubscribing(Core):
    """Makes subscriptions anew when other rules come into force."""

    def _bind(self, now: int) -> None:
        before = self._rules
        super()._bind(now)
        if self._rules is not before and self._rules.resubscribed and not self.over:
            self._resubscribe([(self._subs[sid], to) for sid, to in self._rules.resubscribed], before, now)

    def _resubscribe(
        self, moved: list[tuple[Subscription, bytes]], before: ConnectionRules, now: int
    ) -> None:
        """Make subscriptions anew whose subject on the server is another one from here on."""
        pipe = self.pipes[C2S]
        self._last_fence = None
        if self.verbose:
            self._fence(now).then.append(lambda _: self._expect_ok(len(moved)))
        pipe.inject(b"".join(encode.unsub(sub.sid) for sub, _ in moved), Op.UNSUB.bit, now, "rewrite")
        self._last_fence = None
        self._fence(now).then.append(lambda _: self._resubscribed([sub for sub, _ in moved]))
        self._last_fence = None
        for sub, to in moved:
            self._resubscribing.setdefault(sub.sid, deque()).append(Resubscription(before, sub.upstream))
            self.watch_sid(sub.sid, Need.PAYLOAD)
            sub.upstream, sub.ours = to, True
        raw = b"".join(encode.sub(sub.upstream, sub.sid, sub.queue) for sub, _ in moved)
        pipe.inject(raw, Op.SUB.bit, now, "rewrite")
        if self.verbose:
            self._last_fence = None
            self._fence(now).then.append(lambda _: self._expect_ok(0))
        self._last_fence = None
        text = f"rewrite rules have changed: {len(moved)} subscriptions are made anew"
        self.actions.append(Emit(Notice(now, self.conn, "info", text)))

    def _resubscribed(self, subs: list[Subscription]) -> None:
        """The server has done with the old subjects: what comes now came by the new ones."""
        self._expect_ok(len(subs))
        for sub in subs:
            moves = self._resubscribing[sub.sid]
            moves.popleft()
            if moves:
                continue
            del self._resubscribing[sub.sid]
            if sub.sid in self._closed_sids:
                continue
            self.pipes[S2C].scanner.watch_sids.pop(sub.sid, None)
            live = self._subs.get(sub.sid)
            if live is not None and live.max:
                self.watch_sid(sub.sid, Need.LINE)

    def _consult(self, direction: Direction, frame: Frame, now: int) -> Decision | None:
        """Ask the rules under which the server sent a message."""
        if direction == C2S or frame.sid not in self._resubscribing:
            return super()._consult(direction, frame, now)
        move = self._resubscribing[frame.sid][0]
        sub = self._subs.get(frame.sid)
        if sub is None:
            return move.rules.decide(S2C, frame, now)
        upstream, sub.upstream = sub.upstream, move.upstream
        try:
            return move.rules.decide(S2C, frame, now)
        finally:
            sub.upstream = upstream

    def _unwatch(self, sid: bytes) -> None:
        super()._unwatch(sid)
        if sid in self._resubscribing:
            self.watch_sid(sid, Need.PAYLOAD)
