"""The control of one connection by its operator: suspended, paused, expelled, drained as the proxy stops.

In a drain the client gets an INFO, as from a server in lame duck mode.  A fence marks the place where the
server has answered all bytes of the client.  From there the connection lasts until no answer to a request is
due; the caller has the deadline.
"""

from __future__ import annotations

from natsproxy.capture.filter.redact import redact_frames
from natsproxy.session import close_reasons
from natsproxy.session.connection import NEVER, ConnectionState
from natsproxy.session.fences import PongQueue
from natsproxy.session.login import lame_duck, rewritten
from natsproxy.session.phase import OVER, Phase
from natsproxy.session.rule_runner import RuleRunner
from natsproxy.wire import encode
from natsproxy.wire.ops import C2S, S2C, Op


class Control:
    """The control of one connection; its actions are taken from the session afterwards."""

    __slots__ = ("_pongs", "_runner", "_state")

    def __init__(self, state: ConnectionState, pongs: PongQueue, runner: RuleRunner) -> None:
        self._state = state
        self._pongs = pongs
        self._runner = runner

    def suspend(self, now: int, *, on: bool) -> None:
        """Lose the messages of both directions from the next frame on, or pass them again.

        Both legs stay alive: PINGs are answered, by us where the server does not.  SUB, UNSUB, CONNECT, INFO
        and -ERR pass: without them the two sides would disagree afterwards, for good.
        """
        self._state.suspended = on
        self._runner.update_conditions(now)

    def pause(self, now: int, *, lasts: int | None) -> None:
        """Read nothing from either side for so long (ns), until 0 is asked for where it is None."""
        self._state.paused_until = NEVER if lasts is None else now + lasts
        self._runner.update_conditions(now)

    def expel(self, now: int, *, error: str, cause: str, detail: str) -> None:
        """End the connection with an -ERR for the client, behind the frame that it is getting."""
        if not self._state.over:
            self._state.pipes[S2C].inject(encode.err(error), Op.ERR.bit, now, "proxy")
            self._state.end(cause, detail)

    def facts(self, now: int) -> dict[str, object]:
        """Return what an operator may want to know beyond the counters: phase, key, what was asked for."""
        state = self._state
        return {
            "key": state.key,
            "phase": state.phase.name.lower(),
            "suspended": state.suspended,
            "paused": now < state.paused_until,
        }

    @property
    def connect(self) -> bytes:
        """The last CONNECT of the client without its secrets, b"" for none."""
        return redact_frames(self._state.last_connect, C2S)

    def lame_duck(self, now: int) -> None:
        """Announce to the client that its connection ends soon, as a server does that is going to stop.

        Only a client that takes INFO at any time and has had its first PONG; a rule about INFO has the last
        word on the INFO of clients.
        """
        pipe, state = self._state.pipes[S2C], self._state
        takes_info = state.phase is Phase.READY and state.connect.protocol > 0
        if takes_info and not pipe.scanner.interest.need(Op.INFO, b""):
            args = lame_duck(rewritten(state.last_info[len("INFO") :].strip(), state.settings))
            pipe.inject(encode.info(args), Op.INFO.bit, now, "proxy")

    def drain(self, now: int, *, answers: bool = True) -> None:
        """End the connection where the server has answered all that the client has sent so far.

        answers: and once no answer to one of its requests is due.
        """
        if self._state.over or self._state.pipes[C2S].unframed:
            return
        if self._state.shut:  # it has no answers to wait for
            self._state.end(close_reasons.DRAINED, "natsproxy is shutting down")
            return
        fence = self._pongs.fence(now)
        # A fence that ends the connection for another cause keeps that cause.
        fence.end = fence.end or (close_reasons.DRAINED, "natsproxy is shutting down")
        fence.drains = answers

    def requests(self) -> frozenset[bytes]:
        """Return the reply subjects of the client's requests that have no answer yet."""
        state = self._state
        if state.phase is OVER:
            return frozenset()
        return state.answers.due(state.subs, state.subs_version)

    def end_if_answered(self) -> None:
        """End a connection that waits for answers, if none is due and the last one has gone to the client."""
        end, s2c = self._state.answers.then_end, self._state.pipes[S2C]
        if end is not None and not (s2c.mid_frame or s2c.outbox.bytes or self.requests()):
            self._state.end(*end)
