"""A proxied connection: bytes and time in, actions out.

Theory
1. Each direction is a `DirectionPipe` with a scanner.  The session gives meaning to the few ops that carry
   state (`HANDLERS`), asks the rules about the frames they want, and lets `RuleRunner` carry decisions out.
2. Answers of ours to the client take the server's place in the server's order: the answered frame is replaced
   upstream by a fence, and the answer is sent when the fence's PONG arrives (`fences.py`).  So neither
   verbose nor pedantic mode needs any counting.
3. Nothing is injected inside a frame; nothing asynchronous is injected for the client between its CONNECT
   and its first PONG (`login.py`); bytes that cannot be framed are not forwarded, unless configured: the
   client gets the error that nats-server would send, at the same place.
4. The end of the client's stream is forwarded to the server, which then ends its own.  The end of the
   the server's stream ends the connection, after the frames that still wait for the client.
5. In a drain the client gets an INFO, as from a server in lame duck mode.  A fence marks the point at which
   the server has processed all bytes of the client.  After that the connection stays open until no request
   is unanswered; the caller has the deadline.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import add
from typing import Any, Final

from natsproxy import close_reasons
from natsproxy.capture.filter.redact import redact_frames
from natsproxy.protocol.errors import (
    AUTHORIZATION,
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
from natsproxy.rules.interface import BatchResult, Chain, Decision
from natsproxy.session.connection import ProxiedConnection
from natsproxy.session.direction import UNSENT, Deciding, DirectionPipe, PassedFrames
from natsproxy.session.login import Login, client_info, lame_duck
from natsproxy.session.phase import (
    AFTER_CONNECT,
    FIRST_STOPPED,
    OVER,
    REFUSED,
    UNFRAMED,
    Phase,
    PhaseEvent,
    PipeEvent,
)
from natsproxy.session.rule_runner import NEVER, RuleRunner
from natsproxy.session.subscriptions import MOST_REFUSED
from natsproxy.session.values import (
    NO_CERTIFICATE,
    UNLIMITED,
    UNLIMITED_WORK,
    Action,
    Budget,
    Certificate,
    Hooks,
    SessionSettings,
    Traffic,
    WorkLimit,
)
from natsproxy.wire import encode
from natsproxy.wire.frames import Body, Frame, FramingFault, Malformed, Opaque, Run
from natsproxy.wire.ops import C2S, MESSAGE_OPS, S2C, SUBSCRIPTION_OPS, Direction, Op

SHORT: Final = 4_096
"""Reads up to this size (bytes) send their first `TOGETHER` frames in one write: some clients expect it."""
TOGETHER: Final = 16
LONG: Final = 16_384
"""The decision on a frame with more bytes of headers is made in steps."""
MOST: Final = 1024  # adjacent frames in one batch
MOST_LINES: Final = 256  # adjacent SUB and UNSUB lines in one batch
_CONNECT: Final = b"Cc"  # the first bytes that nats-server accepts from a client that has to log in
_OP: Final = 4  # the index of `Frame.op`: the look-up by name costs twice as much
_ANSWERS: Final = {
    FramingFault.UNKNOWN_OP: "Unknown Protocol Operation",
    FramingFault.TERMINATOR: "Unknown Protocol Operation",
    FramingFault.REFUSED: "Unknown Protocol Operation",
    FramingFault.LINE_TOO_LONG: "maximum control line exceeded",
    FramingFault.SILENT: None,
}
"""The text of nats-server's -ERR by framing fault; None where it closes without one."""


