"""One direction of a session: what is scanned, what goes on, what is recorded.

Role-blind: a lane knows its direction only as a label.  Neighbouring frames that pass are gathered into one
slice, sent and recorded once.  A frame whose payload is still coming is an *open* frame: its disposition was
decided at its control line, its bytes follow as `Body`, its record is written when it ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from natsproxy.capture.filter.redact import Secrets
from natsproxy.capture.format.records import Flags
from natsproxy.session.actions import Finish, Send, SessionSettings
from natsproxy.session.budget import SMALL, Budget
from natsproxy.session.outbox import PLAIN, Item, Outbox
from natsproxy.session.recording import UNSENT, OpenFrame, Recording
from natsproxy.session.turn import Turn
from natsproxy.wire.frames import Body, Frame, Run
from natsproxy.wire.ops import Direction
from natsproxy.wire.parse import frames as parse_frames
from natsproxy.wire.scanner import Scanner


class DirectionPipe(Recording):
    """One direction of one session; `actions` is where it puts what is to be done."""

    def __init__(
        self,
        direction: Direction,
        scanner: Scanner,
        settings: SessionSettings,
        conn: int,
        record: bool,
        budget: Budget,
        secrets: Secrets,
    ) -> None:
        super().__init__(direction, scanner, conn, record, secrets)
        self.outbox = Outbox()
        self.out_next = 0
        self.in_bytes = 0
        self.ended = False  # nothing more is taken from the sender
        self.finished = False  # a rule has half-closed it: what still comes is lost
        self.swallowing = False  # a rule swallows frames from here on
        self.pending = False  # a turn ended before all was dealt with that the scanner has
        self.unread = False  # its bytes are passed without being framed, from here on
        self.boundary_by: int | None = None  # when the frame that keeps injections back must have ended
        self.unsent: deque[Item] = deque()  # what is still to be recorded of a connection that is gone
        self.owed = 0  # bytes of answers to the sender that wait for their fences
        self._settings = settings
        self._budget = budget
        self._charged = 0
        self._buffer = b""
        self._start = self._end = self._frames = self._ops = self._first = 0
        self._open: OpenFrame | None = None
        self._later: list[tuple[bytes, int, str]] = []  # injected inside a frame: they go out behind it
        self._changed: list[bytes] = []  # changed frames that go out as one, while nobody records

    # -- frames that pass

    def pass_(self, segment: Run | Frame, first: int, now: int) -> None:
        """Let a run or a frame go on as it is; `first` is its (first) ordinal."""
        if isinstance(segment, Frame):
            frames, ops = 1, 1 << segment.op
            if segment.missing:
                self.replace(segment, (segment.raw,), first, now, cause=None)
                return
        else:
            frames, ops = segment.frames, segment.ops
        if self._frames and segment.buffer is self._buffer and segment.start == self._end:
            self._end = segment.end
            self._frames += frames
            self._ops |= ops
            return
        self.flush(now)
        self._buffer, self._start, self._end = segment.buffer, segment.start, segment.end
        self._frames, self._ops, self._first = frames, ops, first

    def flush(self, now: int) -> None:
        """Send and record what has been gathered."""
        if self._changed:
            changed, self._changed = self._changed, []
            self._send(b"".join(changed), len(changed), 0, None, None, now)
        if not self._frames:
            return
        data: bytes | memoryview = self._buffer
        if self._end - self._start != len(self._buffer):
            data = memoryview(self._buffer)[self._start : self._end]
        frames, self._frames = self._frames, 0
        if self.outbox.active:
            self.outbox.put(Item([bytes(data)], now, frames, self._ops, self._first, now))
        else:
            self._send(data, frames, self._ops, self._first, now, now)
        self._buffer = b""

    def _send(
        self,
        data: bytes | memoryview,
        frames: int,
        ops: int,
        in_first: int | None,
        in_t: int | None,
        now: int,
        cause: str | None = None,
        of: int | None = None,
    ) -> None:
        self._write(data)
        self._went(data, frames, ops, in_first, in_t, self.out_next, now, cause, of)
        self.out_next += frames

    def _write(self, data: bytes | memoryview) -> None:
        if self.outbox.bent:
            self.outbox.set_conditions(data)
        else:
            self.actions.append(Send(self.direction, data))

    # -- frames that do not pass as they are

    def hold(self, run: Run, first: int, now: int, until: int, cause: str) -> None:
        """Send neighbouring frames as they are, at `until` and not before."""
        self.flush(now)
        data = run.buffer[run.start : run.end]
        self.outbox.put(Item([data], until, run.frames, run.ops, first, now, cause))

    def change(self, frames: list[Frame], out: Sequence[bytes], first: int, now: int, cause: str) -> None:
        """Send other frames in the place of neighbouring ones, one for each."""
        if self.record or self.outbox.active:
            for place, (frame, raw) in enumerate(zip(frames, out, strict=True)):
                self.replace(frame, (raw,), first + place, now, cause=cause)
            return
        if self._frames:
            self.flush(now)
        self._changed += out

    def lose(self, run: Run, first: int, now: int) -> None:
        """Let a run go no further (a link that swallows)."""
        self.flush(now)
        data = memoryview(run.buffer)[run.start : run.end]
        self._stayed(data, run.frames, run.ops, first, now, "swallow")

    def drop(self, frame: Frame, ordinal: int, now: int, cause: str) -> None:
        """Let a frame go no further, its missing part included."""
        self.flush(now)
        if frame.missing:
            self._open = OpenFrame(frame.op, ordinal, frame.raw, None, cause, frame.wire_size, None)
        else:
            self._stayed(frame.raw, 1, 1 << frame.op, ordinal, now, cause)

    def replace(
        self,
        frame: Frame,
        out: tuple[bytes, ...],
        ordinal: int,
        now: int,
        *,
        cause: str | None,
        until: int | None = None,
        overtake: bool = False,
        defer: int = 0,
    ) -> None:
        """Send `out` (whole frames; a head if the frame is not whole) in a frame's place, maybe later.

        cause None: it is the frame itself, untouched.
        """
        held = until is not None or defer > 0 or self.outbox.active
        if not (held or self.record or frame.missing):
            if self._frames:
                self.flush(now)
            self._changed += out
            return
        self.flush(now)
        untouched = out == (frame.raw,)
        if not untouched:
            self._changes(ordinal, (frame.raw, *out))
        if frame.missing:
            self._begin_open(frame, out, ordinal, now, cause, until if until is not None else now, held)
            return
        if not untouched:
            self._stayed(frame.raw, 1, 1 << frame.op, ordinal, now, cause or "")
        in_first, in_t = (ordinal, now) if untouched else (None, None)
        of = None if untouched else ordinal
        for raw in out:
            if held:
                due = now if until is None else until
                item = Item([raw], due, 1, 1 << frame.op, in_first, in_t, cause, of, overtake, defer)
                self.outbox.put(item)
            else:
                self._send(raw, 1, 1 << frame.op, in_first, in_t, now, cause, of)

    def _begin_open(
        self,
        frame: Frame,
        out: tuple[bytes, ...],
        ordinal: int,
        now: int,
        cause: str | None,
        due: int,
        held: bool,
    ) -> None:
        head = out[0]
        if held:
            self._open = OpenFrame(frame.op, ordinal, frame.raw, head, cause, frame.wire_size, None)
            item = Item([head], due, 1, 1 << frame.op, ordinal, now, cause, open=True)
            self._open.item = item
            self.outbox.put(item)
            return
        self._write(head)
        self._open = OpenFrame(frame.op, ordinal, frame.raw, head, cause, frame.wire_size, self.out_next)
        self.out_next += 1

    def body(self, segment: Body, now: int) -> None:
        """Take more bytes of the open frame."""
        opened = self._open
        assert opened is not None
        data = segment.buffer[segment.start : segment.end]
        if opened.item is not None:
            self.outbox.grow(opened.item, data, last=segment.last)
        elif opened.head_out is not None:
            self._write(data)
        if self.record:
            room = self._settings.record_frame_max - len(opened.head_in) - len(opened.tail)
            if self._budget.spent and len(opened.tail) + len(data) > SMALL:
                opened.cut = True  # what comes later must not be glued to what is here
            if not opened.cut:
                opened.tail += data[: max(0, room)]
        if segment.last:
            self._open = None
            if opened.item is None or opened.cause is not None:
                self._was_open(opened, now, 0)
            if self._later:
                self._boundary(now)

    def inject(self, raw: bytes, ops: int, now: int, cause: str) -> None:
        """Send frames of ours here, or behind the frame that is half sent (see `boundary_by`).

        What is not framed has no place for them.
        """
        self.flush(now)
        if self.unread:
            return
        if self.mid_frame:
            self._later.append((raw, ops, cause))
            if self.boundary_by is None:
                self.boundary_by = now + self._settings.boundary_timeout
            return
        for each, op in self._single(raw, ops):
            if self.outbox.active:
                self.outbox.put(Item([each], now, 1, op, None, None, cause))
            else:
                self._send(each, 1, op, None, None, now, cause)

    def _single(self, raw: bytes, ops: int) -> list[tuple[bytes, int]]:
        """Return frames of ours one by one, with their ops: a record says how many it holds."""
        if not self.record:
            return [(raw, ops)]
        return [(bytes(frame.raw), 1 << frame.op) for frame in parse_frames(raw, self.direction)]

    def _boundary(self, now: int) -> None:
        later, self._later, self.boundary_by = self._later, [], None
        for raw, ops, cause in later:
            self.inject(raw, ops, now, cause)

    def pass_unread(self, data: bytes, now: int) -> None:
        """Pass bytes that are not framed; only their length is recorded."""
        self.flush(now)
        if self.outbox.active:
            self.outbox.put(Item([data], now, 0, 0, None, None))
        else:
            self._write(data)
        self._unread(len(data), now)

    def _cut_open(self, now: int) -> None:
        """Record a frame that came in pieces and will not end; once only, wherever it waits to be sent."""
        opened, self._open = self._open, None
        if opened is not None:
            self._was_open(opened, now, Flags.CUT)
            if opened.item is not None:
                opened.item.in_first = None

    def cut(self, rest: bytes, now: int) -> None:
        """The sender's stream ended, maybe inside a frame: pass what is there and record it."""
        self.flush(now)
        self._cut_open(now)
        if rest:
            if self.outbox.active:
                self.outbox.put(Item([rest], now, 0, 0, None, None))
            else:
                self._write(rest)
            self._cut_short(rest, self.scanner.ordinal, self.out_next, now)
        self.ended = True

    def abandon(self, now: int, turn: Turn) -> None:
        """The connection is gone: record what was read of it and will not be sent, as far as the turn lasts.

        What no turn has come to is as if it had not been read.
        """
        self._cut_open(now)
        if self.pending:
            self.in_bytes -= len(self.scanner.rest())
            self.pending = False
        self.unsent += self.outbox.left()
        while self.unsent and not turn.spent():
            item = self.unsent.popleft()
            if item.frames and item.in_first is not None:
                data = b"".join(item.parts)
                self._stayed(data, item.frames, item.ops, item.in_first, item.in_t, item.cause or UNSENT)
        if not (self.unsent or self.ended):
            self._left(self.scanner.rest(), self.scanner.ordinal, now)
            self.ended = True

    # -- time

    @property
    def mid_frame(self) -> bool:
        """Whether a frame is half sent, or may be: nothing of ours may go out now."""
        return self.unread or (self._open is not None and self._open.head_out is not None)

    def finish(self, now: int) -> None:
        """Half-close this direction after everything before it."""
        self.flush(now)
        if self.outbox.active:
            self.outbox.put(Item([], now, 0, 0, None, None, finish=True))
        else:
            self.actions.append(Finish(self.direction))

    def tick(self, now: int, turn: Turn) -> None:
        """Send what is due, as far as the turn lasts."""
        stop = self.out_next + turn.frames
        for item in self.outbox.release(now, lambda: self.out_next >= stop or turn.spent()):
            data = item.parts[0] if len(item.parts) == 1 else b"".join(item.parts)
            if item.finish:
                self.actions.append(Finish(self.direction))
            elif data:
                self._send(data, item.frames, item.ops, item.in_first, item.in_t, now, item.cause, item.of)
        for piece in self.outbox.slices(now, turn.spent):
            self.actions.append(Send(self.direction, piece))

    @property
    def full(self) -> bool:
        """Whether so much is held back that the sender must wait."""
        held = self.outbox.bytes + self.owed
        if held > SMALL and (held > self._settings.queue_bytes or self._budget.spent):
            return True
        return self.outbox.conditions.stop_reading

    # -- the budget

    def limit(self) -> None:
        """Before a read: what the scanner may hold, by what all connections hold already."""
        most = self._settings.rule_buffer
        self.scanner.buffer_limit = min(SMALL, most) if self._budget.spent else most

    def charge(self) -> None:
        """After a read or a release: tell the budget what is held here."""
        held = self.scanner.held + self.outbox.bytes + self.owed
        if self._open is not None:
            held += len(self._open.tail)
        self._budget.used += held - self._charged
        self._charged = held

    def refund(self) -> None:
        """The connection is gone, and all that it held."""
        self._budget.used -= self._charged
        self._charged = 0

    @property
    def idle(self) -> bool:
        """Whether nothing is held."""
        return not self.outbox.active or self.outbox.conditions is not PLAIN
