"""The reading side: it reads a capture ahead, in a bounded window, into the queues of connections."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from natsproxy.capture.format.connection import ConnectionId
from natsproxy.protocol.jetstream import is_api
from natsproxy.replay.client_playback.batches import Batch, PlainBatch, ReceivedBatch
from natsproxy.replay.client_playback.dependencies import Dependencies, Planned, PlannedEnd
from natsproxy.replay.client_playback.state import (
    PART_OVERHEAD,
    Head,
    PlaybackState,
    QueuedBatch,
    cost_of,
    seq_of,
)
from natsproxy.replay.conversation.steps import PUBLISHES, Began, Ended, Step
from natsproxy.wire.ops import C2S, Op

WINDOW: Final = 16 << 20
_SKIPPED: Final = (Op.PING, Op.PONG, Op.OK, Op.CONNECT)


class ReadAhead:
    """Fills the queues of a `PlaybackState`.

    whole: the source was read to its end.  batches: how many were read.  t: the recorded time that was
    reached, in ns.  timed: the schedule counts, so publishes of different times are sent apart.
    """

    def __init__(
        self,
        source: Iterator[Batch],
        state: PlaybackState,
        *,
        window: int,
        timed: bool,
        keep: Callable[[ConnectionId], bool],
    ) -> None:
        self.whole = False
        self.t = self.batches = 0
        self._source = source
        self._state = state
        self._window = window
        self._timed = timed
        self._keep = keep
        self._dependencies = Dependencies()
        self._size = 0
        self._seq = 0
        self._mark = 0  # rises at each SUB and end: publishes before and behind do not join

    def fill(self, until: int | None = None, most: int | None = None) -> bool:
        """Read on until the window is full, or past the recorded time `until`, or `most` batches.

        Returns whether anything was read.
        """
        upto, before = None if most is None else self.batches + most, self.batches
        while not self.whole and self._size < self._window and (until is None or self.t <= until):
            if self.batches == upto:
                break
            batch = next(self._source, None)
            if batch is None:
                self._end()
                return True
            self.t = batch.t
            self.batches += 1
            if self._keep(batch.conn):
                self._take(batch)
        return self.batches != before

    def dequeued(self, head: Head) -> None:
        """Note that an entry has left its queue."""
        self._size -= cost_of(head)
        if isinstance(head, Planned | QueuedBatch):
            del self._state.unsent[seq_of(head)]

    def _queue(self, conn: ConnectionId, head: Planned | Began | PlannedEnd) -> None:
        self._state.connection(conn).queue.append(head)
        self._size += cost_of(head)

    def _end(self) -> None:
        self.whole = True
        # A capture that stopped before its connections did: they end where it ends.
        for conn, live in self._state.connections.items():
            if not (live.queue and isinstance(live.queue[-1], PlannedEnd)):
                self._queue(conn, self._dependencies.ended(conn, self._seq + 1, self.t))

    def _take(self, batch: Batch) -> None:
        if isinstance(batch, PlainBatch):
            self._seq = batch.seq + batch.frames - 1
            self._plain(batch)
        elif isinstance(batch, ReceivedBatch):
            self._seq = batch.seq + batch.frames - 1
            self._dependencies.count_messages(batch.conn, batch.sid, batch.frames)
        elif isinstance(batch, Step):
            self._seq = batch.seq
            if batch.direction == C2S:
                self._sent(batch)
            else:
                self._dependencies.received(batch)
                self._state.names.answered(batch.frame, live=False)
        elif isinstance(batch, Ended) and batch.conn in self._state.connections:
            end = self._dependencies.ended(batch.conn, self._seq + 1, batch.t)
            self._mark += 1
            self._state.leaving[batch.conn] = end.seq
            self._queue(batch.conn, end)

    def _sent(self, step: Step) -> None:
        frame, state = step.frame, self._state
        # The first CONNECT opens the live connection; a client may send more, which are not repeated.
        if frame.op == Op.CONNECT and step.conn not in state.connects:
            state.connects[step.conn] = frame.args
            self._queue(step.conn, Began(step.conn, step.t))
        if frame.op in _SKIPPED or frame.subject.startswith(b"$JS.FC."):
            return
        if frame.op in PUBLISHES and not frame.reply and not frame.subject.startswith(b"$JS."):
            # Nearly all publishes end here; an answer waits for its request, so it is queued by itself.
            if not self._dependencies.answers(frame.subject):
                self._plain(PlainBatch(step.seq, step.conn, step.t, frame.raw, 1))
                return
        elif frame.op in PUBLISHES:
            state.names.requested(frame)
            if frame.reply:
                state.search.learn(frame.reply)
                if is_api(frame.subject):
                    state.calls[frame.reply] = None
        else:
            self._mark += 1
        if frame.op == Op.SUB:
            state.interest[step.seq] = (step.conn, frame.subject)
        self._queue(step.conn, self._dependencies.sent(step))
        state.unsent[step.seq] = None

    def _plain(self, plain: PlainBatch) -> None:
        """Queue publishes without requirements, joined to their neighbours where nothing came between."""
        queue = self._state.connection(plain.conn).queue
        counts, api = self._dependencies.requirements(plain.conn)
        last = queue[-1] if queue else None
        t = plain.t if self._timed else None
        if counts or api or not isinstance(last, QueuedBatch) or not last.takes(self._mark, t):
            last = QueuedBatch(plain.seq, plain.t, self._mark, counts, api)
            queue.append(last)
            self._state.unsent[plain.seq] = None
        last.add(plain)
        self._size += len(plain.data) + PART_OVERHEAD
