"""Runs the rules of one connection: asks them about frames and carries out their decisions.

Rules return decisions and never write to a socket; this module turns a decision into sends, holds, fences,
records and events, and updates the subscriptions accordingly.  Link rules, and an operator, set the
conditions of the two directions.  A rule that fails ends this connection and no other.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, NamedTuple

from natsproxy import close_reasons
from natsproxy.errors import NatsproxyError, place_of
from natsproxy.events import Firing
from natsproxy.protocol.errors import err_frame
from natsproxy.protocol.jetstream import keeps_delivery
from natsproxy.rules.interface import (
    BatchFunction,
    Chain,
    ConnectionRules,
    Decision,
    LinkConditions,
    SubscriptionCheck,
)
from natsproxy.rules.model.verdicts import Close, Cut
from natsproxy.session.connection import ProxiedConnection
from natsproxy.session.direction import DirectionPipe
from natsproxy.session.outbox import PLAIN
from natsproxy.session.phase import Phase, PipeEvent, PipePhase
from natsproxy.session.subscriptions import STATE_OPS
from natsproxy.session.values import Emit, WorkLimit
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, MESSAGE_OPS, OPS, S2C, Op
from natsproxy.wire.scanner import byte_table

NEVER: Final = 1 << 63
"""A time (ns) that never comes."""


class _Coming(NamedTuple):
    """A chain that is being swapped in.  before: the rules until then.  check: of the live subscriptions."""

    chain: Chain
    before: ConnectionRules
    check: SubscriptionCheck | None


class RuleRunner:
    """Asks the rules of one connection and carries out their decisions.

    chain: the loaded rules of the proxy.  rules: those of them that apply to this connection.  next_due: the
    time (ns) at which a link condition changes, None for never.  suspended: messages are dropped, by order of
    an operator.  paused_until: nothing is read until then (ns), by the same.
    """

    __slots__ = (
        "_coming",
        "_connection",
        "_fences",
        "_lifecycle",
        "_pipes",
        "_subscriptions",
        "chain",
        "next_due",
        "paused_until",
        "rules",
        "suspended",
    )

    def __init__(self, connection: ProxiedConnection, chain: Chain, now: int) -> None:
        self.chain = chain
        self.rules: ConnectionRules = chain.bind(connection, None, now)
        self.next_due: int | None = None
        self.suspended = False
        self.paused_until = 0
        self._pipes = connection.pipes
        self._connection = connection
        self._lifecycle = connection.lifecycle
        self._fences = connection.fences
        self._subscriptions = connection.subscriptions
        self._coming: _Coming | None = None
        self._listen()
        self.update_conditions(now)

    # -- rules that come into force

    def bind(self, now: int, check: SubscriptionCheck | None = None) -> None:
        """Bind the rules of the chain that apply, between two frames; check: of a swap."""
        before = self.rules
        try:
            self.rules = self.chain.bind(self._connection, before, now, check)
        except NatsproxyError as error:
            self._lifecycle.end(close_reasons.RULE_FAILED, str(error))
            return
        self._listen()
        # Before resubscribing: revoked subscriptions must not be subscribed again.
        self._revoke(self.rules.revoked, now)
        self.update_conditions(now)
        if self.rules is not before and self.rules.resubscribed and not self._lifecycle.over:
            self._subscriptions.resubscribe(self.rules.resubscribed, before, now)

    def swap(self, chain: Chain, now: int, limit: WorkLimit) -> None:
        """Check the live subscriptions under another chain, up to the limit, then put it in force."""
        coming = self._coming
        if coming is None or coming.chain is not chain or coming.before is not self.rules:
            try:
                check = chain.check(self._connection, self.rules)
            except NatsproxyError as error:
                self.chain = chain
                self._lifecycle.end(close_reasons.RULE_FAILED, str(error))
                return
            coming = self._coming = _Coming(chain, self.rules, check)
        if coming.check is not None:
            self._revoke(coming.check.step(limit.reached), now)
            if not coming.check.done:
                return
        self._coming, self.chain = None, chain
        self.bind(now, coming.check)

    def _revoke(self, revoked: list[tuple[bytes, str]], now: int) -> None:
        """End subscriptions (sids) that the rules revoke, with the texts of their -ERR."""
        if not revoked:
            return
        sids = [sid for sid, _ in revoked]
        for sid in sids:
            self._subscriptions.forget(sid)
        self._subscriptions.close(sids, now)
        self._answer(self._pipes[C2S], b"".join(err_frame(text) for _, text in revoked), now)

    def _listen(self) -> None:
        self._connection.secrets.renamed = self.rules.renamed
        for pipe in self._pipes:
            pipe.scanner.interest = self.rules.interest[pipe.direction]

    def update_conditions(self, now: int) -> None:
        """Apply the link conditions of the rules and of the operator to both directions."""
        times = []
        for pipe in self._pipes:
            conditions, again = self.rules.conditions(pipe.direction, now)
            if now < self.paused_until:
                conditions = (conditions or PLAIN)._replace(stop_reading=True)
            if conditions is None or conditions == LinkConditions():
                conditions = PLAIN  # the same object: the outbox compares by identity on the hot path
            if conditions is not pipe.outbox.conditions:
                pipe.flush(now)  # earlier frames go out under the earlier conditions
                pipe.outbox.conditions = conditions
            pipe.swallowing = pipe.outbox.conditions.swallow or self.suspended
            if pipe.direction == S2C:
                pipe.scanner.tallies = byte_table() if pipe.swallowing else self._subscriptions.tallies
            if pipe.outbox.conditions.finish and pipe.phase < PipePhase.FINISHED:
                pipe.step(PipeEvent.FINISH)
                pipe.flush(now)
                pipe.sender.finish(now)
            times.append(again)
        if now < self.paused_until < NEVER:
            times.append(self.paused_until)
        self._subscriptions.watch_ops()
        self.next_due = min((time for time in times if time is not None), default=None)
        self.emit_fired()

    def emit_fired(self) -> None:
        """Emit the firings that belong to no frame, or to several."""
        fired = self.rules.fired
        if fired:
            self._connection.actions += map(Emit, fired)
            fired.clear()

    # -- decisions

    def batch_function(self, pipe: DirectionPipe) -> BatchFunction | None:
        """Return the rules' batch function; None where the session itself must look at each frame."""
        if pipe.swallowing or (pipe.direction == S2C and self._subscriptions.ended_or_moved):
            return None
        return self.rules.batch_functions[pipe.direction]

    def decide(self, pipe: DirectionPipe, frame: Frame, now: int) -> Decision | None:
        """Return the rules' decision on a frame, None to pass it untouched."""
        direction = pipe.direction
        state_only = STATE_OPS[direction] >> frame.op & 1
        if state_only and not pipe.scanner.interest.need(frame.op, frame.subject):
            return None  # only the session wants it
        try:
            if direction == S2C and self._subscriptions.is_moving(frame.sid):
                return self._subscriptions.decide(frame, now)
            return self.rules.decide(direction, frame, now)
        except Exception as error:
            self.failed(frame, error, now)
            return None

    def steps(self, pipe: DirectionPipe, frame: Frame, now: int) -> Generator[None, None, Decision | None]:
        """Make the same decision in steps."""
        if pipe.direction == S2C and self._subscriptions.is_moving(frame.sid):
            return self.decide(pipe, frame, now)
        return (yield from self.rules.steps(pipe.direction, frame, now))

    def failed(self, frame: Frame, error: Exception, now: int) -> None:
        """End this connection because a rule raised an exception."""
        # Without the exception's text, which may quote the frame.
        detail = f"a rule failed on {frame.op.label}: {place_of(error)}"
        self._lifecycle.notice("error", detail, now)
        self._lifecycle.end(close_reasons.RULE_FAILED, detail)

    def carry_out(
        self, pipe: DirectionPipe, frame: Frame, ordinal: int, decision: Decision, now: int
    ) -> None:
        """Apply the rules' decision to a frame."""
        if decision.firings:
            self._emit_numbered(decision.firings, ordinal)
        close = decision.close
        if close is not None and close.at is not Cut.AFTER:
            out = (frame.raw,) if decision.out is None else decision.out
            part = close.at.part(out[0]) if out else b""
            pipe.cut_off(frame, part, ordinal, now, decision.cause or close.cause)
            # No fence before CONNECT: the server might refuse that.
            self.close(self._pipes[S2C] if frame.op == Op.CONNECT else pipe, close, now)
            return
        passes = decision.out is None or len(decision.out) > 0
        if decision.conditions_changed:  # the frame is the first to meet them
            self.update_conditions(now)
            if pipe.swallowing and self.swallow(pipe, frame, ordinal, now):
                self._subscriptions.dropped(frame)  # the scanner has counted it as delivered
                return
            passes = passes and pipe.phase < PipePhase.FINISHED
        self.keep_in_step(pipe, frame, passes, decision.upstream_subject, now)
        if decision.before:
            pipe.inject(decision.before, 1 << frame.op, now, decision.cause)
        if passes:
            self._pass(pipe, frame, ordinal, decision, now)
        else:
            pipe.drop(frame, ordinal, now, decision.cause)
        if decision.after:
            pipe.inject(decision.after, 1 << frame.op, now, decision.cause)
        answer = decision.answer
        if (
            decision.ok
            and pipe.direction == C2S
            and self._connection.connect.verbose
            and OPS[frame.op].earns_ok
        ):
            answer += encode.OK
        if answer:
            self._answer(pipe, answer, now)
        if close is not None:
            pipe.flush(now)
            self.close(pipe, close, now)

    def swallow(self, pipe: DirectionPipe, frame: Frame, ordinal: int, now: int) -> bool:
        """Swallow a message, or answer a PING in the server's place; return whether the frame was either.

        Frames that change the state of the connection pass: both sides must stay in sync.
        """
        if frame.op in MESSAGE_OPS:
            self._subscriptions.lost(frame)
            pipe.drop(frame, ordinal, now, "swallow")
            self.answer_oks(pipe, 1, now)
            return True
        # The first PING goes to the server: its PONG says that the login is good.
        if pipe.direction == C2S and frame.op == Op.PING and self._lifecycle.phase is Phase.READY:
            pipe.drop(frame, ordinal, now, "swallow")
            self._fences.answer_suspended(encode.PONG, now)
            return True
        return False

    def answer_oks(self, pipe: DirectionPipe, frames: int, now: int) -> None:
        """Answer swallowed frames of a verbose client."""
        if pipe.direction == C2S and self._connection.connect.verbose:
            self._fences.answer_suspended(encode.OK * frames, now)

    def _emit_numbered(self, firings: tuple[Firing, ...], ordinal: int) -> None:
        for f in firings:
            # By position: `dataclasses.replace` would cost more than all else here.
            numbered = Firing(
                f.t,
                f.conn,
                f.rule,
                f.kind,
                f.direction,
                ordinal,
                f.m,
                f.action,
                f.delay,
                f.key,
                f.subject,
                f.detail,
                op=f.op,
                role=f.role,
                who=f.who,
            )
            self._connection.actions.append(Emit(numbered))

    def _pass(self, pipe: DirectionPipe, frame: Frame, ordinal: int, decision: Decision, now: int) -> None:
        if decision.out is None and decision.until is None and not (decision.defer or decision.paces):
            self.pass_untouched(pipe, frame, ordinal, now)
            return
        if not decision.paces and self._goes_ahead(pipe, frame):
            decision = decision._replace(overtake=True)
        pipe.replace(frame, ordinal, decision, now)
        if decision.paces:
            self._subscriptions.watch_ops()

    def pass_untouched(self, pipe: DirectionPipe, frame: Frame, ordinal: int, now: int) -> None:
        """Forward a frame as it came; one that must not wait for a limit goes ahead of those that do."""
        if self._goes_ahead(pipe, frame):
            pipe.pass_ahead(frame, ordinal, now)
        else:
            pipe.pass_(frame, ordinal, now)

    @staticmethod
    def _goes_ahead(pipe: DirectionPipe, frame: Frame) -> bool:
        """Tell whether a frame does not wait behind those that are above a limit."""
        if not pipe.outbox.paced or frame.missing:
            return False
        return frame.op == Op.PONG or (frame.op in MESSAGE_OPS and keeps_delivery(frame.subject))

    def keep_in_step(
        self, pipe: DirectionPipe, frame: Frame, passes: bool, upstream: bytes | None, now: int
    ) -> None:
        """Update fences, awaited answers and subscriptions for a frame that passes or not.

        upstream: the subject of a SUB for the server, if a rule rewrites it.
        """
        if pipe.direction == C2S:
            if frame.op == Op.PING and passes:
                self._fences.client_ping()
            elif frame.reply and not passes:  # no server will answer it
                self._subscriptions.awaited.pop(frame.reply, None)
            elif frame.op == Op.SUB:
                self._subscriptions.decided(frame, passes, upstream, now)
        elif frame.op in (Op.MSG, Op.HMSG):
            if passes:
                self._subscriptions.passed(frame, now, altered=self.rules.alters_delivery)
            else:
                self._subscriptions.dropped(frame)

    def _answer(self, pipe: DirectionPipe, answer: bytes, now: int) -> None:
        """Answer the sender of a frame at that frame's place."""
        if pipe.direction == C2S:
            self._fences.answer(answer, now)
        else:
            self._pipes[C2S].inject(answer, 0, now, "rule")

    def close(self, pipe: DirectionPipe, close: Close, now: int) -> None:
        """End the connection because a rule says so."""
        cause, raw = close.cause, close.raw
        if close.reset:
            self._lifecycle.end(close_reasons.RULE, cause, reset=True, flush=close.at is not Cut.BEFORE)
        elif pipe.direction == C2S and raw:
            # In the server's order: after its responses to earlier frames.
            self._fences.answer(raw, now).end = (close_reasons.RULE, cause)
            pipe.step(PipeEvent.END)
        else:
            if raw:
                pipe.inject(raw, Op.ERR.bit, now, "rule")
            self._lifecycle.end(close_reasons.RULE, cause)
