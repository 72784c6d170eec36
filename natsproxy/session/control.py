"""Operator control of one connection: suspend, pause, expel, drain, ask the client for a sign of life.

In a drain the client gets an INFO, as from a server in lame duck mode.  A fence marks the point at which the
server has processed all bytes of the client.  After that the connection stays open until no request is
unanswered; the caller has the deadline.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from natsproxy import close_reasons
from natsproxy.capture.filter.redact import redact_frames
from natsproxy.protocol.patternset import PatternSet
from natsproxy.session.connection import ProxiedConnection
from natsproxy.session.login import client_info, lame_duck
from natsproxy.session.phase import OVER, Phase
from natsproxy.session.rule_runner import NEVER, RuleRunner
from natsproxy.wire import encode
from natsproxy.wire.ops import C2S, S2C, Op

_NOTHING: Final[PatternSet[None]] = PatternSet(())


class Control:
    """Operator control of one connection; take the actions from the session afterwards."""

    __slots__ = ("_connection", "_lifecycle", "_runner", "_subscribed", "_version")

    def __init__(self, connection: ProxiedConnection, runner: RuleRunner) -> None:
        self._connection = connection
        self._lifecycle = connection.lifecycle
        self._runner = runner
        self._version = -1  # of the subscriptions whose subjects these are
        self._subscribed = _NOTHING

    def suspend(self, now: int, *, on: bool) -> None:
        """Drop all messages of both directions from the next frame on, or pass them again.

        Both legs stay alive: PINGs are answered, by us where the server does not.  SUB, UNSUB, CONNECT, INFO
        and -ERR pass: without them the two sides would stay out of sync.
        """
        self._runner.suspend(now, on=on)

    def pause(self, now: int, *, lasts: int | None) -> None:
        """Stop reading from both sides for `lasts` ns; None: until resumed with 0."""
        self._runner.pause(now, until=NEVER if lasts is None else now + lasts)

    def send_held(self, now: int) -> None:
        """Send the frames that rules hold back, from the next tick on."""
        for pipe in self._connection.pipes:
            pipe.outbox.make_due(now)

    def expel(self, now: int, *, error: str, cause: str, detail: str) -> None:
        """End the connection with an -ERR for the client, after the frame that is being sent to it."""
        if not self._lifecycle.over:
            self._connection.pipes[S2C].inject(encode.err(error), Op.ERR.bit, now, "proxy")
            self._lifecycle.end(cause, detail)

    def facts(self, now: int) -> dict[str, object]:
        """Return the state for an operator: key, phase, whether suspended or paused."""
        return {
            "key": self._connection.key,
            "phase": self._lifecycle.phase.name.lower(),
            "suspended": self._runner.suspended,
            "paused": now < self._runner.paused_until,
        }

    @property
    def connect(self) -> bytes:
        """The client's last CONNECT, redacted; b"" if none came."""
        return redact_frames(self._connection.last_connect, C2S)

    def ask(self, now: int, answered: Callable[[int], None]) -> None:
        """Ask the client for a sign of life: send it a PING; call `answered` when its PONG comes.

        Not before the client's first PONG: until then the PING waits.
        """
        if not self._lifecycle.over:
            self._connection.client_pings.ask(answered, now)

    def lame_duck(self, now: int) -> None:
        """Send the client an INFO in lame duck mode, as a server that is shutting down does.

        Only if the client accepts INFO at any time and has had its first PONG, and no rule handles INFO.
        """
        connection, pipe = self._connection, self._connection.pipes[S2C]
        takes_info = self._lifecycle.phase is Phase.READY and connection.connect.protocol > 0
        if takes_info and not pipe.scanner.interest.need(Op.INFO, b""):
            args = lame_duck(client_info(connection.last_info[len("INFO") :].strip(), connection.settings))
            pipe.inject(encode.info(args), Op.INFO.bit, now, "proxy")

    def drain(self, now: int, *, answers: bool = True) -> None:
        """End the connection once the server has processed all that the client has sent so far.

        answers: wait until its requests are answered, too.
        """
        if self._lifecycle.over or self._connection.pipes[C2S].unframed:
            return
        if self._lifecycle.shut:  # it has no answers to wait for
            self._lifecycle.end(close_reasons.DRAINED, "natsproxy is shutting down")
            return
        fence = self._connection.fences.fence(now)
        # A fence that ends the connection for another cause keeps that cause.
        fence.end = fence.end or (close_reasons.DRAINED, "natsproxy is shutting down")
        fence.drains = answers

    def requests(self) -> frozenset[bytes]:
        """Return the reply subjects of the client's requests that have no answer yet.

        The scanners keep them (`wire/awaited.py`).  The client can get an answer only on a live subscription,
        so a subject that matches none is forgotten: the client gave up.  A request whose reply subject a rule
        rewrites is not waited for either: the table has the client's subject, its answer comes on the
        server's, and cannot be matched.
        """
        if self._lifecycle.phase is OVER:
            return frozenset()
        awaited, subs = self._connection.awaited, self._connection.subs
        if awaited and subs.version != self._version:
            self._version = subs.version
            self._subscribed = PatternSet(
                (sub.subject, None) for sub in subs.values() if sub.upstream == sub.subject
            )
        for subject in tuple(awaited):
            if not self._subscribed.matches(subject):
                del awaited[subject]
        return frozenset(awaited)

    def end_if_answered(self) -> None:
        """End a connection that waits for answers, if none is due and the last one has gone to the client."""
        end, s2c = self._lifecycle.drained, self._connection.pipes[S2C]
        if end is not None and not (s2c.mid_frame or s2c.outbox.bytes or self.requests()):
            self._lifecycle.end(*end)
