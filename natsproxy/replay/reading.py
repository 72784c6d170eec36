"""Reads a recorded conversation ahead of what is sent, in a bounded window, into queues of connections."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from natsproxy.replay.canonical import PUBLISHED
from natsproxy.replay.lives import PART, Bulk, Stage, cost_of, seq_of
from natsproxy.replay.match import is_api
from natsproxy.replay.needs import Goodbye, Needs, Planned
from natsproxy.replay.plan import Began, Ended, Step
from natsproxy.replay.strides import Heard, Plain, Stride
from natsproxy.wire.ops import C2S, Op

WINDOW: Final = 16 << 20
_SKIPPED: Final = (Op.PING, Op.PONG, Op.OK, Op.CONNECT)


class Reading:
    """Fills the queues of a stage.

    whole: everything was read.  strides: how many were.  t: the recorded time that was reached, in ns.
    timed: times count, publishes of different times go out on their own.
    """

    def __init__(
        self, source: Iterator[Stride], stage: Stage, *, window: int, timed: bool, keep: Callable[[int], bool]
    ) -> None:
        self.whole = False
        self.t = self.strides = 0
        self._source = source
        self._stage = stage
        self._window = window
        self._timed = timed
        self._keep = keep
        self._needs = Needs()
        self._size = 0
        self._seq = 0
        self._mark = 0  # what is published before and behind a SUB or an end stays apart

    def fill(self, until: int | None = None, most: int | None = None) -> bool:
        """Read on: to the window's size, no further than the recorded time `until`, `most` strides at most.

        Returns whether anything was read.
        """
        upto, before = None if most is None else self.strides + most, self.strides
        while not self.whole and self._size < self._window and (until is None or self.t <= until):
            if self.strides == upto:
                break
            stride = next(self._source, None)
            if stride is None:
                self._end()
                return True
            self.t = stride.t
            self.strides += 1
            if self._keep(stride.conn):
                self._take(stride)
        return self.strides != before

    def left(self, head: Planned | Bulk) -> None:
        """Note that what was read has left its queue."""
        self._size -= cost_of(head)
        del self._stage.unsent[seq_of(head)]

    def _end(self) -> None:
        self.whole = True
        for conn, live in self._stage.lives.items():
            if not (live.queue and isinstance(live.queue[-1], Goodbye)):
                live.queue.append(self._needs.ended(conn, self._seq + 1, self.t))

    def _take(self, stride: Stride) -> None:
        if isinstance(stride, Plain):
            self._seq = stride.seq + stride.frames - 1
            self._plain(stride)
        elif isinstance(stride, Heard):
            self._seq = stride.seq + stride.frames - 1
            self._needs.heard(stride.conn, stride.sid, stride.frames)
        elif isinstance(stride, Step):
            self._seq = stride.seq
            if stride.direction == C2S:
                self._sent(stride)
            else:
                self._needs.received(stride)
                self._stage.names.answered(stride.frame, live=False)
        elif isinstance(stride, Ended) and stride.conn in self._stage.lives:
            goodbye = self._needs.ended(stride.conn, self._seq + 1, stride.t)
            self._mark += 1
            self._stage.leaving[stride.conn] = goodbye.seq
            self._stage.lives[stride.conn].queue.append(goodbye)

    def _sent(self, step: Step) -> None:
        frame, stage = step.frame, self._stage
        if frame.op == Op.CONNECT and step.conn not in stage.connects:
            stage.connects[step.conn] = frame.args
            stage.live(step.conn).queue.append(Began(step.conn, step.t))
        if frame.op in _SKIPPED or frame.subject.startswith(b"$JS.FC."):
            return
        if frame.op in PUBLISHED and not frame.reply and not frame.subject.startswith(b"$JS."):
            if not self._needs.answers(frame.subject):
                self._plain(Plain(step.seq, step.conn, step.t, frame.raw, 1))
                return
        elif frame.op in PUBLISHED:
            stage.names.requested(frame)
            if frame.reply:
                stage.needles.learn(frame.reply)
                if is_api(frame.subject):
                    stage.calls[frame.reply] = None
        else:
            self._mark += 1
        if frame.op == Op.SUB:
            stage.interest[step.seq] = (step.conn, frame.subject)
        planned = self._needs.sent(step)
        stage.live(step.conn).queue.append(planned)
        stage.unsent[step.seq] = None
        self._size += cost_of(planned)

    def _plain(self, plain: Plain) -> None:
        """Queue publishes that need nothing, with their neighbours where nothing came between."""
        queue = self._stage.live(plain.conn).queue
        counts, api = self._needs.news(plain.conn)
        last = queue[-1] if queue else None
        t = plain.t if self._timed else None
        if counts or api or not isinstance(last, Bulk) or not last.takes(self._mark, t):
            last = Bulk(plain.seq, plain.t, self._mark, counts, api)
            queue.append(last)
            self._stage.unsent[plain.seq] = None
        last.add(plain)
        self._size += len(plain.data) + PART
