"""The state of one connection: who the client is, its subscriptions, its phase, its two pipes.

The parts of a session share one `ConnectionState`; rules see it as their `View`.  It decides nothing.
"""

from __future__ import annotations

from operator import add
from typing import Any, Final

from natsproxy.capture.filter.redact import Secrets, redact_frames
from natsproxy.events import Notice
from natsproxy.protocol.connect import Connect
from natsproxy.protocol.info import Info
from natsproxy.rules.interface import Subscription
from natsproxy.session.actions import Action, Emit, End
from natsproxy.session.answers import Answers
from natsproxy.session.direction import DirectionPipe, PipeContext
from natsproxy.session.identity import Certificate
from natsproxy.session.phase import TRANSITIONS, Phase, PhaseEvent
from natsproxy.session.subscriptions import Subscriptions
from natsproxy.session.traffic import Traffic
from natsproxy.session.values import Budget, SessionSettings
from natsproxy.wire.frames import Need
from natsproxy.wire.ops import C2S, S2C, Direction, Op, op_mask
from natsproxy.wire.scanner import Interest, Scanner, byte_table

STATE_OPS: Final = (
    op_mask(Op.CONNECT, Op.PING, Op.SUB, Op.UNSUB),
    op_mask(Op.INFO, Op.PONG, Op.ERR),
)
"""The ops that the session itself looks at, by direction."""
_NEVER_SWALLOWED: Final = op_mask(Op.PING, Op.PONG, Op.OK)
"""Further ops that a link that loses messages does not lose: without them a peer gives the connection up."""
_NOTHING: Final = Interest()
NEVER: Final = 1 << 63
"""A time (ns) that does not come."""