class Session:
    """The state machine of one connection.

    connection: its parts, and what is known of its peers.  pipes: its two directions, c2s first; a relay
    reads their `pending`, `handled`, `full`, `ended` and `passed_on` itself.  runner: applies the rules.
    conn, ordinal: its number, in events and records, and among the accepted connections.  record: whether
    records are made from the start.  hooks: the functions of the proxy that it calls.
    """

    def __init__(
        self,
        settings: SessionSettings,
        chain: Chain,
        *,
        conn: int,
        ordinal: int,
        address: str,
        certificate: Certificate = NO_CERTIFICATE,
        record: bool,
        now: int,
        budget: Budget | None = None,
        hooks: Hooks = Hooks(),  # noqa: B008 (it is immutable)
    ) -> None:
        self.connection = connection = ProxiedConnection(
            settings, conn, ordinal, address, certificate, record, budget or Budget(UNLIMITED)
        )
        self.pipes = connection.pipes
        self.runner = RuleRunner(connection, chain, now)
        self._lifecycle = connection.lifecycle
        self._fences = connection.fences
        self._subscriptions = connection.subscriptions
        self._login = Login(connection, self.runner, hooks)
        self._heard = hooks.heard
        self._rules_due: int | None = None  # when the rules have something to do without a frame
        self._delayed_ends: dict[Direction, int] = {}  # until when (ns) a rule keeps ends of streams back
        self._check_at: int | None = None  # when to look whether the client has all frames

    # -- facts

    @property
    def over(self) -> bool:
        """True if the end has been asked for."""
        return self._lifecycle.phase is OVER

    @property
    def arrived(self) -> bool:
        """True if the client has had its first PONG."""
        return self._lifecycle.phase is Phase.READY

    @property
    def client_spoke(self) -> bool:
        """True if any byte has come from the client."""
        return self.pipes[C2S].in_bytes > 0

    @property
    def frames_sent(self) -> int:
        """The number of frames that went out, of both directions."""
        return sum(pipe.out_next for pipe in self.pipes)

    @property
    def unrecorded(self) -> bool:
        """True if `closed` has more records to return."""
        return any(pipe.unsent for pipe in self.pipes)

    def counts(self) -> dict[str, int]:
        """Return the received bytes and frames by direction, for the record of the connection's end."""
        c2s, s2c = self.pipes
        return {
            "c2s_bytes": c2s.in_bytes,
            "c2s_frames": c2s.scanner.ordinal,
            "s2c_bytes": s2c.in_bytes,
            "s2c_frames": s2c.scanner.ordinal,
        }

    def traffic(self) -> Traffic:
        """Return the frames and bytes at the four points."""
        numbers: list[int] = []
        for pipe in self.pipes:
            came, sender = pipe.scanner.counts, pipe.sender
            numbers += came
            numbers.append(pipe.in_bytes + pipe.unread)
            numbers += map(add, came, sender.surplus)
            numbers.append(sender.out_bytes)
        return Traffic(numbers)

    def snapshot(self) -> dict[str, Any]:
        """Return the state of the connection, without secrets, for the preamble of a capture.

        info, connect: the last INFO and CONNECT.  subs: sid, subject, queue, max and delivered of each live
        subscription.  ordinals: the number of the next frame by direction and leg.  open: who the client is.
        """
        connection, delivered, (c2s, s2c) = self.connection, self._subscriptions.delivered, self.pipes
        facts = {"client": connection.address, "ordinal": connection.ordinal, "key": connection.key}
        return {
            "info": redact_frames(connection.last_info, S2C),
            "connect": self.redacted_connect,
            "subs": [
                [sub.sid, sub.subject, sub.queue, sub.max, delivered(sub)] for sub in connection.subs.values()
            ],
            "ordinals": {
                "c2s_in": c2s.next_in,
                "c2s_out": c2s.out_next,
                "s2c_in": s2c.next_in,
                "s2c_out": s2c.out_next,
            },
            "open": {**facts, **connection.login()},
        }

    def record(self, on: bool) -> None:
        """Make records from the next frame on, or stop making them."""
        for pipe in self.pipes:
            if pipe.open is not None and pipe.records.on != on:
                pipe.open.cut = True  # a record must not join bytes that were not adjacent
            pipe.records.on = on

    def facts(self, now: int) -> dict[str, object]:
        """Return the state for an operator: key, phase, whether suspended or paused."""
        return {
            "key": self.connection.key,
            "phase": self._lifecycle.phase.name.lower(),
            "suspended": self.runner.suspended,
            "paused": now < self.runner.paused_until,
        }

    @property
    def redacted_connect(self) -> bytes:
        """The client's last CONNECT without its secrets; b"" if none came."""
        return redact_frames(self.connection.last_connect, C2S)

    def requests(self) -> frozenset[bytes]:
        """Return the reply subjects of the client's requests that may still get an answer."""
        return frozenset() if self.over else self._subscriptions.requests()

    def take_actions(self) -> list[Action]:
        """Return the actions since the last call."""
        return self.connection.actions.take()

    # -- frames that bypass the session

    def clear(self, direction: Direction) -> bool:
        """Return whether unwanted frames may bypass the session: it has nothing to do between them."""
        phase = self._lifecycle.phase
        return (
            (phase is Phase.READY or phase is Phase.CONNECTED)
            and self.pipes[direction].clear
            and self._lifecycle.drained is None  # a drain waits for the last answer
        )

    def decisions(self, direction: Direction) -> object | None:
        """Return the rules' decisions that hold now (see `ConnectionRules.decisions`)."""
        if self.runner.batch_function(self.pipes[direction]) is None:
            return None
        return self.runner.rules.decisions(direction)

    def catch_up(self, passed: PassedFrames) -> None:
        """Count the frames that were bypassed, and emit the firings of rules on them."""
        for pipe in self.pipes:
            taken = passed.take(pipe.direction)
            if taken is not None:
                pipe.catch_up(taken)
                self.runner.emit_fired()

    def take_over(self, rests: tuple[bytes, bytes]) -> None:
        """Take over the unfinished control lines from a plane that gives the legs back."""
        for pipe, rest in zip(self.pipes, rests, strict=True):
            pipe.take_over(rest)

    # -- bytes

    def receive(
        self, direction: Direction, data: bytes, now: int, limit: WorkLimit = UNLIMITED_WORK
    ) -> list[Action]:
        """Handle bytes of one direction; return the actions that follow, in order.

        Where the limit is reached first, `pipe.pending` says so: the next call goes on from there, without
        bytes.
        """
        pipe = self.pipes[direction]
        pipe.pending = False
        pipe.handled = 0
        pipe.in_bytes += len(data)
        if self._lifecycle.phase is OVER or pipe.phase >= FIRST_STOPPED:
            return self.take_actions()
        # Only the first bytes of a client: later, the same bytes may be part of a payload.
        if direction == C2S and pipe.in_bytes == len(data) and self._login.turn_away(data, now):
            return self.take_actions()
        if pipe.phase is UNFRAMED:
            pipe.pass_unframed(data, now)
            return self.take_actions()
        pipe.set_buffer_limit()
        if data:
            pipe.scanner.feed(data)
        phase = self._lifecycle.phase
        special = self._lifecycle.shut or phase is REFUSED
        special = special or (self.runner.rules.connect_first and phase not in AFTER_CONNECT)
        if special and direction == C2S and not pipe.waiting:
            self._first_frame(pipe, now)
        if pipe.deciding is not None:
            self._continue_deciding(pipe, now, limit)
            pipe.pending = pipe.deciding is not None
        if not (pipe.pending or pipe.waiting or self.over or pipe.phase >= FIRST_STOPPED):
            self._scan(pipe, now, limit, TOGETHER if 0 < len(data) <= SHORT else 0)
        pipe.flush(now)
        self.runner.emit_fired()
        # Both: a frame of one direction may inject an answer into the other.
        for each in self.pipes:
            each.charge()
        if self.connection.secrets.alert:
            self._forget_secrets()
        self._end_if_answered()
        return self.take_actions()

    def _forget_secrets(self) -> None:
        """Free memory of the redaction once no received frame is still to be recorded."""
        if not any(pipe.pending or pipe.open or pipe.outbox.bytes for pipe in self.pipes):
            self.connection.secrets.forget_answered()

    def _first_frame(self, pipe: DirectionPipe, now: int) -> None:
        """Handle the next frame of a client that cannot be served, or that must authenticate first."""
        first = pipe.scanner.ordinal
        segment = pipe.scanner.next()
        if segment is None:
            return
        is_connect = isinstance(segment, Frame) and segment.op == Op.CONNECT
        if isinstance(segment, Frame) and is_connect:
            # Even if the client is turned away: the log names it, and its connection key counts.
            self._login.connect(pipe, segment, first, now)
        elif isinstance(segment, Frame):
            pipe.drop(segment, first, now, "proxy")
        elif isinstance(segment, Run):
            pipe.lose(segment, first, now, "proxy")
        if self._lifecycle.phase is REFUSED:
            refusal = self._login.refusal or ""
            self.pipes[S2C].inject(encode.err(f"natsproxy: {refusal}"), Op.ERR.bit, now, "proxy")
            self._lifecycle.end(close_reasons.REFUSED, refusal)
        elif isinstance(segment, Malformed) and segment.buffer[segment.start] in _CONNECT:
            self._malformed(pipe, segment, now)
        elif not is_connect:
            self._login.refuse_early(pipe, now)

    def _scan(self, pipe: DirectionPipe, now: int, limit: WorkLimit, least: int) -> None:
        """Handle the scanner's segments until it needs more bytes or the limit is reached.

        least: the frames that are handled however long they take.
        """
        scanner, lifecycle, secrets = pipe.scanner, self._lifecycle, self.connection.secrets
        scanner.most = limit.frames
        begin = first = scanner.ordinal
        stop = first + limit.frames
        while (segment := scanner.next()) is not None:
            if scanner.odd or secrets.alert:
                secrets.look(pipe.direction, [segment])
            if isinstance(segment, Run):
                if pipe.swallowing:
                    self._swallow_run(pipe, segment, first, now)
                else:
                    pipe.pass_(segment, first, now)
            elif isinstance(segment, Frame):
                decide_batch = self.runner.batch_function(pipe)
                if (
                    decide_batch is None
                    or segment.op not in MESSAGE_OPS
                    or segment.missing
                    or pipe.outbox.paced
                ):
                    self._handle_frame(pipe, segment, first, now, limit)
                    if segment.op in SUBSCRIPTION_OPS:
                        self._subscription_lines(pipe, now, stop - scanner.ordinal)
                else:
                    self._handle_batch(pipe, segment, first, now, limit)
            elif isinstance(segment, Body):
                pipe.body(segment, now)
            elif isinstance(segment, Malformed):
                self._malformed(pipe, segment, now)
            else:
                self._opaque(pipe, segment, now)
            if lifecycle.phase is OVER or pipe.phase >= FIRST_STOPPED:
                break
            # Not `first` plus the frames taken: `_handle_batch` may have given some back.
            first = scanner.ordinal
            over = (
                first >= stop
                or pipe.waiting
                or pipe.deciding is not None
                or (first - begin >= least and limit.reached())
            )
            if over and not pipe.unframed:
                # The scanner has read one frame ahead, and rules may change before the next call.
                scanner.untake([])
                pipe.pending = not pipe.waiting
                break
        pipe.handled = scanner.ordinal - begin

    # -- frames that rules or the session want to see

    def _handle_frame(
        self, pipe: DirectionPipe, frame: Frame, ordinal: int, now: int, limit: WorkLimit = UNLIMITED_WORK
    ) -> None:
        """Handle one frame; ordinal: its number in its direction.

        Where the limit is reached during the decision on long headers, `pipe.deciding` says so.
        """
        handler = HANDLERS.get((pipe.direction, frame.op))
        if handler is not None and not handler(self, pipe, frame, ordinal, now):
            return
        if pipe.swallowing and self.runner.swallow(pipe, frame, ordinal, now):
            return
        if frame.header_size > LONG:
            pipe.deciding = Deciding(frame, ordinal, self.runner.steps(pipe, frame, now))
            self._continue_deciding(pipe, now, limit)
        else:
            self._decided(pipe, frame, ordinal, self.runner.decide(pipe, frame, now), now)

    def _continue_deciding(self, pipe: DirectionPipe, now: int, limit: WorkLimit) -> None:
        """Continue a decision that is made in steps, up to the limit."""
        assert pipe.deciding is not None
        frame, ordinal, steps = pipe.deciding
        decision: Decision | None = None
        try:
            while True:
                next(steps)
                if limit.reached():
                    return
        except StopIteration as done:
            decision = done.value
        except Exception as error:  # as in `RuleRunner.decide`
            self.runner.failed(frame, error, now)
        pipe.deciding = None
        self._decided(pipe, frame, ordinal, decision, now)

    def _decided(
        self, pipe: DirectionPipe, frame: Frame, ordinal: int, decision: Decision | None, now: int
    ) -> None:
        if self._lifecycle.phase is OVER:
            return
        if decision is not None:
            self.runner.carry_out(pipe, frame, ordinal, decision, now)
        else:
            self.runner.keep_in_step(pipe, frame, True, None, now)
            self.runner.pass_untouched(pipe, frame, ordinal, now)
        if frame.op == Op.PONG and pipe.direction == S2C:
            self._login.client_has_pong(pipe, now)

    def _subscription_lines(self, pipe: DirectionPipe, now: int, most: int) -> None:
        """Handle plain SUBs and UNSUBs that follow one, `most` at most, if no rule wants them."""
        scanner = pipe.scanner
        wanted = scanner.interest.wants(Op.SUB) or scanner.interest.wants(Op.UNSUB)
        if wanted or pipe.swallowing or self.connection.secrets.alert or self._lifecycle.phase is OVER:
            return
        first = scanner.ordinal
        found = scanner.subscriptions(min(most, MOST_LINES))
        if found is not None:
            run, lines = found
            self._subscriptions.note_lines(lines)
            pipe.pass_(run, first, now)

    # -- adjacent frames, decided on in batches

    def _handle_batch(
        self, pipe: DirectionPipe, frame: Frame, first: int, now: int, limit: WorkLimit
    ) -> None:
        """Handle a whole message frame, whose ordinal is `first`, with the adjacent ones."""
        at = 0
        frames = [frame, *pipe.scanner.more(MOST)]
        if pipe.scanner.odd or self.connection.secrets.alert:  # the session has looked at the first
            self.connection.secrets.look(pipe.direction, frames[1:])
        while at < len(frames) and not (self._lifecycle.phase is OVER or pipe.phase >= FIRST_STOPPED):
            if at and limit.reached():
                break
            for result in self._decide_batches(pipe, frames, at, first, now):
                self._carry_out_batch(pipe, frames[at : result.stop], result, first + at, now)
                at = result.stop
            if at < len(frames) and not self.over:
                self._handle_frame(pipe, frames[at], first + at, now, limit)
                at += 1
                if pipe.deciding is not None:
                    break
        pipe.scanner.untake(frames[at:])

    def _decide_batches(
        self, pipe: DirectionPipe, frames: list[Frame], at: int, first: int, now: int
    ) -> list[BatchResult]:
        decide_batch = self.runner.batch_function(pipe)
        if decide_batch is None or pipe.outbox.paced:
            return []
        try:
            return decide_batch(frames, at, first + at, now)
        except Exception as error:  # as in `RuleRunner.decide`
            self.runner.failed(frames[at], error, now)
            return []

    def _carry_out_batch(
        self, pipe: DirectionPipe, frames: list[Frame], result: BatchResult, first: int, now: int
    ) -> None:
        """Apply the rules' decision on a batch to its frames."""
        out = result.out
        if out is None:
            ops = 0
            for frame in frames:
                ops |= 1 << frame[_OP]
            run = Run(frames[0].buffer, frames[0].start, frames[-1].end, len(frames), ops)
            if result.until is None:
                pipe.pass_(run, first, now)
            else:
                pipe.hold(run, first, now, result.until, result.cause)
        elif out:
            pipe.change(frames, out, first, now, result.cause)
        else:
            for place, frame in enumerate(frames):
                self.runner.keep_in_step(pipe, frame, False, None, now)
                pipe.drop(frame, first + place, now, result.cause)

    # -- handlers by op: each returns whether the rules are to see the frame

    def _on_connect(self, pipe: DirectionPipe, frame: Frame, ordinal: int, now: int) -> bool:
        self._login.connect(pipe, frame, ordinal, now)
        return False

    def _on_publish(self, pipe: DirectionPipe, frame: Frame, ordinal: int, now: int) -> bool:
        """Refuse a payload above the server's max_payload, in the server's place, at the control line.

        Only where rules look at the frame, since the server would not get all of it; other frames are refused
        by the server itself.
        """
        most = self.connection.info.max_payload
        if not 0 < most < frame.size or (frame.op == Op.HPUB and not self.connection.connect.headers):
            return True
        if not pipe.scanner.interest.need(frame.op, frame.subject):
            return True
        pipe.drop(frame, ordinal, now, "proxy")
        pipe.step(PipeEvent.END)
        why = f"a payload of {frame.size} bytes exceeds the server's max_payload of {most}"
        self._fences.end_here(err_frame(MAX_PAYLOAD.text), close_reasons.CLIENT_PROTOCOL, why, now)
        return False

    def _on_sub(self, pipe: DirectionPipe, frame: Frame, ordinal: int, now: int) -> bool:
        self._subscriptions.sub(frame)
        return True

    def _on_unsub(self, pipe: DirectionPipe, frame: Frame, ordinal: int, now: int) -> bool:
        raw = self._subscriptions.unsub(frame, now, altered=self.runner.rules.alters_delivery)
        if raw is None:
            return True
        pipe.replace(frame, ordinal, Decision((raw,), cause="proxy"), now)
        return False

    def _on_info(self, pipe: DirectionPipe, frame: Frame, ordinal: int, now: int) -> bool:
        self._login.info(pipe, frame, ordinal, now)
        return False

    def _on_client_pong(self, pipe: DirectionPipe, frame: Frame, ordinal: int, now: int) -> bool:
        """Drop a PONG that answers a PING of ours."""
        if not self.connection.client_pings.pong(now):
            return True
        pipe.drop(frame, ordinal, now, "proxy")
        return False

    def _on_pong(self, pipe: DirectionPipe, frame: Frame, ordinal: int, now: int) -> bool:
        """Forward a PONG that is the client's; run the work of a fence."""
        fence = self._fences.pong()
        if fence is None:
            return True
        pipe.drop(frame, ordinal, now, "proxy")
        self._fences.pass_(fence, now)
        return False

    def _on_server_ping(self, pipe: DirectionPipe, frame: Frame, ordinal: int, now: int) -> bool:
        """Answer a PING in the place of a client that is not read because a limit holds its frames back."""
        c2s = self.pipes[C2S]
        if not (c2s.outbox.paced and c2s.full):
            return True
        pipe.drop(frame, ordinal, now, "proxy")
        c2s.inject_ahead(encode.PONG, Op.PONG, now, "proxy")
        return False

    def _on_ok(self, pipe: DirectionPipe, frame: Frame, ordinal: int, now: int) -> bool:
        """Drop a +OK that answers an injected frame."""
        if not self._subscriptions.take_our_ok():
            return True
        pipe.drop(frame, ordinal, now, "proxy")
        return False

    def _on_err(self, pipe: DirectionPipe, frame: Frame, ordinal: int, now: int) -> bool:
        """Note which subscription an -ERR ends, or why the server will close."""
        text = err_text(frame.args)
        error = classify(text)
        if error.kind.closes or error.kind is OTHER:
            self.connection.server_error = text
            self._login.speak_by = None
            self._heard(self.connection.conn, text)
        if error.kind is SUBSCRIPTION_REVOKED:
            self._subscriptions.forget(error.sid)
        elif error.kind is SUBSCRIBE_DENIED or error.kind is TOO_MANY_TOKENS:
            self._subscriptions.refused(error.subject, error.queue)
        elif error.kind is MAX_SUBSCRIPTIONS and self.connection.subs.doubt():
            why = f"the server has refused more than {MOST_REFUSED} of its subscriptions"
            self._lifecycle.end(close_reasons.CLIENT_PROTOCOL, why)
        return True

    def _on_message(self, pipe: DirectionPipe, frame: Frame, ordinal: int, now: int) -> bool:
        """Drop a message of a subscription that was ended here."""
        if frame.sid not in self._subscriptions.closed:
            return True
        pipe.drop(frame, ordinal, now, "proxy")
        return False

    # -- links that lose messages

    def _swallow_run(self, pipe: DirectionPipe, run: Run, first: int, now: int) -> None:
        """Swallow a run of messages; first: the ordinal of its first frame."""
        pipe.lose(run, first, now)
        self.runner.answer_oks(pipe, run.frames, now)

    # -- streams that cannot be framed

    def _malformed(self, pipe: DirectionPipe, bad: Malformed, now: int) -> None:
        """End the connection of a malformed stream, as nats-server does, or pass the stream unread."""
        pipe.flush(now)
        where = f"{pipe.direction.label} byte {bad.offset}: {bad.reason}"
        if pipe.direction == S2C:
            pipe.step(PipeEvent.END)
            self._lifecycle.end(close_reasons.SERVER_PROTOCOL, where)
        elif self.connection.settings.unparsed == "pass" and not (
            self.runner.chain.guards or self._lifecycle.shut
        ):
            self._lifecycle.notice("warning", f"client stream is not NATS, passing it unparsed: {where}", now)
            pipe.step(PipeEvent.UNFRAME)
            pipe.pass_unframed(pipe.scanner.rest(), now)
        elif bad.streaming:
            # The server is waiting for CRLF too: it gets the same wrong bytes, and answers them itself.
            pipe.cut(bad.buffer[bad.start : bad.end], now)
            self._lifecycle.notice("warning", where, now)
        else:
            # The -ERR goes out where the server's would: after the replies to all earlier frames.
            pipe.step(PipeEvent.END)
            text = _ANSWERS[bad.fault]
            answer = b"" if text is None else encode.err(text)
            self._fences.end_here(answer, close_reasons.CLIENT_PROTOCOL, where, now)

    def _opaque(self, pipe: DirectionPipe, segment: Opaque, now: int) -> None:
        """Pass the server's stream unparsed from an unknown operation on, unless a rule needs it."""
        if self._refuse_unframed():
            return
        text = "unknown operation from the server: passing its stream unparsed"
        self._lifecycle.notice("warning", text, now)
        pipe.step(PipeEvent.UNFRAME)
        pipe.pass_unframed(segment.buffer[segment.start : segment.end], now)

    def _refuse_unframed(self) -> bool:
        """End the connection if a rule needs the server's stream, which is no longer framed; return that."""
        needed = self.runner.chain.guards or bool(self.runner.rules.interest[S2C].clauses)
        if needed:
            text = "unknown operation from the server: rules cannot be applied to its stream"
            self._lifecycle.end(close_reasons.SERVER_PROTOCOL, text)
        return needed

    # -- the end of a stream

    def eof(self, direction: Direction, now: int) -> list[Action]:
        """Handle the end of a direction's stream; return the actions that follow."""
        pipe = self.pipes[direction]
        if direction == C2S and (
            self._lifecycle.shut or pipe.waiting
        ):  # its last bytes are not for the server
            self._lifecycle.end(close_reasons.CLIENT_CLOSED)
        elif pipe.outbox.conditions.fin_delay:
            self._delayed_ends[direction] = now + pipe.outbox.conditions.fin_delay
        else:
            self._end_stream(pipe, now)
        return self.take_actions()

    def _end_delayed(self, now: int) -> None:
        """Handle the stream ends that a rule has delayed until now."""
        for direction in [each for each, until in self._delayed_ends.items() if until <= now]:
            del self._delayed_ends[direction]
            self._end_stream(self.pipes[direction], now)

    def _end_stream(self, pipe: DirectionPipe, now: int) -> None:
        if not pipe.ended:
            pipe.cut(pipe.scanner.rest(), now)
        if pipe.direction == C2S:
            pipe.flush(now)
            pipe.sender.finish(now)
        elif pipe.outbox.active:
            pipe.flush(now)
            pipe.sender.finish(now)
            self._check_at = now
        else:
            self._end_by_server()

    def _end_if_sent(self) -> None:
        """End the connection if the server's stream is over and the client has all of it."""
        c2s, s2c = self.pipes
        self._check_at = None  # frames that still wait have times of their own
        # Both peers have ended, and what waits never goes out.
        stuck = c2s.ended and s2c.outbox.conditions.paused and self.runner.next_due is None
        if s2c.ended and (stuck or not s2c.outbox.waiting):
            self._end_by_server()

    def _end_by_server(self) -> None:
        lifecycle, error = self._lifecycle, self.connection.server_error
        if lifecycle.phase is REFUSED:
            lifecycle.end(close_reasons.REFUSED, self._login.refusal or "")
        elif error:
            # The server is the cause even if the client closes because of it.
            identity = self.connection.settings.identity
            ours = identity is not None and identity.logs_in
            whom = " to natsproxy's own login" if ours and error == AUTHORIZATION.text else ""
            lifecycle.end(close_reasons.SERVER_CLOSED, f"the server said {error!r}{whom}")
        elif self.pipes[C2S].ended:
            lifecycle.end(close_reasons.CLIENT_CLOSED)
        else:
            lifecycle.end(close_reasons.SERVER_CLOSED)

    # -- time

    def tick(self, now: int, limit: WorkLimit = UNLIMITED_WORK) -> list[Action]:
        """Do the work that is due; work beyond the limit stays due (`next_tick`)."""
        lifecycle, runner = self._lifecycle, self.runner
        if lifecycle.phase is OVER:
            return self.take_actions()
        self._end_delayed(now)
        self._login.end_if_stalled(now)
        runner.update_conditions(now)
        injected, close, self._rules_due = runner.rules.due(now)
        runner.emit_fired()
        for direction, raw in injected:
            if lifecycle.phase is Phase.READY or (direction == C2S and not lifecycle.shut):
                self.pipes[direction].inject(raw, 0, now, "rule")
        if close is not None:
            runner.close(self.pipes[S2C], close, now)
        # Held frames leave in the order of their times on both legs, as far as one call can do that.
        paced = self.pipes[C2S].outbox.paced
        for pipe in sorted(self.pipes, key=lambda pipe: pipe.outbox.next_due() or 0):
            pipe.sender.release(now, limit)
            pipe.charge()
        if paced and not self.pipes[C2S].outbox.paced:
            self._subscriptions.watch_ops()
        self._fences.pass_overdue(now)
        for pipe in self.pipes:
            if pipe.boundary_by is not None and pipe.boundary_by <= now:
                text = f"{pipe.direction.label}: a frame was not completed in time"
                lifecycle.end(close_reasons.MID_FRAME, text)
        self._end_if_sent()
        self._end_if_answered()  # a rule may have kept the last answer back until now
        return self.take_actions()

    def next_tick(self) -> int | None:
        """Return the time (ns) at which `tick` is to be called next; None for not at all."""
        if self._lifecycle.phase is OVER:
            return None
        times = [self.runner.next_due, self._rules_due, self._login.speak_by, self._check_at]
        for pipe in self.pipes:
            times += pipe.boundary_by, pipe.outbox.next_due() if pipe.outbox.bytes else None
        times += self._delayed_ends.values()
        times += self._fences.deadlines()
        return min([time for time in times if time is not None], default=None)

    # -- control: an operator's commands return nothing, their actions are taken by `take_actions`

    def suspend(self, now: int, *, on: bool) -> None:
        """Drop all messages of both directions from the next frame on, or pass them again.

        Both legs stay alive: PINGs are answered, by us where the server does not.  SUB, UNSUB, CONNECT, INFO
        and -ERR pass: without them the two sides would stay out of sync.
        """
        self.runner.suspended = on
        self.runner.update_conditions(now)

    def pause(self, now: int, *, lasts: int | None) -> None:
        """Stop reading from both sides for `lasts` ns; None: until resumed with 0."""
        self.runner.paused_until = NEVER if lasts is None else now + lasts
        self.runner.update_conditions(now)

    def send_held(self, now: int) -> None:
        """Send the frames that rules hold back, from the next tick on."""
        for pipe in self.pipes:
            pipe.outbox.make_due(now)

    def expel(self, now: int, *, error: str, cause: str, detail: str) -> None:
        """End the connection with an -ERR for the client, after the frame that is being sent to it."""
        if not self.over:
            self.pipes[S2C].inject(encode.err(error), Op.ERR.bit, now, "proxy")
            self._lifecycle.end(cause, detail)

    def ask(self, now: int, answered: Callable[[int], None]) -> None:
        """Ask the client for a sign of life: send it a PING; call `answered` when its PONG comes.

        Not before the client's first PONG: until then the PING waits.
        """
        if not self.over:
            self.connection.client_pings.ask(answered, now)

    def lame_duck(self, now: int) -> None:
        """Send the client an INFO in lame duck mode, as a server that is shutting down does.

        Only if the client accepts INFO at any time and has had its first PONG, and no rule handles INFO.
        """
        connection, pipe = self.connection, self.pipes[S2C]
        takes_info = self.arrived and connection.connect.protocol > 0
        if takes_info and not pipe.scanner.interest.need(Op.INFO, b""):
            args = lame_duck(client_info(connection.last_info[len("INFO") :].strip(), connection.settings))
            pipe.inject(encode.info(args), Op.INFO.bit, now, "proxy")

    def drain(self, now: int, *, answers: bool = True) -> None:
        """End the connection once the server has processed all that the client has sent so far.

        answers: wait until its requests are answered, too.
        """
        if self.over or self.pipes[C2S].unframed:
            return
        if self._lifecycle.shut:  # it has no answers to wait for
            self._lifecycle.end(close_reasons.DRAINED, "natsproxy is shutting down")
            return
        fence = self._fences.fence(now)
        # A fence that ends the connection for another cause keeps that cause.
        fence.end = fence.end or (close_reasons.DRAINED, "natsproxy is shutting down")
        fence.drains = answers

    def _end_if_answered(self) -> None:
        """End a connection that waits for answers, if none is due and the last one has gone to the client."""
        end, s2c = self._lifecycle.drained, self.pipes[S2C]
        if end is not None and not (s2c.mid_frame or s2c.outbox.bytes or self.requests()):
            self._lifecycle.end(*end)

    # -- control: calls of the proxy

    def authenticated(self, refusal: str | None, now: int) -> list[Action]:
        """Handle the answer to `Authenticate`.  refusal: the reason, None if the client may log in."""
        self._login.answered(refusal, now)
        self.runner.emit_fired()
        return self.take_actions()

    def stop(self) -> None:
        """Note that the connection is gone: from now on only `closed` returns actions."""
        self._lifecycle.step(PhaseEvent.END)

    def swap(self, chain: Chain, now: int, limit: WorkLimit = UNLIMITED_WORK) -> list[Action]:
        """Swap the chain, between frames, once the live subscriptions were checked under it.

        Where the limit is reached first, `chain` is still the old one: the next call goes on from there.
        """
        # A decision in progress is completed by the rules that began it.
        if not self.over and not any(pipe.deciding for pipe in self.pipes):
            self.runner.swap(chain, now, limit)
        if self.runner.chain is chain and self.pipes[S2C].unframed:
            self._refuse_unframed()
        return self.take_actions()

    def fence(self, then: Callable[[int], None], now: int) -> list[Action]:
        """Call `then` once the server has processed all that the client has sent so far."""
        if self.over or self._lifecycle.shut or self.pipes[C2S].mid_frame:
            then(now)
        else:
            self._fences.then(then, now)
        return self.take_actions()

    def closed(self, now: int, limit: WorkLimit = UNLIMITED_WORK) -> list[Action]:
        """Let the rules forget a connection that is gone; return the records of frames that were not sent.

        While the session is `unrecorded`, there is more to come.
        """
        self.runner.rules.close(now)
        self._login.abandon(now, UNSENT)
        for pipe in self.pipes:
            pipe.abandon(now, limit)
            pipe.refund()
        return self.take_actions()

    def dispose(self) -> None:
        """Break reference cycles; call last."""
        self.connection.secrets.close()
        self._fences.clear()
        self.connection.client_pings.clear()


HANDLERS: Final[dict[tuple[Direction, Op], Callable[[Session, DirectionPipe, Frame, int, int], bool]]] = {
    (C2S, Op.CONNECT): Session._on_connect,
    (C2S, Op.PUB): Session._on_publish,
    (C2S, Op.HPUB): Session._on_publish,
    (C2S, Op.SUB): Session._on_sub,
    (C2S, Op.UNSUB): Session._on_unsub,
    (C2S, Op.PONG): Session._on_client_pong,
    (S2C, Op.INFO): Session._on_info,
    (S2C, Op.PING): Session._on_server_ping,
    (S2C, Op.PONG): Session._on_pong,
    (S2C, Op.OK): Session._on_ok,
    (S2C, Op.ERR): Session._on_err,
    (S2C, Op.MSG): Session._on_message,
    (S2C, Op.HMSG): Session._on_message,
}
"""The session's own handling of a frame before its rules, by direction and op; other ops have none."""
