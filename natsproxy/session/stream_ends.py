"""The ends of the two streams of a connection, and the end of the connection that follows from them.

The end of the client's stream goes on to the server, which then ends its own.  The end of the server's stream
ends the connection, behind the frames that still wait for the client.
"""

from __future__ import annotations

from natsproxy.protocol.errors import AUTHORIZATION
from natsproxy.session import close_reasons
from natsproxy.session.connection import ConnectionState
from natsproxy.session.direction import DirectionPipe
from natsproxy.session.phase import REFUSED
from natsproxy.wire.ops import C2S, S2C, Direction


class StreamEnds:
    """Takes the ends of the streams of one connection.

    lingering: the times (ns) until which a rule keeps ends back.  check_at: the time (ns) at which `tick` has
    to look whether the client has all frames, None for never.
    """

    __slots__ = ("_state", "check_at", "lingering")

    def __init__(self, state: ConnectionState) -> None:
        self.check_at: int | None = None
        self._state = state
        self.lingering: dict[Direction, int] = {}

    def take(self, pipe: DirectionPipe, now: int) -> None:
        """Take the end of a stream, at once or after the time that a rule keeps it back."""
        if pipe.outbox.conditions.linger:
            self.lingering[pipe.direction] = now + pipe.outbox.conditions.linger
        else:
            self._end(pipe, now)

    def tick(self, now: int) -> None:
        """Take the ends that a rule has kept back until now."""
        for direction in [each for each, until in self.lingering.items() if until <= now]:
            del self.lingering[direction]
            self._end(self._state.pipes[direction], now)

    def _end(self, pipe: DirectionPipe, now: int) -> None:
        if not pipe.ended:
            pipe.cut(pipe.scanner.rest(), now)
        if pipe.direction == C2S:
            pipe.flush(now)
            pipe.sender.finish(now)
        elif pipe.outbox.active:
            pipe.flush(now)
            pipe.sender.finish(now)
            self.check_at = now
        else:
            self._end_connection()

    def end_if_sent(self) -> None:
        """End the connection if the server's stream is over and the client has all of it."""
        s2c = self._state.pipes[S2C]
        self.check_at = None  # frames that still wait have times of their own
        if s2c.ended and not s2c.outbox.waiting:
            self._end_connection()

    def _end_connection(self) -> None:
        state = self._state
        if state.phase is REFUSED:
            state.end(close_reasons.REFUSED, state.refusal or "")
        elif state.server_error:
            # A client that closes because of it does not make it the client's doing.
            identity = state.settings.identity
            ours = identity is not None and identity.logs_in
            whom = " to natsproxy's own login" if ours and state.server_error == AUTHORIZATION.text else ""
            state.end(close_reasons.SERVER_CLOSED, f"the server said {state.server_error!r}{whom}")
        elif state.pipes[C2S].ended:
            state.end(close_reasons.CLIENT_CLOSED)
        else:
            state.end(close_reasons.SERVER_CLOSED)
