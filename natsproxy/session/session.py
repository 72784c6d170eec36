"""A proxied connection: bytes and time in, actions out.

The theory.  Both directions are lanes (`lane.py`).  The session gives meaning to the few ops that carry
state (one handler per op and direction, in a table), asks the rules about the frames they want, and carries
decisions out.  Answers of ours to the client take the server's place in the server's order: the answered
frame is replaced upstream by a fence, and the answer goes out where the fence's PONG arrives (`fences.py`).
So neither verbose nor pedantic mode needs any counting.

What is never done: nothing of ours goes out inside a frame; nothing asynchronous of ours reaches the client
between its CONNECT and its first PONG; nothing that cannot be framed goes on (unless configured).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from natsproxy.errors import NatsproxyError
from natsproxy.events import Greeted, Notice
from natsproxy.protocol.connect import Connect, parse_connect
from natsproxy.protocol.errors import (
    SUBSCRIBE_DENIED,
    SUBSCRIPTION_REVOKED,
    TOO_MANY_TOKENS,
    classify,
    err_text,
)
from natsproxy.protocol.info import Info, parse_info
from natsproxy.rules.seam import Bound, Chain, Decision, Shape, Subscription
from natsproxy.session import causes
from natsproxy.session.actions import Action, Emit, End, SessionSettings
from natsproxy.session.fences import Fence, Ledger
from natsproxy.session.greeting import clears_subscriptions, other_protocol, refusal, rewritten
from natsproxy.session.lane import Lane
from natsproxy.session.outbox import PLAIN
from natsproxy.session.subscriptions import Subscriptions, unsub_max
from natsproxy.wire import encode
from natsproxy.wire.frames import Body, Fault, Frame, Malformed, Need, Opaque, Run
from natsproxy.wire.ops import C2S, MESSAGE_OPS, OPS, S2C, Direction, Op, op_mask
from natsproxy.wire.scanner import Scanner

_STATE_OPS = (
    op_mask(Op.CONNECT, Op.PING, Op.SUB, Op.UNSUB),
    op_mask(Op.INFO, Op.PONG, Op.ERR),
)
_ANSWERS = {
    Fault.UNKNOWN_OP: "Unknown Protocol Operation",
    Fault.TERMINATOR: "Unknown Protocol Operation",
    Fault.REFUSED: "Unknown Protocol Operation",
    Fault.LINE_TOO_LONG: "maximum control line exceeded",
    Fault.SILENT: None,
}
_NO_LIMIT = 999_999_999  # the largest number that the server reads


class Session:
    """The state machine of one connection; it is also the `View` that rules see."""

    def __init__(
        self,
        settings: SessionSettings,
        chain: Chain,
        *,
        conn: int,
        ordinal: int,
        address: str,
        record: bool,
        now: int,
    ) -> None:
        self.conn = conn
        self.ordinal = ordinal
        self.address = address
        self.key = f"#{ordinal}"
        self.connect = Connect()
        self.info = Info()
        self._subs = Subscriptions()
        self.connected = False
        self.over = False
        self.key_of: Callable[[str, int], str] = lambda name, ordinal: name or f"#{ordinal}"
        self.last_info = b""
        self.last_connect = b""
        self._settings = settings
        self._chain = chain
        self._bound: Bound = chain.bind(self, None, now)
        self._ledger = Ledger()
        self._last_fence: Fence | None = None  # nothing has gone upstream since
        self._greeted = False  # the first INFO has passed
        self._client_ready = False  # the client has had its first PONG
        self._held_infos: list[tuple[Frame, int]] = []
        self._closed_sids: set[bytes] = set()
        self._swallow_ok = 0  # how many +OK of the server answer frames of ours
        self._opaque_said = False
        self._rule_tick: int | None = None
        self._checkpoint: int | None = None
        self._lingering: dict[Direction, int] = {}  # ends that a rule keeps back, and until when
        lanes = []
        for direction in (C2S, S2C):
            scanner = Scanner(
                direction,
                self._bound.interest[direction],
                line_limit=settings.max_control_line,
                hold=0 if direction == C2S else settings.hold,
                buffer_limit=settings.rule_buffer,
            )
            scanner.watch_ops = _STATE_OPS[direction]
            lanes.append(Lane(direction, scanner, settings, conn, record))
        self.lanes = (lanes[0], lanes[1])
        self.actions: list[Action] = []
        for lane in self.lanes:
            lane.actions = self.actions
        self._shape(now)

    @property
    def opening(self) -> str:
        """What the rules say about a client that has just connected (see `Bound.opening`)."""
        return self._bound.opening

    # -- what rules see

    @property
    def subs(self) -> Mapping[bytes, Subscription]:
        """The live subscriptions by sid."""
        return self._subs

    @property
    def verbose(self) -> bool:
        """Whether the client asked for (or left on) verbose mode."""
        return self.connect.verbose

    @property
    def pedantic(self) -> bool:
        """Whether the client asked for (or left on) pedantic mode."""
        return self.connect.pedantic

    def watch_sid(self, sid: bytes, need: Need) -> None:
        """Want every MSG and HMSG on `sid` until the subscription ends."""
        watches = self.lanes[S2C].scanner.watch_sids
        watches[sid] = max(need, watches.get(sid, Need.NONE))

    def watch_subject(self, direction: Direction, subject: bytes, need: Need) -> None:
        """Want every message frame of exactly `subject`."""
        self.lanes[direction].scanner.watch_subjects[subject] = need

    def unwatch_subject(self, direction: Direction, subject: bytes) -> None:
        """Take back `watch_subject`."""
        self.lanes[direction].scanner.watch_subjects.pop(subject, None)

    # -- events in

    def receive(self, direction: Direction, data: bytes, now: int) -> list[Action]:
        """Take bytes of one direction; return what is to be done, in order."""
        lane = self.lanes[direction]
        lane.in_bytes += len(data)
        if self._stopped(lane):
            return self._done()
        if direction == C2S and lane.in_bytes == len(data):
            other = other_protocol(data)
            if other is not None:
                self._end(causes.CLIENT_PROTOCOL, f"the client sent {other}")
                return self._done()
        scanner = lane.scanner
        scanner.feed(data)
        first = scanner.ordinal
        while (segment := scanner.next()) is not None:
            if isinstance(segment, Run):
                if lane.swallowing:
                    lane.lose(segment, first, now)
                else:
                    lane.pass_(segment, first, now)
                    if direction == C2S:
                        self._last_fence = None
            elif isinstance(segment, Frame):
                self._frame(lane, segment, first, now)
            elif isinstance(segment, Body):
                lane.body(segment, now)
            elif isinstance(segment, Malformed):
                self._malformed(lane, segment, now)
            else:
                self._opaque(lane, segment, now)
            if self._stopped(lane):
                break
            first = scanner.ordinal
        lane.flush(now)
        return self._done()

    def eof(self, direction: Direction, now: int) -> list[Action]:
        """The sender of `direction` will send no more."""
        lane = self.lanes[direction]
        if lane.outbox.shape.linger:
            self._lingering[direction] = now + lane.outbox.shape.linger
        else:
            self._eof(lane, now)
        return self._done()

    def _eof(self, lane: Lane, now: int) -> None:
        if not lane.ended:
            lane.cut(lane.scanner.rest(), now)
        if lane.direction == C2S:
            lane.finish(now)
        elif lane.outbox.active:
            lane.finish(now)
            self._checkpoint = now
        else:
            self._ended_by_peer()

    def _ended_by_peer(self) -> None:
        self._end(causes.CLIENT_CLOSED if self.lanes[C2S].ended else causes.SERVER_CLOSED)

    def tick(self, now: int) -> list[Action]:
        """Do what is due."""
        if self.over:
            return self._done()
        for direction in [way for way, time in self._lingering.items() if time <= now]:
            del self._lingering[direction]
            self._eof(self.lanes[direction], now)
        self._shape(now)
        injected, close, self._checkpoint = self._bound.due(now)
        self._emit_fired()
        for direction, raw in injected:
            if direction == C2S or (self._client_ready and not self.lanes[S2C].mid_frame):
                self.lanes[direction].inject(raw, 0, now, "rule")
        if close is not None:
            self._close_verdict(self.lanes[S2C], close.cause, close.raw, close.reset, now)
        for lane in self.lanes:
            lane.tick(now)
        for fence in self._ledger.fences():
            if fence.end is not None and fence.deadline <= now:
                self._passed(fence, now)
        if self.lanes[S2C].ended and not self.lanes[S2C].outbox.active:
            self._ended_by_peer()
        return self._done()

    def next_tick(self) -> int | None:
        """When (ns) `tick` is to be called next; None for not at all."""
        quiet = self._rule_tick is None and self._checkpoint is None and not self._ledger.waiting
        quiet = quiet and not self._lingering
        if self.over or (quiet and not any(lane.outbox.bytes for lane in self.lanes)):
            return None
        times = [self._rule_tick, self._checkpoint, *(lane.outbox.next_due() for lane in self.lanes)]
        times += self._lingering.values()
        times += [fence.deadline for fence in self._ledger.fences() if fence.end is not None]
        return min((time for time in times if time is not None), default=None)

    def swap(self, chain: Chain, now: int) -> list[Action]:
        """Put another chain in force, between frames."""
        self._chain = chain
        self._bind(now)
        return self._done()

    def closed(self, now: int) -> None:
        """The connection is gone: let the rules forget it."""
        self._bound.close(now)

    # -- frames

    def _frame(self, lane: Lane, frame: Frame, ordinal: int, now: int) -> None:
        handler = _HANDLERS.get((lane.direction, frame.op))
        if handler is not None and not handler(self, lane, frame, ordinal, now):
            return
        if lane.swallowing and frame.op in MESSAGE_OPS:
            lane.drop(frame, ordinal, now, "swallow")
            return
        decision = self._decide(lane, frame, now)
        if self.over:
            return
        if decision is not None:
            self._carry_out(lane, frame, ordinal, decision, now)
        else:
            self._settle(lane, frame, True, None, now)
            lane.pass_(frame, ordinal, now)
        if lane.direction == C2S and (decision is None or decision.out != ()):
            self._last_fence = None
        if frame.op in (Op.PONG, Op.INFO) and lane.direction == S2C:
            self._after_pong(lane, frame, now)

    def _decide(self, lane: Lane, frame: Frame, now: int) -> Decision | None:
        state_only = _STATE_OPS[lane.direction] >> frame.op & 1
        if state_only and not lane.scanner.interest.need(frame.op, frame.subject):
            return None  # it is here for the session's sake; no rule asked for it
        try:
            return self._bound.decide(lane.direction, frame, now)
        except Exception as error:  # a rule that fails closes this connection and no other
            detail = f"a rule failed on {frame.op.label}: {type(error).__name__}: {error}"
            self.actions.append(Emit(Notice(now, self.conn, "error", detail)))
            self._end(causes.RULE_FAILED, detail)
            return None

    def _carry_out(self, lane: Lane, frame: Frame, ordinal: int, decision: Decision, now: int) -> None:
        for firing in decision.firings:
            self.actions.append(Emit(replace(firing, ordinal=ordinal)))
        if decision.close is not None:
            lane.drop(frame, ordinal, now, decision.cause or decision.close.cause)
            close = decision.close
            self._close_verdict(lane, close.cause, close.raw, close.reset, now)
            return
        out = decision.out
        passes = out is None or len(out) > 0
        self._settle(lane, frame, passes, decision.upstream_subject, now)
        if decision.before:
            lane.inject(decision.before, 1 << frame.op, now, decision.cause)
        if not passes:
            lane.drop(frame, ordinal, now, decision.cause)
        elif out is None and decision.until is None and not decision.defer:
            lane.pass_(frame, ordinal, now)
        else:
            late = frame.op not in (Op.PING, Op.PONG)
            lane.replace(
                frame, out if out is not None else (frame.raw,), ordinal, now,
                cause=decision.cause, until=decision.until,
                overtake=decision.overtake and late, defer=decision.defer if late else 0,
            )  # fmt: skip
        if decision.after:
            lane.inject(decision.after, 1 << frame.op, now, decision.cause)
        answer = decision.answer
        if decision.ok and lane.direction == C2S and self.verbose and OPS[frame.op].earns_ok:
            answer += encode.OK
        if answer:
            self._answer(lane, answer, now)
        if decision.bent:
            self._shape(now)

    def _settle(self, lane: Lane, frame: Frame, passes: bool, upstream: bytes | None, now: int) -> None:
        """Bring the session's state up to date with what became of a frame."""
        if lane.direction == C2S:
            if frame.op == Op.PING and passes:
                self._ledger.client_ping()
            elif frame.op == Op.SUB:
                sub = self._subs.get(frame.sid)
                if not passes and sub is not None and sub.delivered == -1:
                    self._subs.remove(frame.sid)
                elif sub is not None and sub.delivered == -1:
                    sub.delivered = 0
                    sub.upstream = upstream or sub.upstream
        elif frame.op in (Op.MSG, Op.HMSG) and passes:
            self._delivered(lane, frame, now)

    def _answer(self, lane: Lane, answer: bytes, now: int) -> None:
        """Answer the sender of a frame at that frame's place."""
        if lane.direction == C2S:
            self._fence(now).answer += answer
        else:
            self.lanes[C2S].inject(answer, 0, now, "rule")

    def _fence(self, now: int) -> Fence:
        """Return a fence at this place of the c2s stream; neighbours share one."""
        lane = self.lanes[C2S]
        if self._last_fence is None:
            self._last_fence = Fence(deadline=now + self._settings.fence_timeout)
            lane.inject(encode.PING, Op.PING.bit, now, "proxy")
            self._ledger.fence(self._last_fence)
        return self._last_fence

    def _close_verdict(self, lane: Lane, cause: str, raw: bytes, reset: bool, now: int) -> None:
        if reset:
            self._end(causes.RULE, cause, reset=True)
        elif lane.direction == C2S and raw:
            fence = self._fence(now)
            fence.answer += raw
            fence.end = (causes.RULE, cause)
            lane.ended = True
        else:
            if raw and not lane.mid_frame:
                lane.inject(raw, Op.ERR.bit, now, "rule")
            self._end(causes.RULE, cause)

    # -- what cannot be framed

    def _malformed(self, lane: Lane, bad: Malformed, now: int) -> None:
        lane.flush(now)
        lane.ended = True
        where = f"{lane.direction.label} byte {bad.offset}: {bad.reason}"
        if lane.direction == S2C:
            self._end(causes.SERVER_PROTOCOL, where)
        elif self._settings.unparsed == "pass" and not self._chain.guards:
            self.actions.append(Emit(Notice(now, self.conn, "warning", f"passing what is not NATS: {where}")))
            lane.cut(bad.buffer[bad.start :] + lane.scanner.rest(), now)
            lane.ended = False
        elif bad.streaming:
            # The server stands where we stand, waiting for CRLF: the same wrong bytes get its own answer.
            lane.cut(bad.buffer[bad.start : bad.end], now)
            self._fence_end_at_server(now, where)
        else:
            fence = self._fence(now)
            text = _ANSWERS[bad.fault]
            if text is not None:
                fence.answer += encode.err(text)
            fence.end = (causes.CLIENT_PROTOCOL, where)

    def _fence_end_at_server(self, now: int, where: str) -> None:
        self.actions.append(Emit(Notice(now, self.conn, "warning", where)))

    def _opaque(self, lane: Lane, segment: Opaque, now: int) -> None:
        if self._chain.guards or self._bound.interest[S2C].clauses:
            self._end(causes.SERVER_PROTOCOL, "the server sent an operation that no rule can judge")
            return
        if not self._opaque_said:
            text = "the server sent an operation that natsproxy does not know: passing its stream unread"
            self.actions.append(Emit(Notice(now, self.conn, "warning", text)))
            self._opaque_said = True
        lane.opaque(segment, now)

    # -- handlers by op: return whether the rules are to be asked and the frame is to go on

    def _on_connect(self, lane: Lane, frame: Frame, ordinal: int, now: int) -> bool:
        try:
            self.connect = parse_connect(frame.args, self.connect)
        except ValueError as error:
            lane.drop(frame, ordinal, now, "proxy")
            lane.ended = True
            self._fence(now).end = (causes.CLIENT_PROTOCOL, f"a CONNECT that nats-server refuses: {error}")
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
        # Its own record: secrets are taken out of it before it is written.
        lane.flush(now)
        self._bind(now)
        self._set_hold()
        decision = self._decide(lane, frame, now)
        if decision is None:
            if not self.over:
                lane.pass_(frame, ordinal, now)
                lane.flush(now)
                self._last_fence = None
        else:
            self._carry_out(lane, frame, ordinal, decision, now)
        return False

    def _set_hold(self) -> None:
        # Until headers are agreed the server may close on an HPUB line alone: hold nothing back.
        limit = self.info.max_payload or self._settings.hold
        hold = min(self._settings.hold, limit) if self.connect.headers else 0
        self.lanes[C2S].scanner.hold = hold

    def _on_ping(self, lane: Lane, frame: Frame, ordinal: int, now: int) -> bool:
        return True

    def _on_sub(self, lane: Lane, frame: Frame, ordinal: int, now: int) -> bool:
        if self._subs.add(frame.sid, frame.subject, frame.queue, frame.subject):
            self._subs[frame.sid].delivered = -1  # being decided
            self._closed_sids.discard(frame.sid)
        return True

    def _on_unsub(self, lane: Lane, frame: Frame, ordinal: int, now: int) -> bool:
        sub = self._subs.get(frame.sid)
        maximum = unsub_max(frame.args)
        if sub is None:
            return True
        if not maximum:
            self._forget(frame.sid)
            return True
        counted = frame.sid in lane.scanner.watch_sids or frame.sid in self.lanes[S2C].scanner.watch_sids
        if not self._subs.limit(frame.sid, maximum, counted=counted):
            self._unwatch(frame.sid)
            return True
        self.watch_sid(frame.sid, Need.LINE)
        if self._bound.alters_delivery:
            # The server would count what a rule takes away: the limit is ours to keep.
            raw = encode.unsub(frame.sid, _NO_LIMIT)
            lane.replace(frame, (raw,), ordinal, now, cause="proxy")
            self._last_fence = None
            return False
        return True

    def _delivered(self, lane: Lane, frame: Frame, now: int) -> None:
        sub = self._subs.get(frame.sid)
        if sub is None or sub.delivered < 0 or (frame.headers[8:12] == b" 503" and not frame.reply):
            return
        sub.delivered += 1
        if not sub.max or sub.delivered < sub.max:
            return
        self._forget(frame.sid)
        if self._bound.alters_delivery:
            self._close_sid(frame.sid, now)

    def _forget(self, sid: bytes) -> None:
        self._subs.remove(sid)
        self._unwatch(sid)

    def _unwatch(self, sid: bytes) -> None:
        self.lanes[S2C].scanner.watch_sids.pop(sid, None)

    def _close_sid(self, sid: bytes, now: int) -> None:
        """Unsubscribe upstream and drop what still comes; in verbose mode the +OK of it is ours too."""
        self._closed_sids.add(sid)
        self.watch_sid(sid, Need.LINE)
        self._last_fence = None
        self._fence(now).then.append(lambda _: self._expect_ok(1))
        self.lanes[C2S].inject(encode.unsub(sid), Op.UNSUB.bit, now, "proxy")
        self._last_fence = None
        self._fence(now).then.append(lambda _: self._sid_closed(sid))
        self._last_fence = None

    def _expect_ok(self, count: int) -> None:
        self._swallow_ok = count if self.verbose else 0
        extra = Op.OK.bit if self._swallow_ok > 0 else 0
        self.lanes[S2C].scanner.watch_ops = _STATE_OPS[S2C] | extra

    def _sid_closed(self, sid: bytes) -> None:
        self._expect_ok(0)
        if sid in self._closed_sids:
            self._closed_sids.discard(sid)
            self._unwatch(sid)

    def _on_message(self, lane: Lane, frame: Frame, ordinal: int, now: int) -> bool:
        if frame.sid in self._closed_sids:
            lane.drop(frame, ordinal, now, "proxy")
            return False
        return True

    def _on_ok(self, lane: Lane, frame: Frame, ordinal: int, now: int) -> bool:
        if self._swallow_ok > 0:
            self._expect_ok(0)
            lane.drop(frame, ordinal, now, "proxy")
            return False
        return True

    def _on_pong(self, lane: Lane, frame: Frame, ordinal: int, now: int) -> bool:
        fence = self._ledger.pong()
        if fence is None:
            return True
        lane.drop(frame, ordinal, now, "proxy")
        if fence is self._last_fence:
            self._last_fence = None
        self._passed(fence, now)
        return False

    def _passed(self, fence: Fence, now: int) -> None:
        lane = self.lanes[S2C]
        for then in fence.then:
            then(now)
        fence.then = []
        if fence.answer and not lane.mid_frame:
            lane.inject(bytes(fence.answer), 0, now, "rule" if fence.end is None else "proxy")
        if fence.end is not None:
            self._end(*fence.end)

    def _after_pong(self, lane: Lane, frame: Frame, now: int) -> None:
        if frame.op != Op.PONG or self._client_ready or not self.connected:
            return
        self._client_ready = True
        lane.flush(now)
        held, self._held_infos = self._held_infos, []
        for info, ordinal in held:
            self._send_info(lane, info, ordinal, now)

    def _on_info(self, lane: Lane, frame: Frame, ordinal: int, now: int) -> bool:
        try:
            self.info = parse_info(frame.args)
        except ValueError as error:
            self._end(causes.SERVER_PROTOCOL, f"an INFO that does not parse: {error}")
            return False
        why = refusal(self.info)
        if why is not None and not self._greeted:
            self._end(causes.REFUSED, why)
            return False
        self._set_hold()
        self.last_info = frame.raw
        if self._greeted and self.info.remote_account:
            self._bind(now)
        if self._greeted and self.connected and not self._client_ready:
            # A fence of ours provoked it: clients expect PONG first.
            self._held_infos.append((frame, ordinal))
            return False
        self._greeted = True
        self._send_info(lane, frame, ordinal, now)
        return False

    def _send_info(self, lane: Lane, frame: Frame, ordinal: int, now: int) -> None:
        args = rewritten(frame.args, self._settings)
        decision = self._decide(lane, frame._replace(args=args), now)
        if self.over:
            return
        if decision is not None:
            if decision.out is None and args is not frame.args:
                decision.out = (encode.info(args),)
                decision.cause = decision.cause or "proxy"
            self._carry_out(lane, frame, ordinal, decision, now)
        elif args is frame.args:
            lane.flush(now)
            lane.pass_(frame, ordinal, now)
        else:
            lane.replace(frame, (encode.info(args),), ordinal, now, cause="proxy")
        lane.flush(now)

    def _on_err(self, lane: Lane, frame: Frame, ordinal: int, now: int) -> bool:
        error = classify(err_text(frame.args))
        if error.kind is SUBSCRIPTION_REVOKED:
            self._forget(error.sid)
        elif error.kind is SUBSCRIBE_DENIED or error.kind is TOO_MANY_TOKENS:
            sub = self._subs.refused(error.subject, error.queue)
            if sub is not None:
                self._unwatch(sub.sid)
        return True

    # -- rules, time, the end

    def _bind(self, now: int) -> None:
        try:
            self._bound = self._chain.bind(self, self._bound, now)
        except NatsproxyError as error:
            self._end(causes.RULE_FAILED, str(error))
            return
        for lane in self.lanes:
            lane.scanner.interest = self._bound.interest[lane.direction]
        self._shape(now)

    def _shape(self, now: int) -> None:
        times = []
        for lane in self.lanes:
            shape, again = self._bound.shape(lane.direction, now)
            lane.outbox.shape = PLAIN if shape is None or shape == Shape() else shape
            lane.swallowing = lane.outbox.shape.swallow
            if lane.outbox.shape.finish and not lane.finished:
                lane.finished = True
                lane.finish(now)
            times.append(again)
        self._rule_tick = min((time for time in times if time is not None), default=None)
        self._emit_fired()

    def _emit_fired(self) -> None:
        """Tell of the link rules that came into force: they belong to no frame."""
        self.actions += map(Emit, self._bound.fired)
        self._bound.fired.clear()

    def _end(self, cause: str, detail: str = "", *, reset: bool = False) -> None:
        if not self.over:
            self.over = True
            self.actions.append(End(cause, detail, reset))

    def _stopped(self, lane: Lane) -> bool:
        return self.over or lane.ended or lane.finished

    def drain(self, now: int) -> list[Action]:
        """End the connection where all that the client has sent so far is answered."""
        if not self.over and not self.lanes[C2S].mid_frame:
            self._fence(now).end = (causes.DRAINED, "natsproxy is shutting down")
        return self._done()

    def _done(self) -> list[Action]:
        done, self.actions = self.actions, []
        for lane in self.lanes:
            lane.actions = self.actions
        return done


_HANDLERS: dict[tuple[Direction, Op], Callable[[Session, Lane, Frame, int, int], bool]] = {
    (C2S, Op.CONNECT): Session._on_connect,
    (C2S, Op.SUB): Session._on_sub,
    (C2S, Op.UNSUB): Session._on_unsub,
    (S2C, Op.INFO): Session._on_info,
    (S2C, Op.PONG): Session._on_pong,
    (S2C, Op.OK): Session._on_ok,
    (S2C, Op.ERR): Session._on_err,
    (S2C, Op.MSG): Session._on_message,
    (S2C, Op.HMSG): Session._on_message,
}
"""What the session itself does about a frame before the rules see it, by direction and op."""
