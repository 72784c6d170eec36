"""The first frames of a client that cannot be served, must say who it is, or says nothing or no NATS."""

from __future__ import annotations

from typing import Final

from natsproxy.protocol.errors import AUTH_TIMEOUT, AUTHORIZATION, UNKNOWN_OP
from natsproxy.session import close_reasons
from natsproxy.session.direction import DirectionPipe
from natsproxy.session.handlers import Handlers
from natsproxy.session.login import Login, other_protocol
from natsproxy.session.parts import Parts
from natsproxy.session.phase import Phase
from natsproxy.session.unframed import UnframedStreams
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame, Malformed, Run
from natsproxy.wire.ops import S2C, Op

_CONNECT: Final = b"Cc"  # the only first byte that nats-server takes from a client that has to log in


class FirstFrames:
    """Deals with the first frames of one connection."""

    __slots__ = ("_handlers", "_login", "_state", "_unframed")

    def __init__(self, parts: Parts, login: Login, handlers: Handlers, unframed: UnframedStreams) -> None:
        self._state = parts.state
        self._login = login
        self._handlers = handlers
        self._unframed = unframed

    @property
    def special(self) -> bool:
        """True if the next frame of the client is not one among others."""
        return self._state.shut or self._state.phase is Phase.REFUSED

    def take(self, pipe: DirectionPipe, now: int) -> None:
        """Deal with the next frame, if it is there."""
        first = pipe.scanner.ordinal
        segment = pipe.scanner.next()
        if segment is None:
            return
        if isinstance(segment, Frame) and segment.op == Op.CONNECT:
            # Of a client that is turned away too: the log names it, and its connection key counts.
            self._handlers.on_connect(pipe, segment, first, now)
        elif isinstance(segment, Frame):
            pipe.drop(segment, first, now, "proxy")
        elif isinstance(segment, Run):
            pipe.lose(segment, first, now, "proxy")
        if self._state.phase is Phase.REFUSED:
            answer = encode.err(f"natsproxy: {self._state.refusal}")
            self._state.pipes[S2C].inject(answer, Op.ERR.bit, now, "proxy")
            self._state.end(close_reasons.REFUSED, self._state.refusal or "")
        elif isinstance(segment, Malformed) and segment.buffer[segment.start] in _CONNECT:
            self._unframed.malformed(pipe, segment, now)
        elif not (isinstance(segment, Frame) and segment.op == Op.CONNECT):
            self._login.refuse_early(pipe, now)

    def turn_away(self, head: bytes, now: int) -> bool:
        """End the connection of a client whose first bytes are another protocol's; return whether they are.

        It gets the server's own answer, with no fence: it has sent nothing else that the server answers.
        """
        other, state = other_protocol(head), self._state
        if other is None:
            return False
        identity = state.settings.identity
        logs_in = identity.asks if identity is not None and identity.logs_in else state.info.auth_required
        answer = encode.err((AUTHORIZATION if logs_in else UNKNOWN_OP).text)
        state.pipes[S2C].inject(answer, Op.ERR.bit, now, "proxy")
        state.end(close_reasons.CLIENT_PROTOCOL, f"the client sent {other}")
        return True

    def stalled(self, now: int) -> None:
        """End a connection whose client has had its INFO and says nothing, as the server does."""
        self._state.speak_by = None
        c2s, s2c = self._state.pipes
        if s2c.outbox.bytes or c2s.full:  # a rule holds its INFO or its frames back
            self._state.speak_by = now + self._state.settings.auth_timeout
        elif not c2s.scanner.ordinal and not c2s.mid_frame:
            s2c.inject(encode.err(AUTH_TIMEOUT.text), Op.ERR.bit, now, "proxy")
            said = "did not finish its CONNECT" if c2s.in_bytes else "said nothing"
            self._state.end(close_reasons.STALLED, f"the client {said} in the auth time-out")
