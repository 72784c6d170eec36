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

from collections.abc import Callable

from natsproxy.events import Notice
from natsproxy.protocol.errors import AUTH_TIMEOUT
from natsproxy.rules.interface import BatchResult, Chain, FastPathFunction
from natsproxy.session import close_reasons
from natsproxy.session.actions import Action, Emit
from natsproxy.session.direction_pipe import DirectionPipe
from natsproxy.session.greeting import lame_duck, other_protocol, rewritten
from natsproxy.session.handlers import HANDLERS, Handlers
from natsproxy.session.turn import ENDLESS, Turn
from natsproxy.wire import encode
from natsproxy.wire.frames import Body, Fault, Frame, Malformed, Opaque, Run
from natsproxy.wire.ops import C2S, MESSAGE_OPS, S2C, Direction, Op

MOST = 1024  # neighbouring frames that are dealt with together

_ANSWERS = {
    Fault.UNKNOWN_OP: "Unknown Protocol Operation",
    Fault.TERMINATOR: "Unknown Protocol Operation",
    Fault.REFUSED: "Unknown Protocol Operation",
    Fault.LINE_TOO_LONG: "maximum control line exceeded",
    Fault.SILENT: None,
}


class Session(Handlers):
    """The state machine of one connection: events in, actions out."""

    def receive(self, direction: Direction, data: bytes, now: int, turn: Turn = ENDLESS) -> list[Action]:
        """Take bytes of one direction; return what is to be done, in order.

        Where the turn ends first, `lane.pending` says so: the next call, without bytes, goes on from there.
        """
        pipe = self.pipes[direction]
        pipe.pending = False
        pipe.in_bytes += len(data)
        if self._stopped(pipe):
            return self._done()
        if direction == C2S and pipe.in_bytes == len(data):
            other = other_protocol(data)
            if other is not None:
                self._end(close_reasons.CLIENT_PROTOCOL, f"the client sent {other}")
                return self._done()
        if pipe.unread:
            pipe.pass_unread(data, now)
            return self._done()
        if self._refusal is not None and direction == C2S:
            self._turn_away(pipe, data, now)
            return self._done()
        pipe.limit()
        if data:
            pipe.scanner.feed(data)
        self._scan(pipe, now, turn)
        pipe.flush(now)
        self._emit_fired()
        for each in self.pipes:
            each.charge()
        return self._done()

    def _scan(self, pipe: DirectionPipe, now: int, turn: Turn) -> None:
        """Deal with what is in the scanner until it wants more bytes or the turn is over."""
        scanner = pipe.scanner
        scanner.most = turn.frames
        first = scanner.ordinal
        stop = first + turn.frames
        while (segment := scanner.next()) is not None:
            if isinstance(segment, Run):
                if pipe.swallowing:
                    pipe.lose(segment, first, now)
                else:
                    pipe.pass_(segment, first, now)
                    if pipe.direction == C2S:
                        self._last_fence = None
            elif isinstance(segment, Frame):
                fastpath = self._fastpath(pipe)
                if fastpath is None or segment.op not in MESSAGE_OPS or segment.missing:
                    self._frame(pipe, segment, first, now)
                else:
                    self._neighbours(pipe, [segment, *scanner.more(MOST)], first, now, turn)
            elif isinstance(segment, Body):
                pipe.body(segment, now)
            elif isinstance(segment, Malformed):
                self._malformed(pipe, segment, now)
            else:
                self._opaque(pipe, segment, now)
            if self._stopped(pipe):
                break
            first = scanner.ordinal
            if (first >= stop or turn.spent()) and not pipe.unread:
                scanner.untake([])
                pipe.pending = True
                break

    def eof(self, direction: Direction, now: int) -> list[Action]:
        """The sender of `direction` will send no more."""
        pipe = self.pipes[direction]
        if pipe.outbox.conditions.linger:
            self._lingering[direction] = now + pipe.outbox.conditions.linger
        else:
            self._eof(pipe, now)
        return self._done()

    def _eof(self, pipe: DirectionPipe, now: int) -> None:
        if not pipe.ended:
            pipe.cut(pipe.scanner.rest(), now)
        if pipe.direction == C2S:
            pipe.finish(now)
        elif pipe.outbox.active:
            pipe.finish(now)
            self._checkpoint = now
        else:
            self._ended_by_peer()

    def _ended_by_peer(self) -> None:
        if self._refusal is not None:
            self._end(close_reasons.REFUSED, self._refusal)
        elif self.server_error:  # a client that closes because of it does not make it the client's doing
            self._end(close_reasons.SERVER_CLOSED, f"the server said {self.server_error!r}")
        else:
            self._end(close_reasons.CLIENT_CLOSED if self.pipes[C2S].ended else close_reasons.SERVER_CLOSED)

    def _turn_away(self, pipe: DirectionPipe, data: bytes, now: int) -> None:
        """Tell a client why it cannot be served, where it looks for it: in the answer to its first frame."""
        pipe.scanner.feed(data)
        segment = pipe.scanner.next()
        if segment is None:
            return
        if isinstance(segment, Frame) and segment.op == Op.CONNECT:
            self._on_connect(pipe, segment, 0, now)
        self.pipes[S2C].inject(encode.err(f"natsproxy: {self._refusal}"), Op.ERR.bit, now, "proxy")
        self._end(close_reasons.REFUSED, self._refusal or "")

    def _stalled(self, now: int) -> None:
        """End a connection whose client has had its INFO and says nothing, as the server does."""
        self._speak_by = None
        spoken, heard = self.pipes
        if heard.outbox.bytes or spoken.full:  # a rule keeps it from hearing or speaking
            self._speak_by = now + self._settings.auth_timeout
        elif not spoken.scanner.ordinal and not spoken.mid_frame:
            heard.inject(encode.err(AUTH_TIMEOUT.text), Op.ERR.bit, now, "proxy")
            self._end(close_reasons.STALLED, "the client said nothing in the auth time-out")

    def tick(self, now: int, turn: Turn = ENDLESS) -> list[Action]:
        """Do what is due; what the turn leaves is still due (`next_tick`)."""
        if self.over:
            return self._done()
        for direction in [way for way, time in self._lingering.items() if time <= now]:
            del self._lingering[direction]
            self._eof(self.pipes[direction], now)
        if self._speak_by is not None and self._speak_by <= now:
            self._stalled(now)
        self._update_conditions(now)
        injected, close, self._checkpoint = self._rules.due(now)
        self._emit_fired()
        for direction, raw in injected:
            if direction == C2S or self._client_ready:
                self.pipes[direction].inject(raw, 0, now, "rule")
        if close is not None:
            self._close_verdict(self.pipes[S2C], close.cause, close.raw, close.reset, now)
        for pipe in sorted(self.pipes, key=lambda pipe: pipe.outbox.next_due() or 0):  # the later one last
            pipe.tick(now, turn)
            pipe.charge()
        for fence in self._pongs.fences():
            if fence.end is not None and fence.deadline <= now:
                self._passed(fence, now)
        for pipe in self.pipes:
            if pipe.boundary_by is not None and pipe.boundary_by <= now:
                self._end(
                    close_reasons.MID_FRAME, f"{pipe.direction.label}: a frame began and did not end in time"
                )
        if self.pipes[S2C].ended and not self.pipes[S2C].outbox.active:
            self._ended_by_peer()
        return self._done()

    def next_tick(self) -> int | None:
        """When (ns) `tick` is to be called next; None for not at all."""
        quiet = self._rule_tick is None and self._checkpoint is None and not self._pongs.waiting
        quiet = quiet and not self._lingering and self._speak_by is None
        if self.over or (quiet and not any(pipe.outbox.bytes or pipe.boundary_by for pipe in self.pipes)):
            return None
        times = [
            self._rule_tick,
            self._checkpoint,
            self._speak_by,
            *(pipe.outbox.next_due() for pipe in self.pipes),
        ]
        times += self._lingering.values()
        times += [pipe.boundary_by for pipe in self.pipes]
        times += [fence.deadline for fence in self._pongs.fences() if fence.end is not None]
        return min((time for time in times if time is not None), default=None)

    def swap(self, chain: Chain, now: int) -> list[Action]:
        """Put another chain in force, between frames."""
        self._chain = chain
        self._bind(now)
        if self.pipes[S2C].unread:
            self._refuse_unread()
        return self._done()

    def fence(self, then: Callable[[int], None], now: int) -> list[Action]:
        """Call `then` where the server has answered all that the client has sent so far."""
        if self.over or self.pipes[C2S].mid_frame:
            then(now)
        else:
            self._fence(now).then.append(then)
        return self._done()

    def lame_duck(self, now: int) -> list[Action]:
        """Tell the client that its connection ends soon, as a server does that is going to stop.

        Only a client that takes INFO at any time and has had its first PONG; a rule about INFO has the last
        word on what clients get.
        """
        pipe = self.pipes[S2C]
        hears = self._client_ready and self.connect.protocol > 0 and not self.over
        if hears and not pipe.scanner.interest.need(Op.INFO, b""):
            args = lame_duck(rewritten(self.last_info[len("INFO") :].strip(), self._settings))
            pipe.inject(encode.info(args), Op.INFO.bit, now, "proxy")
        return self._done()

    def drain(self, now: int) -> list[Action]:
        """End the connection where all that the client has sent so far is answered."""
        if not self.over and not self.pipes[C2S].unread:
            self._fence(now).end = (close_reasons.DRAINED, "natsproxy is shutting down")
        return self._done()

    def closed(self, now: int, turn: Turn = ENDLESS) -> list[Action]:
        """The connection is gone: let the rules forget it; return the records of what was not sent.

        While a lane has something `unsent`, there is more to come.
        """
        self._rules.close(now)
        for pipe in self.pipes:
            pipe.abandon(now, turn)
            pipe.refund()
        return self._done()

    def _fastpath(self, pipe: DirectionPipe) -> FastPathFunction | None:
        """Return the rules' short way, None where each frame must be looked at for our own sake."""
        if pipe.swallowing or (pipe.direction == S2C and (self._closed_sids or self._resubscribing)):
            return None
        return self._rules.fastpath[pipe.direction]

    def _neighbours(self, pipe: DirectionPipe, frames: list[Frame], first: int, now: int, turn: Turn) -> None:
        """Deal with whole message frames that stand side by side; first is the ordinal of the first."""
        at = 0
        while at < len(frames) and not self._stopped(pipe) and not (at and turn.spent()):
            for result in self._batch_results(pipe, frames, at, first, now):
                self._carry_out_batch(pipe, frames[at : result.stop], result, first + at, now)
                at = result.stop
            if at < len(frames) and not self.over:
                self._frame(pipe, frames[at], first + at, now)
                at += 1
        pipe.scanner.untake(frames[at:])

    def _batch_results(
        self, pipe: DirectionPipe, frames: list[Frame], at: int, first: int, now: int
    ) -> list[BatchResult]:
        fastpath = self._fastpath(pipe)
        if fastpath is None:
            return []
        try:
            return fastpath(frames, at, first + at, now)
        except Exception as error:  # as in `_decide`
            self._failed(frames[at], error, now)
            return []

    def _carry_out_batch(
        self, pipe: DirectionPipe, frames: list[Frame], result: BatchResult, first: int, now: int
    ) -> None:
        """Carry out what the rules' short way says of neighbours."""
        out = result.out
        if out is None:
            ops = 0
            for frame in frames:
                ops |= 1 << frame[4]
            run = Run(frames[0].buffer, frames[0].start, frames[-1].end, len(frames), ops)
            if result.until is None:
                pipe.pass_(run, first, now)
            else:
                pipe.hold(run, first, now, result.until, result.cause)
        elif out:
            pipe.change(frames, out, first, now, result.cause)
        else:
            for place, frame in enumerate(frames):
                self._settle(pipe, frame, False, None, now)
                pipe.drop(frame, first + place, now, result.cause)
        if pipe.direction == C2S and out != ():
            self._last_fence = None

    def _frame(self, pipe: DirectionPipe, frame: Frame, ordinal: int, now: int) -> None:
        handler = HANDLERS.get((pipe.direction, frame.op))
        if handler is not None and not handler(self, pipe, frame, ordinal, now):
            return
        if pipe.swallowing and frame.op in MESSAGE_OPS:
            pipe.drop(frame, ordinal, now, "swallow")
            return
        decision = self._decide(pipe, frame, now)
        if self.over:
            return
        if decision is not None:
            self._carry_out(pipe, frame, ordinal, decision, now)
        else:
            self._settle(pipe, frame, True, None, now)
            pipe.pass_(frame, ordinal, now)
        if pipe.direction == C2S and (decision is None or decision.out != ()):
            self._last_fence = None
        if frame.op in (Op.PONG, Op.INFO) and pipe.direction == S2C:
            self._after_pong(pipe, frame, now)

    def _malformed(self, pipe: DirectionPipe, bad: Malformed, now: int) -> None:
        pipe.flush(now)
        pipe.ended = True
        where = f"{pipe.direction.label} byte {bad.offset}: {bad.reason}"
        if pipe.direction == S2C:
            self._end(close_reasons.SERVER_PROTOCOL, where)
        elif self._settings.unparsed == "pass" and not self._chain.guards:
            self.actions.append(Emit(Notice(now, self.conn, "warning", f"passing what is not NATS: {where}")))
            pipe.ended = False
            pipe.unread = True
            pipe.pass_unread(pipe.scanner.rest(), now)
        elif bad.streaming:
            # The server stands where we stand, waiting for CRLF: the same wrong bytes get its own answer.
            pipe.cut(bad.buffer[bad.start : bad.end], now)
            self._fence_end_at_server(now, where)
        else:
            fence = self._fence(now)
            text = _ANSWERS[bad.fault]
            if text is not None:
                fence.answer += encode.err(text)
            fence.end = (close_reasons.CLIENT_PROTOCOL, where)

    def _fence_end_at_server(self, now: int, where: str) -> None:
        self.actions.append(Emit(Notice(now, self.conn, "warning", where)))

    def _refuse_unread(self) -> bool:
        """End the connection if a rule needs the server's stream, which is no longer framed."""
        needed = self._chain.guards or bool(self._rules.interest[S2C].clauses)
        if needed:
            self._end(close_reasons.SERVER_PROTOCOL, "the server sent an operation that no rule can judge")
        return needed

    def _opaque(self, pipe: DirectionPipe, segment: Opaque, now: int) -> None:
        if self._refuse_unread():
            return
        text = "the server sent an operation that natsproxy does not know: passing its stream unread"
        self.actions.append(Emit(Notice(now, self.conn, "warning", text)))
        pipe.unread = True
        pipe.pass_unread(segment.buffer[segment.start : segment.end], now)
