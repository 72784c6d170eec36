"""The rules of one connection at work: asked about frames, and their decisions carried out.

Rules return decisions and never write to a socket; this module turns a decision into sends, holds, fences,
records and events, and keeps the subscriptions in step with it.  A rule that fails ends this connection and
no other.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

from natsproxy.errors import NatsproxyError, place_of
from natsproxy.events import Firing
from natsproxy.protocol.errors import err_frame
from natsproxy.rules.interface import Chain, ConnectionRules, Decision, LinkConditions, SubscriptionCheck
from natsproxy.session import close_reasons
from natsproxy.session.actions import Emit
from natsproxy.session.connection import NEVER, STATE_OPS, ConnectionState
from natsproxy.session.deliveries import Deliveries
from natsproxy.session.direction import DirectionPipe
from natsproxy.session.fences import PongQueue
from natsproxy.session.outbox import PLAIN
from natsproxy.session.phase import PipeEvent, PipePhase
from natsproxy.session.resubscribe import Resubscriber
from natsproxy.session.values import WorkLimit
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, OPS, S2C, Op
from natsproxy.wire.scanner import byte_table


class _Coming(NamedTuple):
    """A chain that is about to come into force.  before: the rules until then.  check: what comes first."""

    chain: Chain
    before: ConnectionRules
    check: SubscriptionCheck | None


class RuleRunner:
    """Asks the rules of one connection and carries out their decisions.

    chain: the loaded rules of the proxy.  rules: those of them that apply to this connection.  next_due: the
    time (ns) at which a link condition changes, None for never.
    """

    __slots__ = ("_coming", "_deliveries", "_pongs", "_resubscriber", "_state", "chain", "next_due", "rules")

    def __init__(
        self, state: ConnectionState, pongs: PongQueue, deliveries: Deliveries, chain: Chain, now: int
    ) -> None:
        self.chain = chain
        self.rules: ConnectionRules = chain.bind(state, None, now)
        self.next_due: int | None = None
        self._state = state
        self._pongs = pongs
        self._deliveries = deliveries
        self._resubscriber = Resubscriber(state, pongs, deliveries)
        self._coming: _Coming | None = None
        self._listen()
        self.update_conditions(now)

    # -- rules that come into force

    def bind(self, now: int, check: SubscriptionCheck | None = None) -> None:
        """Ask the chain which rules apply, and put them in force between frames; check: of a swap."""
        before = self.rules
        try:
            self.rules = self.chain.bind(self._state, before, now, check)
        except NatsproxyError as error:
            self._state.end(close_reasons.RULE_FAILED, str(error))
            return
        self._listen()
        # Before subscriptions are made anew: one that is revoked must not be.
        self._revoke(self.rules.revoked, now)
        self.update_conditions(now)
        if self.rules is not before and self.rules.resubscribed and not self._state.over:
            self._resubscriber.begin(self.rules.resubscribed, before, now)

    def swap(self, chain: Chain, now: int, limit: WorkLimit) -> None:
        """Look at the live subscriptions under another chain, up to the limit, then put it in force."""
        coming = self._coming
        if coming is None or coming.chain is not chain or coming.before is not self.rules:
            try:
                check = chain.check(self._state, self.rules)
            except NatsproxyError as error:
                self.chain = chain
                self._state.end(close_reasons.RULE_FAILED, str(error))
                return
            coming = self._coming = _Coming(chain, self.rules, check)
        if coming.check is not None:
            self._revoke(coming.check.step(limit.reached), now)
            if not coming.check.done:
                return
        self._coming, self.chain = None, chain
        self.bind(now, coming.check)

    def _revoke(self, revoked: list[tuple[bytes, str]], now: int) -> None:
        """End subscriptions (sids) that the rules do not take, with these texts."""
        if not revoked:
            return
        sids = [sid for sid, _ in revoked]
        for sid in sids:
            self._deliveries.forget(sid)
        self._deliveries.close_sids(sids, now)
        self._answer(self._state.pipes[C2S], b"".join(err_frame(text) for _, text in revoked), now)

    def _listen(self) -> None:
        self._state.secrets.renamed = self.rules.renamed
        for pipe in self._state.pipes:
            pipe.scanner.interest = self.rules.interest[pipe.direction]

    def update_conditions(self, now: int) -> None:
        """Ask the rules for the conditions of both links, and put them in force."""
        times = []
        for pipe in self._state.pipes:
            conditions, again = self.rules.conditions(pipe.direction, now)
            if now < self._state.paused_until:
                conditions = (conditions or PLAIN)._replace(stop_reading=True)
            if conditions is None or conditions == LinkConditions():
                conditions = PLAIN  # itself, not its equal: the outbox asks `is` on the hot path
            if conditions is not pipe.outbox.conditions:
                pipe.flush(now)  # the frames before this one go out under the conditions of their time
                pipe.outbox.conditions = conditions
            pipe.swallowing = pipe.outbox.conditions.swallow or self._state.suspended
            if pipe.direction == S2C:
                pipe.scanner.tallies = byte_table() if pipe.swallowing else self._state.tallies
            if pipe.outbox.conditions.finish and pipe.phase < PipePhase.FINISHED:
                pipe.step(PipeEvent.FINISH)
                pipe.flush(now)
                pipe.sender.finish(now)
            times.append(again)
        if now < self._state.paused_until < NEVER:
            times.append(self._state.paused_until)
        self._state.watch_ops()
        self.next_due = min((time for time in times if time is not None), default=None)
        self.emit_fired()

    def emit_fired(self) -> None:
        """Emit the firings that belong to no frame, or to several."""
        fired = self.rules.fired
        if fired:
            self._state.actions += map(Emit, fired)
            fired.clear()

    # -- decisions

    def decide(self, pipe: DirectionPipe, frame: Frame, now: int) -> Decision | None:
        """Return the rules' decision on a frame, None to pass it untouched."""
        direction = pipe.direction
        state_only = STATE_OPS[direction] >> frame.op & 1
        if state_only and not pipe.scanner.interest.need(frame.op, frame.subject):
            return None  # only the session wants it
        try:
            if direction == S2C and frame.sid in self._deliveries.resubscribing:
                return self._resubscriber.decide(frame, now)
            return self.rules.decide(direction, frame, now)
        except Exception as error:
            self.failed(frame, error, now)
            return None

    def steps(self, pipe: DirectionPipe, frame: Frame, now: int) -> Generator[None, None, Decision | None]:
        """Make the same decision in steps."""
        if frame.sid in self._deliveries.resubscribing:
            return self.decide(pipe, frame, now)
        return (yield from self.rules.steps(pipe.direction, frame, now))

    def failed(self, frame: Frame, error: Exception, now: int) -> None:
        """End this connection because a rule raised an exception."""
        # Without the exception's text, which may quote the frame.
        detail = f"a rule failed on {frame.op.label}: {place_of(error)}"
        self._state.notice("error", detail, now)
        self._state.end(close_reasons.RULE_FAILED, detail)

    def carry_out(
        self, pipe: DirectionPipe, frame: Frame, ordinal: int, decision: Decision, now: int
    ) -> None:
        """Do with a frame as the rules decided."""
        if decision.firings:
            self._emit_numbered(decision.firings, ordinal)
        close = decision.close
        if close is not None:
            pipe.drop(frame, ordinal, now, decision.cause or close.cause)
            self.close(pipe, close.cause, close.raw, close.reset, now)
            return
        passes = decision.out is None or len(decision.out) > 0
        self.settle(pipe, frame, passes, decision.upstream_subject, now)
        if decision.before:
            pipe.inject(decision.before, 1 << frame.op, now, decision.cause)
        if passes:
            self._pass(pipe, frame, ordinal, decision, now)
        else:
            pipe.drop(frame, ordinal, now, decision.cause)
        if decision.after:
            pipe.inject(decision.after, 1 << frame.op, now, decision.cause)
        answer = decision.answer
        if decision.ok and pipe.direction == C2S and self._state.verbose and OPS[frame.op].earns_ok:
            answer += encode.OK
        if answer:
            self._answer(pipe, answer, now)
        # Last: a link that stops or swallows does so behind this frame, not before it.
        if decision.conditions_changed:
            self.update_conditions(now)

    def _emit_numbered(self, firings: tuple[Firing, ...], ordinal: int) -> None:
        for f in firings:
            # A new one by position: `dataclasses.replace` costs more than all else here.
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
            )
            self._state.actions.append(Emit(numbered))

    def _pass(self, pipe: DirectionPipe, frame: Frame, ordinal: int, decision: Decision, now: int) -> None:
        out = decision.out
        if out is None and decision.until is None and not decision.defer:
            pipe.pass_(frame, ordinal, now)
            return
        out = out if out is not None else (frame.raw,)
        pipe.replace(frame, out, ordinal, now, decision.cause, decision)

    def settle(
        self, pipe: DirectionPipe, frame: Frame, passes: bool, upstream: bytes | None, now: int
    ) -> None:
        """Bring the state up to date with a frame that passes or not; upstream: its SUB's new subject."""
        if pipe.direction == C2S:
            if frame.op == Op.PING and passes:
                self._pongs.client_ping()
            elif frame.reply and not passes:  # no server will answer it
                self._state.answers.table.pop(frame.reply, None)
            elif frame.op == Op.SUB:
                self._subscribed(frame, passes, upstream, now)
        elif frame.op in (Op.MSG, Op.HMSG):
            if passes:
                self._deliveries.passed(frame, altered=self.rules.alters_delivery, now=now)
            else:
                self._deliveries.dropped(frame)

    def _subscribed(self, frame: Frame, passes: bool, upstream: bytes | None, now: int) -> None:
        sub = self._state.subs.get(frame.sid)
        if sub is None or sub.delivered != -1:  # the sid is live already: the server ignores this SUB
            return
        if passes:
            sub.delivered = 0
            sub.upstream = upstream or sub.upstream
        else:
            self._deliveries.forget(frame.sid)
            if not sub.certain:  # the server may still have an earlier one of that sid
                self._deliveries.close_sids([frame.sid], now)

    def _answer(self, pipe: DirectionPipe, answer: bytes, now: int) -> None:
        """Answer the sender of a frame at that frame's place."""
        if pipe.direction == C2S:
            self._pongs.answer(answer, now)
        else:
            self._state.pipes[C2S].inject(answer, 0, now, "rule")

    def close(self, pipe: DirectionPipe, cause: str, raw: bytes, reset: bool, now: int) -> None:
        """End the connection because a rule says so; raw: frames that the client gets first."""
        if reset:
            self._state.end(close_reasons.RULE, cause, reset=True)
        elif pipe.direction == C2S and raw:
            # In the server's order: behind all that it has to say of earlier frames.
            self._pongs.answer(raw, now).end = (close_reasons.RULE, cause)
            pipe.step(PipeEvent.END)
        else:
            if raw:
                pipe.inject(raw, Op.ERR.bit, now, "rule")
            self._state.end(close_reasons.RULE, cause)
