"""The recorded conversation, read as it is played, in a bounded window.

Exchanges and effects that are not played yet take at most `window` bytes of frames in memory, for a capture
of any size: one that waits long does not keep the record around it.  Played exchanges leave; a ring of the
last ones stays, so that a report can tell *already used* from *never recorded*.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import Final

from natsproxy.bounded import BoundedDict
from natsproxy.capture.format.connection import ConnectionId
from natsproxy.errors import CaptureError
from natsproxy.protocol.connect import parse_connect
from natsproxy.replay.conversation.causes import Causes, Timing
from natsproxy.replay.conversation.exchanges import (
    Effect,
    RecordedConnection,
    RecordedExchange,
    standalone,
)
from natsproxy.replay.conversation.frame_kind import POLLS, FrameKind, is_optional, kind_of
from natsproxy.replay.conversation.past import PastPolls, Used
from natsproxy.replay.conversation.steps import Began, Ended, Event, Step
from natsproxy.replay.conversation.stored_messages import StoredMessages
from natsproxy.session import close_reasons
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, Op

WINDOW: Final = 64 << 20
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


class RecordedConversation:
    """The recorded conversation, read on as it is used.

    repeat: patterns of subjects whose messages are polls.  newly_ready: effects that were read after their
    causes had happened.  reached: the last recorded frame that happened live (seq), and its time (ns).
    kind_of: returns the kind of a client frame, recorded or live.  ended_sids: the live sids of the last
    subscriptions that ended, by recorded connection and sid.
    """

    def __init__(
        self, source: Iterator[Event], *, window: int = WINDOW, repeat: Sequence[bytes] = ()
    ) -> None:
        self.connections: dict[ConnectionId, RecordedConnection] = {}
        self.used = Used()
        self.past_polls = PastPolls()
        self.stored = StoredMessages()
        self.ended_sids: BoundedDict[tuple[ConnectionId, bytes], bytes] = BoundedDict()
        self.info: bytes = b""
        self.frames = self.played = 0
        self._source = source
        self._window = window
        self.kind_of = partial(kind_of, repeat=repeat) if repeat else kind_of
        self._size = 0
        self._causes = Causes()
        self._waiting: dict[int, RecordedExchange] = {}
        # seq -> (recorded, live) time of a used exchange
        self._times: BoundedDict[int, tuple[int, int]] = BoundedDict()
        self._ended = False
        self.newly_ready: list[tuple[RecordedConnection, Effect]] = []
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

    def _recorded(self, conn: ConnectionId) -> RecordedConnection:
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
        kind = self.kind_of(step.frame)
        self._causes.sent(step, kind)
        exchange = RecordedExchange(step.seq, step.conn, step.t, standalone(step.frame), kind)
        recorded.put(exchange)
        recorded.last_seq = step.seq
        if step.frame.op == Op.SUB and step.frame.sid.isdigit():
            recorded.top_sid = max(recorded.top_sid, int(step.frame.sid))
        self._waiting[step.seq] = exchange
        self._size += exchange.size
        self.frames += 1

    def _effect(self, recorded: RecordedConnection, step: Step) -> None:
        cause = self._causes.of(step)
        if cause.timing is Timing.LIVE:
            return
        frame = standalone(step.frame)
        effect = Effect(
            step.seq, step.conn, step.t, frame, cause.timing, stream=cause.stream, pulled=cause.pulled
        )
        self._size += effect.size
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
                if effect.frame is not None and effect.frame.subject == waiting.frame.reply:
                    self.stored.answered(waiting, effect.frame)
                latest = max(latest, waiting.t)
                effect.read = waiting.kind is FrameKind.READ and len(after) == 1
                copied = effect.frame is not None and effect.frame.subject == waiting.frame.subject
                if copied and effect.frame is not None and effect.frame.body == waiting.frame.body:
                    effect.origin = waiting
            elif seq in self._times:  # that cause has happened already
                recorded_t, live_t = self._times[seq]
                latest = max(latest, recorded_t)
                effect.caused_at = max(effect.caused_at, live_t)
        effect.offset = max(0, effect.t - latest)

    def _queue(self, recorded: RecordedConnection, effect: Effect) -> None:
        recorded.queues.setdefault(effect.queue, deque()).append(effect)
        recorded.unsent += not effect.read
        if not effect.pending_causes:
            self.newly_ready.append((recorded, effect))

    def _end(self, event: Ended) -> None:
        recorded = self._recorded(event.conn)
        effect = Effect(-1, event.conn, event.t, None, Timing.TIMED)
        self._attach(recorded, effect, (recorded.last_seq,))
        self._queue(recorded, effect)

    def next_change(self, playing: Collection[int]) -> int | None:
        """Return the seq of the first CHANGE that the live clients `playing` still have to send."""
        left = [r.next_change() for r in self.connections.values() if r.client_id in playing]
        return min((one.seq for one in left if one is not None), default=None)

    def reach(self, seq: int, now: int) -> None:
        """Note that a recorded frame has happened live."""
        if seq > self.reached[0]:
            self.reached = (seq, now)

    def use(self, exchange: RecordedExchange, live_frame: Frame, now: int) -> list[Effect]:
        """Count an exchange as having happened; return the effects that waited for it alone.

        live_frame: the frame that matched it; copies of a publish carry its body.
        """
        exchange.matched = now
        if exchange.kind is FrameKind.READ:
            exchange.answers = [e.frame for e in exchange.effects if e.read and e.frame is not None]
        self.reach(exchange.seq, now)
        self.connections[exchange.conn].take(exchange)
        self._waiting.pop(exchange.seq, None)
        if not self._ended:  # effects of it may come
            self._times[exchange.seq] = (exchange.t, now)
        self.used.add(exchange)
        self.stored.happened(exchange)
        if exchange.kind in POLLS:
            self.past_polls.add(exchange)
        self.played += 1
        self._size -= exchange.size
        ready = []
        alone = None
        for effect in exchange.effects:
            if effect.origin is exchange:
                effect.live = alone = alone or standalone(live_frame)
            effect.pending_causes -= 1
            effect.caused_at = max(effect.caused_at, now)
            if not effect.pending_causes:
                ready.append(effect)
        exchange.effects = []
        return ready

    def give_back(self, exchange: RecordedExchange) -> None:
        """Undo `use` of an exchange without effects: the wrong client had matched it."""
        recorded = self.connections[exchange.conn]
        recorded.put(exchange)  # exchanges of one key are matched in recorded order
        recorded.sids.pop(exchange.frame.sid, None)
        self.ended_sids.pop((exchange.conn, exchange.frame.sid), None)
        exchange.matched = None
        self._waiting[exchange.seq] = exchange
        self._times.pop(exchange.seq, None)
        self.used.give_back(exchange)
        self.past_polls.give_back(exchange)
        self.played -= 1
        self._size += exchange.size

    def sent(self, recorded: RecordedConnection, effect: Effect, now: int) -> None:
        """Count an effect as sent."""
        self.reach(effect.seq, now)
        recorded.unsent -= not effect.read
        self.played += 1
        self._size -= effect.size
