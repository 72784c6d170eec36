"""Plays the clients of a capture to a live server: events in, actions out, no I/O and no clock.

One live connection per recorded one.  A frame goes out when it is due (its recorded time divided by the
speed, from one common start; at once under `max`) and when what it needs has come (`needs.py`); frames of one
connection keep their order.  Recorded PINGs and PONGs are not sent: live PINGs are answered live and PINGs of
ours fence SUBs and ends.  Flow control is answered live.

Identifiers.  Inboxes are the clients' own and are sent as recorded.  What the server made is mapped: names of
consumers from the answers to their creation, ack subjects by (stream, consumer, stream sequence, delivery).

Nothing waits for ever: what a frame needs is given up after `patience` with a `Missing` that names it, and
the frame goes out without it; a connection goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from natsproxy.protocol.subjects import matches
from natsproxy.replay.canonical import PUBLISHED
from natsproxy.replay.causes import Bounded
from natsproxy.replay.identities import INBOX
from natsproxy.replay.lives import PART, Action, Bulk, Dial, Fence, Head, Leave, Live, Missing, Write
from natsproxy.replay.names import ServerNames
from natsproxy.replay.needs import Goodbye, Needs, Planned, counts
from natsproxy.replay.plan import Began, Ended, Event, Step
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, Op

WINDOW: Final = 16 << 20
_OVERHEAD: Final = 256
_SKIPPED: Final = (Op.PING, Op.PONG, Op.OK, Op.CONNECT)
BATCH: Final = 256 << 10
TURN: Final = 1 << 20
AHEAD: Final = 250_000_000


class ToServer:
    """The machine.  sent, received: frames so far.  missing: what was waited for in vain.  lag: ns behind."""

    def __init__(
        self,
        source: Iterator[Event],
        *,
        speed: float | None = None,
        patience: int = 5_000_000_000,
        window: int = WINDOW,
        keep: Callable[[int], bool] = lambda conn: True,
    ) -> None:
        self.sent = self.received_frames = self.sent_bytes = 0
        self.lag = self.worst_lag = 0
        self.missing: list[Missing] = []
        self._source = source
        self._speed = speed
        self._patience = patience
        self._window = window
        self._keep = keep
        self._needs = Needs()
        self._lives: dict[int, Live] = {}
        self._size = 0
        self._read = False
        self._start: int | None = None
        self._begun = False
        self._api: Bounded[tuple[int, bytes], bool] = Bounded()
        self._interest: dict[int, tuple[int, bytes]] = {}
        self._asked: Bounded[bytes, None] = Bounded()
        self._names = ServerNames()
        self._deadline: int | None = None
        self._connects: dict[int, bytes] = {}
        self._unsent: dict[int, None] = {}  # seqs in order
        self._leaving: dict[int, int] = {}  # connections whose end was read, and the seq behind it
        self._seq = self._t = 0

    # -- state

    @property
    def done(self) -> bool:
        """Whether everything was sent and every connection has left."""
        return self._read and not self._lives

    @property
    def deadline(self) -> int | None:
        """When `advance` is wanted next, in ns; None until something is received."""
        return self._deadline

    # -- events in

    def connected(self, conn: int) -> None:
        """A live connection stands: its handshake is over."""
        self._lives[conn].ready = True

    def lost(self, conn: int, why: str) -> None:
        """A live connection ended, or could not be made."""
        live = self._lives.get(conn)
        if live is None or live.gone:
            return
        left = sum(len(h.parts) if isinstance(h, Bulk) else isinstance(h, Planned) for h in live.queue)
        if left:
            self.missing.append(Missing(conn, f"{left} frames", f"its connection: {why}"))
        live.gone = True
        for fence in live.unfenced:
            for seq in fence.subs:
                self._interest.pop(seq, None)

    def received(self, conn: int, frames: list[Frame]) -> list[Action]:
        """The server sent frames."""
        live = self._lives.get(conn)
        answers: list[Action] = []
        if live is None:
            return answers
        for frame in frames:
            self.received_frames += 1
            if frame.op == Op.PING:
                answers.append(Write(conn, encode.PONG))
            elif frame.op == Op.PONG and live.unfenced:
                for seq in live.unfenced.popleft().subs:
                    self._interest.pop(seq, None)
            elif frame.op in (Op.MSG, Op.HMSG):
                self._message(live, frame, answers)
        return answers

    def _message(self, live: Live, frame: Frame, answers: list[Action]) -> None:
        self._names.answered(frame, live=True)
        if not frame.reply.startswith(b"$JS."):
            self._asked[frame.reply] = None
        elif frame.reply.startswith(b"$JS.FC."):
            answers.append(Write(live.conn, encode.pub(frame.reply)))
        if counts(frame):
            live.received[frame.sid] = live.received.get(frame.sid, 0) + 1
            self._api[live.conn, frame.subject] = True

    def advance(self, now: int) -> list[Action]:
        """Send what may go at `now`; call again at `deadline` or when something was received.

        Returns about a `TURN` of bytes at most, so that what is sent is bounded by what the server takes.
        """
        if not self._begun:
            self._begun = True
            self._fill(0)  # before the clock starts: reading the first stretch is no lag
            self._deadline = now
            return []
        self._start = now if self._start is None else self._start
        self._fill(now - self._start)
        self._deadline = None
        if self._speed is not None and not self._read:
            self._wake(self._start + int(self._t / self._speed))
        actions: list[Action] = []
        moved, turn = True, self.sent_bytes + TURN
        while moved:
            if self.sent_bytes > turn:
                self._deadline = now
                break
            moved = False
            for live in list(self._lives.values()):
                moved = self._drain(live, now, actions) or moved
            moved = moved or any(
                live.fence and live.dirty is not None and not live.gone for live in self._lives.values()
            )
            self._fill(now - self._start)
        return actions

    # -- reading on

    def _fill(self, elapsed: int) -> None:
        """Read on: to the window's size, and no further ahead of a schedule than `AHEAD`."""
        until = None if self._speed is None else int((elapsed + AHEAD) * self._speed)
        while not self._read and self._size < self._window and (until is None or self._t <= until):
            event = next(self._source, None)
            if event is None:
                self._read = True
                for conn, live in self._lives.items():
                    if not (live.queue and isinstance(live.queue[-1], Goodbye)):
                        live.queue.append(self._needs.ended(conn, self._seq + 1, self._t))
            else:
                self._t = event.t
                if self._keep(event.conn):
                    self._take(event)

    def _take(self, event: Event) -> None:
        if isinstance(event, Step):
            self._seq = event.seq
            if event.direction == C2S:
                self._take_sent(event)
                return
            self._needs.received(event)
            self._names.answered(event.frame, live=False)
        elif isinstance(event, Ended) and event.conn in self._lives:
            goodbye = self._needs.ended(event.conn, self._seq + 1, event.t)
            self._leaving[event.conn] = goodbye.seq
            self._lives[event.conn].queue.append(goodbye)

    def _take_sent(self, step: Step) -> None:
        frame = step.frame
        if frame.op == Op.CONNECT and step.conn not in self._connects:
            self._connects[step.conn] = frame.args
            self._live(step.conn).queue.append(Began(step.conn, step.t))
        if frame.op in _SKIPPED or frame.subject.startswith(b"$JS.FC."):
            return
        plain = frame.op in PUBLISHED and not frame.reply and not frame.subject.startswith(b"$JS.")
        if plain and self._needs.plain(step.conn, frame.subject):
            self._add_plain(step, frame)
            return
        self._note(step)
        self._live(step.conn).queue.append(self._needs.sent(step))
        self._unsent[step.seq] = None
        self._size += frame.wire_size + _OVERHEAD

    def _add_plain(self, step: Step, frame: Frame) -> None:
        """Queue a publish that needs nothing, together with its neighbours of the same time."""
        queue = self._live(step.conn).queue
        last = queue[-1] if queue else None
        if not isinstance(last, Bulk) or not last.takes(step.t, frame.subject):
            last = Bulk(step.seq, step.t, [], set())
            queue.append(last)
            self._unsent[step.seq] = None
        last.parts.append(frame.buffer[frame.start : frame.end])
        last.subjects.add(frame.subject)
        size = frame.end - frame.start
        last.size += size
        self._size += size + PART

    def _live(self, conn: int) -> Live:
        found = self._lives.get(conn)
        if found is None:
            found = self._lives[conn] = Live(conn)
        return found

    def _note(self, step: Step) -> None:
        if step.frame.op == Op.SUB:
            self._interest[step.seq] = (step.conn, step.frame.subject)
        else:
            self._names.requested(step.frame)

    # -- sending

    def _drain(self, live: Live, now: int, actions: list[Action]) -> bool:
        """Send what a connection may send now; tell whether anything moved."""
        parts: list[bytes] = []
        subs: list[int] = []
        size, moved = 0, False
        while live.queue and size < BATCH and self._due(live.queue[0], now):
            head = live.queue[0]
            if isinstance(head, Goodbye):
                break
            if live.gone:
                if not isinstance(head, Began):
                    self._forget(head)
            elif not live.dialled:
                live.dialled = True
                actions.append(Dial(live.conn, self._connects.get(live.conn, b"")))
                if not isinstance(head, Began):
                    break
            elif isinstance(head, Bulk):
                if not live.ready or not self._may_bulk(live, head, now):
                    break
                live.dirty = head.seq if live.dirty is None else live.dirty
                parts += head.parts
                size += head.size
                self._count_bulk(head)
            elif isinstance(head, Planned):
                if not live.ready or not self._may(live, head, now):
                    break
                if head.step.frame.op == Op.UNSUB and not head.step.frame.args:
                    live.sids.pop(head.step.frame.sid, None)
                live.dirty = head.step.seq if live.dirty is None else live.dirty
                parts.append(self._bytes(head.step.frame))
                size += len(parts[-1])
                if head.step.frame.op == Op.SUB:
                    live.received.pop(head.step.frame.sid, None)
                    live.sids[head.step.frame.sid] = None
                    subs.append(head.step.seq)
                self._count(head, len(parts[-1]))
            live.queue.popleft()
            live.since = None
            moved = True
        if live.ready and not live.gone and (subs or (live.fence and live.dirty is not None)):
            parts.append(self._ping(live, subs))
        if parts:
            actions.append(Write(live.conn, b"".join(parts)))
        return self._leave(live, now, actions) or moved

    def _ping(self, live: Live, subs: list[int]) -> bytes:
        live.unfenced.append(Fence(live.dirty, subs))
        live.dirty, live.fence = None, False
        return encode.PING

    def _leave(self, live: Live, now: int, actions: list[Action]) -> bool:
        """Close a connection whose goodbye is due, behind a last PING; tell whether anything moved."""
        head = live.queue[0] if live.queue else None
        if not isinstance(head, Goodbye) or not self._due(head, now):
            return False
        if live.dialled and not live.gone:
            need = "its handshake" if not live.ready else ""
            need = need or self._open_count(live, head.counts) or self._before(live, head.seq)
            if not need and not live.final:
                live.final, live.since = True, None
                actions.append(Write(live.conn, self._farewell(live) + self._ping(live, [])))
            need = need or ("a PONG" if live.unfenced else "")
            if need and not self._given_up(live, "its end", need, now):
                return False
        if live.dialled:
            actions.append(Leave(live.conn))
        del self._lives[live.conn]
        self._connects.pop(live.conn, None)
        self._leaving.pop(live.conn, None)
        return True

    def _farewell(self, live: Live) -> bytes:
        """End the interest of a connection while others go on: a server notices a close when it likes."""
        if len(self._lives) == 1:
            return b""
        return b"".join(encode.unsub(sid) for sid in live.sids)

    def _due(self, head: Head, now: int) -> bool:
        if self._speed is None or self._start is None:
            return True
        t = head.step.t if isinstance(head, Planned) else head.t
        due = self._start + int(t / self._speed)
        if due <= now:
            if isinstance(head, Planned | Bulk):
                self.lag = now - due
                self.worst_lag = max(self.worst_lag, self.lag)
            return True
        self._wake(due)
        return False

    def _wake(self, at: int) -> None:
        self._deadline = at if self._deadline is None else min(self._deadline, at)

    def _may(self, live: Live, head: Planned, now: int) -> bool:
        """Tell whether what a frame needs has come, or was waited for long enough."""
        need = self._open_need(live, head)
        if not need:
            return True
        frame = head.step.frame
        what = f"{frame.op.label} {(frame.subject or frame.sid).decode(errors='replace')}"
        if not self._given_up(live, what, need, now):
            return False
        for sid, count in head.counts:
            live.received[sid] = max(count, live.received.get(sid, 0))
        for key in head.api:
            self._api[key] = True
        return True

    def _may_bulk(self, live: Live, head: Bulk, now: int) -> bool:
        need = self._open_end(live, head.seq)
        for subject in head.subjects if self._interest else ():
            need = need or self._open_interest(live, head.seq, subject)
        return not need or self._given_up(live, f"{len(head.parts)} publishes", need, now)

    def _given_up(self, live: Live, what: str, need: str, now: int) -> bool:
        if live.since is None:
            live.since = now
        until = live.since + self._patience
        if now < until:
            self._wake(until)
            return False
        self.missing.append(Missing(live.conn, what, need))
        return True

    def _open_need(self, live: Live, head: Planned) -> str:
        need = self._open_count(live, head.counts)
        if need:
            return need
        for conn, reply in head.api:
            if (conn, reply) not in self._api and self._keep(conn):
                return f"the JetStream API's answer on {reply.decode(errors='replace')}"
        frame, seq = head.step.frame, head.step.seq
        if head.after >= 0 and frame.subject not in self._asked:
            return f"the request on {frame.subject.decode(errors='replace')}"
        need = self._open_end(live, seq)
        if need:
            return need
        if frame.op == Op.UNSUB:
            return "" if frame.args else self._before(live, seq)
        if frame.op == Op.SUB:
            return "" if frame.subject.startswith(INBOX) else self._before(live, seq)
        if frame.subject.startswith(b"$JS.ACK.") and self._names.ack(frame.subject) is None:
            return f"the delivery of {frame.subject.decode(errors='replace')}"
        return self._open_interest(live, seq, frame.subject)

    def _open_end(self, live: Live, seq: int) -> str:
        for conn, behind in self._leaving.items():
            if behind <= seq and conn != live.conn:
                return f"the end of connection {conn}"
        return ""

    def _open_interest(self, live: Live, seq: int, subject: bytes) -> str:
        for other, (conn, pattern) in self._interest.items():
            if other >= seq:
                break
            if conn != live.conn and matches(pattern, subject):
                return f"the subscription to {pattern.decode(errors='replace')} of connection {conn}"
        return ""

    def _open_count(self, live: Live, wanted: tuple[tuple[bytes, int], ...]) -> str:
        for sid, count in wanted:
            if live.received.get(sid, 0) < count:
                return f"message {count} on subscription {sid.decode(errors='replace')}"
        return ""

    def _before(self, live: Live, seq: int) -> str:
        """Say what was recorded before and was not sent yet, or not yet handled by the server."""
        if next(iter(self._unsent), seq) < seq:
            return "frames of other connections that were recorded before it"
        for other in self._lives.values():
            if other is live or other.gone:
                continue
            if other.dirty is not None and other.dirty < seq:
                other.fence = True
                return f"a PONG on connection {other.conn}"
            if any(fence.first is not None and fence.first < seq for fence in other.unfenced):
                return f"a PONG on connection {other.conn}"
        return ""

    def _bytes(self, frame: Frame) -> bytes:
        subject = frame.subject
        if not subject.startswith(b"$JS."):
            return frame.raw
        mapped = self._names.to_live(subject)
        return frame.raw if mapped == subject else encode.with_line(frame, subject=mapped)

    def _count(self, head: Planned, size: int) -> None:
        self.sent += 1
        self.sent_bytes += size
        del self._unsent[head.step.seq]
        self._size -= head.step.frame.wire_size + _OVERHEAD

    def _count_bulk(self, head: Bulk) -> None:
        self.sent += len(head.parts)
        self.sent_bytes += head.size
        del self._unsent[head.seq]
        self._size -= head.cost

    def _forget(self, head: Planned | Bulk | Goodbye) -> None:
        """Leave out what cannot be sent: its connection is gone."""
        if isinstance(head, Bulk):
            self._size -= head.cost
            del self._unsent[head.seq]
        elif isinstance(head, Planned):
            self._size -= head.step.frame.wire_size + _OVERHEAD
            del self._unsent[head.step.seq]
            self._interest.pop(head.step.seq, None)
