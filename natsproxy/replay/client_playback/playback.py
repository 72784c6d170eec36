"""Plays the clients of a capture to a live server: events in, actions out, no I/O and no clock.

One live connection per recorded one.  A frame goes out when it is due (its recorded time divided by the
speed, from one common start; at once under `max`) and when what it needs has come (`needs.py`, `waits.py`);
frames of one connection keep their order.  Recorded PINGs and PONGs are not sent: live PINGs are answered
live and PINGs of ours fence SUBs and ends.  Flow control is answered live.

Identifiers.  Inboxes are the clients' own and are sent as recorded.  What the server made is mapped: names of
consumers from the answers to their creation, ack subjects by (stream, consumer, stream sequence, delivery).

Nothing waits for ever: what a frame needs is given up with a `Missing` that names it, `patience` after all
that may cause it has been sent, and the frame goes out without it; a connection goes on from there.

What needs nothing is not looked at frame by frame, neither while reading (`strides.py`, `reading.py`) nor
when it comes from the server (`ears.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from natsproxy.replay.client_playback.batches import Batch
from natsproxy.replay.client_playback.dependencies import Planned, PlannedEnd, counts
from natsproxy.replay.client_playback.lag import Lag
from natsproxy.replay.client_playback.read_ahead import WINDOW, Reading
from natsproxy.replay.client_playback.readiness import Readiness, name_of
from natsproxy.replay.client_playback.state import (
    Action,
    Bulk,
    Dial,
    EndConnection,
    Fence,
    Head,
    LiveConnection,
    Missing,
    PlaybackState,
    Write,
)
from natsproxy.replay.conversation.steps import Began
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import Op

BATCH: Final = 256 << 10
TURN: Final = 1 << 20
AHEAD: Final = 250_000_000
_PIECE: Final = 32
_LOOKS: Final = 8
"""So many times in its patience a wait asks whether it counts already."""


class ToServer:
    """The machine.  sent, received: frames so far.  missing: what was waited for in vain.

    source: from `strides`, or any of its events.  speed: None for as fast as it goes.  patience: ns.  window:
    bytes to read ahead.  keep: which recorded connections are played.
    """

    def __init__(
        self,
        source: Iterator[Batch],
        *,
        speed: float | None = None,
        patience: int = 5_000_000_000,
        window: int = WINDOW,
        keep: Callable[[int], bool] = lambda conn: True,
    ) -> None:
        self.sent = self.received_frames = self.sent_bytes = 0
        self.lag = Lag()
        self.missing: list[Missing] = []
        self._state = PlaybackState()
        self._reading = Reading(source, self._state, window=window, timed=speed is not None, keep=keep)
        self._readiness = Readiness(self._state, keep)
        self._speed = speed
        self._patience = patience
        self._start: int | None = None
        self._begun = False
        self._deadline: int | None = None

    # -- state

    @property
    def done(self) -> bool:
        """Whether everything was sent and every connection has left."""
        return self._reading.whole and not self._state.lives

    @property
    def deadline(self) -> int | None:
        """When `advance` is wanted next, in ns; None until something is received."""
        return self._deadline

    # -- events in

    def connected(self, conn: int) -> None:
        """A live connection stands: its handshake is over."""
        self._state.lives[conn].ready = True

    def lost(self, conn: int, why: str) -> None:
        """A live connection ended, or could not be made."""
        live = self._state.lives.get(conn)
        if live is None or live.gone:
            return
        left = sum(h.frames if isinstance(h, Bulk) else isinstance(h, Planned) for h in live.queue)
        if left:
            self.missing.append(Missing(conn, f"{left} frames", f"its connection: {why}"))
        live.gone = True
        for fence in live.unfenced:
            self._fenced(fence)

    def received(self, conn: int, data: bytes) -> list[Action]:
        """The server sent bytes behind its first PONG.

        Raises ProtocolError for what is not NATS.
        """
        live = self._state.lives.get(conn)
        answers: list[Action] = []
        if live is None:
            return answers
        for heard in live.scanner.scan(data):
            if isinstance(heard, Frame):
                self.received_frames += 1
                self._frame(live, heard, answers)
            else:
                sid, count = heard
                self.received_frames += count
                live.received[sid] = live.received.get(sid, 0) + count
        return answers

    def _frame(self, live: LiveConnection, frame: Frame, answers: list[Action]) -> None:
        if frame.op == Op.PING:
            answers.append(Write(live.conn, encode.PONG))
        elif frame.op == Op.PONG and live.unfenced:
            self._fenced(live.unfenced.popleft())
        elif frame.op in (Op.MSG, Op.HMSG):
            state = self._state
            state.names.answered(frame, live=True)
            if frame.reply.startswith(b"$JS.FC."):
                answers.append(Write(live.conn, encode.pub(frame.reply)))
            elif frame.reply and not frame.reply.startswith(b"$JS."):
                state.asked[frame.reply] = None
            if counts(frame):
                live.received[frame.sid] = live.received.get(frame.sid, 0) + 1
                if frame.subject in state.calls:
                    state.api[live.conn, frame.subject] = None

    def _fenced(self, fence: Fence) -> None:
        for seq in fence.subs:
            self._state.interest.pop(seq, None)

    def advance(self, now: int) -> list[Action]:
        """Send what may go at `now`; call again at `deadline` or when something was received.

        Returns about a `TURN` of bytes at most, so that what is sent is bounded by what the server takes.
        """
        self._deadline = None
        if self._start is None:
            if not self._begun:
                self._begun = True
                self._read(0)  # before the clock starts: reading the first stretch is no lag
                self._deadline = now
                return []
            self._start = now
        actions: list[Action] = []
        turn = self.sent_bytes + TURN
        while self._round(now, actions) or (self._speed is None and self._reading.fill()):
            if self.sent_bytes > turn:
                self._deadline = now
                return actions
        if self._speed is not None:
            self._read_ahead(now, busy=bool(actions))
        return actions

    def _round(self, now: int, actions: list[Action]) -> bool:
        """Let each connection send what it may; tell whether anything moved."""
        lives, moved = self._state.lives, False
        for live in list(lives.values()):
            moved = self._drain(live, now, actions) or moved
        return moved or any(
            live.fence and live.dirty is not None and not live.gone for live in lives.values()
        )

    def _read_ahead(self, now: int, *, busy: bool) -> None:
        """Read on for the schedule, in small pieces and never while something goes out: that has a time."""
        assert self._start is not None
        assert self._speed is not None
        if busy or self._read(now - self._start, _PIECE):
            self._wake(now)
            return
        again = self._start + int(self._reading.t / self._speed) - AHEAD // 2
        if not self._reading.whole and again > now:  # else the window is full: what goes out makes room
            self._wake(again)

    def _read(self, elapsed: int, most: int | None = None) -> bool:
        """Read on, no further ahead of a schedule than `AHEAD`; tell whether anything was read."""
        until = None if self._speed is None else int((elapsed + AHEAD) * self._speed)
        return self._reading.fill(until, most)

    # -- sending

    def _drain(self, live: LiveConnection, now: int, actions: list[Action]) -> bool:
        """Send what a connection may send now; tell whether anything moved."""
        parts: list[bytes] = []
        subs: list[int] = []
        upto, moved = self.sent_bytes + BATCH, False
        while live.queue and self.sent_bytes < upto and self._due(live.queue[0], now):
            head = live.queue[0]
            if isinstance(head, PlannedEnd):
                break
            if not live.dialled and not live.gone:
                live.dialled = True
                actions.append(Dial(live.conn, self._state.connects.get(live.conn, b"")))
            if not isinstance(head, Began):
                if not live.gone:
                    if not live.ready or not self._may(live, head, now):
                        break
                    self._send(live, head, parts, subs)
                    self._late(head, now)
                self._reading.left(head)
                if live.gone and isinstance(head, Planned):
                    self._state.interest.pop(head.step.seq, None)
            live.queue.popleft()
            live.since, live.blocked = None, -1
            moved = True
        if live.ready and not live.gone and (subs or (live.fence and live.dirty is not None)):
            parts.append(self._ping(live, subs))
        if parts:
            actions.append(Write(live.conn, b"".join(parts)))
        return self._leave(live, now, actions) or moved

    def _send(self, live: LiveConnection, head: Planned | Bulk, parts: list[bytes], subs: list[int]) -> None:
        if isinstance(head, Bulk):
            seq, sent, size = head.seq, head.frames, head.size
            parts += head.parts
        else:
            frame, seq, sent = head.step.frame, head.step.seq, 1
            parts.append(self._bytes(frame))
            size = len(parts[-1])
            if frame.op == Op.SUB:
                live.received.pop(frame.sid, None)
                live.sids[frame.sid] = frame.subject
                live.scanner.subscribed(frame.sid, frame.subject)
                subs.append(seq)
            elif frame.op == Op.UNSUB and not frame.args:
                live.sids.pop(frame.sid, None)
        live.dirty = seq if live.dirty is None else live.dirty
        self.sent += sent
        self.sent_bytes += size

    def _bytes(self, frame: Frame) -> bytes:
        subject = frame.subject
        if not subject.startswith(b"$JS."):
            return frame.raw
        mapped = self._state.names.to_live(subject)
        return frame.raw if mapped == subject else encode.with_line(frame, subject=mapped)

    def _ping(self, live: LiveConnection, subs: list[int]) -> bytes:
        live.unfenced.append(Fence(live.dirty, subs))
        live.dirty, live.fence = None, False
        return encode.PING

    def _leave(self, live: LiveConnection, now: int, actions: list[Action]) -> bool:
        """Close a connection whose goodbye is due, behind a last PING; tell whether anything moved."""
        head = live.queue[0] if live.queue else None
        if not isinstance(head, PlannedEnd) or not self._due(head, now):
            return False
        if live.dialled and not live.gone:
            need = "its handshake" if not live.ready else ""
            need = need or self._readiness.count(live, head.counts) or self._readiness.before(live, head.seq)
            if not need and not live.final:
                live.final, live.since = True, None
                actions.append(Write(live.conn, self._send_end(live) + self._ping(live, [])))
            need = need or ("a PONG" if live.unfenced else "")
            if need and not self._given_up(live, head, need, now):
                return False
        if live.dialled:
            actions.append(EndConnection(live.conn))
        state = self._state
        del state.lives[live.conn]
        state.connects.pop(live.conn, None)
        state.leaving.pop(live.conn, None)
        return True

    def _send_end(self, live: LiveConnection) -> bytes:
        """End the interest of a connection while others go on: a server notices a close when it likes."""
        if len(self._state.lives) == 1:
            return b""
        return b"".join(encode.unsub(sid) for sid in live.sids)

    # -- when

    def _due(self, head: Head, now: int) -> bool:
        if self._speed is None or self._start is None:
            return True
        t = head.step.t if isinstance(head, Planned) else head.t
        due = self._start + int(t / self._speed)
        if due > now:
            self._wake(due)
        return due <= now

    def _late(self, head: Planned | Bulk, now: int) -> None:
        if self._speed is None or self._start is None:
            return
        t, frames = (head.t, head.frames) if isinstance(head, Bulk) else (head.step.t, 1)
        self.lag.add(now - self._start - int(t / self._speed), frames)

    def _may(self, live: LiveConnection, head: Planned | Bulk, now: int) -> bool:
        """Tell whether what a frame needs has come, or was waited for long enough."""
        need = self._readiness.need(live, head)
        if not need:
            return True
        if not self._given_up(live, head, need, now):
            return False
        self._readiness.give_up(live, head)
        return True

    def _given_up(self, live: LiveConnection, head: Planned | Bulk | PlannedEnd, need: str, now: int) -> bool:
        first = live.since is None
        if first or (live.look is not None and now >= live.look):
            early = self._readiness.behind(live, head) and (first or self._readiness.early(live, head))
            live.look = now + self._patience // _LOOKS if early else None
            if first or early:
                live.since = live.look or now
        assert live.since is not None
        until = live.since + self._patience
        if now < until:
            self._wake(live.look or until)
            return False
        self.missing.append(Missing(live.conn, name_of(head), need))
        return True

    def _wake(self, at: int) -> None:
        self._deadline = at if self._deadline is None else min(self._deadline, at)
