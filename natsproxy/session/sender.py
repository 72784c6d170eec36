"""The sending end of one direction.

Frames go out at once, or wait in the outbox for their time; they are recorded as they are sent.
"""

from __future__ import annotations

from natsproxy.capture.format.records import Frames
from natsproxy.session.actions import Finish, Send
from natsproxy.session.direction_records import DirectionRecords
from natsproxy.session.outbox import Item, Outbox
from natsproxy.session.pipe_context import PipeContext
from natsproxy.session.work_limit import WorkLimit
from natsproxy.wire.ops import OPS, Direction, Op, op_of
from natsproxy.wire.parse import frames as parse_frames


class Sender:
    """Sends the frames of one direction.

    out_next: the ordinal of the next frame that goes out.  out_bytes: those that went.
    surplus: by op, how many more frames went out than came in: less than none where some stayed.  Frames that
    pass as they are cost it nothing.
    """

    __slots__ = ("_actions", "_conn", "_direction", "_records", "out_bytes", "out_next", "outbox", "surplus")

    def __init__(self, direction: Direction, records: DirectionRecords, context: PipeContext) -> None:
        self.outbox = Outbox()
        self.out_next = self.out_bytes = 0
        self.surplus = [0] * len(OPS)
        self._direction = direction
        self._conn = context.conn
        self._records = records
        self._actions = context.actions

    def write(self, data: bytes | memoryview) -> None:
        """Send bytes without a record."""
        if self.outbox.limited:
            self.outbox.carry(data)
        else:
            self.out_bytes += len(data)
            self._actions.append(Send(self._direction, data))

    def kept(self, data: bytes | memoryview, frames: int, ops: int) -> None:
        """Note that frames that came do not go on, or not now."""
        self._count(data, frames, ops, -1)

    def changed(self, op: Op, out: tuple[bytes, ...]) -> None:
        """Note that others go at once in the place of a frame."""
        self.surplus[op] -= 1
        for raw in out:
            self.surplus[op_of(raw, op)] += 1

    def _count(self, data: bytes | memoryview, frames: int, ops: int, sign: int) -> None:
        if ops & (ops - 1):  # of several ops: which of them how often is to be seen
            for frame in parse_frames(bytes(data), self._direction):
                self.surplus[frame.op] += sign
        elif ops:
            self.surplus[ops.bit_length() - 1] += sign * frames

    def pass_(self, data: bytes | memoryview, frames: int, ops: int, first: int, now: int) -> None:
        """Send whole frames as they came, now or behind those that wait; first: the ordinal of the first."""
        if self.outbox.active:
            self.hold(Item([bytes(data)], now, frames, ops, first, now))
            return
        # No item here: this is the path of frames that no rule wants.
        self.write(data)
        if self._records.on:
            conn, direction, out_first = self._conn, self._direction, self.out_next
            self._records.put(Frames(conn, direction, data, frames, ops, first, now, out_first, now))
        self.out_next += frames

    def hold(self, item: Item) -> None:
        """Let frames that came wait for their time."""
        self.kept(item.parts[0], item.frames, item.ops)
        self.outbox.put(item)

    def put(self, item: Item, data: bytes, now: int) -> None:
        """Send an item, whose bytes are `data`, behind those that wait."""
        if self.outbox.active:
            self.outbox.put(item)
        else:
            self.send(item, data, now)

    def send(self, item: Item, data: bytes, now: int) -> None:
        """Send an item, whose bytes are `data`, and record it."""
        self.write(data)
        if item.frames:
            self._count(data, item.frames, item.ops, 1)
        if self._records.on and item.frames:
            record = Frames(
                conn=self._conn,
                direction=self._direction,
                data=data,
                frames=item.frames,
                ops=item.ops,
                in_first=item.in_first,
                in_t=item.in_t,
                out_first=self.out_next,
                out_t=now,
                cause=item.cause,
                extra=None if item.of is None else {"of": item.of},
            )
            self._records.put(record, secret=item.secret)
        self.out_next += item.frames

    def finish(self, now: int) -> None:
        """Half-close the direction behind the items that wait."""
        if self.outbox.active:
            self.outbox.put(Item([], now, 0, 0, None, None, finish=True))
        else:
            self._actions.append(Finish(self._direction))

    def release(self, now: int, limit: WorkLimit) -> None:
        """Send the items that are due, up to the limit."""
        stop = self.out_next + limit.frames
        for item in self.outbox.release(now, lambda: self.out_next >= stop or limit.reached()):
            data = item.parts[0] if len(item.parts) == 1 else b"".join(item.parts)
            if item.finish:
                self._actions.append(Finish(self._direction))
            elif data:
                self.send(item, data, now)
        for piece in self.outbox.slices(now, limit.reached):
            self.out_bytes += len(piece)
            self._actions.append(Send(self._direction, piece))
