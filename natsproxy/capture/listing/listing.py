"""Items to listed frames: a `Listing` takes the items in order, and remembers clients and open requests.

Frames come out in order, and none is left out; `routine` marks those that a reader of a conversation can
skip: keep-alives, the proxy's own, and an INFO that repeats the greeting.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from natsproxy.bounded import BoundedDict
from natsproxy.capture.format.connection import ConnectionId
from natsproxy.capture.format.records import CloseRecord, Frames, Item, Preamble
from natsproxy.capture.read.frames import CapturedFrame, frames_of
from natsproxy.capture.read.segment import BlockRef
from natsproxy.errors import ProtocolError
from natsproxy.protocol.meaning import Meaning, client_name, meaning
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, KEEP_ALIVES, MESSAGE_OPS, Op
from natsproxy.wire.parse import frames as parse_frames

_SERVERS: Final = (b"$JS.ACK.", b"$JS.FC.")
"""Reply subjects of the server itself, which are not requests."""
_LONGEST: Final = 1024
"""Bytes of the two subjects of a request that is remembered."""


class OpenRequest(NamedTuple):
    """A request that is open: its subject, and the time (wall clock, ns) when it came."""

    subject: bytes
    wall: int


class ListedSubscription(NamedTuple):
    """The subscription of a sid, as its SUB says."""

    subject: bytes
    queue: bytes = b""


class Listed(NamedTuple):
    """A frame with its context.

    client: the name in its connection's CONNECT.  request: the one that it answers.  routine: see above.
    subscription: that of the frame's sid.  exchange: the number of the exchange that it belongs to, where
    exchanges were asked for.
    """

    one: CapturedFrame
    client: str
    request: OpenRequest | None
    routine: bool
    subscription: ListedSubscription | None = None
    exchange: int | None = None

    @property
    def meaning(self) -> Meaning | None:
        """The meaning of the frame; None for a plain one, and for one without a whole control line."""
        frame = self.one.head
        return None if frame is None else meaning(frame, answer=self.request is not None)


class Event(NamedTuple):
    """An item other than a frame, with its time (wall clock, ns), its connection and the client's name."""

    item: Item
    wall: int
    conn: ConnectionId | None
    client: str


class Listing:
    """The state of reading items in order: clients, subscriptions, open requests."""

    def __init__(self) -> None:
        self._clients: BoundedDict[ConnectionId, str] = BoundedDict()
        self._greeted: BoundedDict[ConnectionId, None] = BoundedDict()
        self._subscriptions: BoundedDict[tuple[ConnectionId, bytes], ListedSubscription] = BoundedDict()
        self._requests: BoundedDict[tuple[bytes, bytes], OpenRequest] = BoundedDict()

    def see(self, ref: BlockRef, item: Item) -> Iterator[Listed | Event]:
        """Yield the frames of an item, or the event that it is.  Raises CaptureError for a damaged one."""
        if isinstance(item, Frames):
            for one in frames_of(ref, item):
                yield self._listed(one)
            return
        key = ref.connection(item)
        if isinstance(item, Preamble) and key is not None:
            self._begin_late(key, item)
        yield Event(item, ref.wall(item.t), key, self._clients.get(key, "") if key is not None else "")
        if isinstance(item, CloseRecord) and key is not None:
            self._clients.pop(key, None)
            self._greeted.pop(key, None)

    def _begin_late(self, key: ConnectionId, item: Preamble) -> None:
        """Note the client of a connection that was open before, and its subscriptions."""
        self._greeted[key] = None
        connect, subs = item.info.get("connect"), item.info.get("subs")
        with suppress(ProtocolError):  # a hostile capture: it has no name
            for frame in parse_frames(connect, C2S) if isinstance(connect, bytes) else ():
                self._clients[key] = client_name(frame.args)
        for row in subs if isinstance(subs, list) else ():
            match row:
                case [bytes(sid), bytes(subject), bytes(queue), *_]:
                    self._subscriptions[key, sid] = ListedSubscription(subject, queue)

    def _listed(self, one: CapturedFrame) -> Listed:
        frame = one.head
        key = one.conn
        if frame is None:
            return Listed(one, self._clients.get(key, ""), None, False)
        if frame.op == Op.CONNECT:
            self._clients[key] = client_name(frame.args)
        if frame.op == Op.SUB and len(frame.subject) < _LONGEST:
            self._subscriptions[key, frame.sid] = ListedSubscription(frame.subject, frame.queue)
        return Listed(
            one,
            self._clients.get(key, ""),
            self._request(one, frame),
            self._is_routine(key, one, frame),
            self._subscriptions.get((key, frame.sid)) if frame.sid else None,
        )

    def _request(self, one: CapturedFrame, frame: Frame) -> OpenRequest | None:
        """Return the request that a message answers, and note the one that it is."""
        if frame.op not in MESSAGE_OPS:
            return None
        answered = self._requests.get((one.conn.recorder, frame.subject))
        reply = frame.reply
        if reply and len(frame.subject) + len(reply) < _LONGEST and not reply.startswith(_SERVERS):
            key = (one.conn.recorder, reply)
            if one.direction == C2S or key not in self._requests:  # else it delivers the request itself
                self._requests[key] = OpenRequest(frame.subject, one.wall)
        return answered

    def _is_routine(self, key: ConnectionId, one: CapturedFrame, frame: Frame) -> bool:
        if frame.op != Op.INFO:
            return frame.op in KEEP_ALIVES
        if one.of is not None:  # the client's copy
            return True
        news = key not in self._greeted or b'"ldm":true' in frame.args.replace(b" ", b"")
        self._greeted[key] = None
        return not news
