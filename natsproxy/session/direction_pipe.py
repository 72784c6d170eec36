"""One direction of a session: bytes are scanned, go on, are held, and are recorded.

Role-blind: a pipe knows its direction only as a label.  Neighbouring frames that pass are gathered into one
slice, sent and recorded once.  A frame whose payload is still coming is an *open* frame: its disposition was
decided at its control line, its bytes follow as `Body`, its record is written when it ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from natsproxy.capture.format.records import Flags
from natsproxy.rules.interface import Decision
from natsproxy.session.budget import SMALL
from natsproxy.session.direction_records import UNSENT, DirectionRecords, OpenFrame
from natsproxy.session.outbox import Item
from natsproxy.session.phase import PIPE_TRANSITIONS, PipeEvent, PipePhase
from natsproxy.session.pipe_context import PipeContext
from natsproxy.session.sender import Sender
from natsproxy.session.work_limit import WorkLimit
from natsproxy.wire.frames import Body, Frame, Run
from natsproxy.wire.ops import Direction, Op, op_of
from natsproxy.wire.scanner import Scanner


class Deciding(NamedTuple):
    """A frame on which the rules are about to decide, in steps.  ordinal: its number."""

    frame: Frame
    ordinal: int
    steps: Iterator[None]


class DirectionPipe:
    """One direction of one session.

    phase: see `phase.py`.  outbox: the items that wait.  swallowing: a rule swallows frames from here on.
    pending: a call reached its limit while the scanner had more.  waiting: its last frame is being checked;
    those behind it wait.  handled: the frames that the last call dealt with.  boundary_by: the time (ns) by
    which a frame that keeps injections back must have ended.  unsent: held frames of a connection that is
    gone, not yet recorded.  deciding: the frame on which a decision was begun and not made: those behind it
    wait.  open: the frame whose payload is still coming.  later: frames of ours that wait
    for its end.  owed: bytes that fences take, and the answers that wait for them.  unread: bytes of a
    connection that is gone that came, and that no call has come to.
    """

    def __init__(self, direction: Direction, scanner: Scanner, context: PipeContext) -> None:
        self.direction = direction
        self.scanner = scanner
        self.phase = PipePhase.FRAMED
        self.records = DirectionRecords(direction, scanner, context)
        self.sender = Sender(direction, self.records, context)
        self.outbox = self.sender.outbox
        self.in_bytes = self.handled = self.owed = self.unread = 0
        self.swallowing = self.pending = self.waiting = False
        self.boundary_by: int | None = None
        self.unsent: deque[Item] | None = None
        self._settings = context.settings
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
        """True if the sender's stream is over, and all of its bytes that go on have gone."""
        return self.ended and not (self.pending or self.outbox.bytes)

    @property
    def next_in(self) -> int:
        """The ordinal of the next frame to be dealt with."""
        return self.scanner.ordinal if self.deciding is None else self.deciding.ordinal

    @property
    def out_next(self) -> int:
        """The ordinal of the next frame that goes out."""
        return self.sender.out_next

    # -- frames that pass

    def pass_(self, segment: Run | Frame, first: int, now: int) -> None:
        """Let a run or a frame go on as it is; `first` is its (first) ordinal."""
        if isinstance(segment, Frame):
            frames, ops = 1, 1 << segment.op
            if segment.missing:
                self.replace(segment, (segment.raw,), first, now, None)
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
        """Send and record the frames that have been gathered."""
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
        """Send neighbouring frames as they are, at `until` and not before."""
        self.flush(now)
        # A copy: a view would keep the whole read in memory as long as the delay lasts.
        data = run.buffer[run.start : run.end]
        self.sender.hold(Item([data], until, run.frames, run.ops, first, now, cause))

    def change(self, frames: list[Frame], out: Sequence[bytes], first: int, now: int, cause: str) -> None:
        """Send other frames in the place of neighbouring ones, one for each."""
        if self.records.on or self.records.suspicious or self.outbox.active:
            for place, (frame, raw) in enumerate(zip(frames, out, strict=True)):
                self.replace(frame, (raw,), first + place, now, cause)
            return
        if self._frames:
            self.flush(now)
        self._changed += out

    def lose(self, run: Run, first: int, now: int, cause: str = "swallow") -> None:
        """Let a run go no further."""
        self.flush(now)
        data = memoryview(run.buffer)[run.start : run.end]
        self.sender.kept(data, run.frames, run.ops)
        self.records.stayed(data, run, first, now, cause)

    def drop(self, frame: Frame, ordinal: int, now: int, cause: str) -> None:
        """Let a frame go no further, its missing part included."""
        self.flush(now)
        self.sender.surplus[frame.op] -= 1
        if frame.missing:
            self.open = OpenFrame(frame.op, ordinal, frame.raw, None, cause, frame.wire_size, None)
        else:
            self.records.stayed(frame.raw, frame, ordinal, now, cause)

    def replace(
        self,
        frame: Frame,
        out: tuple[bytes, ...],
        ordinal: int,
        now: int,
        cause: str | None,
        decision: Decision | None = None,
    ) -> None:
        """Send `out` (whole frames; a head if the frame is not whole) in a frame's place, maybe later.

        cause None: the frame itself, untouched.  decision: its times (`until`, `overtake`, `defer`) hold.
        """
        until, overtake, defer = None, False, 0
        if decision is not None:
            until = decision.until
            # PING and PONG keep their place: a PONG does not say to which PING it belongs.
            if frame.op not in (Op.PING, Op.PONG):
                overtake, defer = decision.overtake, decision.defer
        held = until is not None or defer > 0 or self.outbox.active
        untouched = out == (frame.raw,)
        secret = not untouched and self.records.changes((frame.raw, *out))
        if not (held or self.records.on or frame.missing):
            if self._frames:
                self.flush(now)
            self._changed += out
            self.sender.changed(frame.op, out)
            return
        self.flush(now)
        due = now if until is None else until
        if frame.missing:
            self._begin_open(frame, out[0], ordinal, now, cause, due if held else None, secret)
            return
        if not untouched:
            self.records.stayed(frame.raw, frame, ordinal, now, cause or "", secret=secret)
        in_first, in_t, of = (ordinal, now, None) if untouched else (None, None, ordinal)
        self.sender.surplus[frame.op] -= 1
        for raw in out:
            ops = 1 << op_of(raw, frame.op)
            item = Item([raw], due, 1, ops, in_first, in_t, cause, of, overtake, defer, secret)
            if held:
                self.outbox.put(item)
            else:
                self.sender.send(item, raw, now)

    def _begin_open(
        self,
        frame: Frame,
        head: bytes,
        ordinal: int,
        now: int,
        cause: str | None,
        due: int | None,
        secret: bool,
    ) -> None:
        """Begin a frame whose payload is still coming.

        head: its first bytes, as they go on.  due: the time (ns) until which it is held, None for not at all.
        """
        self.open = OpenFrame(frame.op, ordinal, frame.raw, head, cause, frame.wire_size, None, secret)
        if due is not None:
            untouched = head == frame.raw
            in_first, in_t, of = (ordinal, now, None) if untouched else (None, None, ordinal)
            ops = 1 << op_of(head, frame.op)
            self.open.item = Item([head], due, 1, ops, in_first, in_t, cause, of, secret=secret, open=True)
            self.sender.surplus[frame.op] -= 1
            self.outbox.put(self.open.item)
        else:
            # Its head goes out now, so it has its place among the frames sent, however its body ends.
            self.open.out_first = self.out_next
            self.sender.write(head)
            self.sender.out_next += 1
            self.sender.changed(frame.op, (head,))

    def body(self, segment: Body, now: int) -> None:
        """Take more bytes of the open frame."""
        opened = self.open
        assert opened is not None
        data = segment.buffer[segment.start : segment.end]
        if opened.item is not None:
            self.outbox.grow(opened.item, data, last=segment.last)
        elif opened.head_out is not None:
            self.sender.write(data)
        if self.records.on:
            room = self._settings.record_frame_max - len(opened.head_in) - len(opened.tail)
            if self._budget.spent and len(opened.tail) + len(data) > SMALL:
                opened.cut = True  # later bytes must not be glued to the ones that are here
            if not opened.cut:
                opened.tail += data[: max(0, room)]
        if segment.last:
            self.open = None
            # A held frame that goes on untouched is recorded as it leaves, with both of its times.
            if opened.item is None or opened.item.in_first is None:
                self.records.open_ended(opened, now)
            if self.later:
                self._boundary(now)

    def inject(self, raw: bytes, ops: int, now: int, cause: str) -> None:
        """Send frames of ours here, or behind the frame that is half sent (see `boundary_by`).

        A stream that is not framed has no place for them: they are dropped.
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
            self.sender.put(Item([each], now, 1, op, None, None, cause), each, now)

    def _boundary(self, now: int) -> None:
        later, self.later, self.boundary_by = self.later, [], None
        for raw, ops, cause in later:
            self.inject(raw, ops, now, cause)

    def pass_unframed(self, data: bytes, now: int) -> None:
        """Pass bytes that are not framed; only their length is recorded."""
        self.flush(now)
        self.sender.put(Item([data], now, 0, 0, None, None), data, now)
        self.records.unframed(len(data), now)

    def _cut_open(self, now: int) -> None:
        """Record a frame that came in pieces and will not end; once only, wherever it waits to be sent."""
        opened, self.open = self.open, None
        if opened is not None:
            self.records.open_ended(opened, now, Flags.CUT)
            if opened.item is not None:
                # It is recorded now, and goes out as far as it came: it is no frame, and none is awaited.
                opened.item.in_first, opened.item.frames, opened.item.open = None, 0, False

    def cut(self, rest: bytes, now: int) -> None:
        """Take the end of the sender's stream, maybe inside a frame; pass the last bytes and record them."""
        self.flush(now)
        self._cut_open(now)
        if rest:
            self.sender.put(Item([rest], now, 0, 0, None, None), rest, now)
            self.records.cut_short(rest, self.scanner.ordinal, self.out_next, now)
        self.step(PipeEvent.END)

    def abandon(self, now: int, limit: WorkLimit) -> None:
        """Record the frames of a lost connection that were read and not sent, up to the limit.

        Bytes that no call has come to are as if they had not been read.
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
            item = self.unsent.popleft()
            if item.frames and item.in_first is not None:
                data = b"".join(item.parts)
                run = Run(data, 0, len(data), item.frames, item.ops)
                self.records.stayed(data, run, item.in_first, item.in_t, item.cause or UNSENT)
        if not (self.unsent or self.ended):
            self.records.left(self.scanner.rest(), self.scanner.ordinal, now)
            self.step(PipeEvent.END)

    @property
    def mid_frame(self) -> bool:
        """True if a frame is half sent, or may be: no frame of ours may go out now."""
        return self.unframed or (self.open is not None and self.open.head_out is not None)

    @property
    def full(self) -> bool:
        """True if the sender must wait: so much is held back, or its last frame is being checked."""
        held = self.outbox.bytes + self.owed
        most = self._settings.queue_bytes * (2 if self.swallowing else 1)  # its PINGs are to be read
        over = held > SMALL and (held > most or self._budget.spent)
        return over or self.waiting or self.outbox.conditions.stop_reading

    # -- the budget

    def set_buffer_limit(self) -> None:
        """Set the bytes that the scanner may hold, before a read: fewer when the budget is spent."""
        most = self._settings.rule_buffer
        self.scanner.buffer_limit = min(SMALL, most) if self._budget.spent else most

    def charge(self) -> None:
        """Charge the bytes held here to the budget, after a read or a release."""
        held = self.scanner.held + self.outbox.bytes + self.owed
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
