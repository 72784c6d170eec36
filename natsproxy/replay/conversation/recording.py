"""The recording: a capture read as exchanges and their effects, one after the other.

Reading knows nothing of live clients: whoever plays the recording keeps what it needs of what was read, and
reads on when there is room.  So a capture may have any size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final
from weakref import WeakValueDictionary

from natsproxy import close_reasons
from natsproxy.bounded import BoundedDict
from natsproxy.capture.format.connection import ConnectionId
from natsproxy.errors import CaptureError
from natsproxy.protocol.connect import parse_connect
from natsproxy.replay.conversation.causes import Cause, Causes, Timing
from natsproxy.replay.conversation.exchanges import Effect, RecordedConnection, RecordedExchange, standalone
from natsproxy.replay.conversation.frame_kind import POLLS, FrameKind, kind_of, share_of
from natsproxy.replay.conversation.steps import Began, Ended, Event, Step
from natsproxy.replay.conversation.stored_messages import StoredMessages
from natsproxy.wire.ops import C2S, Op

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


class Recording:
    """A capture, read on as it is needed.

    repeat: patterns of subjects whose messages are polls.  connections: those that were read so far.  whole:
    it was read to its end.  kind_of: returns the kind of a client frame, recorded or live.  requests: the
    subjects of requests, by that of their answers, if somebody has to know them.
    """

    def __init__(
        self, source: Iterator[Event], *, repeat: Sequence[bytes] = (), requests: bool = False
    ) -> None:
        self.connections: dict[ConnectionId, RecordedConnection] = {}
        self.info: bytes = b""
        self.whole = False
        self.requests: BoundedDict[bytes, bytes] = BoundedDict()
        self._keeps_requests = requests
        self.kind_of = partial(kind_of, repeat=repeat) if repeat else kind_of
        self._source = source
        self._causes = Causes()
        self._stored = StoredMessages()
        # Those that are played and forgotten need no answers; their times still count.
        self._exchanges: WeakValueDictionary[int, RecordedExchange] = WeakValueDictionary()
        self._times: BoundedDict[int, int] = BoundedDict()

    def read(self) -> RecordedExchange | Effect | None:
        """Return the next exchange or effect; None at the end.

        Raises CaptureError for a connection whose CONNECT cannot be read.
        """
        for event in self._source:
            found: RecordedExchange | Effect | None = None
            if isinstance(event, Step):
                found = self._step(event)
            elif isinstance(event, Began):
                self._connection(event.conn)
            elif event.cause in _BY_SERVER:  # the end of a client that left is for the live client to repeat
                found = self._end(event)
            if found is not None:
                return found
        self.whole = True
        return None

    def _connection(self, conn: ConnectionId) -> RecordedConnection:
        found = self.connections.get(conn)
        if found is None:
            found = self.connections[conn] = RecordedConnection(conn)
        return found

    def _step(self, step: Step) -> RecordedExchange | Effect | None:
        connection = self._connection(step.conn)
        op, reply = step.frame.op, step.frame.reply
        if self._keeps_requests and reply and not reply.startswith(b"$JS."):
            self.requests[reply] = step.frame.subject
        if op in _LIVE:
            return None
        if op == Op.INFO:
            self.info = self.info or step.frame.args
        elif op == Op.CONNECT:
            if connection.connect is None:
                connection.first_seq = step.seq
                try:
                    connection.connect = parse_connect(step.frame.args)
                except ValueError as error:
                    raise CaptureError(f"connection {step.conn} has an invalid CONNECT: {error}") from None
        elif step.direction == C2S:
            kind = self.kind_of(step.frame)
            return None if kind is FrameKind.OPTIONAL else self._exchange(connection, step, kind)
        else:
            cause = self._causes.of(step)
            return None if cause.timing is Timing.LIVE else self._effect(step, cause)
        return None

    def _end(self, ended: Ended) -> Effect:
        causes = (self._connection(ended.conn).last_seq,)
        last = self._exchanges.get(causes[0])
        return Effect(
            -1,
            ended.conn,
            ended.t,
            None,
            Timing.TIMED,
            causes,
            self._offset(ended.t, causes),
            follows_poll=last is not None and last.kind in POLLS,
        )

    def _exchange(self, connection: RecordedConnection, step: Step, kind: FrameKind) -> RecordedExchange:
        self._causes.sent(step, kind)
        connection.last_seq = step.seq
        if step.frame.op == Op.SUB and step.frame.sid.isdigit():
            connection.top_sid = max(connection.top_sid, int(step.frame.sid))
        share = share_of(step.frame, kind)
        if share is not None:
            connection.shares[share] = None
            if step.frame.op == Op.SUB:
                connection.groups[step.frame.sid] = share
        exchange = RecordedExchange(step.seq, step.conn, step.t, standalone(step.frame), kind)
        self._exchanges[step.seq] = exchange
        self._times[step.seq] = step.t
        return exchange

    def _effect(self, step: Step, cause: Cause) -> Effect:
        frame, copy_of, follows_poll = standalone(step.frame), None, False
        for seq in cause.after:
            exchange = self._exchanges.get(seq)
            if exchange is None:
                continue
            if frame.subject == exchange.frame.reply:
                self._stored.answered(exchange, frame)
            follows_poll = exchange.kind is FrameKind.READ and len(cause.after) == 1
            if frame.subject == exchange.frame.subject and frame.body == exchange.frame.body:
                copy_of = exchange
        return Effect(
            step.seq,
            step.conn,
            step.t,
            frame,
            cause.timing,
            cause.after,
            self._offset(step.t, cause.after),
            delivery=cause.delivery,
            pulled=cause.pulled,
            copy_of=copy_of,
            follows_poll=follows_poll,
        )

    def _offset(self, t: int, causes: tuple[int, ...]) -> int:
        """Return the time in ns since the last cause; 0 where none is known (any more)."""
        known = [self._exchanges[seq].t if seq in self._exchanges else self._times.get(seq) for seq in causes]
        return max(0, t - max((at for at in known if at is not None), default=t))
