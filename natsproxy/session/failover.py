"""Failover: a client keeps its connection while its lost server is replaced by another one.

Theory
1. The client is held if everything that the new server has to know can be said again by us: its login
   (`Login.is_repeatable`), its subscriptions, and its pulls.  A frame that it has in part cannot, so frames
   go on to it only whole (`DirectionPipe.whole`); one that is too large for that ends the connection where
   the server is lost inside it.
2. What was sent to the lost server may have been processed or not, and is not sent again: at most once.  A
   request under way gets the server's own 503, so that its client need not wait for a time-out.
3. What the client sends meanwhile waits in the outbox, in its order, and beyond the limit of that the client
   is not read.  Its PINGs are answered: it would give up the connection otherwise.  So a PONG does not say
   then that a server has what was sent before.
4. The new server gets CONNECT, the SUBs with the counts that are left, the pulls, and a fence.  Behind the
   fence's PONG the session is *restored*.  It resumes when its caller says so, because other clients should
   have their subscriptions by then: what waits for them would be lost.
5. A server that is lost on the way is replaced, too.  All of it has one time limit.
"""

from __future__ import annotations

from typing import Final

from natsproxy.events import FailedOver, Who
from natsproxy.protocol.connect import Connect
from natsproxy.protocol.headers import build
from natsproxy.protocol.info import Info
from natsproxy.session.direction import FAILOVER, DirectionPipe
from natsproxy.session.fences import Fence, Fences
from natsproxy.session.phase import Lifecycle, Phase, PhaseEvent
from natsproxy.session.pulls import Pulls
from natsproxy.session.subscriptions import Subscriptions
from natsproxy.session.values import Act, Redial, Restored
from natsproxy.wire import encode
from natsproxy.wire.ops import C2S, Op, op_mask
from natsproxy.wire.parse import head

_NO_RESPONDERS: Final = build((), code=b"503")
_PUBLISHES: Final = op_mask(Op.PUB, Op.HPUB)


def why_unfit(info: Info, before: Info, connect: Connect) -> str | None:
    """Return why a server cannot take over a client of another one, as a clause; None if it can."""
    if 0 < info.max_payload < before.max_payload:
        return f"it takes payloads of {info.max_payload} bytes, and the lost one took {before.max_payload}"
    if connect.headers and before.headers and not info.headers:
        return "it has no headers, and the lost one had"
    return None


class Failover:
    """Replaces the server of one connection.

    limit: the time (ns) that it may take.  until: when it is given up (ns), None while there is a server.
    """

    __slots__ = (
        "_act",
        "_began",
        "_c2s",
        "_fence",
        "_fences",
        "_lifecycle",
        "_limit",
        "_pulls",
        "_refused",
        "_restored",
        "_s2c",
        "_subscriptions",
        "until",
    )

    def __init__(
        self,
        limit: int,
        pipes: tuple[DirectionPipe, DirectionPipe],
        fences: Fences,
        subscriptions: Subscriptions,
        lifecycle: Lifecycle,
        pulls: Pulls,
        act: Act,
    ) -> None:
        self.until: int | None = None
        self._limit = limit
        self._c2s, self._s2c = pipes
        self._fences = fences
        self._subscriptions = subscriptions
        self._lifecycle = lifecycle
        self._pulls = pulls
        self._act = act
        self._began = self._refused = 0
        self._restored = 0, 0  # subscriptions and pulls
        self._fence: Fence | None = None  # behind them

    def lose_server(self, connect: Connect, now: int) -> None:
        """Hold the client, and ask for another server.  connect: the client's options."""
        if self._lifecycle.phase is Phase.READY:
            self._began, self._refused = now, 0
        self.until = self._began + self._limit
        self._lifecycle.step(PhaseEvent.SERVER_LOST)
        if self._fence is not None:  # it does not pass without its PONG
            self._fence.then.clear()
        self._c2s.lose_receiver(now)
        self._s2c.lose_sender(now)
        self._pulls.lose_server(now)
        self._subscriptions.lose_server()
        self._fences.lose_server(now)
        self._refuse_requests(connect, now)
        if not self._lifecycle.over:
            self._act(Redial())

    def _refuse_requests(self, connect: Connect, now: int) -> None:
        """Answer the requests that the lost server had."""
        waiting = {frame.reply for frame in self._c2s.outbox.whole_frames(_PUBLISHES, C2S)}
        begun = self._c2s.open
        if begun is not None and begun.held is not None and (frame := head(begun.head_in, C2S)) is not None:
            waiting.add(frame.reply)
        for reply, sid in self._subscriptions.take_requests(waiting):
            if connect.headers and connect.no_responders:
                answer = encode.msg(reply, sid, headers=_NO_RESPONDERS)
                self._s2c.inject(answer, Op.HMSG.bit, now, FAILOVER)
                self._refused += 1

    def restore(self, login: bytes, now: int, *, altered: bool) -> None:
        """Give a new server the state of the connection.

        login: the CONNECT for it.  altered: rules may drop or add deliveries.
        """
        subs, count = self._subscriptions.replay(altered=altered)
        pulls = self._pulls.replay(now)
        self._restored = count, len(pulls)
        self._fence = self._fences.first(b"".join((login, subs, *pulls)), self._accepted, now)

    def _accepted(self, now: int) -> None:
        """Note that the new server has accepted all of it."""
        self._lifecycle.step(PhaseEvent.PONG)
        self.until = None
        self._act(Restored())

    def resume(self, info: Info, conn: int, who: Who, now: int) -> FailedOver | None:
        """Let the client go on; return what happened, None where it cannot go on yet."""
        if self._lifecycle.phase is not Phase.RESTORED:
            return None
        self._lifecycle.step(PhaseEvent.RESUME)
        self._subscriptions.replayed()
        self._pulls.resume()
        outbox = self._c2s.outbox
        outbox.held = False
        name, lasted = info.server_name or info.server_id, now - self._began
        return FailedOver(now, conn, name, lasted, outbox.data_bytes, self._refused, *self._restored, who)
