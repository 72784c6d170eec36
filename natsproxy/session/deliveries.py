"""Deliveries on the subscriptions of one connection: counted, limited, and ended by the proxy where it must.

Theory
1. nats-server ends a subscription at its auto-unsubscribe count.  Where rules drop or add deliveries, its
   count is not the client's: the session keeps the limit itself, and unsubscribes at the server.
2. After an UNSUB of ours, messages that were under way still come: they are dropped until the fence behind
   the UNSUB has come back.  In verbose mode the +OK of the UNSUB is ours as well.
3. Where the session cannot know whether the server has ended a subscription, the entry stays.  Of many such
   entries the oldest are ended at the server too: forgotten only here, they would escape later rules.
4. Deliveries are counted one by one where the frames are looked at anyway, and by the scanner (`tallies`)
   where they are not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Final

from natsproxy.rules.interface import Subscription
from natsproxy.session.connection import ConnectionState
from natsproxy.session.fences import PongQueue
from natsproxy.session.outbox import OVERHEAD
from natsproxy.session.subscriptions import Resubscription
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame, Need
from natsproxy.wire.ops import C2S, S2C, Op

MOST_UNCERTAIN: Final = 4096
"""Subscriptions of a connection that the server may have ended, and that are kept."""


class Deliveries:
    """The counting of deliveries, and the end of subscriptions.

    closed_sids: sids that were ended here, and whose messages may still come.  resubscribing: sids whose
    messages may still come by the subject that they had before (`resubscribe.py`).
    """

    __slots__ = ("_pongs", "_state", "closed_sids", "resubscribing")

    def __init__(self, state: ConnectionState, pongs: PongQueue) -> None:
        self.closed_sids: dict[bytes, None] = {}  # an empty set takes 216 bytes, a dict 64
        self.resubscribing: dict[bytes, deque[Resubscription]] = {}
        self._state = state
        self._pongs = pongs

    def passed(self, frame: Frame, *, altered: bool, now: int) -> None:
        """Count a message that goes to the client; altered: rules may drop or add deliveries."""
        state = self._state
        sub = state.subs.get(frame.sid)
        if sub is None or sub.delivered < 0 or frame.no_responders or frame.sid in state.tallies:
            return
        sub.delivered += 1
        if not sub.max or sub.delivered < sub.max:
            if sub.unseen:
                state.subs.reconsider(sub)
            return
        self.forget(frame.sid)
        if sub.ours or altered:
            self.close_sids([frame.sid], now)

    def lost(self, frame: Frame) -> None:
        """Note a message that the server has counted, and that a silent link loses."""
        sub = self._state.subs.get(frame.sid)
        if sub is not None and sub.max:
            sub.unseen += 1
            self._state.subs.reconsider(sub)

    def dropped(self, frame: Frame) -> None:
        """Count a message that does not go to the client."""
        tallies = self._state.tallies
        if frame.sid in tallies and not frame.no_responders:
            tallies[frame.sid] -= 1  # the scanner counted it as it came

    def limit(self, sub: Subscription, maximum: int, unseen: int, now: int) -> None:
        """Put an auto-unsubscribe count of ours in force; end the subscription if it is reached already."""
        subs = self._state.subs
        if subs.get(sub.sid) is sub and not subs.limit(sub.sid, maximum, unseen=unseen):
            self.close_sids([sub.sid], now)

    def end_uncertain(self, now: int) -> None:
        """End the oldest of the subscriptions that the server may have ended, where they are many."""
        uncertain = self._state.subs.uncertain
        if len(uncertain) > MOST_UNCERTAIN:
            oldest = [*islice(uncertain, MOST_UNCERTAIN // 4)]
            for sid in oldest:
                self.forget(sid)
            self.close_sids(oldest, now)
            text = f"{len(oldest)} old subscriptions with a limit are ended, if the server has not done so"
            self._state.notice("info", text, now)

    def forget(self, sid: bytes) -> None:
        """Note that a subscription has ended."""
        self._state.subs.remove(sid)
        self.unwatch(sid)

    def unwatch(self, sid: bytes) -> None:
        """Neither look at nor count messages on `sid` any more."""
        self._state.tallies.pop(sid, None)
        self._state.pipes[S2C].scanner.watch_sids.pop(sid, None)
        # Messages by the old subject may still come, and need the old rules.
        if sid in self.resubscribing:
            self._state.watch_sid(sid, Need.PAYLOAD)

    def close_sids(self, sids: Sequence[bytes], now: int) -> None:
        """Unsubscribe upstream and drop the messages that still come."""
        pongs = self._pongs
        for sid in sids:
            self.closed_sids[sid] = None
            self._state.watch_sid(sid, Need.LINE)
        # Two fences of its own, around the UNSUBs: the +OK between their PONGs are those of the UNSUBs.
        pongs.last = None
        pongs.then(lambda _: self.expect_ok(len(sids)), now)
        raw = b"".join(map(encode.unsub, sids))
        self._state.pipes[C2S].inject(raw, Op.UNSUB.bit, now, "proxy")
        pongs.last = None
        pongs.then(lambda _: self._closed(sids), now, len(sids) * OVERHEAD)
        pongs.last = None

    def _closed(self, sids: Sequence[bytes]) -> None:
        self.expect_ok(0)
        for sid in sids:
            if sid in self.closed_sids:
                del self.closed_sids[sid]
                self.unwatch(sid)

    def expect_ok(self, count: int) -> None:
        """Keep the next `count` +OK of the server from the client, if the connection is verbose."""
        self._state.our_oks = count if self._state.verbose else 0
        self._state.watch_ops()
