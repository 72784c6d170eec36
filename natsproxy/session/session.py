"""A proxied connection: bytes and time in, actions out.

Theory
1. Each direction is a `DirectionPipe` with a scanner.  The session gives meaning to the few ops that carry
   state (`handlers.py`), asks the rules about the frames they want (`frame_paths.py`), and carries decisions
   out (`rule_runner.py`).
2. Answers of ours to the client take the server's place in the server's order: the answered frame is replaced
   upstream by a fence, and the answer goes out where the fence's PONG arrives (`fences.py`).  So neither
   verbose nor pedantic mode needs any counting.
3. Nothing of ours goes out inside a frame; nothing asynchronous of ours reaches the client between its
   CONNECT and its first PONG (`phase.py`); nothing that cannot be framed goes on, unless configured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from natsproxy.protocol.connect import Connect
from natsproxy.rules.interface import Chain, Subscription, View
from natsproxy.session import close_reasons
from natsproxy.session.actions import Action
from natsproxy.session.bypass import Bypass
from natsproxy.session.connection import ConnectionState
from natsproxy.session.control import Control
from natsproxy.session.deliveries import Deliveries
from natsproxy.session.direction import UNSENT, DirectionPipe
from natsproxy.session.fences import PongQueue
from natsproxy.session.first_frames import FirstFrames
from natsproxy.session.frame_paths import FramePaths
from natsproxy.session.handlers import Handlers
from natsproxy.session.identity import NO_CERTIFICATE, Certificate
from natsproxy.session.login import Login
from natsproxy.session.parts import Parts
from natsproxy.session.phase import FIRST_STOPPED, OVER, UNFRAMED, Phase, PhaseEvent
from natsproxy.session.rule_runner import RuleRunner
from natsproxy.session.stream_ends import StreamEnds
from natsproxy.session.traffic import Traffic
from natsproxy.session.unframed import UnframedStreams
from natsproxy.session.values import UNLIMITED, UNLIMITED_WORK, Budget, Hooks, SessionSettings, WorkLimit
from natsproxy.wire.frames import Body, Frame, Malformed, Run
from natsproxy.wire.ops import C2S, MESSAGE_OPS, S2C, SUBSCRIPTION_OPS, Direction

SHORT: Final = 4_096
"""The bytes of a read whose first frames, `TOGETHER` of them, go on in one write, as some clients expect."""
TOGETHER: Final = 16


class Session:
    """The state machine of one connection.

    pipes: its two directions, c2s first; a relay reads their `pending`, `handled`, `full`, `ended` and
    `passed_on` itself, because a property here would cost time at each read.  bypass: lets frames go past.
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
        state = ConnectionState(
            settings, conn, ordinal, address, certificate, record, budget or Budget(UNLIMITED)
        )
        self._state, self.pipes, self._actions = state, state.pipes, state.actions
        self._pongs = PongQueue(state)
        deliveries = Deliveries(state, self._pongs)
        self._runner = RuleRunner(state, self._pongs, deliveries, chain, now)
        parts = Parts(state, self._pongs, deliveries, self._runner)
        self._login = Login(state, self._pongs)
        self._handlers = Handlers(parts, self._login, hooks)
        self._paths = FramePaths(parts, self._handlers)
        self._unframed = UnframedStreams(parts)
        self._first_frames = FirstFrames(parts, self._login, self._handlers, self._unframed)
        self.control = Control(state, self._pongs, self._runner)
        self._ends = StreamEnds(state)
        self.bypass = Bypass(parts, self._paths)
        self._rules_due: int | None = None  # when the rules have something to do without a frame

    # -- facts for the proxy

    @property
    def view(self) -> View:
        """The connection as its rules see it."""
        return self._state

    @property
    def chain(self) -> Chain:
        """The loaded rules that are in force on the connection."""
        return self._runner.chain

    @property
    def over(self) -> bool:
        """True if the end has been asked for."""
        return self._state.phase is OVER

    @property
    def opening(self) -> str:
        """The rules' decision on a client that has just connected (see `ConnectionRules.opening`)."""
        return self._runner.rules.opening

    @property
    def key(self) -> str:
        """The name by which rules and reports know the connection."""
        return self._state.key

    @property
    def connect(self) -> Connect:
        """The last CONNECT of the client, or the defaults before it."""
        return self._state.connect

    @property
    def server_error(self) -> str:
        """The text of an -ERR with which the server closes, `""` for none."""
        return self._state.server_error

    @property
    def subs(self) -> Mapping[bytes, Subscription]:
        """The live subscriptions by sid."""
        return self._state.subs

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

    def client(self) -> dict[str, str]:
        """Return who the client is (see `ConnectionState.client`)."""
        return self._state.client()

    def login(self) -> dict[str, str]:
        """Return what is known of who the client is (see `ConnectionState.login`)."""
        return self._state.login()

    def counts(self) -> dict[str, int]:
        """Return the bytes and frames that came (see `ConnectionState.counts`)."""
        return self._state.counts()

    def traffic(self) -> Traffic:
        """Return the frames and bytes at the four points."""
        return self._state.traffic()

    def snapshot(self) -> dict[str, Any]:
        """Return the state of the connection for a preamble (see `ConnectionState.snapshot`)."""
        return self._state.snapshot()

    def delivered(self, sub: Subscription) -> int:
        """Return how many messages went to the client on a subscription, as far as they were counted."""
        return self._state.delivered(sub)

    def record(self, on: bool) -> None:
        """Make records from the next frame on, or stop making them."""
        self._state.record(on)

    def secured(self, certificate: Certificate) -> None:
        """Learn the client's certificate: its handshake came after INFO."""
        self._state.secured(certificate)

    def take_actions(self) -> list[Action]:
        """Take out the actions that were asked for."""
        actions = self._actions
        done = actions.copy()  # the list itself belongs to all parts of the session
        actions.clear()
        return done

    # -- bytes

    def receive(
        self, direction: Direction, data: bytes, now: int, limit: WorkLimit = UNLIMITED_WORK
    ) -> list[Action]:
        """Take bytes of one direction; return the actions that follow, in order.

        Where the limit is reached first, `pipe.pending` says so: the next call goes on from there, without
        bytes.
        """
        pipe = self.pipes[direction]
        pipe.pending = False
        pipe.handled = 0
        pipe.in_bytes += len(data)
        if self._state.phase is OVER or pipe.phase >= FIRST_STOPPED:
            return self.take_actions()
        # Only the first bytes of a client: behind them, the same bytes may be part of a payload.
        if direction == C2S and pipe.in_bytes == len(data) and self._first_frames.turn_away(data, now):
            return self.take_actions()
        if pipe.phase is UNFRAMED:
            pipe.pass_unframed(data, now)
            return self.take_actions()
        pipe.set_buffer_limit()
        if data:
            pipe.scanner.feed(data)
        if direction == C2S and self._first_frames.special and not pipe.waiting:
            self._first_frames.take(pipe, now)
        if pipe.deciding is not None:
            self._paths.go_on(pipe, now, limit)
            pipe.pending = pipe.deciding is not None
        if not (pipe.pending or pipe.waiting or self.over or pipe.phase >= FIRST_STOPPED):
            self._scan(pipe, now, limit, TOGETHER if 0 < len(data) <= SHORT else 0)
        pipe.flush(now)
        self._runner.emit_fired()
        # Both: a frame of one direction may put an answer of ours into the other.
        for each in self.pipes:
            each.charge()
        self._state.forget_answered()
        self.control.end_if_answered()
        return self.take_actions()

    def _scan(self, pipe: DirectionPipe, now: int, limit: WorkLimit, least: int) -> None:
        """Deal with the scanner's segments until it wants more bytes or the limit is reached.

        least: the frames that are dealt with however long they take.
        """
        scanner, paths, state, secrets = pipe.scanner, self._paths, self._state, self._state.secrets
        scanner.most = limit.frames
        begin = first = scanner.ordinal
        stop = first + limit.frames
        while (segment := scanner.next()) is not None:
            if scanner.odd or secrets.alert:
                secrets.look(pipe.direction, [segment])
            if isinstance(segment, Run):
                if pipe.swallowing:
                    paths.lose(pipe, segment, first, now)
                else:
                    pipe.pass_(segment, first, now)
                    if pipe.direction == C2S:
                        self._pongs.last = None
            elif isinstance(segment, Frame):
                fastpath = paths.fastpath(pipe)
                if fastpath is None or segment.op not in MESSAGE_OPS or segment.missing:
                    paths.general(pipe, segment, first, now, limit)
                    if segment.op in SUBSCRIPTION_OPS:
                        paths.subscriptions(pipe, now, stop - scanner.ordinal)
                else:
                    paths.neighbours(pipe, segment, first, now, limit)
            elif isinstance(segment, Body):
                pipe.body(segment, now)
            elif isinstance(segment, Malformed):
                self._unframed.malformed(pipe, segment, now)
            else:
                self._unframed.opaque(pipe, segment, now)
            if state.phase is OVER or pipe.phase >= FIRST_STOPPED:
                break
            # Not `first` plus the frames taken: `neighbours` may have given some back.
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

    # -- the end of a stream

    def eof(self, direction: Direction, now: int) -> list[Action]:
        """Take the end of a direction's stream; return the actions that follow."""
        c2s = self.pipes[C2S]
        if direction == C2S and (self._state.shut or c2s.waiting):  # its last bytes are not for the server
            self._state.end(close_reasons.CLIENT_CLOSED)
        else:
            self._ends.take(self.pipes[direction], now)
        return self.take_actions()

    # -- time

    def tick(self, now: int, limit: WorkLimit = UNLIMITED_WORK) -> list[Action]:
        """Do the work that is due; work beyond the limit stays due (`next_tick`)."""
        if self.over:
            return self.take_actions()
        self._ends.tick(now)
        if self._state.speak_by is not None and self._state.speak_by <= now:
            self._first_frames.stalled(now)
        self._runner.update_conditions(now)
        injected, close, self._rules_due = self._runner.rules.due(now)
        self._runner.emit_fired()
        for direction, raw in injected:
            if self._state.phase is Phase.READY or (direction == C2S and not self._state.shut):
                self.pipes[direction].inject(raw, 0, now, "rule")
        if close is not None:
            self._runner.close(self.pipes[S2C], close.cause, close.raw, close.reset, now)
        # Held frames leave in the order of their times on both legs, as far as one call can do that.
        for pipe in sorted(self.pipes, key=lambda pipe: pipe.outbox.next_due() or 0):
            pipe.sender.release(now, limit)
            pipe.charge()
        for fence in self._pongs.timed():
            if fence.deadline <= now:
                self._pongs.pass_(fence, now)
        for pipe in self.pipes:
            if pipe.boundary_by is not None and pipe.boundary_by <= now:
                text = f"{pipe.direction.label}: a frame began and did not end in time"
                self._state.end(close_reasons.MID_FRAME, text)
        self._ends.end_if_sent()
        self.control.end_if_answered()  # a rule may have kept the last answer back until now
        return self.take_actions()

    def next_tick(self) -> int | None:
        """Return the time (ns) at which `tick` is to be called next; None for not at all."""
        if self.over:
            return None
        times = [self._runner.next_due, self._rules_due, self._state.speak_by, self._ends.check_at]
        for pipe in self.pipes:
            times += pipe.boundary_by, pipe.outbox.next_due() if pipe.outbox.bytes else None
        times += self._ends.lingering.values()
        if self._pongs.waiting:
            times += [fence.deadline for fence in self._pongs.timed()]
        return min([time for time in times if time is not None], default=None)

    # -- control

    def authenticated(self, refusal: str | None, now: int) -> list[Action]:
        """Go on with the CONNECT of an `Authenticate`.  refusal: the reason against it, None for none."""
        asked = self._login.answered(refusal, now)
        if asked is not None:
            self._handlers.connected(self.pipes[C2S], *asked, now)
            self._runner.emit_fired()
        return self.take_actions()

    def stop(self) -> None:
        """Note that the connection is gone: it asks for nothing more but the records of `closed`."""
        self._state.step(PhaseEvent.END)

    def swap(self, chain: Chain, now: int, limit: WorkLimit = UNLIMITED_WORK) -> list[Action]:
        """Put another chain in force, between frames, once the live subscriptions were looked at under it.

        Where the limit is reached first, `chain` is still the old one: the next call goes on from there.
        """
        # A frame that is being decided on is decided on by the rules that have begun it.
        if not self.over and not any(pipe.deciding for pipe in self.pipes):
            self._runner.swap(chain, now, limit)
        if self.chain is chain and self.pipes[S2C].unframed:
            self._unframed.refuse()
        return self.take_actions()

    def fence(self, then: Callable[[int], None], now: int) -> list[Action]:
        """Call `then` where the server has answered all that the client has sent so far."""
        if self.over or self._state.shut or self.pipes[C2S].mid_frame:
            then(now)
        else:
            self._pongs.then(then, now)
        return self.take_actions()

    def closed(self, now: int, limit: WorkLimit = UNLIMITED_WORK) -> list[Action]:
        """Let the rules forget a connection that is gone; return the records of frames that were not sent.

        While the session is `unrecorded`, there is more to come.
        """
        self._runner.rules.close(now)
        self._login.abandon(now, UNSENT)
        for pipe in self.pipes:
            pipe.abandon(now, limit)
            pipe.refund()
        return self.take_actions()

    def let_go(self) -> None:
        """Be freed: called once nothing more is asked of it."""
        self._state.secrets.close()
