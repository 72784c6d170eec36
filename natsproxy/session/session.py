"""A proxied connection: bytes and time in, actions out.

Theory
1. Each direction is a `DirectionPipe` with a scanner.  The session gives meaning to the few ops that carry
   state (`HANDLERS`), asks the rules about the frames they want, and carries their decisions out: rules
   return decisions and never write to a socket.  A rule that fails ends this connection and no other.
2. Answers of ours to the client take the server's place in the server's order: the answered frame is replaced
   upstream by a fence, and the answer is sent when the fence's PONG arrives (`fences.py`).  So neither
   verbose nor pedantic mode needs any counting.
3. Nothing is injected inside a frame; nothing asynchronous is injected for the client between its CONNECT
   and its first PONG (`login.py`); bytes that cannot be framed are not forwarded, unless configured: the
   client gets the error that nats-server would send, at the same place.
4. The end of the client's stream is forwarded to the server, which then ends its own.  The end of the
   server's stream ends the connection, after the frames that still wait for the client.
5. In a drain the client gets an INFO, as from a server in lame duck mode.  A fence marks the point at which
   the server has processed all bytes of the client.  After that the connection stays open until no request
   is unanswered; the caller has the deadline.
6. The session owns what is known of the connection, and the list of its actions.  Its parts (directions,
   fences, subscriptions, login, life cycle) each own a state and know nothing of the session: they return
   results, or add an action by the function that they are given.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import lru_cache
from operator import add
from typing import Any, Final, NamedTuple

from natsproxy import close_reasons
from natsproxy.capture.filter.redact import Secrets, redact_frames
from natsproxy.errors import NatsproxyError, place_of
from natsproxy.events import UNKNOWN, Firing, Greeted, Who
from natsproxy.protocol.connect import DEFAULTS, Connect
from natsproxy.protocol.errors import (
    AUTHORIZATION,
    MAX_CONNECTIONS,
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
from natsproxy.protocol.info import Info, parse_info, why_unusable
from natsproxy.protocol.jetstream import keeps_delivery
from natsproxy.protocol.request_meter import RequestMeter
from natsproxy.rules.interface import (
    BatchFunction,
    BatchResult,
    Chain,
    ConnectionRules,
    Decision,
    EmptyChain,
    SubscriptionCheck,
)
from natsproxy.rules.model.verdicts import Close, Cut
from natsproxy.session.direction import FAILOVER, UNSENT, Deciding, DirectionPipe, PassedFrames, PipeContext
from natsproxy.session.failover import Failover, why_unfit
from natsproxy.session.fences import ClientPings, Fences
from natsproxy.session.login import (
    Login,
    clears_subscriptions,
    client_info,
    lame_duck,
    not_lame,
)
from natsproxy.session.outbox import PLAIN
from natsproxy.session.phase import (
    AFTER_CONNECT,
    BEFORE_INFO,
    FIRST_STOPPED,
    OVER,
    REFUSED,
    UNFRAMED,
    Lifecycle,
    Phase,
    PhaseEvent,
    PipeEvent,
    PipePhase,
)
from natsproxy.session.pulls import PULL_CLAUSE, Pulls
from natsproxy.session.subscriptions import MOST_REFUSED, STATE_OPS, Subscriptions
from natsproxy.session.values import (
    NO_CERTIFICATE,
    UNLIMITED,
    UNLIMITED_WORK,
    Action,
    Budget,
    Certificate,
    Emit,
    Hooks,
    SessionSettings,
    Traffic,
    WorkLimit,
)
from natsproxy.units import format_duration
from natsproxy.wire import encode
from natsproxy.wire.awaited import PULL
from natsproxy.wire.frames import Body, Frame, FramingFault, Malformed, Need, Opaque, Run
from natsproxy.wire.interest import Clause
from natsproxy.wire.ops import C2S, MESSAGE_OPS, OPS, S2C, SUBSCRIPTION_OPS, Direction, Op
from natsproxy.wire.parse import head
from natsproxy.wire.scanner import Interest, byte_table

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
_MOST_INTERESTS: Final = 64
_NEVER: Final = 1 << 63  # a time (ns) that never comes
_NO_RULES: Final = EmptyChain()
_NO_INFO: Final = Info()


class _Coming(NamedTuple):
    """A chain that is being swapped in.  before: the rules until then.  check: of the live subscriptions."""

    chain: Chain
    before: ConnectionRules
    check: SubscriptionCheck | None


class Session:
    """The state machine of one connection; its rules see it as their `View`.

    pipes: its two directions, c2s first; a relay reads their `pending`, `handled`, `full`, `ended` and
    `passed_on` itself.  lifecycle, fences, subscriptions, client_pings: its other parts.  subs: the live
    subscriptions by sid.  secrets: those of its traffic, for both directions.

    conn, ordinal: its number, in events and records, and among the accepted connections.  address: the
    client's.  certificate: the client's, with `tls_subject`.  key, alike: its names in rules and reports.
    connect: the last CONNECT of the client, or the defaults before it.  info: the last INFO of the server.
    last_connect, last_info: the same as frames.  server_error: the text of an -ERR with which the server
    closes, "" for none.

    chain: the loaded rules of the proxy.  rules: those of them that apply to this connection.
    suspended: messages are dropped.  paused_until: nothing is read until then (ns).  Both are an operator's.

    Of the arguments, record: whether records are made from the start.  budget: the memory that all
    connections may hold.  hooks: the functions of the proxy that it calls.  meter: of the requests of all
    connections, None where they are not measured.
    """

    __slots__ = (
        "__weakref__",
        "_account_is_lost",
        "_act",
        "_actions",
        "_check_at",
        "_coming",
        "_conditions_due",
        "_delayed_ends",
        "_failover",
        "_hooks",
        "_login",
        "_meter",
        "_pulls",
        "_rules_due",
        "_who",
        "_who_of",
        "address",
        "alike",
        "certificate",
        "chain",
        "client_pings",
        "conn",
        "connect",
        "fences",
        "info",
        "key",
        "last_connect",
        "last_info",
        "lifecycle",
        "ordinal",
        "paused_until",
        "pipes",
        "rules",
        "secrets",
        "server_error",
        "settings",
        "subs",
        "subscriptions",
        "suspended",
        "tls_subject",
    )

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
        meter: RequestMeter | None = None,
    ) -> None:
        self.settings = settings
        self.conn = conn
        self.ordinal = ordinal
        self.address = address
        self.secured(certificate)
        self._who = UNKNOWN
        self._who_of: tuple[object, ...] = ()  # the values that it was made of
        self.key = self.alike = f"#{ordinal}"
        self.info = _NO_INFO
        self.last_info = self.last_connect = b""
        self.server_error = ""
        self.chain = chain
        self.suspended = False
        self.paused_until = 0
        self._hooks = hooks
        # The parts get `_act`, and nothing else of this list: they can add to it, and only we take from it.
        self._actions: list[Action] = []
        self._act = act = self._actions.append
        self.secrets = Secrets()
        context = PipeContext(settings, conn, record, budget or Budget(UNLIMITED), self.secrets, act)
        self.pipes = pipes = DirectionPipe(C2S, context), DirectionPipe(S2C, context)
        pipes[S2C].scanner.hold = settings.frame_hold_limit  # that of c2s: `_set_hold`
        self._meter = None if meter is None else meter.client(conn)
        for pipe in pipes:
            pipe.scanner.meter = self._meter
        shut = settings.identity is not None and settings.identity.asks
        self.lifecycle = Lifecycle(conn, act, shut=shut)
        self.fences = Fences(pipes, self.lifecycle, settings.fence_timeout)
        self.subscriptions = Subscriptions(pipes, self.fences, self.lifecycle)
        self.subs = self.subscriptions.table
        self.client_pings = ClientPings(pipes, self.lifecycle, self.subscriptions.watch_ops)
        self._login = Login(settings, pipes, self.fences, self.lifecycle, act)
        self._pulls: Pulls | None = None
        self._failover: Failover | None = None
        if settings.failover == "hold":
            self._pulls = pulls = Pulls(pipes, self.subscriptions)
            limit, lifecycle, fences = settings.failover_hold, self.lifecycle, self.fences
            self._failover = Failover(limit, pipes, fences, self.subscriptions, lifecycle, pulls, act)
        self._introduce(DEFAULTS)
        self._account_is_lost = False  # the known one is what a lost server said
        self._coming: _Coming | None = None
        self._conditions_due: int | None = None  # when a link condition changes
        self._rules_due: int | None = None  # when the rules have something to do without a frame
        self._delayed_ends: dict[Direction, int] = {}  # until when (ns) a rule keeps ends of streams back
        self._check_at: int | None = None  # when to look whether the client has all frames
        self.rules: ConnectionRules = chain.bind(self, None, now)
        self._listen()
        self._update_conditions(now)

    # -- facts

    @property
    def over(self) -> bool:
        """True if the end has been asked for."""
        return self.lifecycle.phase is OVER

    @property
    def arrived(self) -> bool:
        """True if the client has had its first PONG."""
        return self.lifecycle.arrived

    @property
    def held(self) -> bool:
        """True from the loss of the server until the client goes on with another one."""
        return self.lifecycle.failing_over

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
        delivered, (c2s, s2c) = self.subscriptions.delivered, self.pipes
        facts = {"client": self.address, "ordinal": self.ordinal, "key": self.key}
        return {
            "info": redact_frames(self.last_info, S2C),
            "connect": self.redacted_connect,
            "subs": [
                [sub.sid, sub.subject, sub.queue, sub.max, delivered(sub)] for sub in self.subs.values()
            ],
            "ordinals": {
                "c2s_in": c2s.next_in,
                "c2s_out": c2s.out_next,
                "s2c_in": s2c.next_in,
                "s2c_out": s2c.out_next,
            },
            "open": {**facts, **self.verified_client()},
        }

    def facts(self, now: int) -> dict[str, object]:
        """Return the state for an operator: key, phase, whether suspended or paused."""
        return {
            "key": self.key,
            "phase": self.lifecycle.phase.name.lower(),
            "suspended": self.suspended,
            "paused": now < self.paused_until,
        }

    @property
    def redacted_connect(self) -> bytes:
        """The client's last CONNECT without its secrets; b"" if none came."""
        return redact_frames(self.last_connect, C2S)

    def requests(self) -> frozenset[bytes]:
        """Return the reply subjects of the client's requests that may still get an answer."""
        return frozenset() if self.over else self.subscriptions.requests()

    # -- who the client is

    def _introduce(self, connect: Connect) -> None:
        """Store the options of the client's CONNECT."""
        self.connect = connect
        self.subscriptions.verbose = connect.verbose

    def secured(self, certificate: Certificate) -> None:
        """Store the client's certificate: its handshake may come after INFO."""
        self.certificate = certificate
        self.tls_subject = certificate.subject

    @property
    def who(self) -> Who:
        """The client, as far as it is known now."""
        known = self.connect, self.info, self.certificate, self.lifecycle.logged_in
        if known != self._who_of:  # each firing has it: mostly the same values, which compare at once
            self._who_of = known
            self._who = Who(
                client=self.address,
                name=self.connect.name,
                user=self.connect.who,
                user_by=self._login.user_by(self.connect, self.info, self.certificate),
                account=self.info.remote_account or self.connect.jwt.account,
                tls_subject=self.tls_subject,
            )
        return self._who

    def _identify_requests(self) -> None:
        """Measure the requests from now on, as those of the client, once the server has accepted its login.

        Until then anybody can ask for anything, and would take the room of series.
        """
        if self._meter is not None and self.lifecycle.logged_in:
            user, account = self.who.labels
            self._meter.identify(account, user)

    def verified_client(self) -> dict[str, str]:
        """Return who the client is, for records: only what is known and verified.

        The user of a client that logs in at the server itself is not: only the server checks it.
        """
        identity, who = self.settings.identity, self.who._asdict()
        who["account"] = self.info.remote_account
        if identity is None or not identity.logs_in:
            del who["user"]
        return {name: who[name] for name in ("user", "account", "tls_subject") if who.get(name)}

    # -- the view of the rules

    @property
    def subs_version(self) -> int:
        """A number that changes whenever a live subscription is added, is removed or gets a limit."""
        return self.subs.version

    def count_sid(self, sid: bytes) -> None:
        """Count the messages on `sid` until the subscription ends, without looking at them."""
        self.subscriptions.count(sid)

    def watch_subject(self, direction: Direction, subject: bytes, need: Need) -> None:
        """Have the scanner return every message frame of exactly `subject`."""
        self.pipes[direction].scanner.watch_subjects[subject] = need

    def unwatch_subject(self, direction: Direction, subject: bytes) -> None:
        """Undo `watch_subject`."""
        self.pipes[direction].scanner.watch_subjects.pop(subject, None)

    # -- frames that bypass the session

    def clear(self, direction: Direction) -> bool:
        """Return whether unwanted frames may bypass the session: it has nothing to do between them."""
        return self._lets_bypass() and self.pipes[direction].clear

    def may_hand_over(self, direction: Direction) -> bool:
        """Return whether the frames that wait may do so in a native plane."""
        return self._lets_bypass() and self.pipes[direction].may_hand_over

    def _lets_bypass(self) -> bool:
        phase = self.lifecycle.phase
        # A drain waits for the last answer.
        return (phase is Phase.READY or phase is Phase.CONNECTED) and self.lifecycle.drained is None

    def decisions(self, direction: Direction) -> object | None:
        """Return the rules' decisions that hold now (see `ConnectionRules.decisions`)."""
        if self._batch_function(self.pipes[direction]) is None:
            return None
        return self.rules.decisions(direction)

    def catch_up(self, passed: PassedFrames) -> list[Firing]:
        """Count the frames that were bypassed; return the firings of rules on them, which come first."""
        fired: list[Firing] = []
        for pipe in self.pipes:
            taken = passed.take(pipe.direction)
            if taken is not None:
                pipe.catch_up(taken)
                fired += self.take_firings()
        return fired

    def take_firings(self) -> list[Firing]:
        """Return the firings that belong to no frame, or to several, since the last call."""
        fired = self.rules.fired
        taken = fired.copy()
        fired.clear()
        return taken

    def take_back(self, passed: PassedFrames) -> None:
        """Take over the frames that wait in a plane."""
        for pipe in self.pipes:
            if pipe.outbox.ahead[0]:
                pipe.take_back(passed.give_back(pipe.direction))
                pipe.charge()

    def take_over(self, rests: tuple[bytes, bytes]) -> None:
        """Take over the unfinished control lines from a plane that gives the legs back."""
        for pipe, rest in zip(self.pipes, rests, strict=True):
            pipe.take_over(rest)

    # -- bytes

    def take_actions(self) -> list[Action]:
        """Return the actions since the last call."""
        taken = self._actions.copy()
        self._actions.clear()
        return taken

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
        if self._meter is not None:
            self._meter.now = now
        if self.lifecycle.phase is OVER or pipe.phase >= FIRST_STOPPED:
            return self.take_actions()
        # Only the first bytes of a client: later, the same bytes may be part of a payload.
        if direction == C2S and pipe.in_bytes == len(data) and self._login.turn_away(data, self.info, now):
            return self.take_actions()
        if pipe.phase is UNFRAMED:
            pipe.pass_unframed(data, now)
            return self.take_actions()
        pipe.set_buffer_limit()
        if data:
            pipe.scanner.feed(data)
        phase = self.lifecycle.phase
        special = self.lifecycle.shut or phase is REFUSED
        special = special or (self.rules.connect_first and phase not in AFTER_CONNECT)
        if special and direction == C2S and not pipe.waiting:
            self._first_frame(pipe, now)
        if pipe.deciding is not None:
            self._continue_deciding(pipe, now, limit)
            pipe.pending = pipe.deciding is not None
        if not (pipe.pending or pipe.waiting or self.over or pipe.phase >= FIRST_STOPPED):
            self._scan(pipe, now, limit, TOGETHER if 0 < len(data) <= SHORT else 0)
        pipe.flush(now)
        self._emit_fired()
        # Both: a frame of one direction may inject an answer into the other.
        for each in self.pipes:
            each.charge()
        if self.secrets.alert:
            self._forget_secrets()
        self._end_if_answered()
        return self.take_actions()

    def _forget_secrets(self) -> None:
        """Free memory of the redaction once no received frame is still to be recorded."""
        if not any(pipe.pending or pipe.open or pipe.outbox.bytes for pipe in self.pipes):
            self.secrets.forget_answered()

    def _first_frame(self, pipe: DirectionPipe, now: int) -> None:
        """Handle the next frame of a client that cannot be served, or that must authenticate first."""
        first = pipe.scanner.ordinal
        segment = pipe.scanner.next()
        if segment is None:
            return
        is_connect = isinstance(segment, Frame) and segment.op == Op.CONNECT
        if isinstance(segment, Frame) and is_connect:
            # Even if the client is turned away: the log names it, and its connection key counts.
            self._on_connect(pipe, segment, first, now)
        elif isinstance(segment, Frame):
            pipe.drop(segment, first, now, "proxy")
        elif isinstance(segment, Run):
            pipe.lose(segment, first, now, "proxy")
        if self.lifecycle.phase is REFUSED:
            refusal = self._login.refusal or ""
            self.pipes[S2C].inject(encode.err(f"natsproxy: {refusal}"), Op.ERR.bit, now, "proxy")
            self.lifecycle.end(close_reasons.REFUSED, refusal)
        elif isinstance(segment, Malformed) and segment.buffer[segment.start] in _CONNECT:
            self._malformed(pipe, segment, now)
        elif not is_connect:
            self._login.refuse_early(now)

    def _scan(self, pipe: DirectionPipe, now: int, limit: WorkLimit, least: int) -> None:
        """Handle the scanner's segments until it needs more bytes or the limit is reached.

        least: the frames that are handled however long they take.
        """
        scanner, lifecycle, secrets = pipe.scanner, self.lifecycle, self.secrets
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
                decide_batch = self._batch_function(pipe)
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
        if pipe.swallowing and self._swallow(pipe, frame, ordinal, now):
            return
        if frame.header_size > LONG:
            pipe.deciding = Deciding(frame, ordinal, self._steps(pipe, frame, now))
            self._continue_deciding(pipe, now, limit)
        else:
            self._decided(pipe, frame, ordinal, self._decide(pipe, frame, now), now)

    def _decide(self, pipe: DirectionPipe, frame: Frame, now: int) -> Decision | None:
        """Return the rules' decision on a frame, None to pass it untouched."""
        direction = pipe.direction
        state_only = STATE_OPS[direction] >> frame.op & 1
        if state_only and not pipe.scanner.interest.need(frame.op, frame.subject):
            return None  # only the session wants it
        try:
            if direction == S2C and self.subscriptions.is_moving(frame.sid):
                return self.subscriptions.decide(frame, now)
            return self.rules.decide(direction, frame, now)
        except Exception as error:
            self._rule_failed(frame, error, now)
            return None

    def _steps(self, pipe: DirectionPipe, frame: Frame, now: int) -> Generator[None, None, Decision | None]:
        """Make the same decision in steps."""
        if pipe.direction == S2C and self.subscriptions.is_moving(frame.sid):
            return self._decide(pipe, frame, now)
        return (yield from self.rules.steps(pipe.direction, frame, now))

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
        except Exception as error:  # as in `_decide`
            self._rule_failed(frame, error, now)
        pipe.deciding = None
        self._decided(pipe, frame, ordinal, decision, now)

    def _decided(
        self, pipe: DirectionPipe, frame: Frame, ordinal: int, decision: Decision | None, now: int
    ) -> None:
        if self.lifecycle.phase is OVER:
            return
        if decision is not None:
            self._carry_out(pipe, frame, ordinal, decision, now)
        else:
            self._keep_in_step(pipe, frame, True, None, now)
            if self._pulls is not None and pipe.direction == C2S and PULL in frame.subject:
                self._pulls.sent(frame, now)
            self._pass_untouched(pipe, frame, ordinal, now)
        if frame.op == Op.PONG and pipe.direction == S2C:
            self._client_has_pong(now)

    def _rule_failed(self, frame: Frame, error: Exception, now: int) -> None:
        """End this connection because a rule raised an exception."""
        # Without the exception's text, which may quote the frame.
        detail = f"a rule failed on {frame.op.label}: {place_of(error)}"
        self.lifecycle.notice("error", detail, now)
        self.lifecycle.end(close_reasons.RULE_FAILED, detail)

    def _subscription_lines(self, pipe: DirectionPipe, now: int, most: int) -> None:
        """Handle plain SUBs and UNSUBs that follow one, `most` at most, if no rule wants them."""
        scanner = pipe.scanner
        wanted = scanner.interest.wants(Op.SUB) or scanner.interest.wants(Op.UNSUB)
        if wanted or pipe.swallowing or self.secrets.alert or self.lifecycle.phase is OVER:
            return
        first = scanner.ordinal
        found = scanner.subscriptions(min(most, MOST_LINES))
        if found is not None:
            run, lines = found
            self.subscriptions.note_lines(lines)
            pipe.pass_(run, first, now)

    # -- adjacent frames, decided on in batches

    def _batch_function(self, pipe: DirectionPipe) -> BatchFunction | None:
        """Return the rules' batch function; None where the session itself must look at each frame."""
        if pipe.swallowing or (pipe.direction == S2C and self.subscriptions.ended_or_moved):
            return None
        if pipe.direction == C2S and self._pulls is not None:
            return None
        return self.rules.batch_functions[pipe.direction]

    def _handle_batch(
        self, pipe: DirectionPipe, frame: Frame, first: int, now: int, limit: WorkLimit
    ) -> None:
        """Handle a whole message frame, whose ordinal is `first`, with the adjacent ones."""
        at = 0
        frames = [frame, *pipe.scanner.more(MOST)]
        if pipe.scanner.odd or self.secrets.alert:  # the session has looked at the first
            self.secrets.look(pipe.direction, frames[1:])
        while at < len(frames) and not (self.lifecycle.phase is OVER or pipe.phase >= FIRST_STOPPED):
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
        decide_batch = self._batch_function(pipe)
        if decide_batch is None or pipe.outbox.paced:
            return []
        try:
            return decide_batch(frames, at, first + at, now)
        except Exception as error:  # as in `_decide`
            self._rule_failed(frames[at], error, now)
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
                self._keep_in_step(pipe, frame, False, None, now)
                pipe.drop(frame, first + place, now, result.cause)

    # -- what becomes of a frame

    def _carry_out(
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
            self._close(self.pipes[S2C] if frame.op == Op.CONNECT else pipe, close, now)
            return
        passes = decision.out is None or len(decision.out) > 0
        if decision.conditions_changed:  # the frame is the first to meet them
            self._update_conditions(now)
            if passes and pipe.swallowing and self._swallow(pipe, frame, ordinal, now):
                self.subscriptions.dropped(frame)  # the scanner has counted it as delivered
                return
            passes = passes and pipe.phase < PipePhase.FINISHED
        self._keep_in_step(pipe, frame, passes, decision.upstream_subject, now)
        if decision.before:
            pipe.inject(decision.before, 1 << frame.op, now, decision.cause)
        if passes:
            self._pass(pipe, frame, ordinal, decision, now)
        else:
            pipe.drop(frame, ordinal, now, decision.cause)
        if decision.after:
            pipe.inject(decision.after, 1 << frame.op, now, decision.cause)
        answer = decision.answer
        if decision.ok and pipe.direction == C2S and self.connect.verbose and OPS[frame.op].earns_ok:
            answer += encode.OK
        if answer:
            self._answer(pipe, answer, now)
        if close is not None:
            pipe.flush(now)
            self._close(pipe, close, now)

    def _pass(self, pipe: DirectionPipe, frame: Frame, ordinal: int, decision: Decision, now: int) -> None:
        if decision.out is None and decision.until is None and not (decision.defer or decision.paces):
            self._pass_untouched(pipe, frame, ordinal, now)
            return
        if not decision.paces and self._goes_ahead(pipe, frame):
            decision = decision._replace(overtake=True)
        pipe.replace(frame, ordinal, decision, now)
        if decision.paces:
            self.subscriptions.watch_ops()

    def _pass_untouched(self, pipe: DirectionPipe, frame: Frame, ordinal: int, now: int) -> None:
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

    def _keep_in_step(
        self, pipe: DirectionPipe, frame: Frame, passes: bool, upstream: bytes | None, now: int
    ) -> None:
        """Update fences, awaited answers and subscriptions for a frame that passes or not.

        upstream: the subject of a SUB for the server, if a rule rewrites it.
        """
        if pipe.direction == C2S:
            if frame.op == Op.PING and passes:
                self.fences.client_ping()
            elif frame.reply and not passes:  # no server will answer it
                self.subscriptions.awaited.pop(frame.reply, None)
            elif frame.op == Op.SUB:
                self.subscriptions.decided(frame, passes, upstream, now)
        elif frame.op in (Op.MSG, Op.HMSG):
            if passes:
                self.subscriptions.passed(frame, now, altered=self.rules.alters_delivery)
            else:
                self.subscriptions.dropped(frame)

    def _swallow(self, pipe: DirectionPipe, frame: Frame, ordinal: int, now: int) -> bool:
        """Swallow a message, or answer a PING in the server's place; return whether the frame was either.

        Frames that change the state of the connection pass: both sides must stay in sync.
        """
        if frame.op in MESSAGE_OPS:
            self.subscriptions.lost(frame)
            pipe.drop(frame, ordinal, now, "swallow")
            self._answer_oks(pipe, 1, now)
            return True
        # The first PING goes to the server: its PONG says that the login is good.
        if pipe.direction == C2S and frame.op == Op.PING and self.lifecycle.phase is Phase.READY:
            pipe.drop(frame, ordinal, now, "swallow")
            self.fences.answer_suspended(encode.PONG, now)
            return True
        return False

    def _swallow_run(self, pipe: DirectionPipe, run: Run, first: int, now: int) -> None:
        """Swallow a run of messages; first: the ordinal of its first frame."""
        pipe.lose(run, first, now)
        self._answer_oks(pipe, run.frames, now)

    def _answer_oks(self, pipe: DirectionPipe, frames: int, now: int) -> None:
        """Answer swallowed frames of a verbose client."""
        if pipe.direction == C2S and self.connect.verbose:
            self.fences.answer_suspended(encode.OK * frames, now)

    def _answer(self, pipe: DirectionPipe, answer: bytes, now: int) -> None:
        """Answer the sender of a frame at that frame's place."""
        if pipe.direction == C2S:
            self.fences.answer(answer, now)
        else:
            self.pipes[C2S].inject(answer, 0, now, "rule")

    def _close(self, pipe: DirectionPipe, close: Close, now: int) -> None:
        """End the connection because a rule says so."""
        cause, raw = close.cause, close.raw
        if close.reset:
            self.lifecycle.end(close_reasons.RULE, cause, reset=True, flush=close.at is not Cut.BEFORE)
        elif pipe.direction == C2S and raw:
            # In the server's order: after its responses to earlier frames.
            self.fences.end_at(self.fences.answer(raw, now), close_reasons.RULE, cause)
            pipe.step(PipeEvent.END)
        else:
            if raw:
                pipe.inject(raw, Op.ERR.bit, now, "rule")
            self.lifecycle.end(close_reasons.RULE, cause)

    def _emit_numbered(self, firings: tuple[Firing, ...], ordinal: int) -> None:
        for firing in firings:
            firing.ordinal = ordinal
            self._act(Emit(firing))

    def _emit_fired(self) -> None:
        """Emit the firings that belong to no frame, or to several."""
        self._actions += map(Emit, self.take_firings())

    # -- handlers by op: each returns whether the rules are to see the frame

    def _on_publish(self, pipe: DirectionPipe, frame: Frame, ordinal: int, now: int) -> bool:
        """Refuse a payload above the server's max_payload, in the server's place, at the control line.

        Only where rules look at the frame, since the server would not get all of it; other frames are refused
        by the server itself.
        """
        most = self.info.max_payload
        if not 0 < most < frame.size or (frame.op == Op.HPUB and not self.connect.headers):
            return True
        if not pipe.scanner.interest.need(frame.op, frame.subject):
            return True
        pipe.drop(frame, ordinal, now, "proxy")
        pipe.step(PipeEvent.END)
        why = f"a payload of {frame.size} bytes exceeds the server's max_payload of {most}"
        self.fences.end_here(err_frame(MAX_PAYLOAD.text), close_reasons.CLIENT_PROTOCOL, why, now)
        return False

    def _on_sub(self, pipe: DirectionPipe, frame: Frame, ordinal: int, now: int) -> bool:
        self.subscriptions.sub(frame)
        return True

    def _on_unsub(self, pipe: DirectionPipe, frame: Frame, ordinal: int, now: int) -> bool:
        raw = self.subscriptions.unsub(frame, now, altered=self.rules.alters_delivery)
        if raw is None:
            return True
        pipe.replace(frame, ordinal, Decision((raw,), cause="proxy"), now)
        return False

    def _on_client_ping(self, pipe: DirectionPipe, frame: Frame, ordinal: int, now: int) -> bool:
        """Answer a PING while there is no server."""
        if not self.held:
            return True
        pipe.drop(frame, ordinal, now, FAILOVER)
        self.pipes[S2C].inject(encode.PONG, Op.PONG.bit, now, FAILOVER)
        return False

    def _on_client_pong(self, pipe: DirectionPipe, frame: Frame, ordinal: int, now: int) -> bool:
        """Drop a PONG that answers a PING of ours."""
        if not self.client_pings.pong(now):
            return True
        pipe.drop(frame, ordinal, now, "proxy")
        return False

    def _on_pong(self, pipe: DirectionPipe, frame: Frame, ordinal: int, now: int) -> bool:
        """Forward a PONG that is the client's; run the work of a fence."""
        fence = self.fences.pong()
        if fence is None:
            return True
        pipe.drop(frame, ordinal, now, "proxy")
        self.fences.pass_(fence, now)
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
        if not self.subscriptions.take_our_ok():
            return True
        pipe.drop(frame, ordinal, now, "proxy")
        return False

    def _on_err(self, pipe: DirectionPipe, frame: Frame, ordinal: int, now: int) -> bool:
        """Note which subscription an -ERR ends, or why the server will close."""
        text = err_text(frame.args)
        error = classify(text)
        fatal = error.kind.closes or error.kind is OTHER
        if fatal and self.held:
            # Its client has logged in once: it would take this for a refusal for good.
            pipe.drop(frame, ordinal, now, FAILOVER)
            self._hooks.heard(self.conn, text)
            if error.kind is not MAX_CONNECTIONS:  # it closes the connection, and another one may have room
                self.lifecycle.end(close_reasons.UPSTREAM_DOWN, f"another server said {text!r}")
            return False
        if fatal:
            self.server_error = text
            self._login.speak_by = None
            self._hooks.heard(self.conn, text)
        if error.kind is SUBSCRIPTION_REVOKED:
            self.subscriptions.forget(error.sid)
        elif error.kind is SUBSCRIBE_DENIED or error.kind is TOO_MANY_TOKENS:
            self.subscriptions.refused(error.subject, error.queue)
        elif error.kind is MAX_SUBSCRIPTIONS and self.subs.doubt():
            why = f"the server has refused more than {MOST_REFUSED} of its subscriptions"
            self.lifecycle.end(close_reasons.CLIENT_PROTOCOL, why)
        return True

    def _on_message(self, pipe: DirectionPipe, frame: Frame, ordinal: int, now: int) -> bool:
        """Drop a message of a subscription that was ended here."""
        if frame.sid in self.subscriptions.closed:
            pipe.drop(frame, ordinal, now, "proxy")
        elif self._pulls is not None and frame.header_size and self._pulls.answered(frame, now):
            pipe.drop(frame, ordinal, now, FAILOVER)
        else:
            return True
        return False

    # -- CONNECT and INFO: the login says how they go on, the rules see them so

    def _on_connect(self, pipe: DirectionPipe, frame: Frame, ordinal: int, now: int) -> bool:
        connect = self._login.connect(frame, ordinal, self.connect, self.certificate, now)
        if connect is not None:
            self._connected(frame, ordinal, connect, now)
        return False

    def _connected(self, frame: Frame, ordinal: int, connect: Connect, now: int) -> None:
        """Forward a CONNECT and bind the rules that apply to the client.  connect: its options, merged."""
        lifecycle, pipe = self.lifecycle, self.pipes[C2S]
        self._introduce(connect)
        if lifecycle.phase in AFTER_CONNECT:
            if clears_subscriptions(self.info.version):
                for sid in (*self.subs,):
                    self.subscriptions.forget(sid)
        else:
            self.key, self.alike = self._hooks.key_of(connect.name, self.ordinal)
        lifecycle.step(PhaseEvent.CONNECT)
        self.last_connect = frame.raw
        c = connect
        self._act(Emit(Greeted(now, self.conn, self.key, c.name, c.lang, c.version, c.user)))
        self._login.speak_by = None
        if lifecycle.phase is REFUSED:
            pipe.drop(frame, ordinal, now, "proxy")
            return
        # CONNECT gets a record of its own: secrets are taken out of it before it is written.
        pipe.flush(now)
        self._bind(now)
        self._set_hold()
        args = self._login.server_connect(frame.args)
        # Rules see the frame that goes on: one that changes it must not bring the client's secrets back.
        shown = frame if args is frame.args else head(encode.connect(args), C2S) or frame
        decision = self._decide(pipe, shown, now)
        self._forward(pipe, frame, ordinal, decision, encode.connect, args, now)

    def _on_info(self, pipe: DirectionPipe, frame: Frame, ordinal: int, now: int) -> bool:
        """Learn about the server, and forward INFO as the client is to see it."""
        try:
            info = parse_info(frame.args)
        except ValueError as error:
            self.lifecycle.end(close_reasons.SERVER_PROTOCOL, f"an INFO that does not parse: {error}")
            return False
        if self.lifecycle.phase is Phase.HELD:
            self._restore(info, frame, ordinal, now)
            return False
        # The INFO after the first PONG names the account; later ones do not.
        account = info.remote_account or self.info.remote_account
        self._account_is_lost = self._account_is_lost and not info.remote_account
        self.info = info if account == info.remote_account else info._replace(remote_account=account)
        self._hooks.heard(self.conn, self.info)
        first = self.lifecycle.phase in BEFORE_INFO
        self._set_hold()
        self.last_info = frame.raw
        if first:
            self._login.greeted(self.info, frame.args, now)
        elif info.remote_account:  # rules may ask for it
            self._identify_requests()
            self._bind(now)
        if not first and self.lifecycle.phase is Phase.CONNECTED:
            # A fence of ours provoked it: clients expect PONG first.
            self._login.hold_info(frame, ordinal, now)
        else:
            self._send_info(frame, ordinal, now)
        return False

    # -- a server that is lost, and replaced

    def _fails_over(self) -> bool:
        """Tell whether the client can be given another server now."""
        s2c, lifecycle = self.pipes[S2C], self.lifecycle
        if self._failover is None or self.server_error or lifecycle.drained is not None:
            return False
        if s2c.phase is not PipePhase.FRAMED or s2c.mid_frame:
            return False
        return lifecycle.failing_over or (lifecycle.phase is Phase.READY and self._is_repeatable())

    def _is_repeatable(self) -> bool:
        """Tell whether another server would take the client as it is."""
        return (
            self.pipes[C2S].phase is PipePhase.FRAMED
            and not self.connect.verbose  # its +OKs cannot be told from ours
            and not self.rules.interest[C2S].wants(Op.CONNECT)
            and self._login.is_repeatable(self.connect)
        )

    def _restore(self, info: Info, frame: Frame, ordinal: int, now: int) -> None:
        """Give a new server, which has sent its INFO, the state of the connection."""
        pipe, lifecycle, connect = self.pipes[S2C], self.lifecycle, head(self.last_connect, C2S)
        assert self._failover is not None
        assert connect is not None
        unfit = why_unusable(info) or why_unfit(info, self.info, self.connect)
        if not lifecycle.logged_in:  # what waits ahead of that is not of the new user
            unfit = "the client has sent another CONNECT meanwhile"
        if unfit is not None:
            pipe.drop(frame, ordinal, now, FAILOVER)
            lifecycle.end(close_reasons.UPSTREAM_DOWN, f"another server cannot take over: {unfit}")
            return
        # Its rules are in force until the new server can have named the account.
        self.info = info._replace(remote_account=self.info.remote_account)
        self._account_is_lost = True
        self._hooks.heard(self.conn, self.info)
        self.last_info = frame.raw
        self._set_hold()
        self._login.greeted_again(info, frame.args)
        lifecycle.step(PhaseEvent.INFO)
        login = encode.connect(self._login.server_connect(connect.args))
        self._failover.restore(login, now, altered=self.rules.alters_delivery)
        if self.connect.protocol > 0:
            self._send_info(frame, ordinal, now)
        else:
            pipe.drop(frame, ordinal, now, FAILOVER)

    def resume(self, now: int) -> list[Action]:
        """Let the client of a replaced server go on, some time after `Restored`."""
        if self._failover is not None and self.lifecycle.phase is Phase.RESTORED:
            if self._account_is_lost and self.info.remote_account:
                self.info = self.info._replace(remote_account="")
                self._identify_requests()
                self._bind(now)
            happened = self._failover.resume(self.info, self.conn, self.who, now)
            if happened is not None:
                self._act(Emit(happened))
        return self.take_actions()

    def _set_hold(self) -> None:
        # Until headers are agreed the server may close on an HPUB line alone: hold nothing back.
        limit, most = self.settings.frame_hold_limit, self.info.max_payload
        scanner = self.pipes[C2S].scanner
        scanner.hold = min(limit, most or limit) if self.connect.headers else 0
        scanner.max_payload = most

    def _keep_whole(self) -> None:
        """Pass messages on only whole to a client that can be held: one that has a part of one cannot."""
        holds = self._failover is not None and self._is_repeatable()
        self.pipes[S2C].whole = self.settings.queue_bytes if holds else 0

    def _send_info(self, frame: Frame, ordinal: int, now: int) -> None:
        pipe, args = self.pipes[S2C], client_info(frame.args, self.settings)
        if self.info.ldm and self._fails_over():
            args = not_lame(args)  # its client gets another server from us
        # Rules see the frame as it goes on; a copy costs more than all else where they want none.
        wanted = pipe.scanner.interest.need(frame.op, frame.subject)
        decision = self._decide(pipe, frame._replace(args=args), now) if wanted else None
        self._forward(pipe, frame, ordinal, decision, encode.info, args, now)

    def _forward(
        self,
        pipe: DirectionPipe,
        frame: Frame,
        ordinal: int,
        decision: Decision | None,
        form: Callable[[bytes], bytes],
        args: bytes,
        now: int,
    ) -> None:
        """Forward INFO or CONNECT with other arguments, as the rules decided.

        form: makes a frame of arguments.  args: the very same bytes where nothing changes.
        """
        if self.lifecycle.over:
            return
        if decision is not None:
            if decision.out is None and args is not frame.args:
                decision = decision._replace(out=(form(args),), cause=decision.cause or "proxy")
            self._carry_out(pipe, frame, ordinal, decision, now)
        elif args is frame.args:
            pipe.flush(now)
            pipe.pass_(frame, ordinal, now)
        else:
            pipe.replace(frame, ordinal, Decision((form(args),), cause="proxy"), now)
        pipe.flush(now)

    def _client_has_pong(self, now: int) -> None:
        """Handle the client's first PONG: forward the INFOs that were held back until then."""
        if self.lifecycle.phase is not Phase.CONNECTED:
            return
        self.lifecycle.step(PhaseEvent.PONG)
        self._keep_whole()
        self._identify_requests()
        self.pipes[S2C].flush(now)
        for info, ordinal in self._login.held_infos():
            self._send_info(info, ordinal, now)
        self.client_pings.client_is_ready(now)

    # -- rules that come into force

    def _bind(self, now: int, check: SubscriptionCheck | None = None) -> None:
        """Bind the rules of the chain that apply, between two frames; check: of a swap."""
        before = self.rules
        try:
            self.rules = self.chain.bind(self, before, now, check)
        except NatsproxyError as error:
            self.lifecycle.end(close_reasons.RULE_FAILED, str(error))
            return
        self._listen()
        # Before resubscribing: revoked subscriptions must not be subscribed again.
        self._revoke(self.rules.revoked, now)
        self._update_conditions(now)
        if self.rules is not before and self.rules.resubscribed and not self.lifecycle.over:
            self.subscriptions.resubscribe(self.rules.resubscribed, before, now)

    def _swap(self, chain: Chain, now: int, limit: WorkLimit) -> None:
        """Check the live subscriptions under another chain, up to the limit, then put it in force."""
        coming = self._coming
        if coming is None or coming.chain is not chain or coming.before is not self.rules:
            try:
                check = chain.check(self, self.rules)
            except NatsproxyError as error:
                self.chain = chain
                self.lifecycle.end(close_reasons.RULE_FAILED, str(error))
                return
            coming = self._coming = _Coming(chain, self.rules, check)
        if coming.check is not None:
            self._revoke(coming.check.step(limit.reached), now)
            if not coming.check.done:
                return
        self._coming, self.chain = None, chain
        self._bind(now, coming.check)

    def _revoke(self, revoked: list[tuple[bytes, str]], now: int) -> None:
        """End subscriptions (sids) that the rules revoke, with the texts of their -ERR."""
        if not revoked:
            return
        sids = [sid for sid, _ in revoked]
        for sid in sids:
            self.subscriptions.forget(sid)
        self.subscriptions.close(sids, now)
        self._answer(self.pipes[C2S], b"".join(err_frame(text) for _, text in revoked), now)

    def _listen(self) -> None:
        self.secrets.renamed = self.rules.renamed
        for pipe in self.pipes:
            pipe.scanner.interest = self.rules.interest[pipe.direction]
        if self._pulls is not None:
            self.pipes[C2S].scanner.interest = _with_pulls(self.rules.interest[C2S].clauses)
        self._keep_whole()  # a rule may want CONNECT

    def _update_conditions(self, now: int) -> None:
        """Apply the link conditions of the rules and of the operator to both directions."""
        times = []
        for pipe in self.pipes:
            conditions, again = self.rules.conditions(pipe.direction, now)
            if now < self.paused_until:
                conditions = (conditions or PLAIN)._replace(stop_reading=True)
            if conditions is None or conditions == PLAIN:
                conditions = PLAIN  # the same object: the outbox compares by identity on the hot path
            if conditions is not pipe.outbox.conditions:
                pipe.flush(now)  # earlier frames go out under the earlier conditions
                pipe.outbox.conditions = conditions
            pipe.swallowing = conditions.swallow or self.suspended
            if pipe.direction == S2C:
                pipe.scanner.tallies = byte_table() if pipe.swallowing else self.subscriptions.tallies
            if conditions.finish and pipe.phase < PipePhase.FINISHED:
                pipe.step(PipeEvent.FINISH)
                pipe.flush(now)
                pipe.sender.finish(now)
            if again is not None:
                times.append(again)
        if now < self.paused_until < _NEVER:
            times.append(self.paused_until)
        self.subscriptions.watch_ops()
        self._conditions_due = min(times, default=None)
        self._emit_fired()

    # -- streams that cannot be framed

    def _malformed(self, pipe: DirectionPipe, bad: Malformed, now: int) -> None:
        """End the connection of a malformed stream, as nats-server does, or pass the stream unread."""
        pipe.flush(now)
        where = f"{pipe.direction.label} byte {bad.offset}: {bad.reason}"
        if pipe.direction == S2C:
            pipe.step(PipeEvent.END)
            self.lifecycle.end(close_reasons.SERVER_PROTOCOL, where)
        elif self.settings.unparsed == "pass" and not (self.chain.guards or self.lifecycle.shut):
            self.lifecycle.notice("warning", f"client stream is not NATS, passing it unparsed: {where}", now)
            pipe.step(PipeEvent.UNFRAME)
            pipe.pass_unframed(pipe.scanner.rest(), now)
        elif bad.streaming:
            # The server is waiting for CRLF too: it gets the same wrong bytes, and answers them itself.
            pipe.cut(bad.buffer[bad.start : bad.end], now)
            self.lifecycle.notice("warning", where, now)
        else:
            # The -ERR goes out where the server's would: after the replies to all earlier frames.
            pipe.step(PipeEvent.END)
            text = _ANSWERS[bad.fault]
            answer = b"" if text is None else encode.err(text)
            self.fences.end_here(answer, close_reasons.CLIENT_PROTOCOL, where, now)

    def _opaque(self, pipe: DirectionPipe, segment: Opaque, now: int) -> None:
        """Pass the server's stream unparsed from an unknown operation on, unless a rule needs it."""
        if self._refuse_unframed():
            return
        text = "unknown operation from the server: passing its stream unparsed"
        self.lifecycle.notice("warning", text, now)
        pipe.step(PipeEvent.UNFRAME)
        pipe.pass_unframed(segment.buffer[segment.start : segment.end], now)

    def _refuse_unframed(self) -> bool:
        """End the connection if a rule needs the server's stream, which is no longer framed; return that."""
        needed = self.chain.guards or bool(self.rules.interest[S2C].clauses)
        if needed:
            text = "unknown operation from the server: rules cannot be applied to its stream"
            self.lifecycle.end(close_reasons.SERVER_PROTOCOL, text)
        return needed

    # -- the end of a stream

    def eof(self, direction: Direction, now: int) -> list[Action]:
        """Handle the end of a direction's stream; return the actions that follow."""
        pipe = self.pipes[direction]
        if direction == S2C and self._failover is not None and self._fails_over():
            self._failover.lose_server(self.connect, now)
            self._end_if_answered()  # a drain has waited for the lost server
        elif direction == C2S and (
            self.lifecycle.shut or pipe.waiting
        ):  # its last bytes are not for the server
            self.lifecycle.end(close_reasons.CLIENT_CLOSED)
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
            if self.held and not pipe.outbox.frames:  # there is nothing to be sent any more
                self.lifecycle.end(close_reasons.CLIENT_CLOSED)
                return
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
        stuck = c2s.ended and s2c.outbox.conditions.paused and self._conditions_due is None
        if s2c.ended and (stuck or not s2c.outbox.waiting):
            self._end_by_server()

    def _end_by_server(self) -> None:
        lifecycle, error = self.lifecycle, self.server_error
        if lifecycle.phase is REFUSED:
            lifecycle.end(close_reasons.REFUSED, self._login.refusal or "")
        elif error:
            # The server is the cause even if the client closes because of it.
            identity = self.settings.identity
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
        lifecycle = self.lifecycle
        if lifecycle.phase is OVER:
            return self.take_actions()
        self._end_delayed(now)
        self._login.end_if_stalled(now)
        self._end_if_held_too_long(now)
        if self._pulls is not None:
            self._pulls.due(now)
        self._update_conditions(now)
        injected, close, self._rules_due = self.rules.due(now)
        self._emit_fired()
        for direction, raw in injected:
            if lifecycle.arrived or (direction == C2S and not lifecycle.shut):
                self.pipes[direction].inject(raw, 0, now, "rule")
        if close is not None:
            self._close(self.pipes[S2C], close, now)
        # Held frames leave in the order of their times on both legs, as far as one call can do that.
        paced = self.pipes[C2S].outbox.paced
        for pipe in sorted(self.pipes, key=lambda pipe: pipe.outbox.next_due() or 0):
            pipe.sender.release(now, limit)
            pipe.charge()
        if paced and not self.pipes[C2S].outbox.paced:
            self.subscriptions.watch_ops()
        self.fences.pass_overdue(now)
        for pipe in self.pipes:
            if pipe.boundary_by is not None and pipe.boundary_by <= now:
                text = f"{pipe.direction.label}: a frame was not completed in time"
                lifecycle.end(close_reasons.MID_FRAME, text)
        self._end_if_sent()
        self._end_if_answered()  # a rule may have kept the last answer back until now
        return self.take_actions()

    def next_tick(self) -> int | None:
        """Return the time (ns) at which `tick` is to be called next; None for not at all."""
        if self.lifecycle.phase is OVER:
            return None
        times = [self._conditions_due, self._rules_due, self._login.speak_by, self._check_at]
        for pipe in self.pipes:
            if pipe.boundary_by is not None or pipe.outbox.bytes:
                times += pipe.boundary_by, pipe.outbox.next_due()
        if self._failover is not None and self._pulls is not None:
            times += self._failover.until, self._pulls.next_due()
        if self._delayed_ends:
            times += self._delayed_ends.values()
        times += self.fences.deadlines()
        return min([time for time in times if time is not None], default=None)

    def _end_if_held_too_long(self, now: int) -> None:
        """End a connection that has got no other server in time."""
        until = None if self._failover is None else self._failover.until
        if until is not None and until <= now:
            waited = self.pipes[C2S].outbox.data_bytes
            text = f"no other server in {format_duration(self.settings.failover_hold)}, {waited} bytes waited"
            self.lifecycle.end(close_reasons.UPSTREAM_DOWN, text)

    # -- an operator's commands: their actions are to be taken afterwards

    def suspend(self, now: int, *, on: bool) -> None:
        """Drop all messages of both directions from the next frame on, or pass them again.

        Both legs stay alive: PINGs are answered, by us where the server does not.  SUB, UNSUB, CONNECT, INFO
        and -ERR pass: without them the two sides would stay out of sync.
        """
        self.suspended = on
        self._update_conditions(now)

    def pause(self, now: int, *, lasts: int | None) -> None:
        """Stop reading from both sides for `lasts` ns; None: until resumed with 0."""
        self.paused_until = _NEVER if lasts is None else now + lasts
        self._update_conditions(now)

    def send_held(self, now: int) -> None:
        """Send the frames that rules hold back, from the next tick on."""
        for pipe in self.pipes:
            pipe.outbox.make_due(now)

    def expel(self, now: int, *, error: str, cause: str, detail: str) -> None:
        """End the connection with an -ERR for the client, after the frame that is being sent to it."""
        if not self.over:
            self.pipes[S2C].inject(encode.err(error), Op.ERR.bit, now, "proxy")
            self.lifecycle.end(cause, detail)

    def ask(self, now: int, answered: Callable[[int], None]) -> None:
        """Ask the client for a sign of life: send it a PING; call `answered` when its PONG comes.

        Not before the client's first PONG: until then the PING waits.
        """
        if not self.over:
            self.client_pings.ask(answered, now)

    def lame_duck(self, now: int) -> None:
        """Send the client an INFO in lame duck mode, as a server that is shutting down does.

        Only if the client accepts INFO at any time and has had its first PONG, and no rule handles INFO.
        """
        pipe = self.pipes[S2C]
        takes_info = self.arrived and self.connect.protocol > 0
        if takes_info and not pipe.scanner.interest.need(Op.INFO, b""):
            args = lame_duck(client_info(self.last_info[len("INFO") :].strip(), self.settings))
            pipe.inject(encode.info(args), Op.INFO.bit, now, "proxy")

    def drain(self, now: int, *, answers: bool = True) -> None:
        """End the connection once the server has processed all that the client has sent so far.

        answers: wait until its requests are answered, too.
        """
        if self.over or self.pipes[C2S].unframed:
            return
        if self.lifecycle.shut or self.held:  # it has no answers to wait for
            self.lifecycle.end(close_reasons.DRAINED, "natsproxy is shutting down")
            return
        fence = self.fences.fence(now)
        if fence.end is None:  # else it ends the connection for another cause
            self.fences.end_at(fence, close_reasons.DRAINED, "natsproxy is shutting down")
        fence.drains = answers

    def _end_if_answered(self) -> None:
        """End a connection that waits for answers, if none is due and the last one has gone to the client."""
        end, s2c = self.lifecycle.drained, self.pipes[S2C]
        if end is not None and not (s2c.mid_frame or s2c.outbox.bytes or self.requests()):
            self.lifecycle.end(*end)

    # -- calls of the proxy

    def authenticated(self, refusal: str | None, now: int) -> list[Action]:
        """Handle the answer to `Authenticate`.  refusal: the reason, None if the client may log in."""
        checked = self._login.answered(refusal, now)
        if checked is not None and refusal is None:
            self._connected(*checked, now)
        elif checked is not None:
            # For the log only: the rules do not see it.  The reason names the user that was claimed.
            self._introduce(checked.connect._replace(user=self.connect.user, nkey=self.connect.nkey))
        self._emit_fired()
        return self.take_actions()

    def stop(self) -> None:
        """Note that the connection is gone: from now on only `closed` returns actions."""
        self.lifecycle.step(PhaseEvent.END)

    def swap(self, chain: Chain, now: int, limit: WorkLimit = UNLIMITED_WORK) -> list[Action]:
        """Swap the chain, between frames, once the live subscriptions were checked under it.

        Where the limit is reached first, `chain` is still the old one: the next call goes on from there.
        """
        # A decision in progress is completed by the rules that began it.
        if not self.over and not any(pipe.deciding for pipe in self.pipes):
            self._swap(chain, now, limit)
        if self.chain is chain and self.pipes[S2C].unframed:
            self._refuse_unframed()
        return self.take_actions()

    def fence(self, then: Callable[[int], None], now: int) -> list[Action]:
        """Call `then` once the server has processed all that the client has sent so far."""
        if self.over or self.lifecycle.shut or self.pipes[C2S].mid_frame:
            then(now)
        else:
            self.fences.then(then, now)
        return self.take_actions()

    def record(self, on: bool) -> None:
        """Make records from the next frame on, or stop making them."""
        for pipe in self.pipes:
            if pipe.open is not None and pipe.records.on != on:
                pipe.open.cut = True  # a record must not join bytes that were not adjacent
            pipe.records.on = on

    def closed(self, now: int, limit: WorkLimit = UNLIMITED_WORK) -> list[Action]:
        """Let the rules forget a connection that is gone; return the records of frames that were not sent.

        While the session is `unrecorded`, there is more to come.
        """
        self.rules.close(now)
        self._login.abandon(now, UNSENT)
        for pipe in self.pipes:
            pipe.abandon(now, limit)
            pipe.refund()
        return self.take_actions()

    def dispose(self) -> None:
        """Break reference cycles; call last."""
        self.rules, self._coming = _NO_RULES.bind(self, None, 0), None
        self.secrets.close()
        self.fences.clear()
        self.client_pings.clear()


@lru_cache(_MOST_INTERESTS)
def _with_pulls(clauses: tuple[Clause, ...]) -> Interest:
    """Return an interest of the rules together with that in pulls."""
    return Interest((*clauses, PULL_CLAUSE))


HANDLERS: Final[dict[tuple[Direction, Op], Callable[[Session, DirectionPipe, Frame, int, int], bool]]] = {
    (C2S, Op.CONNECT): Session._on_connect,
    (C2S, Op.PUB): Session._on_publish,
    (C2S, Op.HPUB): Session._on_publish,
    (C2S, Op.SUB): Session._on_sub,
    (C2S, Op.UNSUB): Session._on_unsub,
    (C2S, Op.PING): Session._on_client_ping,
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
