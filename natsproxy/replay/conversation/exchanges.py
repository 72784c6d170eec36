"""The recorded conversation as exchanges that wait to be played, in a bounded window.

An exchange is a client frame and its effects.  An effect is a server frame, or the end of a connection, and
waits for its causes.  The capture is read as it is used: exchanges and effects that are not played yet take
at most `window` bytes of frames in memory, for a capture of any size.  Played exchanges leave; a ring
of the last thousand stays, so that a report can tell *already used* from *never recorded*.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from natsproxy.errors import CaptureError
from natsproxy.protocol.connect import Connect, parse_connect
from natsproxy.replay.conversation.bounded import BoundedDict
from natsproxy.replay.conversation.causes import Causes, Timing
from natsproxy.replay.conversation.identifier_map import masked
from natsproxy.replay.conversation.queues import Queues
from natsproxy.replay.conversation.steps import Began, Ended, Event, Step
from natsproxy.session import close_reasons
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, Op

WINDOW: Final = 64 << 20
_OVERHEAD: Final = 512  # bytes counted for a frame's objects
_USED_KEPT: Final = 1000
_BY_SERVER: Final = frozenset(
    {
        close_reasons.SERVER_CLOSED,
        close_reasons.SERVER_LOST,
        close_reasons.KILLED,
        close_reasons.RULE,
        close_reasons.CLIENT_PROTOCOL,
    }
)
_LIVE: Final = (Op.PING, Op.PONG, Op.OK)  # answered live
Key = tuple[Op, bytes]
QueueKey = tuple[bytes, bytes]
END: Final[QueueKey] = (b"", b"end")
"""The key of the queue that holds the end of a connection: no effect without a sid has this subject."""


def is_optional(frame: Frame) -> bool:
    """Tell whether timing decides if a client sends a frame: UNSUB and answers to flow control."""
    return frame.op == Op.UNSUB or frame.subject.startswith(b"$JS.FC.")


@dataclass(slots=True, eq=False)
class Exchange:
    """A recorded client frame with its effects.

    matched: the time at which it happened live (ns), None before.  live_frame: the frame that matched it,
    kept where copies of it were delivered.
    """

    seq: int
    conn: int
    t: int
    frame: Frame
    effects: list[Effect] = field(default_factory=list)
    matched: int | None = None
    live_frame: Frame | None = None


@dataclass(slots=True, eq=False)
class Effect:
    """A recorded server frame; frame is None for the end of the connection.

    pending_causes: the number of causes that have not happened.  caused_at: the time of the last cause (ns).
    due: the time from which it may be sent (ns), None while it waits.  offset: ns after its last cause, for a
    timed one.  stream: see `Cause`.  origin: the publish that it is a copy of, if it is one.
    """

    seq: int
    conn: int
    t: int
    frame: Frame | None
    timing: Timing
    pending_causes: int = 0
    caused_at: int = 0
    due: int | None = None
    offset: int = 0
    stream: bool = False
    origin: Exchange | None = None


@dataclass(slots=True, eq=False)
class RecordedConnection:
    """A connection of the capture.

    exchanges: those not used yet, by `key_of` their frame.  exact: the same, by `exact_key`.
    queues: effects in the order in which they must be sent, by `queue_key`.  sids: recorded sid to live sid.
    parked: keys of queues that wait for their SUB, by recorded sid.  client_id: the live client that plays
    it, None for nobody.  unused, unsent: the number of exchanges and effects that are left.  first_seq,
    last_seq: seq of its CONNECT and of its last client frame.  top_sid: the greatest sid.
    """

    conn: int
    connect: Connect | None = None
    exchanges: Queues[Key, Exchange] = field(default_factory=Queues)
    exact: Queues[int, Exchange] = field(default_factory=Queues)
    queues: dict[QueueKey, deque[Effect]] = field(default_factory=dict)
    sids: dict[bytes, bytes] = field(default_factory=dict)
    parked: dict[bytes, dict[QueueKey, None]] = field(default_factory=dict)
    client_id: int | None = None
    unused: int = 0
    unsent: int = 0
    first_seq: int = -1
    last_seq: int = -1
    top_sid: int = 0

    @property
    def name(self) -> str:
        """The client name of its CONNECT."""
        return self.connect.name if self.connect is not None else ""

    def candidates(self, frame: Frame) -> Iterator[Exchange]:
        """Yield the exchanges that a live frame may match, in recorded order; equal ones first.

        An equal one goes before one that would teach that an identifier stands for another one.
        """
        exact = self.exact.get(exact_key(frame), ())
        yield from exact
        for exchange in self.exchanges.get(key_of(frame), ()):
            if exchange not in exact:
                yield exchange

    def put(self, exchange: Exchange) -> None:
        """Add an exchange behind the others, or back in its place among them."""
        self.exchanges.put(key_of(exchange.frame), exchange)
        self.exact.put(exact_key(exchange.frame), exchange)
        self.unused += 1

    def take(self, exchange: Exchange) -> None:
        """Count an exchange as used."""
        self.exchanges.take(key_of(exchange.frame), exchange)
        self.exact.take(exact_key(exchange.frame), exchange)
        self.unused -= 1


def key_of(frame: Frame) -> Key:
    """Return the look-up key of a client frame: its kind and its subject without identifiers.

    PUB and HPUB are one kind: a header may be one that does not count.
    """
    return Op.PUB if frame.op == Op.HPUB else frame.op, masked(frame.subject)


def exact_key(frame: Frame) -> int:
    """Return the look-up key of frames that are equal, but for their replies and headers."""
    return hash((frame.subject, frame.body))


def queue_key(effect: Effect) -> QueueKey:
    """Return the key of the queue in which an effect keeps its order.

    The order counts on one subject of a subscription; in a consumer's delivery across all its subjects.
    """
    frame = effect.frame
    return END if frame is None else (frame.sid, b"" if effect.stream else frame.subject)


def standalone(frame: Frame) -> Frame:
    """Return a frame that keeps only its own bytes alive, not the whole read or record around it."""
    start, end = frame.start, frame.end
    if len(frame.buffer) < 2 * (end - start) + _OVERHEAD:  # a copy would save nothing
        return frame
    return Frame(frame.raw, 0, end - start, frame.line_end - start, *frame[4:])


class RecordedConversation:
    """The recorded conversation, read on as it is used.

    newly_ready: effects that were read after their causes had happened.  reached: the last recorded frame
    that happened live (seq), and its time (ns).
    """

    def __init__(self, source: Iterator[Event], *, window: int = WINDOW) -> None:
        self.connections: dict[int, RecordedConnection] = {}
        self.used: deque[Exchange] = deque(maxlen=_USED_KEPT)
        self.info: bytes = b""
        self.frames = self.played = 0
        self._source = source
        self._window = window
        self._size = 0
        self._causes = Causes()
        self._waiting: dict[int, Exchange] = {}
        # seq -> (recorded, live) time of a used exchange
        self._times: BoundedDict[int, tuple[int, int]] = BoundedDict()
        self._ended = False
        self.newly_ready: list[tuple[RecordedConnection, QueueKey, Effect]] = []
        self.reached: tuple[int, int] = (-1, 0)

    @property
    def whole(self) -> bool:
        """True when the capture was read to its end."""
        return self._ended

    def fill(self) -> None:
        """Read on until the window is full; effects that may be sent are added to `newly_ready`."""
        while not self._ended and self._size < self._window:
            event = next(self._source, None)
            if event is None:
                self._ended = True
            elif isinstance(event, Step):
                self._step(event)
            elif isinstance(event, Began):
                self._recorded(event.conn)
            elif event.cause in _BY_SERVER:  # the end of a client that left is for the live client to repeat
                self._end(event)

    def _recorded(self, conn: int) -> RecordedConnection:
        found = self.connections.get(conn)
        if found is None:
            found = self.connections[conn] = RecordedConnection(conn)
        return found

    def _step(self, step: Step) -> None:
        recorded = self._recorded(step.conn)
        op = step.frame.op
        if op in _LIVE or is_optional(step.frame):  # answered live, or never waited for
            return
        if op == Op.INFO:
            self.info = self.info or step.frame.args
        elif op == Op.CONNECT:
            if recorded.connect is None:
                recorded.first_seq = step.seq
                try:
                    recorded.connect = parse_connect(step.frame.args)
                except ValueError as error:
                    raise CaptureError(f"connection {step.conn} has an invalid CONNECT: {error}") from None
        elif step.direction == C2S:
            self._exchange(recorded, step)
        else:
            self._effect(recorded, step)

    def _exchange(self, recorded: RecordedConnection, step: Step) -> None:
        self._causes.sent(step)
        exchange = Exchange(step.seq, step.conn, step.t, step.frame)
        recorded.put(exchange)
        recorded.last_seq = step.seq
        if step.frame.op == Op.SUB and step.frame.sid.isdigit():
            recorded.top_sid = max(recorded.top_sid, int(step.frame.sid))
        self._waiting[step.seq] = exchange
        self._size += step.frame.wire_size + _OVERHEAD
        self.frames += 1

    def _effect(self, recorded: RecordedConnection, step: Step) -> None:
        cause = self._causes.of(step)
        effect = Effect(step.seq, step.conn, step.t, step.frame, cause.timing, stream=cause.stream)
        self._size += step.frame.wire_size + _OVERHEAD
        self.frames += 1
        self._attach(recorded, effect, cause.after)
        self._queue(recorded, effect)

    def _attach(self, recorded: RecordedConnection, effect: Effect, after: tuple[int, ...]) -> None:
        latest = 0
        for seq in after:
            waiting = self._waiting.get(seq)
            if waiting is not None:
                waiting.effects.append(effect)
                effect.pending_causes += 1
                latest = max(latest, waiting.t)
                copied = effect.frame is not None and effect.frame.subject == waiting.frame.subject
                if copied and effect.frame is not None and effect.frame.body == waiting.frame.body:
                    effect.origin = waiting
            elif seq in self._times:  # that cause has happened already
                recorded_t, live_t = self._times[seq]
                latest = max(latest, recorded_t)
                effect.caused_at = max(effect.caused_at, live_t)
        effect.offset = max(0, effect.t - latest)

    def _queue(self, recorded: RecordedConnection, effect: Effect) -> None:
        key = queue_key(effect)
        recorded.queues.setdefault(key, deque()).append(effect)
        recorded.unsent += 1
        if not effect.pending_causes:
            self.newly_ready.append((recorded, key, effect))

    def _end(self, event: Ended) -> None:
        recorded = self._recorded(event.conn)
        effect = Effect(-1, event.conn, event.t, None, Timing.TIMED)
        self._attach(recorded, effect, (recorded.last_seq,))
        self._queue(recorded, effect)

    def reach(self, seq: int, now: int) -> None:
        """Note that a recorded frame has happened live."""
        if seq > self.reached[0]:
            self.reached = (seq, now)

    def use(self, exchange: Exchange, live_frame: Frame, now: int) -> list[Effect]:
        """Count an exchange as having happened; return the effects that waited for it alone.

        live_frame: the frame that matched it; copies of a publish carry its body.
        """
        exchange.matched = now
        exchange.frame = standalone(exchange.frame)
        if any(effect.origin is exchange for effect in exchange.effects):
            exchange.live_frame = standalone(live_frame)
        self.reach(exchange.seq, now)
        self.connections[exchange.conn].take(exchange)
        self._waiting.pop(exchange.seq, None)
        self._times[exchange.seq] = (exchange.t, now)
        self.used.append(exchange)
        self.played += 1
        self._size -= exchange.frame.wire_size + _OVERHEAD
        ready = []
        for effect in exchange.effects:
            effect.pending_causes -= 1
            effect.caused_at = max(effect.caused_at, now)
            if not effect.pending_causes:
                ready.append(effect)
        exchange.effects = []
        return ready

    def give_back(self, exchange: Exchange) -> None:
        """Undo `use` of an exchange without effects: the wrong client had matched it."""
        recorded = self.connections[exchange.conn]
        recorded.put(exchange)  # exchanges of one key are matched in recorded order
        recorded.sids.pop(exchange.frame.sid, None)
        exchange.matched = exchange.live_frame = None
        self._waiting[exchange.seq] = exchange
        self._times.pop(exchange.seq, None)
        self.used.remove(exchange)
        self.played -= 1
        self._size += exchange.frame.wire_size + _OVERHEAD

    def sent(self, recorded: RecordedConnection, effect: Effect, now: int) -> None:
        """Count an effect as sent."""
        self.reach(effect.seq, now)
        recorded.unsent -= 1
        self.played += 1
        if effect.frame is not None:
            self._size -= effect.frame.wire_size + _OVERHEAD
