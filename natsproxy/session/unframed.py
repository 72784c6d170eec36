"""Streams that cannot be framed.

The client gets the answer that nats-server would give, at the same place; or, where the settings say so and
no rule is a guard, the stream passes unread.
"""

from __future__ import annotations

from natsproxy.session import close_reasons
from natsproxy.session.direction import DirectionPipe
from natsproxy.session.parts import Parts
from natsproxy.session.phase import PipeEvent
from natsproxy.wire import encode
from natsproxy.wire.frames import Fault, Malformed, Opaque
from natsproxy.wire.ops import S2C

_ANSWERS = {
    Fault.UNKNOWN_OP: "Unknown Protocol Operation",
    Fault.TERMINATOR: "Unknown Protocol Operation",
    Fault.REFUSED: "Unknown Protocol Operation",
    Fault.LINE_TOO_LONG: "maximum control line exceeded",
    Fault.SILENT: None,
}
"""The text of nats-server's -ERR by fault; None where it closes without one."""


class UnframedStreams:
    """Decides on the streams of one connection that cannot be framed."""

    __slots__ = ("_pongs", "_runner", "_state")

    def __init__(self, parts: Parts) -> None:
        self._state, self._pongs, _, self._runner = parts

    def malformed(self, pipe: DirectionPipe, bad: Malformed, now: int) -> None:
        """End the connection of a malformed stream, as nats-server does, or pass the stream unread."""
        state = self._state
        pipe.flush(now)
        where = f"{pipe.direction.label} byte {bad.offset}: {bad.reason}"
        if pipe.direction == S2C:
            pipe.step(PipeEvent.END)
            state.end(close_reasons.SERVER_PROTOCOL, where)
        elif state.settings.unparsed == "pass" and not (self._runner.chain.guards or state.shut):
            state.notice("warning", f"passing what is not NATS: {where}", now)
            pipe.step(PipeEvent.UNFRAME)
            pipe.pass_unframed(pipe.scanner.rest(), now)
        elif bad.streaming:
            # The server stands where we stand, waiting for CRLF: the same wrong bytes get its own answer.
            pipe.cut(bad.buffer[bad.start : bad.end], now)
            state.notice("warning", where, now)
        else:
            # Its -ERR goes out where the server's would: behind the replies to all earlier frames.
            pipe.step(PipeEvent.END)
            text = _ANSWERS[bad.fault]
            answer = b"" if text is None else encode.err(text)
            self._pongs.end_here(answer, close_reasons.CLIENT_PROTOCOL, where, now)

    def opaque(self, pipe: DirectionPipe, segment: Opaque, now: int) -> None:
        """Pass the server's stream unread from an unknown operation on, unless a rule needs it."""
        if self.refuse():
            return
        text = "the server sent an operation that natsproxy does not know: passing its stream unread"
        self._state.notice("warning", text, now)
        pipe.step(PipeEvent.UNFRAME)
        pipe.pass_unframed(segment.buffer[segment.start : segment.end], now)

    def refuse(self) -> bool:
        """End the connection if a rule needs the server's stream, which is no longer framed; return that."""
        needed = self._runner.chain.guards or bool(self._runner.rules.interest[S2C].clauses)
        if needed:
            text = "the server sent an operation that no rule can judge"
            self._state.end(close_reasons.SERVER_PROTOCOL, text)
        return needed