class ConnectionState:
    """The state of one connection.

    conn, ordinal: its number, in events and records, and among the accepted connections.  key: the name by
    which rules and reports know it.  refusal: why no client can be served here, as a sentence.
    server_error: the text of an -ERR with which the server closes.  speak_by: the time (ns) by which the
    client must have sent something.  shut: nothing of the client may go to the server yet.  suspended:
    messages are lost until an operator says otherwise.  paused_until: nothing is read until then (ns).
    our_oks: how many +OK of the server answer frames of ours.  tallies: deliveries on sids that are counted
    and not watched.  answers: the answers that the client waits for.  actions: the list that all parts
    append to.
    """

    def __init__(
        self,
        settings: SessionSettings,
        conn: int,
        ordinal: int,
        address: str,
        certificate: Certificate,
        record: bool,
        budget: Budget,
    ) -> None:
        self.settings = settings
        self.conn = conn
        self.ordinal = ordinal
        self.address = address
        self.secured(certificate)
        self.key = f"#{ordinal}"
        self.phase = Phase.OPENED
        self.connect = Connect()
        self.info = Info()
        self.subs = Subscriptions()
        self.tallies = byte_table()
        self.answers = Answers()
        self.last_info = b""
        self.last_connect = b""
        self.server_error = ""
        self.refusal: str | None = None
        self.speak_by: int | None = None
        self.shut = settings.identity is not None and settings.identity.asks
        self.suspended = False
        self.paused_until = 0
        self.our_oks = 0
        self.actions: list[Action] = []
        self.secrets = Secrets()
        context = PipeContext(settings, conn, record, budget, self.secrets, self.actions)

        def pipe(direction: Direction) -> DirectionPipe:
            scanner = Scanner(
                direction,
                _NOTHING,
                line_limit=settings.max_control_line,
                hold=0 if direction == C2S else settings.frame_hold_limit,
                buffer_limit=settings.rule_buffer,
            )
            scanner.awaited = self.answers.table
            return DirectionPipe(direction, scanner, context)

        self.pipes = (pipe(C2S), pipe(S2C))
        self.watch_ops()

    # -- the phase

    @property
    def over(self) -> bool:
        """True if the end has been asked for."""
        return self.phase is Phase.OVER

    def step(self, event: PhaseEvent) -> None:
        """Move to the phase that follows an event."""
        self.phase = TRANSITIONS[self.phase].get(event, self.phase)

    def end(self, cause: str, detail: str = "", *, reset: bool = False) -> None:
        """Ask for the end of the connection; the first cause is the one that counts."""
        if self.phase is not Phase.OVER:
            self.step(PhaseEvent.END)
            self.actions.append(End(cause, detail, reset))

    def notice(self, level: str, text: str, now: int) -> None:
        """Emit a notice about this connection; level: "info", "warning" or "error"."""
        self.actions.append(Emit(Notice(now, self.conn, level, text)))

    # -- the view of the rules

    @property
    def subs_version(self) -> int:
        """A number that is another one whenever a live subscription came, went or got a limit."""
        return self.subs.version

    @property
    def verbose(self) -> bool:
        """True if the client asked for (or left on) verbose mode."""
        return self.connect.verbose

    @property
    def pedantic(self) -> bool:
        """True if the client asked for (or left on) pedantic mode."""
        return self.connect.pedantic

    def watch_ops(self) -> None:
        """Want the frames of the ops that the session looks at now."""
        for pipe, ops in zip(self.pipes, STATE_OPS, strict=True):
            extra = Op.OK.bit if pipe.direction == S2C and self.our_oks else 0
            pipe.scanner.watch_ops = ops | (_NEVER_SWALLOWED if pipe.swallowing else extra)

    def watch_sid(self, sid: bytes, need: Need) -> None:
        """Want every MSG and HMSG on `sid` until the subscription ends."""
        watches = self.pipes[S2C].scanner.watch_sids
        watches[sid] = max(need, watches.get(sid, Need.NONE))

    def count_sid(self, sid: bytes) -> None:
        """Count the messages on `sid` until the subscription ends, without looking at them."""
        # Only of a subscription that the server will know: refused ones would pile up here.
        if sid in self.subs:
            self.tallies.setdefault(sid, 0)

    def watch_subject(self, direction: Direction, subject: bytes, need: Need) -> None:
        """Want every message frame of exactly `subject`."""
        self.pipes[direction].scanner.watch_subjects[subject] = need

    def unwatch_subject(self, direction: Direction, subject: bytes) -> None:
        """Take back `watch_subject`."""
        self.pipes[direction].scanner.watch_subjects.pop(subject, None)

    @property
    def came(self) -> int:
        """The number of messages that have come from the server."""
        counts = self.pipes[S2C].scanner.counts
        return counts[Op.MSG] + counts[Op.HMSG]

    # -- the view of the proxy

    def delivered(self, sub: Subscription) -> int:
        """Return how many messages went to the client on a subscription, as far as they were counted."""
        return self.tallies.get(sub.sid, max(0, sub.delivered))

    def record(self, on: bool) -> None:
        """Make records from now on, or stop making them."""
        for pipe in self.pipes:
            if pipe.open is not None and pipe.records.on != on:
                pipe.open.cut = True  # what comes now must not be glued to what was recorded of it
            pipe.records.on = on

    def forget_answered(self) -> None:
        """Let the secrets make room, if no frame that has come is still to be recorded."""
        if self.secrets.alert and not any(
            pipe.pending or pipe.open or pipe.outbox.bytes for pipe in self.pipes
        ):
            self.secrets.forget_answered()

    def secured(self, certificate: Certificate) -> None:
        """Learn the client's certificate."""
        self.certificate = certificate
        self.tls_subject = certificate.subject

    def client(self) -> dict[str, str]:
        """Return who the client is, as the end of a connection is reported; unknown facts are empty."""
        return {
            "name": self.connect.name,
            "user": self.connect.user or self.connect.nkey,
            "account": self.info.remote_account,
            "tls_subject": self.tls_subject,
        }

    def login(self) -> dict[str, str]:
        """Return who the client is, as records have it: only what is known and was checked.

        Where it logs in at the server itself, its user is in its CONNECT, and the server's to check.
        """
        identity, who = self.settings.identity, self.client()
        if identity is None or not identity.logs_in:
            del who["user"]
        return {name: who[name] for name in ("user", "account", "tls_subject") if who.get(name)}

    def counts(self) -> dict[str, int]:
        """Return the bytes and frames that came, by direction, as the end of a connection is recorded."""
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
        """Return the state of the connection, without secrets, as a preamble of a capture holds it.

        info, connect: the last INFO and CONNECT.  subs: sid, subject, queue, max and delivered of each live
        subscription.  ordinals: the number of the next frame by direction and leg.  open: who the client is.
        """
        c2s, s2c = self.pipes
        return {
            "info": redact_frames(self.last_info, S2C),
            "connect": redact_frames(self.last_connect, C2S),
            "subs": [
                [sub.sid, sub.subject, sub.queue, sub.max, self.delivered(sub)] for sub in self.subs.values()
            ],
            "ordinals": {
                "c2s_in": c2s.next_in,
                "c2s_out": c2s.out_next,
                "s2c_in": s2c.next_in,
                "s2c_out": s2c.out_next,
            },
            "open": {"client": self.address, "ordinal": self.ordinal, "key": self.key, **self.login()},
        }
