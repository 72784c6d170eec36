"""Handlers by op and direction: the session's own part in a frame, before the rules see it.

A handler returns True when the general path goes on with the frame, and False when the handler itself has
finished with it (dropped, passed or decided).
"""

from __future__ import annotations

from collections.abc import Callable

from natsproxy.events import Greeted
from natsproxy.protocol.connect import Connect, parse_connect
from natsproxy.protocol.errors import (
    MAX_PAYLOAD,
    MAX_SUBSCRIPTIONS,
    OTHER,
    SUBSCRIBE_DENIED,
    SUBSCRIPTION_REVOKED,
    TOO_MANY_TOKENS,
    classify,
    err_frame,
    err_text,
)
from natsproxy.protocol.info import parse_info
from natsproxy.rules.interface import Decision
from natsproxy.session import close_reasons
from natsproxy.session.actions import Emit
from natsproxy.session.direction import DirectionPipe
from natsproxy.session.login import Login, clears_subscriptions, refusal, rewritten
from natsproxy.session.parts import Parts
from natsproxy.session.phase import AFTER_CONNECT, BEFORE_INFO, Phase, PhaseEvent, PipeEvent
from natsproxy.session.subscriptions import MOST_REFUSED, unsub_max
from natsproxy.session.values import Hooks
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame, Need
from natsproxy.wire.ops import C2S, S2C, Direction, Op
from natsproxy.wire.parse import head

_MOST_INFOS = 16  # the latest are kept for a client that has had no PONG: each tells the whole state
_NO_LIMIT = 999_999_999  # the largest number that the server reads


