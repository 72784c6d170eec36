"""What the session itself does about a frame before the rules see it: one handler per op and direction.

A handler returns whether the rules are to be asked and the frame is to go on; False says that it has dealt
with the frame.
"""

from __future__ import annotations

from collections.abc import Callable

from natsproxy.events import Greeted
from natsproxy.protocol.connect import parse_connect
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
from natsproxy.rules.interface import Subscription
from natsproxy.session import close_reasons
from natsproxy.session.actions import Emit
from natsproxy.session.direction_pipe import DirectionPipe
from natsproxy.session.greeting import clears_subscriptions, refusal, rewritten
from natsproxy.session.resubscribe import Resubscribing
from natsproxy.session.subscriptions import unsub_max
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame, Need
from natsproxy.wire.ops import C2S, S2C, Direction, Op

_NO_LIMIT = 999_999_999  # the largest number that the server reads


class Handlers(Resubscribing):
    """The handlers by op."""

    def _on_connect(self, pipe: DirectionPipe, frame: Frame, ordinal: int, now: int) -> bool:
        try:
            self.connect = parse_connect(frame.args, self.connect)
        except ValueError as error:
            pipe.drop(frame, ordinal, now, "proxy")
            pipe.ended = True
            self._fence(now).end = (
                close_reasons.CLIENT_PROTOCOL,
                f"a CONNECT that nats-server refuses: {error}",
            )
            return False
        if self.connected:
            if clears_subscriptions(self.info.version):
                self._subs.clear()
        else:
            self.connected = True
            self.key = self.key_of(self.connect.name, self.ordinal)
        self.last_connect = frame.raw
        c = self.connect
        self.actions.append(Emit(Greeted(now, self.conn, self.key, c.name, c.lang, c.version, c.user)))
        self._speak_by = None
        if self._refusal is not None:
            pipe.drop(frame, ordinal, now, "proxy")
            return False
        # Its own record: secrets are taken out of it before it is written.
        pipe.flush(now)
        self._bind(now)
        self._set_hold()
        decision = self._decide(pipe, frame, now)
        if decision is None:
            if not self.over:
                pipe.pass_(frame, ordinal, now)
                pipe.flush(now)
                self._last_fence = None
        else:
            self._carry_out(pipe, frame, ordinal, decision, now)
        return False

    def _set_hold(self) -> None:
        # Until headers are agreed the server may close on an HPUB line alone: hold nothing back.
        limit = self.info.max_payload or self._settings.hold
        hold = min(self._settings.hold, limit) if self.connect.headers else 0
        self.pipes[C2S].scanner.hold = hold
        self.pipes[C2S].scanner.max_payload = self.info.max_payload

    def _on_publish(self, pipe: DirectionPipe, frame: Frame, ordinal: int, now: int) -> bool:
        """Say in the server's place what it says of a payload that it does not take, at the control line.

        It would get only part of a frame that rules look at; one that none asks for is its own to refuse.
        """
        most = self.info.max_payload
        if not 0 < most < frame.size or (frame.op == Op.HPUB and not self.connect.headers):
            return True
        if not pipe.scanner.interest.need(frame.op, frame.subject):
            return True
        pipe.drop(frame, ordinal, now, "proxy")
        pipe.ended = True
        fence = self._fence(now)
        fence.answer += err_frame(MAX_PAYLOAD.text)
        fence.end = (
            close_reasons.CLIENT_PROTOCOL,
            f"a payload of {frame.size} bytes; the server takes {most}",
        )
        return False

    def _on_sub(self, pipe: DirectionPipe, frame: Frame, ordinal: int, now: int) -> bool:
        if self._subs.add(frame.sid, frame.subject, frame.queue, frame.subject):
            self._subs[frame.sid].delivered = -1  # being decided
            self._closed_sids.discard(frame.sid)
            self._tallies.pop(frame.sid, None)
        return True

    def _on_unsub(self, pipe: DirectionPipe, frame: Frame, ordinal: int, now: int) -> bool:
        sub = self._subs.get(frame.sid)
        maximum = unsub_max(frame.args)
        if sub is None:
            return True
        if not maximum:
            self._forget(frame.sid)
            return True
        counted = frame.sid in self._tallies or frame.sid in self.pipes[S2C].scanner.watch_sids
        sub.delivered = self._tallies.pop(frame.sid, sub.delivered)
        self._subs.count(sub)
        if sub.ours or self._rules.alters_delivery:
            # The server would count what a rule takes away: the limit is ours to keep.  It holds from this
            # place of the stream, and what the server sent before has not arrived yet: hence the fence.
            sub.ours = True
            self.watch_sid(frame.sid, Need.LINE)
            self._fence(now).then.append(lambda at: self._limit(sub, maximum, counted, at))
            raw = encode.unsub(frame.sid, _NO_LIMIT)
            pipe.replace(frame, (raw,), ordinal, now, cause="proxy")
            self._last_fence = None
            return False
        if not self._subs.limit(frame.sid, maximum, counted=counted):
            self._unwatch(frame.sid)
            return True
        self.watch_sid(frame.sid, Need.LINE)
        return True

    def _limit(self, sub: Subscription, maximum: int, counted: bool, now: int) -> None:
        """Put an auto-unsubscribe count of ours in force; end the subscription if it is reached already."""
        if self._subs.get(sub.sid) is sub and not self._subs.limit(sub.sid, maximum, counted=counted):
            self._close_sid(sub.sid, now)

    def _on_message(self, pipe: DirectionPipe, frame: Frame, ordinal: int, now: int) -> bool:
        if frame.sid in self._closed_sids:
            pipe.drop(frame, ordinal, now, "proxy")
            return False
        return True

    def _on_ok(self, pipe: DirectionPipe, frame: Frame, ordinal: int, now: int) -> bool:
        if self._swallow_ok > 0:
            self._expect_ok(self._swallow_ok - 1)
            pipe.drop(frame, ordinal, now, "proxy")
            return False
        return True

    def _on_pong(self, pipe: DirectionPipe, frame: Frame, ordinal: int, now: int) -> bool:
        fence = self._pongs.pong()
        if fence is None:
            return True
        pipe.drop(frame, ordinal, now, "proxy")
        if fence is self._last_fence:
            self._last_fence = None
        self._passed(fence, now)
        return False

    def _after_pong(self, pipe: DirectionPipe, frame: Frame, now: int) -> None:
        if frame.op != Op.PONG or self._client_ready or not self.connected:
            return
        self._client_ready = True
        pipe.flush(now)
        held, self._held_infos = self._held_infos, []
        for info, ordinal in held:
            self._send_info(pipe, info, ordinal, now)

    def _on_info(self, pipe: DirectionPipe, frame: Frame, ordinal: int, now: int) -> bool:
        try:
            self.info = parse_info(frame.args)
        except ValueError as error:
            self._end(close_reasons.SERVER_PROTOCOL, f"an INFO that does not parse: {error}")
            return False
        why = refusal(self.info)
        if not self._greeted:
            self._refusal = why
            self._speak_by = now + self._settings.auth_timeout if self._settings.auth_timeout else None
        self._set_hold()
        self.last_info = frame.raw
        if self._greeted and self.info.remote_account:
            self._bind(now)
        if self._greeted and self.connected and not self._client_ready:
            # A fence of ours provoked it: clients expect PONG first.
            self._held_infos.append((frame, ordinal))
            return False
        self._greeted = True
        self._send_info(pipe, frame, ordinal, now)
        return False

    def _send_info(self, pipe: DirectionPipe, frame: Frame, ordinal: int, now: int) -> None:
        args = rewritten(frame.args, self._settings)
        decision = self._decide(pipe, frame._replace(args=args), now)
        if self.over:
            return
        if decision is not None:
            if decision.out is None and args is not frame.args:
                decision.out = (encode.info(args),)
                decision.cause = decision.cause or "proxy"
            self._carry_out(pipe, frame, ordinal, decision, now)
        elif args is frame.args:
            pipe.flush(now)
            pipe.pass_(frame, ordinal, now)
        else:
            pipe.replace(frame, (encode.info(args),), ordinal, now, cause="proxy")
        pipe.flush(now)

    def _on_err(self, pipe: DirectionPipe, frame: Frame, ordinal: int, now: int) -> bool:
        text = err_text(frame.args)
        error = classify(text)
        if error.kind.closes or error.kind is OTHER:
            self.server_error = text
            self._speak_by = None
        if error.kind is SUBSCRIPTION_REVOKED:
            self._forget(error.sid)
        elif error.kind is SUBSCRIBE_DENIED or error.kind is TOO_MANY_TOKENS:
            sub = self._subs.refused(error.subject, error.queue)
            if sub is not None:
                self._unwatch(sub.sid)
        elif error.kind is MAX_SUBSCRIPTIONS:
            self._subs.doubt(at_limit=True)
        return True


HANDLERS: dict[tuple[Direction, Op], Callable[[Handlers, DirectionPipe, Frame, int, int], bool]] = {
    (C2S, Op.CONNECT): Handlers._on_connect,
    (C2S, Op.PUB): Handlers._on_publish,
    (C2S, Op.HPUB): Handlers._on_publish,
    (C2S, Op.SUB): Handlers._on_sub,
    (C2S, Op.UNSUB): Handlers._on_unsub,
    (S2C, Op.INFO): Handlers._on_info,
    (S2C, Op.PONG): Handlers._on_pong,
    (S2C, Op.OK): Handlers._on_ok,
    (S2C, Op.ERR): Handlers._on_err,
    (S2C, Op.MSG): Handlers._on_message,
    (S2C, Op.HMSG): Handlers._on_message,
}
"""What the session itself does about a frame before the rules see it, by direction and op."""
