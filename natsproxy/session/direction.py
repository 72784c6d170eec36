"""One direction of a session: its bytes are scanned, forwarded, held and recorded.

Both directions run the same code: a pipe uses its direction only as a label.  Adjacent frames that pass are
batched into one slice, which is sent and recorded as a whole.  A frame whose payload is still coming is an
*open* frame: it was decided on at its control line, its bytes follow as `Body`, its record is written when it
ends.

Frames that nobody wants may bypass the session: a native plane forwards them by itself while nothing is to be
done between two of them (`clear`), and applies decisions that the rules made in advance.  They are counted
here afterwards, before the session does anything (`catch_up`).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from natsproxy.capture.filter.redact import SECRET_OPS, Secrets, needs_look
from natsproxy.capture.format.records import Flags, Frames, OpaqueRecord
from natsproxy.rules.interface import Decision
from natsproxy.session.outbox import PLAIN, Origin, Outbox, Outgoing
from natsproxy.session.phase import PIPE_TRANSITIONS, PipeEvent, PipePhase
from natsproxy.session.values import SMALL, Act, Budget, Finish, Record, Send, SessionSettings, WorkLimit
from natsproxy.wire import encode
from natsproxy.wire.frames import NO_LIMIT, Body, Frame, Run
from natsproxy.wire.interest import Clause
from natsproxy.wire.ops import OPS, Direction, Op, op_of
from natsproxy.wire.parse import frames as parse_frames
from natsproxy.wire.scanner import Interest, Scanner

UNSENT: Final = "unsent"
"""The cause of frames that were read and not sent when the connection ended."""
FAILOVER: Final = "failover"
"""The cause of frames that the proxy makes or drops while it replaces a lost server."""
OURS: Final = Origin()
"""The origin of injected bytes, or of bytes that are no frame: they have no record of their own."""
_AS_IT_CAME: Final = Decision()
_IN_PLACE: Final = (Op.PING, Op.PONG)
"""The ops that rules never reorder: a PONG does not say to which PING it belongs."""
_NOTHING: Final = Interest()
_GREETINGS: Final = Interest((Clause(SECRET_OPS),))


@dataclass(frozen=True, slots=True)
class PipeContext:
    """The values that both pipes of a connection get.

    conn: its number, in events and records.  record: whether records are made from the start.  budget: of all
    connections.  secrets: of both directions, because an answer is secret where its request was.  act: adds
    an action of the session.
    """

    settings: SessionSettings
    conn: int
    record: bool
    budget: Budget
    secrets: Secrets
    act: Act


@dataclass(slots=True, eq=False)
class OpenFrame:
    """A frame whose payload is still coming.

    head_in, head_out: its first bytes as received and as sent (None: not sent).  secret: one of the two is
    secret, so both are redacted.  tail: the later bytes, as far as they are recorded; cut: no more of them
    are.  held: its item in the outbox, if it waits there.
    """

    op: int
    ordinal: int
    head_in: bytes
    head_out: bytes | None
    cause: str | None
    size: int
    out_first: int | None
    secret: bool = False
    tail: bytearray = field(default_factory=bytearray)
    cut: bool = False
    held: Outgoing | None = None


class _Replacement(NamedTuple):
    """The frames that a decision puts in the place of one.

    out: whole frames, or the head of one whose payload is still coming.  as_it_came: that is the frame
    itself.  secret: one of the forms is secret, so all are redacted.
    """

    frame: Frame
    ordinal: int
    decision: Decision
    out: tuple[bytes, ...]
    as_it_came: bool
    secret: bool

    def origin(self, now: int) -> Origin:
        """Return the origin of `out`, for its records."""
        cause = self.decision.cause or None
        if self.as_it_came:
            return Origin(first=self.ordinal, t=now, cause=cause)
        return Origin(of=self.ordinal, cause=cause, secret=self.secret)

    def outgoing(self, raw: bytes, now: int) -> Outgoing:
        """Return one of `out` as it waits in the outbox."""
        op, decision = self.frame.op, self.decision
        due = now if decision.until is None else decision.until
        waiting = Outgoing([raw], 1, 1 << op_of(raw, op), self.origin(now), due, paces=decision.paces)
        if self.frame.missing:
            waiting.open = True  # its order is fixed: the rest of it follows
        elif op not in _IN_PLACE:
            waiting.overtake, waiting.defer = decision.overtake, decision.defer
        return waiting


def count_ops(data: bytes | memoryview, frames: int, ops: int, direction: Direction) -> list[tuple[int, int]]:
    """Count whole frames by op; ops: those among them (a mask)."""
    if ops & (ops - 1):  # of several ops: which of them how often is to be seen
        return [*Counter(int(frame.op) for frame in parse_frames(bytes(data), direction)).items()]
    return [(ops.bit_length() - 1, frames)] if ops else []


class DirectionRecords:
    """The records of one direction.

    on: whether records are wanted; callers of `put` ask first, and build none otherwise.
    """

    __slots__ = ("_act", "_conn", "_direction", "_scanner", "_secrets", "on")

    def __init__(self, direction: Direction, scanner: Scanner, context: PipeContext) -> None:
        self.on = context.record
        self._direction = direction
        self._scanner = scanner
        self._conn = context.conn
        self._secrets = context.secrets
        self._act = context.act

    @property
    def suspicious(self) -> bool:
        """True if each frame must be inspected: earlier traffic may make any of them a secret."""
        return self._secrets.alert or (self.on and self._scanner.odd)

    def put(self, record: Frames, *, secret: bool = False) -> None:
        """Redact a record and give it to the recorder; secret: another form of its frame is secret."""
        # The scanner has seen every frame of it: each needs inspection only where one was odd.
        if secret or self._scanner.odd or self._secrets.alert or needs_look(record):
            for clean in self._secrets.clean(record, secret=secret):
                self._act(Record(clean))
        else:
            self._act(Record(record))

    def split(self, raw: bytes, ops: int) -> list[tuple[bytes, int]]:
        """Split injected bytes into frames with their ops: records and counters are per frame."""
        if raw == encode.PING:  # by far the most of them: fences
            return [(raw, ops)]
        if raw.startswith(b"-ERR ") and raw.index(b"\n") == len(raw) - 1:  # one denial
            return [(raw, Op.ERR.bit)]
        return [(bytes(frame.raw), 1 << frame.op) for frame in parse_frames(raw, self._direction)]

    def stayed(
        self,
        data: bytes | memoryview,
        came: Run | Frame,
        first: int,
        t: int | None,
        cause: str,
        *,
        secret: bool = False,
    ) -> None:
        """Record whole frames that were received and not forwarded; first: an ordinal, t: when (ns)."""
        if self.on:
            frames, ops = (came.frames, came.ops) if isinstance(came, Run) else (1, 1 << came.op)
            record = Frames(self._conn, self._direction, data, frames, ops, first, t, None, None, cause)
            self.put(record, secret=secret)

    def open_ended(self, opened: OpenFrame, now: int, flags: int = 0) -> None:
        """Record a streamed frame at its end."""
        if not self.on:
            return
        went = opened.out_first
        extra: dict[str, Any] = {}
        if len(opened.head_in) + len(opened.tail) != opened.size:
            flags |= 0 if flags else Flags.TRUNCATED
            extra["size"] = opened.size
        same = opened.head_out == opened.head_in
        record = Frames(
            conn=self._conn,
            direction=self._direction,
            data=opened.head_in + opened.tail,
            frames=1,
            ops=1 << opened.op,
            in_first=opened.ordinal,
            in_t=now,
            out_first=went if same else None,
            out_t=now if same and went is not None else None,
            cause=opened.cause,
            flags=flags,
            extra=extra or None,
        )
        self.put(record, secret=opened.secret)
        if not same and opened.head_out is not None and went is not None:
            extra["of"] = opened.ordinal
            data = opened.head_out + opened.tail
            record = record._replace(
                data=data, in_first=None, in_t=None, out_first=went, out_t=now, extra=extra
            )
            self.put(record, secret=opened.secret)

    def changes(self, forms: Sequence[bytes]) -> bool:
        """Tell the redaction that a frame is forwarded in other forms; return whether they are secret."""
        return self._secrets.changed(self._direction, forms)

    def cut_short(self, rest: bytes, first: int, out_first: int | None, now: int) -> None:
        """Record the bytes of a frame that never ended; out_first: its ordinal there, None if unsent."""
        if self.on and rest:
            out_t, cause = (None, UNSENT) if out_first is None else (now, None)
            record = Frames(self._conn, self._direction, rest, 1, 0, first, now, out_first, out_t, cause)
            self.put(record._replace(flags=Flags.CUT))

    def cut_off(
        self, part: bytes, ordinal: int, out_first: int, now: int, cause: str, *, secret: bool
    ) -> None:
        """Record the part of a frame that went out as the last bytes of the direction."""
        if self.on:
            record = Frames(self._conn, self._direction, part, 1, 0, None, None, out_first, now, cause)
            self.put(record._replace(flags=Flags.CUT, extra={"of": ordinal}), secret=secret)

    def left(self, rest: bytes, first: int, now: int) -> None:
        """Record bytes that were received and never scanned: whole frames, maybe, and a partial one."""
        if not self.on:
            return
        # A separate scanner: that of the direction has limits, and another position.
        scanner = Scanner(
            self._direction, _GREETINGS, line_limit=1 << 20, hold=NO_LIMIT, buffer_limit=NO_LIMIT
        )
        scanner.feed(rest)
        read = 0
        while isinstance(found := scanner.next(), Run | Frame):
            self._scanner.odd |= scanner.odd  # `put` asks that one, which has not seen them
            self.stayed(rest[read : scanner.offset], found, first, now, UNSENT)
            first, read = first + (found.frames if isinstance(found, Run) else 1), scanner.offset
        self.cut_short(rest[read:], first, None, now)

    def unframed(self, length: int, now: int) -> None:
        """Record that bytes passed without being framed."""
        if self.on:
            self._act(Record(OpaqueRecord(self._conn, self._direction, now, length)))


class Sender:
    """Sends the frames of one direction.

    out_next: the ordinal of the next frame that goes out.  out_bytes: the bytes sent.
    surplus: by op, frames sent minus frames received; frames that pass unchanged do not touch it.
    """

    __slots__ = ("_act", "_conn", "_direction", "_records", "out_bytes", "out_next", "outbox", "surplus")

    def __init__(self, direction: Direction, records: DirectionRecords, context: PipeContext) -> None:
        self.outbox = Outbox()
        self.out_next = self.out_bytes = 0
        self.surplus = [0] * len(OPS)
        self._direction = direction
        self._conn = context.conn
        self._records = records
        self._act = context.act

    def write(self, data: bytes | memoryview) -> None:
        """Send bytes without a record."""
        if self.outbox.limited:
            self.outbox.carry(data)
        else:
            self.out_bytes += len(data)
            self._act(Send(self._direction, data))

    def kept(self, data: bytes | memoryview, frames: int, ops: int) -> None:
        """Count received frames that are not forwarded, or not yet."""
        self._count(data, frames, ops, -1)

    def changed(self, op: Op, out: tuple[bytes, ...]) -> None:
        """Count the frames that are sent at once in the place of one."""
        self.surplus[op] -= 1
        for raw in out:
            self.surplus[op_of(raw, op)] += 1

    def _count(self, data: bytes | memoryview, frames: int, ops: int, sign: int) -> None:
        for op, count in count_ops(data, frames, ops, self._direction):
            self.surplus[op] += sign * count

    def pass_(self, data: bytes | memoryview, frames: int, ops: int, first: int, now: int) -> None:
        """Send whole frames unchanged, after those that wait; first: the ordinal of the first."""
        if self.outbox.active:
            self.hold(bytes(data), frames, ops, Origin(first, now), now)
            return
        # No `Origin` here: this is the path of frames that no rule wants.
        self.write(data)
        if self._records.on:
            conn, direction, out_first = self._conn, self._direction, self.out_next
            self._records.put(Frames(conn, direction, data, frames, ops, first, now, out_first, now))
        self.out_next += frames

    def hold(self, data: bytes, frames: int, ops: int, origin: Origin, due: int) -> None:
        """Queue whole received frames until `due`."""
        self.kept(data, frames, ops)
        self.outbox.put(Outgoing([data], frames, ops, origin, due))

    def put(self, data: bytes, frames: int, ops: int, origin: Origin, now: int) -> None:
        """Send bytes, after those that wait."""
        if self.outbox.active:
            self.outbox.put(Outgoing([data], frames, ops, origin, now))
        else:
            self.send(data, frames, ops, origin, now)

    def send(self, data: bytes, frames: int, ops: int, origin: Origin, now: int) -> None:
        """Send bytes now, and record them if they are whole frames."""
        self.write(data)
        if not frames:
            return
        self._count(data, frames, ops, 1)
        if self._records.on:
            first, t, of, cause, secret = origin
            extra = None if of is None else {"of": of}
            conn, direction, out_first = self._conn, self._direction, self.out_next
            record = Frames(conn, direction, data, frames, ops, first, t, out_first, now, cause, extra=extra)
            self._records.put(record, secret=secret)
        self.out_next += frames

    def finish(self, now: int) -> None:
        """Half-close the direction, after the items that wait."""
        if self.outbox.active:
            self.outbox.put(Outgoing([], 0, 0, OURS, now, finish=True))
        else:
            self._act(Finish(self._direction))

    def release(self, now: int, limit: WorkLimit) -> None:
        """Send the items that are due, up to the limit."""
        outbox, most, released = self.outbox, self.out_next + limit.frames, True

        def stop() -> bool:  # what is still to go through the link is not released: another peer may get it
            return outbox.carrying or self.out_next >= most or limit.reached()

        while released:
            released = False
            for item in outbox.release(now, stop):
                released = True
                data = item.parts[0] if len(item.parts) == 1 else b"".join(item.parts)
                if item.finish:
                    self._act(Finish(self._direction))
                elif data:
                    self.send(data, item.frames, item.ops, item.origin, now)
            for piece in outbox.slices(now, limit.reached):
                self.out_bytes += len(piece)
                self._act(Send(self._direction, piece))


class Deciding(NamedTuple):
    """A frame whose decision the rules make in several steps.  ordinal: its number."""

    frame: Frame
    ordinal: int
    steps: Iterator[None]


class OpenPassed(NamedTuple):
    """A bypassed frame that is not complete: the direction takes it over.

    ordinal, out: its numbers on both legs.  size: its bytes, `missing` of which have not come.  data: those
    that have, where they are recorded, else its control line.
    """

    op: int
    ordinal: int
    out: int
    size: int
    missing: int
    data: bytes


Passed = tuple[
    int,
    int,
    int,
    Iterable[tuple[int, int]],
    tuple[int, int, int, int, int, bytes] | None,
    int,
    Iterable[tuple[int, int]],
    tuple[int, int],
]
"""Frames received, frames sent, bytes received, frames by op, the fields of an `OpenPassed`, bytes sent,
frames sent minus frames received by op, and the frames and bytes that wait in the plane."""
HeldFrames = tuple[bytes, list[tuple[int, int]], int, int, int, bytes]
"""Frames that wait in a plane: bytes, frames by op, ordinal of the first, times (came, due), and cause."""


class PassedFrames(Protocol):
    """Counts the frames that a plane passed by itself."""

    def take(self, direction: int) -> Passed | None:
        """Return the counts since the last call, None if nothing passed."""
        ...

    def give_back(self, direction: int) -> list[HeldFrames]:
        """Hand over the frames that wait there."""
        ...


class DirectionPipe:
    """One direction of one session.

    phase: see `phase.py`.  outbox: the items that wait.  swallowing: a rule swallows frames from here on.
    pending: a call reached its limit while the scanner had more.  waiting: its last frame is being checked;
    those behind it wait.  handled: the frames that the last call dealt with.  boundary_by: the time (ns) by
    which a frame that injections wait for must have ended.  unsent: held frames of a connection that is
    gone, not yet recorded.  deciding: the frame whose decision is not complete: those behind it wait.
    open: the frame whose payload is still coming.  later: injected frames that wait for its end.  owed: bytes
    of fences, and of the answers that wait for them.  unread: received bytes of a connection that is gone
    that were never processed.  watched: further ops at which the scanner stops (a mask).  whole: frames up to
    this size (bytes) go on only whole, because their sender may be lost and replaced.
    """

    __slots__ = (
        "__weakref__",
        "_budget",
        "_buffer",
        "_changed",
        "_charged",
        "_end",
        "_first",
        "_frames",
        "_ops",
        "_settings",
        "_start",
        "boundary_by",
        "deciding",
        "direction",
        "handled",
        "in_bytes",
        "later",
        "open",
        "outbox",
        "owed",
        "pending",
        "phase",
        "records",
        "scanner",
        "sender",
        "swallowing",
        "unread",
        "unsent",
        "waiting",
        "watched",
        "whole",
    )

    def __init__(self, direction: Direction, context: PipeContext) -> None:
        settings = context.settings
        self.direction = direction
        self.scanner = scanner = Scanner(
            direction,
            _NOTHING,
            line_limit=settings.max_control_line,
            hold=0,
            buffer_limit=settings.rule_buffer,
        )
        self.phase = PipePhase.FRAMED
        self.records = DirectionRecords(direction, scanner, context)
        self.sender = Sender(direction, self.records, context)
        self.outbox = self.sender.outbox
        self.in_bytes = self.handled = self.owed = self.unread = self.watched = self.whole = 0
        self.swallowing = self.pending = self.waiting = False
        self.boundary_by: int | None = None
        self.unsent: deque[Outgoing] | None = None
        self._settings = settings
        self._budget = context.budget
        self._buffer = b""
        self._start = self._end = self._frames = self._ops = self._first = self._charged = 0
        self.open: OpenFrame | None = None
        self.deciding: Deciding | None = None
        self.later: list[tuple[bytes, int, str]] = []  # injected inside a frame: they go out behind it
        self._changed: list[bytes] = []  # changed frames that go out as one, while nobody records

    # -- the phase

    def step(self, event: PipeEvent) -> None:
        """Move to the phase that follows an event."""
        self.phase = PIPE_TRANSITIONS[self.phase].get(event, self.phase)

    @property
    def ended(self) -> bool:
        """True if the sender's stream is over, or must not go on."""
        return self.phase >= PipePhase.ENDED

    @property
    def unframed(self) -> bool:
        """True if its bytes pass without being framed."""
        return self.phase in (PipePhase.UNFRAMED, PipePhase.UNFRAMED_ENDED)

    @property
    def passed_on(self) -> bool:
        """True if the sender's stream is over, and everything to be forwarded was sent."""
        return self.ended and not (self.pending or self.outbox.bytes)

    @property
    def next_in(self) -> int:
        """The ordinal of the next frame to be handled."""
        return self.scanner.ordinal if self.deciding is None else self.deciding.ordinal

    @property
    def out_next(self) -> int:
        """The ordinal of the next frame that goes out."""
        return self.sender.out_next

    # -- frames that bypass the session

    @property
    def clear(self) -> bool:
        """True if unwanted frames may bypass the session here: nothing is to be done between them."""
        outbox = self.outbox
        return self._between and self.scanner.idle and outbox.handed_over and outbox.conditions is PLAIN

    @property
    def may_hand_over(self) -> bool:
        """True if the frames that wait may do so in a native plane."""
        return self._between and self.outbox.plain

    @property
    def _between(self) -> bool:
        return (
            self.phase is PipePhase.FRAMED
            and self.open is None
            and not (self.swallowing or self.later or self.records.suspicious)
        )

    def hand_over(self) -> list[HeldFrames]:
        """Remove and return the frames that wait here: a plane holds them from now on."""
        return [
            (data, self._counts(data, item), item.origin.first or 0, item.origin.t or 0, item.due, cause)
            for item in self.outbox.hand_over()
            for data in [b"".join(item.parts)]
            for cause in [(item.origin.cause or "").encode()]
        ]

    def _counts(self, data: bytes, item: Outgoing) -> list[tuple[int, int]]:
        return count_ops(data, item.frames, item.ops, self.direction)

    def take_back(self, held: list[HeldFrames]) -> None:
        """Take over the frames that wait in a plane."""
        self.outbox.take_back(
            [
                Outgoing(
                    [data],
                    sum(count for _, count in counts),
                    sum(1 << op for op, _ in counts),
                    Origin(first, t, cause=cause.decode() or None),
                    due,
                )
                for data, counts, first, t, due, cause in held
            ]
        )

    def catch_up(self, passed: Passed) -> None:
        """Count frames that were bypassed, and take over the last one where it is not complete."""
        frames, sent, size, ops, opened, out, surplus, ahead = passed
        self.outbox.note_ahead(ahead)
        self.in_bytes += size
        self.sender.out_next += sent
        self.sender.out_bytes += out
        for op, count in surplus:
            self.sender.surplus[op] += count
        self.scanner.skip(frames, size, ops)
        if opened is not None:
            op, ordinal, went, whole, missing, data = OpenPassed(*opened)
            self.open = OpenFrame(Op(op), ordinal, data, data, None, whole, went)
            self.scanner.skip_into(missing)

    def take_over(self, rest: bytes) -> None:
        """Take over an unfinished control line."""
        if rest:
            self.in_bytes += len(rest)
            self.scanner.feed(rest)

    # -- frames that pass

    def pass_(self, segment: Run | Frame, first: int, now: int) -> None:
        """Forward a run or a frame unchanged; `first` is its (first) ordinal."""
        if isinstance(segment, Frame):
            frames, ops = 1, 1 << segment.op
            if segment.missing:
                self._begin_open(self._replacement(segment, first, _AS_IT_CAME), now)
                return
        else:
            frames, ops = segment.frames, segment.ops
        # The same buffer, and no gap: the slice grows, and one send and one record serve all of it.
        if self._frames and segment.buffer is self._buffer and segment.start == self._end:
            self._end = segment.end
            self._frames += frames
            self._ops |= ops
            return
        self.flush(now)
        self._buffer, self._start, self._end = segment.buffer, segment.start, segment.end
        self._frames, self._ops, self._first = frames, ops, first

    def flush(self, now: int) -> None:
        """Send and record the batched frames."""
        if self._changed:
            changed, self._changed = self._changed, []
            self.sender.write(b"".join(changed))
            self.sender.out_next += len(changed)
        if not self._frames:
            return
        # A view of the read: bytes that no rule wants are not copied between the two sockets.
        data: bytes | memoryview = self._buffer
        if self._end - self._start != len(self._buffer):
            data = memoryview(self._buffer)[self._start : self._end]
        frames, self._frames = self._frames, 0
        self.sender.pass_(data, frames, self._ops, self._first, now)
        self._buffer = b""

    # -- frames that do not pass as they are

    def hold(self, run: Run, first: int, now: int, until: int, cause: str) -> None:
        """Forward adjacent frames unchanged, at `until` and not before."""
        self.flush(now)
        # A copy: a view would keep the whole read in memory as long as the delay lasts.
        data = run.buffer[run.start : run.end]
        self.sender.hold(data, run.frames, run.ops, Origin(first, now, cause=cause), until)

    def change(self, frames: list[Frame], out: Sequence[bytes], first: int, now: int, cause: str) -> None:
        """Replace adjacent frames, one for one."""
        if self.records.on or self.records.suspicious or self.outbox.active:
            for place, (frame, raw) in enumerate(zip(frames, out, strict=True)):
                self.replace(frame, first + place, Decision((raw,), cause=cause), now)
            return
        if self._frames:
            self.flush(now)
        self._changed += out

    def lose(self, run: Run, first: int, now: int, cause: str = "swallow") -> None:
        """Drop a run."""
        self.flush(now)
        data = memoryview(run.buffer)[run.start : run.end]
        self.sender.kept(data, run.frames, run.ops)
        self.records.stayed(data, run, first, now, cause)

    def drop(self, frame: Frame, ordinal: int, now: int, cause: str, *, secret: bool = False) -> None:
        """Drop a frame, its missing part included."""
        self.flush(now)
        self.sender.surplus[frame.op] -= 1
        if frame.missing:
            self.open = OpenFrame(frame.op, ordinal, frame.raw, None, cause, frame.wire_size, None, secret)
        else:
            self.records.stayed(frame.raw, frame, ordinal, now, cause, secret=secret)

    def cut_off(self, frame: Frame, part: bytes, ordinal: int, now: int, cause: str) -> None:
        """Drop a frame at which the connection ends, but send the part of it that its receiver still gets.

        Nothing of it goes out where earlier frames wait, since those are lost.
        """
        secret = self.records.changes((frame.raw, part))
        self.drop(frame, ordinal, now, cause, secret=secret)
        if part and not self.outbox.active:
            self.sender.write(part)
            self.records.cut_off(part, ordinal, self.out_next, now, cause, secret=secret)

    def replace(self, frame: Frame, ordinal: int, decision: Decision, now: int) -> None:
        """Send what a decision puts in the place of a frame, when it says so.

        Where the frame is not whole, its head is sent: what is missing follows.
        """
        new = self._replacement(frame, ordinal, decision)
        if frame.missing:
            self._begin_open(new, now)
        elif (waits := self._waits(decision, frame.op)) or self.records.on:
            self._replace_each(new, now, waits=waits)
        else:
            if self._frames:
                self.flush(now)
            self._changed += new.out
            self.sender.changed(frame.op, new.out)

    def _replacement(self, frame: Frame, ordinal: int, decision: Decision) -> _Replacement:
        out = decision.out or (frame.raw,)
        as_it_came = out == (frame.raw,)
        secret = not as_it_came and self.records.changes((frame.raw, *out))
        return _Replacement(frame, ordinal, decision, out, as_it_came, secret)

    def _replace_each(self, new: _Replacement, now: int, *, waits: bool) -> None:
        """Send or queue a replacement frame by frame: each has a record, or a time of its own."""
        frame, cause = new.frame, new.decision.cause
        self.flush(now)
        if not new.as_it_came:
            self.records.stayed(frame.raw, frame, new.ordinal, now, cause, secret=new.secret)
        self.sender.surplus[frame.op] -= 1
        for raw in new.out:
            if waits:
                self.outbox.put(new.outgoing(raw, now))
            else:
                self.sender.send(raw, 1, 1 << op_of(raw, frame.op), new.origin(now), now)

    def pass_ahead(self, frame: Frame, ordinal: int, now: int) -> None:
        """Send a whole frame unchanged, ahead of those that wait."""
        self.flush(now)
        self.sender.surplus[frame.op] -= 1
        self.outbox.put(Outgoing([frame.raw], 1, 1 << frame.op, Origin(ordinal, now), now, overtake=True))

    def inject_ahead(self, raw: bytes, op: Op, now: int, cause: str) -> None:
        """Inject a frame ahead of those that wait."""
        self.flush(now)
        self.outbox.put(Outgoing([raw], 1, op.bit, Origin(cause=cause), now, overtake=True))

    def _waits(self, decision: Decision, op: Op) -> bool:
        """Return whether a frame waits: for the time that the rules say, or behind others."""
        deferred = decision.defer > 0 and op not in _IN_PLACE
        return decision.until is not None or deferred or bool(decision.paces) or self.outbox.active

    def _begin_open(self, new: _Replacement, now: int) -> None:
        """Begin a frame whose payload is still coming."""
        frame, (head, *_) = new.frame, new.out
        self.flush(now)
        cause = new.decision.cause or None
        self.open = opened = OpenFrame(
            frame.op, new.ordinal, frame.raw, head, cause, frame.wire_size, None, new.secret
        )
        if self._waits(new.decision, frame.op):
            opened.held = new.outgoing(head, now)
            self.sender.surplus[frame.op] -= 1
            self.outbox.put(opened.held)
        else:
            # Its head goes out now, so it has its place among the frames sent, however its body ends.
            opened.out_first = self.out_next
            self.sender.write(head)
            self.sender.out_next += 1
            self.sender.changed(frame.op, (head,))

    def body(self, segment: Body, now: int) -> None:
        """Take more bytes of the open frame."""
        opened = self.open
        assert opened is not None
        data = segment.buffer[segment.start : segment.end]
        if opened.held is not None:
            self.outbox.grow(opened.held, data, last=segment.last)
        elif opened.head_out is not None:
            self.sender.write(data)
        if self.records.on:
            room = self._settings.record_frame_max - len(opened.head_in) - len(opened.tail)
            if self._budget.spent and len(opened.tail) + len(data) > SMALL:
                opened.cut = True  # a record must not join bytes that were not adjacent
            if not opened.cut:
                opened.tail += data[: max(0, room)]
        if segment.last:
            self.open = None
            # A held frame that goes on untouched is recorded as it leaves, with both of its times.
            if opened.held is None or opened.held.origin.first is None:
                self.records.open_ended(opened, now)
            if self.later:
                self._boundary(now)

    def inject(self, raw: bytes, ops: int, now: int, cause: str) -> None:
        """Inject frames here, or after the frame that is partly sent (see `boundary_by`).

        They are dropped if the stream is not framed: it has no known frame boundaries.
        """
        self.flush(now)
        if self.unframed:
            return
        if self.mid_frame:
            self.later.append((raw, ops, cause))
            if self.boundary_by is None:
                self.boundary_by = now + self._settings.boundary_timeout
            return
        for each, op in self.records.split(raw, ops):
            self.sender.put(each, 1, op, Origin(cause=cause), now)

    def _boundary(self, now: int) -> None:
        later, self.later, self.boundary_by = self.later, [], None
        for raw, ops, cause in later:
            self.inject(raw, ops, now, cause)

    def pass_unframed(self, data: bytes, now: int) -> None:
        """Pass bytes that are not framed; only their length is recorded."""
        self.flush(now)
        self.sender.put(data, 0, 0, OURS, now)
        self.records.unframed(len(data), now)

    # -- a leg that is lost, and replaced

    def lose_receiver(self, now: int) -> None:
        """Hold back what is to be sent, for another receiver; the rest of a frame that was begun is lost."""
        self.flush(now)
        self.outbox.lose_peer()
        if self.open is not None and self.open.held is None and self.open.head_out is not None:
            self.open.head_out, self.open.out_first, self.open.cause = None, None, FAILOVER
        if self.later and not self.mid_frame:
            self._boundary(now)

    def lose_sender(self, now: int) -> None:
        """Forget a frame whose end will not come; another sender begins anew."""
        self.flush(now)
        self._cut_open(now)
        if rest := self.scanner.rest():
            self.records.cut_short(rest, self.scanner.ordinal, None, now)
            self.scanner.skip(1, 0, ())  # it has an ordinal now
        self.scanner.skip_into(0)

    def send_first(self, raw: bytes, now: int) -> None:
        """Send frames of ours ahead of all that is held back."""
        for each, op in self.records.split(raw, 0):
            self.sender.send(each, 1, op, Origin(cause=FAILOVER), now)

    def _cut_open(self, now: int) -> None:
        """Record a streamed frame that will not end; once only, wherever it waits to be sent."""
        opened, self.open = self.open, None
        if opened is not None:
            self.records.open_ended(opened, now, Flags.CUT)
            if opened.held is not None:
                # Recorded above; its bytes so far are sent, and do not count as a frame.
                opened.held.origin, opened.held.frames, opened.held.open = OURS, 0, False

    def cut(self, rest: bytes, now: int) -> None:
        """Handle the end of the sender's stream, maybe inside a frame: pass on and record the last bytes."""
        self.flush(now)
        self._cut_open(now)
        if rest:
            self.sender.put(rest, 0, 0, OURS, now)
            self.records.cut_short(rest, self.scanner.ordinal, self.out_next, now)
        self.step(PipeEvent.END)

    def abandon(self, now: int, limit: WorkLimit) -> None:
        """Record the frames of a lost connection that were read and not sent, up to the limit.

        Bytes that no call has processed count as not read.
        """
        if self.deciding is not None:
            frame, ordinal, _ = self.deciding
            self.deciding = None
            self.drop(frame, ordinal, now, UNSENT)
        self._cut_open(now)
        if self.pending:
            self.unread = len(self.scanner.rest())
            self.in_bytes -= self.unread
            self.pending = False
        self.unsent = deque(self.outbox.left()) if self.unsent is None else self.unsent
        while self.unsent and not limit.reached():
            held = self.unsent.popleft()
            if held.frames and held.origin.first is not None:
                data = b"".join(held.parts)
                run = Run(data, 0, len(data), held.frames, held.ops)
                self.records.stayed(data, run, held.origin.first, held.origin.t, held.origin.cause or UNSENT)
        if not (self.unsent or self.ended):
            self.records.left(self.scanner.rest(), self.scanner.ordinal, now)
            self.step(PipeEvent.END)

    def outgoing(self, op: Op) -> int:
        """Return how many frames of an op have gone to the receiver, or wait to go."""
        waiting = self.outbox.count(op, self.direction) + sum(ops == 1 << op for _, ops, _ in self.later)
        return self.scanner.counts[op] + self.sender.surplus[op] + waiting

    @property
    def position(self) -> int:
        """The number of frames that go to the receiver before the next one; it never decreases."""
        gathered = self._frames + len(self._changed) + len(self.later)
        return self.sender.out_next + self.outbox.frames + gathered

    @property
    def mid_frame(self) -> bool:
        """True if a frame is partly sent, or may be: nothing may be injected now."""
        return self.unframed or (self.open is not None and self.open.head_out is not None)

    @property
    def full(self) -> bool:
        """True if reading must stop: too much is held back, or the last frame is being checked.

        Not while all waits for the rest of a frame: without it nothing would ever go out.
        """
        outbox = self.outbox
        if self.waiting or outbox.conditions.stop_reading:
            return True
        held = outbox.bytes - outbox.ahead[1] + self.owed  # a plane has the same limit for what it holds
        if held <= SMALL:
            return False
        most = self._settings.queue_bytes * (2 if self.swallowing else 1)  # its PINGs must still be read
        return (held > most or self._budget.spent) and not outbox.incomplete

    # -- the budget

    def set_buffer_limit(self) -> None:
        """Set the bytes that the scanner may hold, before a read: fewer when the budget is spent."""
        most = self._settings.rule_buffer
        self.scanner.buffer_limit = min(SMALL, most) if self._budget.spent else most
        if self.whole:
            limit = self._settings.frame_hold_limit
            self.scanner.hold = limit if self._budget.spent else max(limit, self.whole)

    def charge(self) -> None:
        """Charge the bytes held here to the budget, after a read or a release."""
        held = self.scanner.held + self.outbox.bytes - self.outbox.ahead[1] + self.owed
        if self.deciding is not None:
            held += self.deciding.frame.end - self.deciding.frame.start
        if self.open is not None:
            held += len(self.open.tail)
        self._budget.used += held - self._charged
        self._charged = held

    def refund(self) -> None:
        """Give back the bytes of a connection that is gone."""
        self._budget.used -= self._charged
        self._charged = 0
