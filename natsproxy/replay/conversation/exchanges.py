"""The recorded conversation as exchanges that wait to be played, in a bounded window.

An exchange is a client frame and its effects; an effect is a server frame, or the end of a connection, and
waits for its causes.  The script is read as it is used: what is unused and unsent in memory stays below
`window` bytes of frames, whatever the size of the capture.  What was used leaves; a short ring of it stays
to tell *already used* from *never recorded*.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from natsproxy.errors import CaptureError
from natsproxy.protocol.connect import Connect, parse_connect
from natsproxy.replay.conversation.bounded import BoundedDict
from natsproxy.replay.conversation.causes import Causes, Kind
from natsproxy.replay.conversation.identities import masked
from natsproxy.replay.conversation.steps import Began, Ended, Event, Step
from natsproxy.session import close_reasons as ends
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, Op

WINDOW: Final = 64 << 20
_OVERHEAD: Final = 512  # bytes counted for a frame's objects
_USED_KEPT: Final = 1000
_BY_SERVER: Final = frozenset(
    {ends.SERVER_CLOSED, ends.SERVER_LOST, ends.KILLED, ends.RULE, ends.CLIENT_PROTOCOL}
)
_LIVE: Final = (Op.PING, Op.PONG, Op.OK)  # answered live
Key = tuple[Op, bytes]


def is_optional(frame: Frame) -> bool:
    """Tell whether a client may send a frame or not, as its timing goes: UNSUB, answers to flow control."""
    return frame.op == Op.UNSUB or frame.subject.startswith(b"$JS.FC.")


@dataclass(slots=True, eq=False)
class Exchange:
    """A client frame that was recorded.

    matched: when it happened live, None while it did not.  live: the frame that matched it, where copies of
    it were delivered.
    """

    seq: int
    conn: int
    t: int
    frame: Frame
    effects: list[Effect] = field(default_factory=list)
    matched: int | None = None
    live: Frame | None = None


@dataclass(slots=True, eq=False)
class Effect:
    """A server frame that was recorded; None for the end of the connection.

    waits: causes that have not happened.  due: when it may go out, None while it waits.  offset: ns after its
    last cause, for a timed one.  origin: the publish that it is a copy of, if it is one.
    """

    seq: int
    conn: int
    t: int
    frame: Frame | None
    kind: Kind
    waits: int = 0
    last: int = 0
    due: int | None = None
    offset: int = 0
    stream: bool = False
    origin: Exchange | None = None


@dataclass(slots=True, eq=False)
class Recorded:
    """A connection of the capture.

    open: its exchanges that were not used yet, by what they can be told apart by.  lanes: effects in the
    order in which they must go out.  sids: recorded sid to live sid.  parked: lanes that wait for their SUB,
    by recorded sid.  live: who plays it, None for nobody.  unused, unsent: how many exchanges and effects are
    left.  first, last: seq of its CONNECT and of the last client frame.  top_sid: the greatest sid.
    """

    conn: int
    connect: Connect | None = None
    open: dict[Key, deque[Exchange]] = field(default_factory=dict)
    lanes: dict[object, deque[Effect]] = field(default_factory=dict)
    sids: dict[bytes, bytes] = field(default_factory=dict)
    parked: dict[bytes, dict[object, None]] = field(default_factory=dict)
    live: int | None = None
    unused: int = 0
    unsent: int = 0
    first: int = -1
    last: int = -1
    top_sid: int = 0

    @property
    def name(self) -> str:
        """The client name of its CONNECT."""
        return self.connect.name if self.connect is not None else ""

    def take(self, exchange: Exchange) -> None:
        """Count an exchange as used."""
        key = key_of(exchange.frame)
        queue = self.open[key]
        if queue[0] is exchange:
            queue.popleft()
        else:
            queue.remove(exchange)
        if not queue:
            del self.open[key]
        self.unused -= 1


def key_of(frame: Frame) -> Key:
    """Return what a client frame is looked up by: its op and its subject without identifiers."""
    return frame.op, masked(frame.subject)


def alone(frame: Frame) -> Frame:
    """Return a frame that keeps nothing but its own bytes alive, not the whole read or record it came in."""
    start, end = frame.start, frame.end
    if len(frame.buffer) < 2 * (end - start) + _OVERHEAD:
        return frame
    return Frame(frame.raw, 0, end - start, frame.line_end - start, *frame[4:])


class RecordedConversation:
    """The recorded conversation, read on as it is used."""

    def __init__(self, source: Iterator[Event], *, window: int = WINDOW) -> None:
        self.connections: dict[int, Recorded] = {}
        self.used: deque[Exchange] = deque(maxlen=_USED_KEPT)
        self.info: bytes = b""
        self.frames = self.played = 0
        self._source = source
        self._window = window
        self._size = 0
        self._causes = Causes()
        self._waiting: dict[int, Exchange] = {}
        self._times: BoundedDict[int, tuple[int, int]] = (
            BoundedDict()
        )  # seq -> (recorded, live) time of what was used
        self._ended = False
        self.fresh: list[tuple[Recorded, object, Effect]] = []
        self.reached: tuple[int, int] = (-1, 0)  # the last recorded frame that happened live, and when

    @property
    def whole(self) -> bool:
        """Whether everything recorded has been read."""
        return self._ended

    def fill(self) -> None:
        """Read on until the window is full; lanes that got effects are in `fresh`."""
        while not self._ended and self._size < self._window:
            event = next(self._source, None)
            if event is None:
                self._ended = True
            elif isinstance(event, Step):
                self._step(event)
            elif isinstance(event, Began):
                self._recorded(event.conn)
            elif event.cause in _BY_SERVER:
                self._end(event)

    def _recorded(self, conn: int) -> Recorded:
        found = self.connections.get(conn)
        if found is None:
            found = self.connections[conn] = Recorded(conn)
        return found

    def _step(self, step: Step) -> None:
        recorded = self._recorded(step.conn)
        op = step.frame.op
        if op in _LIVE or is_optional(step.frame):
            return
        if op == Op.INFO:
            self.info = self.info or step.frame.args
        elif op == Op.CONNECT:
            if recorded.connect is None:
                recorded.first = step.seq
                try:
                    recorded.connect = parse_connect(step.frame.args)
                except ValueError as error:
                    raise CaptureError(
                        f"connection {step.conn} has a CONNECT that is none: {error}"
                    ) from None
        elif step.direction == C2S:
            self._exchange(recorded, step)
        else:
            self._effect(recorded, step)

    def _exchange(self, recorded: Recorded, step: Step) -> None:
        self._causes.sent(step)
        exchange = Exchange(step.seq, step.conn, step.t, step.frame)
        recorded.open.setdefault(key_of(step.frame), deque()).append(exchange)
        recorded.unused += 1
        recorded.last = step.seq
        if step.frame.op == Op.SUB and step.frame.sid.isdigit():
            recorded.top_sid = max(recorded.top_sid, int(step.frame.sid))
        self._waiting[step.seq] = exchange
        self._size += step.frame.wire_size + _OVERHEAD
        self.frames += 1

    def _effect(self, recorded: Recorded, step: Step) -> None:
        cause = self._causes.of(step)
        effect = Effect(step.seq, step.conn, step.t, step.frame, cause.kind, stream=cause.stream)
        self._size += step.frame.wire_size + _OVERHEAD
        self.frames += 1
        self._attach(recorded, effect, cause.after)
        lane: object = (step.frame.sid, b"" if cause.stream else step.frame.subject)
        self._queue(recorded, effect, lane)

    def _attach(self, recorded: Recorded, effect: Effect, after: tuple[int, ...]) -> None:
        latest = 0
        for seq in after:
            waiting = self._waiting.get(seq)
            if waiting is not None:
                waiting.effects.append(effect)
                effect.waits += 1
                latest = max(latest, waiting.t)
                copied = effect.frame is not None and effect.frame.subject == waiting.frame.subject
                if copied and effect.frame is not None and effect.frame.body == waiting.frame.body:
                    effect.origin = waiting
            elif seq in self._times:
                recorded_t, live_t = self._times[seq]
                latest = max(latest, recorded_t)
                effect.last = max(effect.last, live_t)
        effect.offset = max(0, effect.t - latest)

    def _queue(self, recorded: Recorded, effect: Effect, lane: object) -> None:
        recorded.lanes.setdefault(lane, deque()).append(effect)
        recorded.unsent += 1
        if not effect.waits:
            self.fresh.append((recorded, lane, effect))

    def _end(self, event: Ended) -> None:
        recorded = self._recorded(event.conn)
        effect = Effect(-1, event.conn, event.t, None, Kind.TIMED)
        self._attach(recorded, effect, (recorded.last,))
        self._queue(recorded, effect, "end")

    def reach(self, seq: int, now: int) -> None:
        """Note that a recorded frame has happened live."""
        if seq > self.reached[0]:
            self.reached = (seq, now)

    def use(self, exchange: Exchange, live: Frame, now: int) -> list[Effect]:
        """Count an exchange as having happened; return the effects that were waiting for it alone.

        live: the frame that matched it, which copies of a publish carry on.
        """
        exchange.matched = now
        exchange.frame = alone(exchange.frame)
        if any(effect.origin is exchange for effect in exchange.effects):
            exchange.live = alone(live)
        self.reach(exchange.seq, now)
        self.connections[exchange.conn].take(exchange)
        self._waiting.pop(exchange.seq, None)
        self._times[exchange.seq] = (exchange.t, now)
        self.used.append(exchange)
        self.played += 1
        self._size -= exchange.frame.wire_size + _OVERHEAD
        ready = []
        for effect in exchange.effects:
            effect.waits -= 1
            effect.last = max(effect.last, now)
            if not effect.waits:
                ready.append(effect)
        exchange.effects = []
        return ready

    def give_back(self, exchange: Exchange) -> None:
        """Count an exchange without effects as not used after all: it was matched by the wrong client."""
        recorded = self.connections[exchange.conn]
        key = key_of(exchange.frame)
        queue = sorted([*recorded.open.get(key, ()), exchange], key=lambda one: one.seq)
        recorded.open[key] = deque(queue)
        recorded.unused += 1
        recorded.sids.pop(exchange.frame.sid, None)
        exchange.matched = exchange.live = None
        self._waiting[exchange.seq] = exchange
        self._times.pop(exchange.seq, None)
        self.used.remove(exchange)
        self.played -= 1
        self._size += exchange.frame.wire_size + _OVERHEAD

    def sent(self, recorded: Recorded, effect: Effect, now: int) -> None:
        """Count an effect as sent."""
        self.reach(effect.seq, now)
        recorded.unsent -= 1
        self.played += 1
        if effect.frame is not None:
            self._size -= effect.frame.wire_size + _OVERHEAD
