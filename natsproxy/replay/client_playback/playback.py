"""The state machine that plays a capture's clients: events in, actions out, no I/O and no clock.

There is one live connection per recorded one.  A frame is sent when it is due (its recorded time divided by
the speed, from one common start; at once without a speed) and when its requirements are met
(`dependencies.py`, `readiness.py`); frames of one connection keep their order.  Recorded PINGs and PONGs are
not sent: live PINGs are answered live, and PINGs of ours fence SUBs and ends.  Flow control is answered live.

Inboxes are the clients' own and are sent as recorded.  Names that the server made are mapped: consumers by
the answers to their creation, ack subjects by (stream, consumer, stream sequence, delivery).

Nothing waits forever.  A requirement is given up `patience` after all frames that may meet it were sent: a
`Missing` names it, the frame is sent without it, and the connection goes on.

Plain messages are not looked at one by one, neither while reading (`batches.py`, `read_ahead.py`) nor when
they come from the server (`bulk_scan.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from natsproxy.capture.format.connection import ConnectionId
from natsproxy.protocol.errors import err_text
from natsproxy.replay.client_playback.batches import Batch
from natsproxy.replay.client_playback.dependencies import Planned, PlannedEnd, counts
from natsproxy.replay.client_playback.lag import Lag
from natsproxy.replay.client_playback.read_ahead import WINDOW, ReadAhead
from natsproxy.replay.client_playback.readiness import Readiness, name_of
from natsproxy.replay.client_playback.state import (
    Action,
    CloseConnection,
    Dial,
    Head,
    LiveConnection,
    Missing,
    MissingList,
    PingFence,
    PlaybackState,
    QueuedBatch,
    Write,
)
from natsproxy.replay.conversation.steps import Began
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import Op

BATCH: Final = 256 << 10  # bytes of one connection before the others may send
ADVANCE_BYTES: Final = 1 << 20  # bytes of one `advance`
AHEAD: Final = 250_000_000  # ns of the schedule that are read in advance
Refused = Callable[[ConnectionId, str], bool]
_PIECE: Final = 32  # batches read at once while a schedule runs
_RECHECKS: Final = 8
"""Checks, within one `patience`, of whether a wait counts already."""


class ClientPlayback:
    """The machine.  sent, received_frames: frames so far.  missing: the requirements that were not met.

    source: from `batches`, or any of its events.  speed: None for no schedule.  patience: ns.  window: bytes
    to read ahead.  keep: tells whether a recorded connection is played.  refused: is called with the text of
    each -ERR; True ends the playback.
    """

    def __init__(
        self,
        source: Iterator[Batch],
        *,
        speed: float | None = None,
        patience: int = 5_000_000_000,
        window: int = WINDOW,
        keep: Callable[[ConnectionId], bool] = lambda conn: True,
        refused: Refused = lambda conn, text: False,
    ) -> None:
        self.sent = self.received_frames = self.sent_bytes = 0
        self.lag = Lag()
        self.missing = MissingList()
        self._state = PlaybackState()
        self._reader = ReadAhead(source, self._state, window=window, timed=speed is not None, keep=keep)
        self._readiness = Readiness(self._state, keep)
        self._refused = refused
        self._stopped = False
        self._speed = speed
        self._patience = patience
        self._start: int | None = None
        self._begun = False
        self._deadline: int | None = None

    # -- state

    @property
    def done(self) -> bool:
        """True when every frame was sent and every connection has ended, or `refused` ended it."""
        return self._stopped or (self._reader.whole and not self._state.connections)

    @property
    def deadline(self) -> int | None:
        """The next time at which `advance` has to be called, in ns; None until something is received."""
        return self._deadline

    # -- events in

    def connected(self, conn: ConnectionId) -> None:
        """Note that the handshake of a live connection is over."""
        self._state.connections[conn].ready = True

    def lost(self, conn: ConnectionId, reason: str) -> None:
        """Note that a live connection ended, or could not be made."""
        connection = self._state.connections.get(conn)
        if connection is None or connection.lost:
            return
        left = connection.frames_left
        if left:
            self.missing.add(Missing(conn, f"{left} frames", f"its connection: {reason}"))
        connection.lost = True
        # Its PONGs will never come: others must not wait for them.
        for fence in connection.unfenced:
            self._fenced(fence)

    def received(self, conn: ConnectionId, data: bytes) -> list[Action]:
        """Handle bytes of the server behind its first PONG; return the answers.

        Raises ProtocolError for bytes that are not NATS.
        """
        connection = self._state.connections.get(conn)
        answers: list[Action] = []
        if connection is None:
            return answers
        for segment in connection.scanner.scan(data):
            if isinstance(segment, Frame):
                self.received_frames += 1
                self._frame(connection, segment, answers)
            else:
                sid, count = segment
                self.received_frames += count
                connection.received[sid] = connection.received.get(sid, 0) + count
        return answers

    def _frame(self, connection: LiveConnection, frame: Frame, answers: list[Action]) -> None:
        if frame.op == Op.PING:
            answers.append(Write(connection.conn, encode.PONG))
        elif frame.op == Op.PONG and connection.unfenced:
            self._fenced(connection.unfenced.popleft())
        elif frame.op == Op.ERR:
            self._stopped = self._refused(connection.conn, err_text(frame.args)) or self._stopped
        elif frame.op in (Op.MSG, Op.HMSG):
            state = self._state
            state.names.answered(frame, live=True)
            # The recorded answers are not sent: the server stalls a consumer until this very one comes.
            if frame.reply.startswith(b"$JS.FC."):
                answers.append(Write(connection.conn, encode.pub(frame.reply)))
            elif frame.reply and not frame.reply.startswith(b"$JS."):
                state.requests_received[frame.reply] = None
            if counts(frame):
                connection.received[frame.sid] = connection.received.get(frame.sid, 0) + 1
                if frame.subject in state.calls:
                    state.api[connection.conn, frame.subject] = None

    def _fenced(self, fence: PingFence) -> None:
        for seq in fence.subs:
            self._state.interest.pop(seq, None)

    def advance(self, now: int) -> list[Action]:
        """Send the frames that may go at `now`; call again at `deadline` or when something was received.

        Returns about `ADVANCE_BYTES` at most, so that the unsent bytes are bounded by the server's reading.
        """
        self._deadline = None
        if self._start is None:
            if not self._begun:
                self._begun = True
                self._read(0)  # before the clock starts: the first read must not count as lag
                self._deadline = now
                return []
            self._start = now
        actions: list[Action] = []
        limit = self.sent_bytes + ADVANCE_BYTES
        while self._round(now, actions) or (self._speed is None and self._reader.fill()):
            if self.sent_bytes > limit:
                self._deadline = now
                return actions
        if self._speed is not None:
            self._read_ahead(now, busy=bool(actions))
        return actions

    def _round(self, now: int, actions: list[Action]) -> bool:
        """Let each connection send its next frames; return whether any did."""
        connections, moved = self._state.connections, False
        for connection in list(connections.values()):
            moved = self._drain(connection, now, actions) or moved
        return moved or any(one.fence_due and not one.lost for one in connections.values())

    def _read_ahead(self, now: int, *, busy: bool) -> None:
        """Read on for the schedule, in small pieces.

        Never while frames are sent: those have a time to keep.
        """
        assert self._start is not None
        assert self._speed is not None
        if busy or self._read(now - self._start, _PIECE):
            self._wake(now)
            return
        again = self._start + int(self._reader.t / self._speed) - AHEAD // 2
        if not self._reader.whole and again > now:  # else the window is full: sending makes room
            self._wake(again)

    def _read(self, elapsed: int, most: int | None = None) -> bool:
        """Read on, no further ahead of a schedule than `AHEAD`; return whether anything was read."""
        until = None if self._speed is None else int((elapsed + AHEAD) * self._speed)
        return self._reader.fill(until, most)

    # -- sending

    def _drain(self, connection: LiveConnection, now: int, actions: list[Action]) -> bool:
        """Send the frames of a connection that may go now; return whether any did."""
        parts: list[bytes] = []
        subs: list[int] = []
        upto, moved = self.sent_bytes + BATCH, False
        while connection.queue and self.sent_bytes < upto and self._due(connection.queue[0], now):
            head = connection.queue[0]
            if isinstance(head, PlannedEnd):
                break
            if not connection.dialled and not connection.lost:
                connection.dialled = True
                actions.append(Dial(connection.conn, self._state.connects.get(connection.conn, b"")))
            if not isinstance(head, Began):
                if not connection.lost:
                    if not connection.ready or not self._may_send(connection, head, now):
                        break
                    self._send(connection, head, parts, subs)
                    self._count_lag(head, now)
                if connection.lost and isinstance(head, Planned):
                    self._state.interest.pop(head.step.seq, None)
            self._reader.dequeued(connection.queue.popleft())
            connection.waiting_since, connection.blocked = None, -1
            moved = True
        if connection.ready and not connection.lost and (subs or connection.fence_due):
            # A PONG behind SUBs tells that the server knows them: publishes of others may follow.
            parts.append(self._ping(connection, subs))
        if parts:
            actions.append(Write(connection.conn, b"".join(parts)))
        return self._end(connection, now, actions) or moved

    def _send(
        self, connection: LiveConnection, head: Planned | QueuedBatch, parts: list[bytes], subs: list[int]
    ) -> None:
        if isinstance(head, QueuedBatch):
            seq, sent, size = head.seq, head.frames, head.size
            parts += head.parts
        else:
            frame, seq, sent = head.step.frame, head.step.seq, 1
            parts.append(self._bytes(frame))
            size = len(parts[-1])
            if frame.op == Op.SUB:
                connection.received.pop(frame.sid, None)  # a client may use a sid again: counts start anew
                connection.sids[frame.sid] = frame.subject
                connection.scanner.subscribed(frame.sid, frame.subject)
                subs.append(seq)
            elif frame.op == Op.UNSUB and not frame.args:
                connection.sids.pop(frame.sid, None)
        connection.first_unfenced = seq if connection.first_unfenced is None else connection.first_unfenced
        self.sent += sent
        self.sent_bytes += size

    def _bytes(self, frame: Frame) -> bytes:
        subject = frame.subject
        if not subject.startswith(b"$JS."):
            return frame.raw
        mapped = self._state.names.to_live(subject)
        return frame.raw if mapped == subject else encode.with_line(frame, subject=mapped)

    def _ping(self, connection: LiveConnection, subs: list[int]) -> bytes:
        connection.unfenced.append(PingFence(connection.first_unfenced, subs))
        connection.first_unfenced, connection.wants_fence = None, False
        return encode.PING

    def _end(self, connection: LiveConnection, now: int, actions: list[Action]) -> bool:
        """Close a connection whose end is due, after a last PING; return whether it did anything."""
        head = connection.queue[0] if connection.queue else None
        if not isinstance(head, PlannedEnd) or not self._due(head, now):
            return False
        if connection.dialled and not connection.lost:
            unmet = "" if connection.ready else "its handshake"
            unmet = unmet or self._readiness.count(connection, head.counts)
            unmet = unmet or self._readiness.before(connection, head.seq)
            if not unmet and not connection.final_ping_sent:
                connection.final_ping_sent, connection.waiting_since = True, None
                data = self._send_end(connection) + self._ping(connection, [])
                actions.append(Write(connection.conn, data))
            unmet = unmet or ("a PONG" if connection.unfenced else "")
            if unmet and not self._given_up(connection, head, unmet, now):
                return False
        self._reader.dequeued(head)
        if connection.dialled:
            actions.append(CloseConnection(connection.conn))
        state = self._state
        del state.connections[connection.conn]
        state.connects.pop(connection.conn, None)
        state.leaving.pop(connection.conn, None)
        return True

    def _send_end(self, connection: LiveConnection) -> bytes:
        """Return UNSUBs for all subscriptions of a connection, while others go on.

        A server takes a closed connection's interest away at a time of its own; UNSUB and PING have an order.
        """
        if len(self._state.connections) == 1:
            return b""
        return b"".join(encode.unsub(sid) for sid in connection.sids)

    # -- when

    def _due(self, head: Head, now: int) -> bool:
        if self._speed is None or self._start is None:
            return True
        t = head.step.t if isinstance(head, Planned) else head.t
        due = self._start + int(t / self._speed)
        if due > now:
            self._wake(due)
        return due <= now

    def _count_lag(self, head: Planned | QueuedBatch, now: int) -> None:
        if self._speed is None or self._start is None:
            return
        t, frames = (head.t, head.frames) if isinstance(head, QueuedBatch) else (head.step.t, 1)
        self.lag.add(now - self._start - int(t / self._speed), frames)

    def _may_send(self, connection: LiveConnection, head: Planned | QueuedBatch, now: int) -> bool:
        """Return whether the requirements of a frame are met, or have timed out."""
        unmet = self._readiness.unmet(connection, head)
        if not unmet:
            return True
        if not self._given_up(connection, head, unmet, now):
            return False
        self._readiness.give_up(connection, head)
        return True

    def _given_up(
        self, connection: LiveConnection, head: Planned | QueuedBatch | PlannedEnd, unmet: str, now: int
    ) -> bool:
        first = connection.waiting_since is None
        # Whether the requirement may still come is looked up a few times only: it walks all queues.
        if first or (connection.recheck_at is not None and now >= connection.recheck_at):
            early = self._readiness.earlier_unplayed(connection, head) and (
                first or self._readiness.may_still_come(connection, head)
            )
            connection.recheck_at = now + self._patience // _RECHECKS if early else None
            if first or early:
                connection.waiting_since = connection.recheck_at or now
        assert connection.waiting_since is not None
        until = connection.waiting_since + self._patience
        if now < until:
            self._wake(connection.recheck_at or until)
            return False
        self.missing.add(Missing(connection.conn, name_of(head), unmet))
        return True

    def _wake(self, at: int) -> None:
        self._deadline = at if self._deadline is None else min(self._deadline, at)
