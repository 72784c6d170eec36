"""The core of a session: its state, what the rules may see of it, and how decisions are carried out.

`session.py` has the theory.  This module knows nothing of how bytes arrive; `handlers.py` knows what each op
means.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from natsproxy.capture.filter.redact import Secrets, redact_frames
from natsproxy.errors import NatsproxyError, place_of
from natsproxy.events import Firing, Notice
from natsproxy.protocol.connect import Connect
from natsproxy.protocol.errors import err_frame
from natsproxy.protocol.info import Info
from natsproxy.rules.interface import Chain, ConnectionRules, Decision, LinkConditions, Subscription
from natsproxy.session import close_reasons
from natsproxy.session.actions import Action, Emit, End, SessionSettings
from natsproxy.session.budget import UNLIMITED, Budget
from natsproxy.session.direction_pipe import DirectionPipe
from natsproxy.session.fences import Fence, PongQueue
from natsproxy.session.outbox import PLAIN
from natsproxy.session.subscriptions import Resubscription, Subscriptions
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame, Need
from natsproxy.wire.ops import C2S, OPS, S2C, Direction, Op, op_mask
from natsproxy.wire.scanner import Scanner

STATE_OPS = (
    op_mask(Op.CONNECT, Op.PING, Op.SUB, Op.UNSUB),
    op_mask(Op.INFO, Op.PONG, Op.ERR),
)


class Core:
    """The state of one connection; it is also the `View` that rules see."""

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
        budget: Budget | None = None,
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
        self.server_error = ""  # the text of an -ERR with which the server closes
        self._refusal: str | None = None  # why no client can be served here
        self._speak_by: int | None = None  # when the client must have said something
        self._settings = settings
        self._chain = chain
        self._budget = budget or Budget(UNLIMITED)
        self._rules: ConnectionRules = chain.bind(self, None, now)
        self._pongs = PongQueue()
        self._last_fence: Fence | None = None  # nothing has gone upstream since
        self._greeted = False  # the first INFO has passed
        self._client_ready = False  # the client has had its first PONG
        self._held_infos: list[tuple[Frame, int]] = []
        self._closed_sids: set[bytes] = set()
        self._resubscribing: dict[bytes, deque[Resubscription]] = {}  # by sid (`moving.py`)
        self._tallies: dict[bytes, int] = {}  # what went to the client on sids that are counted, not watched
        self._swallow_ok = 0  # how many +OK of the server answer frames of ours
        self._rule_tick: int | None = None
        self._checkpoint: int | None = None
        self._lingering: dict[Direction, int] = {}  # ends that a rule keeps back, and until when
        pipes, secrets = [], Secrets()
        for direction in (C2S, S2C):
            scanner = Scanner(
                direction,
                self._rules.interest[direction],
                line_limit=settings.max_control_line,
                hold=0 if direction == C2S else settings.hold,
                buffer_limit=settings.rule_buffer,
            )
            scanner.watch_ops = STATE_OPS[direction]
            pipes.append(DirectionPipe(direction, scanner, settings, conn, record, self._budget, secrets))
        self.pipes = (pipes[0], pipes[1])
        self.actions: list[Action] = []
        for pipe in self.pipes:
            pipe.actions = self.actions
        self._update_conditions(now)

    @property
    def opening(self) -> str:
        """What the rules say about a client that has just connected (see `ConnectionRules.opening`)."""
        return self._rules.opening

    @property
    def subs(self) -> Mapping[bytes, Subscription]:
        """The live subscriptions by sid."""
        return self._subs

    @property
    def subs_version(self) -> int:
        """A number that is another one whenever a live subscription came, went or got a limit."""
        return self._subs.version

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
        watches = self.pipes[S2C].scanner.watch_sids
        watches[sid] = max(need, watches.get(sid, Need.NONE))

    def count_sid(self, sid: bytes) -> None:
        """Count what comes on `sid` until the subscription ends, without looking at it.

        Only of a subscription that the server will know: refused ones would pile up here.
        """
        if sid in self._subs:
            self._tallies.setdefault(sid, 0)

    def watch_subject(self, direction: Direction, subject: bytes, need: Need) -> None:
        """Want every message frame of exactly `subject`."""
        self.pipes[direction].scanner.watch_subjects[subject] = need

    def unwatch_subject(self, direction: Direction, subject: bytes) -> None:
        """Take back `watch_subject`."""
        self.pipes[direction].scanner.watch_subjects.pop(subject, None)

    # -- the proxy's side of it

    def record(self, on: bool) -> None:
        """Make records from the next frame on, or stop making them."""
        for pipe in self.pipes:
            pipe.record = on

    def counts(self) -> dict[str, int]:
        """Return the bytes and frames that came, by direction, as the end of a connection is recorded."""
        c2s, s2c = self.pipes
        return {
            "c2s_bytes": c2s.in_bytes,
            "c2s_frames": c2s.scanner.ordinal,
            "s2c_bytes": s2c.in_bytes,
            "s2c_frames": s2c.scanner.ordinal,
        }

    def snapshot(self) -> dict[str, Any]:
        """Return the state of the connection, without secrets, as a preamble of a capture holds it.

        info, connect: the last INFO and CONNECT.  subs: sid, subject, queue, max and delivered of each live
        subscription.  ordinals: the number of the next frame by direction and leg.  open: who the client is.
        """
        c2s, s2c = self.pipes
        return {
            "info": redact_frames(self.last_info, S2C),
            "connect": redact_frames(self.last_connect, C2S),
            "subs": [
                [sub.sid, sub.subject, sub.queue, sub.max, self.delivered(sub)] for sub in self._subs.values()
            ],
            "ordinals": {
                "c2s_in": c2s.scanner.ordinal,
                "c2s_out": c2s.out_next,
                "s2c_in": s2c.scanner.ordinal,
                "s2c_out": s2c.out_next,
            },
            "open": {"client": self.address, "ordinal": self.ordinal, "key": self.key},
        }

    def _decide(self, pipe: DirectionPipe, frame: Frame, now: int) -> Decision | None:
        state_only = STATE_OPS[pipe.direction] >> frame.op & 1
        if state_only and not pipe.scanner.interest.need(frame.op, frame.subject):
            return None  # it is here for the session's sake; no rule asked for it
        try:
            return self._consult(pipe.direction, frame, now)
        except Exception as error:
            self._failed(frame, error, now)
            return None

    def _consult(self, direction: Direction, frame: Frame, now: int) -> Decision | None:
        return self._rules.decide(direction, frame, now)

    def _failed(self, frame: Frame, error: Exception, now: int) -> None:
        """A rule that fails closes this connection and no other."""
        # Without its text, which may quote the frame.
        detail = f"a rule failed on {frame.op.label}: {place_of(error)}"
        self.actions.append(Emit(Notice(now, self.conn, "error", detail)))
        self._end(close_reasons.RULE_FAILED, detail)

    def _carry_out(
        self, pipe: DirectionPipe, frame: Frame, ordinal: int, decision: Decision, now: int
    ) -> None:
        for f in decision.firings:  # a new one by position: dataclasses.replace costs more than all else here
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
            self.actions.append(Emit(numbered))
        if decision.close is not None:
            pipe.drop(frame, ordinal, now, decision.cause or decision.close.cause)
            close = decision.close
            self._close_verdict(pipe, close.cause, close.raw, close.reset, now)
            return
        out = decision.out
        passes = out is None or len(out) > 0
        self._settle(pipe, frame, passes, decision.upstream_subject, now)
        if decision.before:
            pipe.inject(decision.before, 1 << frame.op, now, decision.cause)
        if not passes:
            pipe.drop(frame, ordinal, now, decision.cause)
        elif out is None and decision.until is None and not decision.defer:
            pipe.pass_(frame, ordinal, now)
        else:
            late = frame.op not in (Op.PING, Op.PONG)
            pipe.replace(
                frame,
                out if out is not None else (frame.raw,),
                ordinal,
                now,
                cause=decision.cause,
                until=decision.until,
                overtake=decision.overtake and late,
                defer=decision.defer if late else 0,
            )
        if decision.after:
            pipe.inject(decision.after, 1 << frame.op, now, decision.cause)
        answer = decision.answer
        if decision.ok and pipe.direction == C2S and self.verbose and OPS[frame.op].earns_ok:
            answer += encode.OK
        if answer:
            self._answer(pipe, answer, now)
        if decision.conditions_changed:
            self._update_conditions(now)

    def _settle(
        self, pipe: DirectionPipe, frame: Frame, passes: bool, upstream: bytes | None, now: int
    ) -> None:
        """Bring the session's state up to date with what became of a frame."""
        if pipe.direction == C2S:
            if frame.op == Op.PING and passes:
                self._pongs.client_ping()
            elif frame.op == Op.SUB:
                sub = self._subs.get(frame.sid)
                if not passes and sub is not None and sub.delivered == -1:
                    self._forget(frame.sid)
                elif sub is not None and sub.delivered == -1:
                    sub.delivered = 0
                    sub.upstream = upstream or sub.upstream
        elif frame.op in (Op.MSG, Op.HMSG):
            if passes:
                self._delivered(pipe, frame, now)
            elif frame.sid in self._tallies and not frame.no_responders:
                self._tallies[frame.sid] -= 1  # it was counted as it came

    def _delivered(self, pipe: DirectionPipe, frame: Frame, now: int) -> None:
        sub = self._subs.get(frame.sid)
        if sub is None or sub.delivered < 0 or frame.no_responders or frame.sid in self._tallies:
            return
        sub.delivered += 1
        if not sub.max or sub.delivered < sub.max:
            return
        self._forget(frame.sid)
        if sub.ours or self._rules.alters_delivery:
            self._close_sid(frame.sid, now)

    def _forget(self, sid: bytes) -> None:
        self._subs.remove(sid)
        self._unwatch(sid)

    def _unwatch(self, sid: bytes) -> None:
        self._tallies.pop(sid, None)
        self.pipes[S2C].scanner.watch_sids.pop(sid, None)

    def delivered(self, sub: Subscription) -> int:
        """Return how many messages went to the client on a subscription, as far as they were counted."""
        return self._tallies.get(sub.sid, max(0, sub.delivered))

    def _close_sid(self, sid: bytes, now: int) -> None:
        """Unsubscribe upstream and drop what still comes; in verbose mode the +OK of it is ours too."""
        self._closed_sids.add(sid)
        self.watch_sid(sid, Need.LINE)
        self._last_fence = None
        self._fence(now).then.append(lambda _: self._expect_ok(1))
        self.pipes[C2S].inject(encode.unsub(sid), Op.UNSUB.bit, now, "proxy")
        self._last_fence = None
        self._fence(now).then.append(lambda _: self._sid_closed(sid))
        self._last_fence = None

    def _expect_ok(self, count: int) -> None:
        self._swallow_ok = count if self.verbose else 0
        extra = Op.OK.bit if self._swallow_ok > 0 else 0
        self.pipes[S2C].scanner.watch_ops = STATE_OPS[S2C] | extra

    def _sid_closed(self, sid: bytes) -> None:
        self._expect_ok(0)
        if sid in self._closed_sids:
            self._closed_sids.discard(sid)
            self._unwatch(sid)

    def _answer(self, pipe: DirectionPipe, answer: bytes, now: int) -> None:
        """Answer the sender of a frame at that frame's place."""
        if pipe.direction == C2S:
            self._fence(now).answer += answer
            pipe.owed += len(answer)
        else:
            self.pipes[C2S].inject(answer, 0, now, "rule")

    def _fence(self, now: int) -> Fence:
        """Return a fence at this place of the c2s stream; neighbours share one."""
        pipe = self.pipes[C2S]
        if self._last_fence is None:
            self._last_fence = Fence(deadline=now + self._settings.fence_timeout)
            pipe.inject(encode.PING, Op.PING.bit, now, "proxy")
            self._pongs.fence(self._last_fence)
        return self._last_fence

    def _close_verdict(self, pipe: DirectionPipe, cause: str, raw: bytes, reset: bool, now: int) -> None:
        if reset:
            self._end(close_reasons.RULE, cause, reset=True)
        elif pipe.direction == C2S and raw:
            fence = self._fence(now)
            fence.answer += raw
            fence.end = (close_reasons.RULE, cause)
            pipe.ended = True
        else:
            if raw:
                pipe.inject(raw, Op.ERR.bit, now, "rule")
            self._end(close_reasons.RULE, cause)

    def _passed(self, fence: Fence, now: int) -> None:
        pipe = self.pipes[S2C]
        for then in fence.then:
            then(now)
        fence.then = []
        if fence.answer:
            pipe.inject(bytes(fence.answer), 0, now, "rule" if fence.end is None else "proxy")
        self.pipes[C2S].owed = max(0, self.pipes[C2S].owed - len(fence.answer))
        if fence.end is not None:
            self._end(*fence.end)

    def _bind(self, now: int) -> None:
        try:
            self._rules = self._chain.bind(self, self._rules, now)
        except NatsproxyError as error:
            self._end(close_reasons.RULE_FAILED, str(error))
            return
        for pipe in self.pipes:
            pipe.scanner.interest = self._rules.interest[pipe.direction]
        for sid, text in self._rules.revoked:
            self._forget(sid)
            self._close_sid(sid, now)
            self._answer(self.pipes[C2S], err_frame(text), now)
        self._update_conditions(now)

    def _update_conditions(self, now: int) -> None:
        times = []
        for pipe in self.pipes:
            conditions, again = self._rules.conditions(pipe.direction, now)
            pipe.outbox.conditions = (
                PLAIN if conditions is None or conditions == LinkConditions() else conditions
            )
            pipe.swallowing = pipe.outbox.conditions.swallow
            if pipe.direction == S2C:
                pipe.scanner.tallies = {} if pipe.swallowing else self._tallies
            if pipe.outbox.conditions.finish and not pipe.finished:
                pipe.finished = True
                pipe.finish(now)
            times.append(again)
        self._rule_tick = min((time for time in times if time is not None), default=None)
        self._emit_fired()

    def _emit_fired(self) -> None:
        """Tell of firings that belong to no frame, or to several."""
        fired = self._rules.fired
        if fired:
            self.actions += map(Emit, fired)
            fired.clear()

    def _end(self, cause: str, detail: str = "", *, reset: bool = False) -> None:
        if not self.over:
            self.over = True
            self.actions.append(End(cause, detail, reset))

    def _stopped(self, pipe: DirectionPipe) -> bool:
        return self.over or pipe.ended or pipe.finished

    def _done(self) -> list[Action]:
        done, self.actions = self.actions, []
        for pipe in self.pipes:
            pipe.actions = self.actions
        return done
