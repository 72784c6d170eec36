"""PINGs of ours to the client, which ask it for a sign of life, and the PONGs that belong to them.

Theory
1. A client answers PINGs in order, and a PONG does not say to which PING it belongs.  So one of ours is
   answered behind all PINGs that went to the client before it, the server's and ours; their number, less the
   PONGs that have come, is known when it is sent.
2. The PONG of one of ours ends here: the server did not ask for it.
3. Nothing asynchronous reaches a client before its first PONG: a PING that is wanted earlier waits for that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from natsproxy.session.direction import DirectionPipe
from natsproxy.session.phase import Lifecycle, Phase
from natsproxy.session.subscriptions import Subscriptions
from natsproxy.wire import encode
from natsproxy.wire.ops import Op

Answered = Callable[[int], None]
"""Called with the time (ns)."""


@dataclass(slots=True, eq=False)
class _Ping:
    """A PING that was sent.  ahead: the PONGs that come before its own."""

    ahead: int
    answered: Answered


class ClientPings:
    """Our PINGs to one client."""

    __slots__ = ("_c2s", "_early", "_lifecycle", "_s2c", "_sent", "_subscriptions")

    def __init__(
        self, pipes: tuple[DirectionPipe, DirectionPipe], lifecycle: Lifecycle, subscriptions: Subscriptions
    ) -> None:
        self._c2s, self._s2c = pipes
        self._lifecycle = lifecycle
        self._subscriptions = subscriptions
        self._early: tuple[Answered, ...] = ()  # wanted before the client's first PONG
        self._sent: tuple[_Ping, ...] = ()

    def ask(self, answered: Answered, now: int) -> None:
        """Send a PING at the next frame boundary; `answered` is called when its PONG comes."""
        if self._lifecycle.phase is not Phase.READY:
            self._early += (answered,)
            return
        ahead = self._s2c.outgoing(Op.PING) - self._c2s.scanner.counts[Op.PONG]
        # A client may have sent PONGs that nobody asked for.
        self._sent += (_Ping(max(0, ahead), answered),)
        self._watch()
        self._s2c.inject(encode.PING, Op.PING.bit, now, "proxy")

    def client_is_ready(self, now: int) -> None:
        """Send the PINGs that were wanted before the client's first PONG."""
        early, self._early = self._early, ()
        for answered in early:
            self.ask(answered, now)

    def pong(self, now: int) -> bool:
        """Take a PONG of the client; return whether it belongs to a PING of ours."""
        first, *others = self._sent or (None,)
        if first is None:
            return False
        ours = first.ahead == 0
        for ping in others if ours else self._sent:
            ping.ahead = max(0, ping.ahead - 1)
        if ours:
            self._sent = tuple(others)
            self._watch()
            first.answered(now)
        return ours

    def _watch(self) -> None:
        """Look at the client's PONGs only while one of them is awaited."""
        self._c2s.watched = Op.PONG.bit if self._sent else 0
        self._subscriptions.watch_ops()

    def clear(self) -> None:
        """Forget all."""
        self._early, self._sent = (), ()