class Handlers:
    """The handlers of one connection."""

    __slots__ = ("_deliveries", "_heard", "_held_infos", "_key_of", "_login", "_pongs", "_runner", "_state")

    def __init__(self, parts: Parts, login: Login, hooks: Hooks) -> None:
        self._state, self._pongs, self._deliveries, self._runner = parts
        self._login = login
        self._key_of, self._heard = hooks
        self._held_infos: list[tuple[Frame, int]] = []

    def on_connect(self, pipe: DirectionPipe, frame: Frame, ordinal: int, now: int) -> bool:
        """Learn who the client is, at once or when the proxy has checked it."""
        try:
            connect = self._login.known(parse_connect(frame.args, self._state.connect))
        except ValueError as error:
            pipe.drop(frame, ordinal, now, "proxy")
            pipe.step(PipeEvent.END)
            why = f"a CONNECT that nats-server refuses: {error}"
            self._pongs.end_here(b"", close_reasons.CLIENT_PROTOCOL, why, now)
            return False
        refused = self._state.phase is Phase.REFUSED
        if refused or not self._login.checks(pipe, frame, ordinal, connect, now):
            self.connected(pipe, frame, ordinal, connect, now)
        return False

    def connected(self, pipe: DirectionPipe, frame: Frame, ordinal: int, connect: Connect, now: int) -> None:
        """Let a client's CONNECT go on, and learn which rules apply to it.  connect: its options, merged."""
        state, runner = self._state, self._runner
        state.connect = connect
        if state.phase in AFTER_CONNECT:
            if clears_subscriptions(state.info.version):
                for sid in (*state.subs,):
                    self._deliveries.forget(sid)
        else:
            state.key = self._key_of(state.connect.name, state.ordinal)
        state.step(PhaseEvent.CONNECT)
        state.last_connect = frame.raw
        c = state.connect
        state.actions.append(Emit(Greeted(now, state.conn, state.key, c.name, c.lang, c.version, c.user)))
        state.speak_by = None
        if state.phase is Phase.REFUSED:
            pipe.drop(frame, ordinal, now, "proxy")
            return
        # Its own record: secrets are taken out of it before it is written.
        pipe.flush(now)
        runner.bind(now)
        self._set_hold()
        args = self._login.rewritten(frame.args)
        # Rules see the frame that goes on: one that changes it must not bring the client's secrets back.
        shown = frame if args is frame.args else head(encode.connect(args), C2S) or frame
        decision = runner.decide(pipe, shown, now)
        if self._go_on(pipe, frame, ordinal, decision, encode.connect, args, now) and decision is None:
            self._pongs.last = None

    def _set_hold(self) -> None:
        # Until headers are agreed the server may close on an HPUB line alone: hold nothing back.
        state = self._state
        limit, most = state.settings.frame_hold_limit, state.info.max_payload
        state.pipes[C2S].scanner.hold = min(limit, most or limit) if state.connect.headers else 0
        state.pipes[C2S].scanner.max_payload = most

    def on_publish(self, pipe: DirectionPipe, frame: Frame, ordinal: int, now: int) -> bool:
        """Refuse a payload that is too large for the server, in its place and at the control line.

        The server would get only part of a frame that rules look at; a frame that none of them wants is its
        own to refuse.
        """
        most = self._state.info.max_payload
        if not 0 < most < frame.size or (frame.op == Op.HPUB and not self._state.connect.headers):
            return True
        if not pipe.scanner.interest.need(frame.op, frame.subject):
            return True
        pipe.drop(frame, ordinal, now, "proxy")
        pipe.step(PipeEvent.END)
        why = f"a payload of {frame.size} bytes; the server takes {most}"
        self._pongs.end_here(err_frame(MAX_PAYLOAD.text), close_reasons.CLIENT_PROTOCOL, why, now)
        return False

    def on_sub(self, pipe: DirectionPipe, frame: Frame, ordinal: int, now: int) -> bool:
        """Note a subscription; `RuleRunner.settle` confirms it or takes it back."""
        if self._state.subs.add(frame.sid, frame.subject, frame.queue, frame.subject, self._state.came):
            self._state.subs[frame.sid].delivered = -1  # being decided
            self._deliveries.closed_sids.pop(frame.sid, None)
            self._state.tallies.pop(frame.sid, None)
        return True

    def on_unsub(self, pipe: DirectionPipe, frame: Frame, ordinal: int, now: int) -> bool:
        """Note the end of a subscription, or its auto-unsubscribe count."""
        sub = self._state.subs.get(frame.sid)
        maximum = unsub_max(frame.args)
        if sub is None:
            return True
        if not maximum:
            self._deliveries.forget(frame.sid)
            return True
        counted = frame.sid in self._state.tallies or frame.sid in self._state.pipes[S2C].scanner.watch_sids
        unseen = 0 if counted else self._state.came - sub.since
        sub.delivered = self._state.tallies.pop(frame.sid, sub.delivered)
        self._state.subs.count(sub)
        if sub.ours or self._runner.rules.alters_delivery:
            # The server would count messages that a rule takes away: the limit is ours to keep.  It holds
            # from this place of the stream, and earlier messages have not arrived yet: hence the fence.
            sub.ours = True
            self._state.watch_sid(frame.sid, Need.LINE)
            self._pongs.then(lambda at: self._deliveries.limit(sub, maximum, unseen, at), now)
            # Passed on with a limit out of reach: a verbose client is owed the +OK of the server.
            raw = encode.unsub(frame.sid, _NO_LIMIT)
            pipe.replace(frame, (raw,), ordinal, now, "proxy")
            self._pongs.last = None
            return False
        if not self._state.subs.limit(frame.sid, maximum, unseen=unseen):
            self._deliveries.unwatch(frame.sid)
            return True
        self._state.watch_sid(frame.sid, Need.LINE)
        self._deliveries.end_uncertain(now)
        return True

    def on_message(self, pipe: DirectionPipe, frame: Frame, ordinal: int, now: int) -> bool:
        """Drop a message of a subscription that was ended here."""
        if frame.sid in self._deliveries.closed_sids:
            pipe.drop(frame, ordinal, now, "proxy")
            return False
        return True

    def on_ok(self, pipe: DirectionPipe, frame: Frame, ordinal: int, now: int) -> bool:
        """Keep a +OK that answers a frame of ours from the client."""
        if self._state.our_oks > 0:
            self._deliveries.expect_ok(self._state.our_oks - 1)
            pipe.drop(frame, ordinal, now, "proxy")
            return False
        return True

    def on_pong(self, pipe: DirectionPipe, frame: Frame, ordinal: int, now: int) -> bool:
        """Pass a PONG of the client's on; do the work that waits for one of ours."""
        fence = self._pongs.pong()
        if fence is None:
            return True
        pipe.drop(frame, ordinal, now, "proxy")
        self._pongs.pass_(fence, now)
        return False

    def client_has_pong(self, pipe: DirectionPipe, now: int) -> None:
        """Send the INFOs that were kept back until the client's first PONG."""
        if self._state.phase is not Phase.CONNECTED:
            return
        self._state.step(PhaseEvent.PONG)
        pipe.flush(now)
        held, self._held_infos = self._held_infos, []
        for info, ordinal in held:
            pipe.sender.surplus[info.op] += 1
            self._send_info(pipe, info, ordinal, now)

    def on_info(self, pipe: DirectionPipe, frame: Frame, ordinal: int, now: int) -> bool:
        """Learn about the server, and send its INFO on as the client is to see it."""
        state = self._state
        try:
            info = parse_info(frame.args)
        except ValueError as error:
            state.end(close_reasons.SERVER_PROTOCOL, f"an INFO that does not parse: {error}")
            return False
        # The INFO behind the first PONG names the account; those of later news do not.
        account = info.remote_account or state.info.remote_account
        state.info = info if account == info.remote_account else info._replace(remote_account=account)
        self._heard(state.conn, state.info)
        first = state.phase in BEFORE_INFO
        self._set_hold()
        state.last_info = frame.raw
        if first:
            self._login.greeted(frame.args)
            state.refusal = refusal(state.info)
            state.speak_by = now + state.settings.auth_timeout if state.settings.auth_timeout else None
            state.step(PhaseEvent.INFO if state.refusal is None else PhaseEvent.UNUSABLE_INFO)
        else:
            if info.remote_account:  # rules may ask for it
                self._runner.bind(now)
            if state.phase is Phase.CONNECTED:
                # A fence of ours provoked it: clients expect PONG first.
                self._hold_info(pipe, frame, ordinal, now)
                return False
        self._send_info(pipe, frame, ordinal, now)
        return False

    def _hold_info(self, pipe: DirectionPipe, frame: Frame, ordinal: int, now: int) -> None:
        if len(self._held_infos) == _MOST_INFOS:
            oldest, place = self._held_infos.pop(0)
            pipe.sender.surplus[oldest.op] += 1
            pipe.drop(oldest, place, now, "proxy")
        # A frame of its own bytes: the other one keeps its whole read in memory.
        self._held_infos.append((head(frame.raw, S2C) or frame, ordinal))
        pipe.sender.surplus[frame.op] -= 1

    def _send_info(self, pipe: DirectionPipe, frame: Frame, ordinal: int, now: int) -> None:
        args = rewritten(frame.args, self._state.settings)
        decision = self._runner.decide(pipe, frame._replace(args=args), now)
        self._go_on(pipe, frame, ordinal, decision, encode.info, args, now)

    def _go_on(
        self,
        pipe: DirectionPipe,
        frame: Frame,
        ordinal: int,
        decision: Decision | None,
        form: Callable[[bytes], bytes],
        args: bytes,
        now: int,
    ) -> bool:
        """Let a greeting go on with other arguments, as the rules decided; False where the end came first.

        form: makes a frame of arguments.  args: the very same bytes where nothing changes.
        """
        if self._state.over:
            return False
        if decision is not None:
            if decision.out is None and args is not frame.args:
                decision = decision._replace(out=(form(args),), cause=decision.cause or "proxy")
            self._runner.carry_out(pipe, frame, ordinal, decision, now)
        elif args is frame.args:
            pipe.flush(now)
            pipe.pass_(frame, ordinal, now)
        else:
            pipe.replace(frame, (form(args),), ordinal, now, "proxy")
        pipe.flush(now)
        return True

    def on_err(self, pipe: DirectionPipe, frame: Frame, ordinal: int, now: int) -> bool:
        """Learn from an -ERR which subscription the server does not have, or why it will close."""
        text = err_text(frame.args)
        error = classify(text)
        if error.kind.closes or error.kind is OTHER:
            self._state.server_error = text
            self._state.speak_by = None
            self._heard(self._state.conn, text)
        if error.kind is SUBSCRIPTION_REVOKED:
            self._deliveries.forget(error.sid)
        elif error.kind is SUBSCRIBE_DENIED or error.kind is TOO_MANY_TOKENS:
            sub = self._state.subs.refused(error.subject, error.queue)
            if sub is not None:
                self._deliveries.unwatch(sub.sid)
        elif error.kind is MAX_SUBSCRIPTIONS and self._state.subs.doubt():
            why = f"the server has refused more than {MOST_REFUSED} of its subscriptions"
            self._state.end(close_reasons.CLIENT_PROTOCOL, why)
        return True


HANDLERS: dict[tuple[Direction, Op], Callable[[Handlers, DirectionPipe, Frame, int, int], bool]] = {
    (C2S, Op.CONNECT): Handlers.on_connect,
    (C2S, Op.PUB): Handlers.on_publish,
    (C2S, Op.HPUB): Handlers.on_publish,
    (C2S, Op.SUB): Handlers.on_sub,
    (C2S, Op.UNSUB): Handlers.on_unsub,
    (S2C, Op.INFO): Handlers.on_info,
    (S2C, Op.PONG): Handlers.on_pong,
    (S2C, Op.OK): Handlers.on_ok,
    (S2C, Op.ERR): Handlers.on_err,
    (S2C, Op.MSG): Handlers.on_message,
    (S2C, Op.HMSG): Handlers.on_message,
}
"""The handler of each op, by direction and op; other ops have none."""
