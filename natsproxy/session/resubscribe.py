"""Subscriptions made anew: rewrite rules have changed, and the server has them under another subject.

Theory
1. A subscription that the new rules send elsewhere is made anew, at the place of the c2s stream at which they
   come into force: UNSUB, a fence, SUB of the new subject with the same sid.  The client notices nothing.
2. Messages on that sid before the fence's PONG came by the old subject, and go through the old rules: the
   client never sees a subject that only the server knows.  Changes that follow closely queue up.
3. The server counts deliveries from its SUB; so of a subscription made anew the session keeps the limit
   itself, and its earlier count stays.
4. A subscription that cannot be sent whole under the new rules (covered in part; a sid that was named by two
   SUBs) ends, and the client gets the -ERR of permissions that were taken away.
5. Two things are not made anew: requests under way whose reply subject was rewritten, and deliver subjects
   that the server remembers (push consumers).  Answers to those come by the old subject, which has
   no subscription.
"""

from __future__ import annotations

from collections import deque

from natsproxy.rules.interface import ConnectionRules, Decision, Subscription
from natsproxy.session.connection import ConnectionState
from natsproxy.session.deliveries import Deliveries
from natsproxy.session.fences import PongQueue
from natsproxy.session.subscriptions import Resubscription
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame, Need
from natsproxy.wire.ops import C2S, S2C, Op


class Resubscriber:
    """Makes subscriptions anew when other rules come into force."""

    __slots__ = ("_deliveries", "_pongs", "_state")

    def __init__(self, state: ConnectionState, pongs: PongQueue, deliveries: Deliveries) -> None:
        self._state = state
        self._pongs = pongs
        self._deliveries = deliveries

    def begin(self, again: list[tuple[bytes, bytes]], before: ConnectionRules, now: int) -> None:
        """Make subscriptions anew, given as sids with their new subjects on the server."""
        state, pongs, deliveries = self._state, self._pongs, self._deliveries
        pipe = state.pipes[C2S]
        moved = [(state.subs[sid], subject) for sid, subject in again]
        # Each of the fences stands at a place of its own: none may be shared with its neighbour.
        pongs.last = None
        if state.verbose:
            pongs.then(lambda _: deliveries.expect_ok(len(moved)), now)
        pipe.inject(b"".join(encode.unsub(sub.sid) for sub, _ in moved), Op.UNSUB.bit, now, "rewrite")
        pongs.last = None
        pongs.then(lambda _: self._done([sub for sub, _ in moved]), now)
        pongs.last = None
        for sub, subject in moved:
            waiting = deliveries.resubscribing.setdefault(sub.sid, deque())
            waiting.append(Resubscription(before, sub.upstream))
            state.watch_sid(sub.sid, Need.PAYLOAD)
            sub.upstream, sub.ours = subject, True
            state.subs.uncertain.pop(sub.sid, None)
        raw = b"".join(encode.sub(sub.upstream, sub.sid, sub.queue) for sub, _ in moved)
        pipe.inject(raw, Op.SUB.bit, now, "rewrite")
        if state.verbose:
            pongs.last = None
            pongs.then(lambda _: deliveries.expect_ok(0), now)
        pongs.last = None
        state.notice("info", f"rewrite rules have changed: {len(moved)} subscriptions are made anew", now)

    def _done(self, subs: list[Subscription]) -> None:
        """Note that the server has done with the old subjects: from here on messages come by the new ones."""
        resubscribing = self._deliveries.resubscribing
        self._deliveries.expect_ok(len(subs))
        for sub in subs:
            waiting = resubscribing[sub.sid]
            waiting.popleft()
            if waiting:
                continue
            del resubscribing[sub.sid]
            if sub.sid in self._deliveries.closed_sids:
                continue
            self._state.pipes[S2C].scanner.watch_sids.pop(sub.sid, None)
            live = self._state.subs.get(sub.sid)
            if live is not None and live.max:
                self._state.watch_sid(sub.sid, Need.LINE)

    def decide(self, frame: Frame, now: int) -> Decision | None:
        """Ask the rules under which the server sent a message on a sid that is being made anew."""
        old = self._deliveries.resubscribing[frame.sid][0]
        sub = self._state.subs.get(frame.sid)
        if sub is None:
            return old.rules.decide(S2C, frame, now)
        upstream, sub.upstream = sub.upstream, old.upstream
        try:
            return old.rules.decide(S2C, frame, now)
        finally:
            sub.upstream = upstream
