"""The history of a recording: its frames in order, each with the facts that the frames before it tell.

A frame is seen at two places, since rules may drop, make and change frames: where the peer sent it (it has an
ordinal on the incoming leg) and where it went on to the other one (it has one on the outgoing leg).  The
promises of a client are judged by what it sent and what it got; the server's by what came from it.

`History` keeps connections, subscriptions, requests, streams and consumers up to date, and tells what the
recording may have missed.  Every table is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from natsproxy.bounded import BoundedDict, K, V
from natsproxy.capture.format.connection import ConnectionId
from natsproxy.capture.format.records import (
    CloseRecord,
    Flags,
    Frames,
    GapRecord,
    Item,
    OpaqueRecord,
    OpenRecord,
    Preamble,
)
from natsproxy.capture.read.frames import CapturedFrame, frames_of
from natsproxy.capture.read.segment import BlockRef
from natsproxy.check.statement import ProofFrame
from natsproxy.errors import CaptureError, ProtocolError
from natsproxy.protocol import errors, headers
from natsproxy.protocol.connect import Connect, parse_connect
from natsproxy.protocol.jetstream import (
    AckSubject,
    ApiCall,
    PublishAck,
    StatusKind,
    members,
    parse_ack,
    parse_api,
    publish_ack,
    status_kind,
)
from natsproxy.protocol.subjects import matches
from natsproxy.session.subscriptions import unsub_max
from natsproxy.units import MINUTE, SECOND
from natsproxy.wire import parse
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, Direction, Op

PUBLISHES: Final = (Op.PUB, Op.HPUB)
DELIVERIES: Final = (Op.MSG, Op.HMSG)
Consumer = tuple[bytes, bytes]
"""Stream and consumer."""
_SHOWN: Final = 200
"""Characters of a control line that a proof shows."""
_VALUE: Final = re.compile(rb"[0-9A-Za-z.:+-]*[0-9][0-9A-Za-z.:+-]*")
"""A number, a time or an id."""
_SHAPED: Final = 4096
"""Bytes of a body in which those are looked for."""


class Table(BoundedDict[K, V]):
    """A bounded dict that knows whether it had to drop an entry."""

    forgot = False

    def __setitem__(self, key: K, value: V) -> None:
        more = key not in self
        before = len(self)
        super().__setitem__(key, value)
        if more and len(self) == before:
            self.forgot = True


class Patience(NamedTuple):
    """Times (ns) after which something counts as missing.

    answer: the longest default time-out of the client libraries for a request.  pong: to a PING.
    grace: for the end of a pull after its expiry, for messages on their way, and for a client's reaction.
    left: a client that waits so long for one answer, and then leaves, has given up.
    keep_alive: the default PING interval of server and libraries, where none is seen.
    """

    answer: int = 5 * SECOND
    pong: int = 5 * SECOND
    grace: int = 2 * SECOND
    left: int = SECOND // 5
    keep_alive: int = 2 * MINUTE


PATIENCE: Final = Patience()


class MessageCopy(NamedTuple):
    """One sight of a message.

    digest: of its payload, b"" if the key stands for several messages.  published: by a client, otherwise
    delivered.  first, last: Unix ns between which it was stored; both 0 if unknown.
    """

    digest: bytes
    proof: ProofFrame
    published: bool
    first: int = 0
    last: int = 0


Messages = BoundedDict[tuple[object, ...], MessageCopy]
"""The first sight of each message."""


@dataclass(slots=True)
class Sub:
    """A subscription of a client.

    proof: its SUB.  mark: the client's PINGs before the frame that came last, SUB or UNSUB.
    max: of an UNSUB, 0 without.  came, got: messages from the server, and to the client.
    unsub: the UNSUB, with its time.  refused: the server did not take it.
    """

    sid: bytes
    subject: bytes
    queue: bytes
    proof: ProofFrame
    mark: int
    max: int = 0
    came: int = 0
    got: int = 0
    unsub: ProofFrame | None = None
    refused: bool = False

    @property
    def live(self) -> bool:
        """True while messages may come."""
        return not self.refused and (self.unsub is None or 0 < self.max > self.got)


@dataclass(eq=False, slots=True)
class ClientConnection:
    """A connection of a client.

    label: its name and number, for sentences.  late: it was open before the recording began.
    pings, pongs: PINGs that the client sent, and PONGs that it got.  until: the time of its end; None while
    it is open.  cause: of its end.  gap: the time of the last frames that are missing, -1 for none.
    """

    id: ConnectionId
    late: bool = False
    connect: Connect = field(default_factory=Connect)
    account: str = ""
    pings: int = 0
    pongs: int = 0
    until: int | None = None
    cause: str = ""
    gap: int = -1
    why: str = ""
    subs: Table[bytes, Sub] = field(default_factory=Table)

    @property
    def name(self) -> str:
        """The client's name, else the number of the connection."""
        return self.connect.name or f"#{self.id}"

    @property
    def label(self) -> str:
        """The client for sentences."""
        return f"{self.connect.name} (connection {self.id})" if self.connect.name else f"connection {self.id}"

    def live(self, subject: bytes) -> Iterator[Sub]:
        """Yield the live subscriptions that get a subject."""
        return (sub for sub in self.subs.values() if sub.live and matches(sub.subject, subject))


class Moment(NamedTuple):
    """A frame of the recording, with its meaning.

    whole: its payload is there.  t: ns since the start of the recording, of its arrival (of its departure
    where the proxy made it).  left: of its departure, None where it did not go on.  sent: a peer sent it.
    of: the ordinal of the frame that this one, made by the proxy, replaces.
    ack: the parts of an ack subject: the subject of a client's ack, the reply of a delivery.
    status: of the headers.  sub: the subscription that it is for.  request: the one that it answers.
    """

    history: History
    conn: ClientConnection
    direction: Direction
    frame: Frame
    whole: bool
    t: int
    left: int | None
    sent: bool
    ordinal: int | None
    cause: str
    of: int | None = None
    ack: AckSubject | None = None
    status: StatusKind | None = None
    sub: Sub | None = None
    request: RecordedRequest | None = None

    @property
    def passed(self) -> bool:
        """True if it went on to the other peer."""
        return self.left is not None

    @property
    def proof(self) -> ProofFrame:
        """The frame as a proof."""
        frame, history = self.frame, self.history
        known = history.latest_proof
        if known is not None and known[0] is frame and known[1] is self.status:
            return known[2]
        text = frame.line[:_SHOWN].decode(errors="replace").strip()
        if self.status is not None:
            text += " " + frame.headers[:_SHOWN].split(b"\r\n", 1)[0].decode(errors="replace")
        proof = ProofFrame(
            history.name, str(self.conn.id), self.direction.label, self.ordinal, self.t, text, self.cause
        )
        history.latest_proof = (frame, self.status, proof)  # several checks ask for it
        return proof


@dataclass(eq=False, slots=True)
class RecordedRequest:
    """A publish with a reply subject.

    key: hash of subject, headers and body.  asks: that of subject and body; shape: the same without the
    numbers and ids in the body.  reached: it went to the server.  came, got: answers of the
    server, and to the client.  lost: the last answer that did not go on.  ack: the publish ack in the first
    one.  again: the reply subject was used before.
    """

    conn: ClientConnection
    subject: bytes
    reply: bytes
    key: int
    asks: int
    shape: int
    proof: ProofFrame
    t: int
    reached: bool
    whole: bool
    came: int = 0
    got: int = 0
    lost: ProofFrame | None = None
    ack: PublishAck | None = None
    ack_proof: ProofFrame | None = None
    again: bool = False
    call: ApiCall | None = None


class History:
    """The facts of a recording up to the frame that was read last.

    name: the path of the recording.  messages: those of all recordings of the call.  began: the wall clock
    (Unix ns) of its first item.  end: the time of its last item.  cut: it was not closed, so the ends of its
    connections may be missing.  withheld: the first frame without its payload.  filtered: the reason why
    frames or connections are missing, "" for none.
    """

    def __init__(
        self, name: str, messages: Messages, patience: Patience = PATIENCE, *, cut: bool = False
    ) -> None:
        self.name = name
        self.messages = messages
        self.patience = patience
        self.began = 0
        self.end = 0
        self.cut = cut
        self.filtered = ""
        self.latest_proof: tuple[Frame, StatusKind | None, ProofFrame] | None = None
        self.gap = -1
        self.withheld: ProofFrame | None = None
        self.connections: Table[ConnectionId, ClientConnection] = Table()
        self.requests: Table[bytes, RecordedRequest] = Table()
        self.streams: Table[str, dict[str, Any]] = Table()
        self.changed: Table[str, str] = Table()
        """Streams of which messages were removed, with the call that did it."""
        self.consumers: Table[Consumer, dict[str, Any]] = Table()
        self._spans: Table[Consumer, list[int]] = Table()
        self._last: dict[bytes, int] = {}

    # -- reading

    def moments(self, items: Iterable[tuple[BlockRef, Item]]) -> Iterator[Moment]:
        """Yield the frames among the next items of the recording, in recording order."""
        for ref, item in items:
            wall = ref.wall(getattr(item, "t", 0))
            self.began = self.began or wall
            self._note_settings(ref)
            t = wall - self.began
            self._last[ref.segment.recorder] = t
            self.end = max(self.end, t)
            if isinstance(item, Frames):
                for one in frames_of(ref, item):
                    moment = self._moment(one, wall - item.t - self.began)
                    if moment is not None:
                        yield moment
            else:
                self._note_item(ref, item, t)

    def _note_settings(self, ref: BlockRef) -> None:
        settings = ref.segment.settings
        kept = [name for name in ("connections", "subjects") if settings.get(name)]
        if kept:
            self.filtered = f"only some {' and '.join(kept)} were recorded"

    def _note_item(self, ref: BlockRef, item: Item, t: int) -> None:
        number = ref.connection(item)
        if isinstance(item, GapRecord):
            self._note_gap(number, t, "frames are missing in the recording")
        elif isinstance(item, OpaqueRecord):
            self._note_gap(number, t, "the stream could not be framed")
        elif isinstance(item, OpenRecord) and number is not None:
            self.connections[number] = ClientConnection(number, account=str(item.info.get("account") or ""))
        elif isinstance(item, Preamble) and number is not None and number not in self.connections:
            self._begin_late(number, item, t)
        elif isinstance(item, CloseRecord) and number is not None:
            conn = self._connection(number)
            conn.until, conn.cause = t, item.cause
            conn.account = conn.account or str(item.info.get("account") or "")

    def _note_gap(self, number: ConnectionId | None, t: int, why: str) -> None:
        if number is None:
            self.gap = t
        else:
            conn = self._connection(number)
            conn.gap, conn.why = t, why

    def _connection(self, number: ConnectionId) -> ClientConnection:
        known = self.connections.get(number)
        if known is None:  # neither its begin nor a preamble is there
            known = self.connections[number] = ClientConnection(number, late=True)
        return known

    def _begin_late(self, number: ConnectionId, item: Preamble, t: int) -> None:
        conn = self.connections[number] = ClientConnection(number, late=True)
        try:
            for frame in parse.frames(bytes(item.info.get("connect") or b""), C2S):
                conn.connect = _connect(frame.args)
            for sid, subject, queue, most, delivered, *_ in item.info.get("subs") or ():
                sid, subject, queue = (
                    field.encode(errors="replace") if isinstance(field, str) else bytes(field or b"")
                    for field in (sid, subject, queue)
                )
                line = b" ".join(field for field in (b"SUB", subject, queue, sid) if field)
                proof = ProofFrame(self.name, str(number), "c2s", None, t, line.decode(errors="replace"))
                sub = conn.subs[sid] = Sub(sid, subject, queue, proof, 0)
                sub.came = sub.got = max(0, int(delivered or 0))
                if most:
                    sub.max, sub.unsub = int(most), proof
        except (ProtocolError, TypeError, ValueError) as error:
            raise CaptureError(f"a preamble cannot be read: {error}", path=self.name) from None

    # -- frames

    def _moment(self, one: CapturedFrame, offset: int) -> Moment | None:
        frame = one.head
        conn = self._connection(one.conn)
        if frame is None or one.flags & Flags.CUT:
            return None
        sent, passed = one.in_ordinal is not None, one.out_ordinal is not None
        t = one.t + offset
        moment = Moment(
            self,
            conn,
            one.direction,
            frame,
            one.frame is not None,
            t,
            t + one.delay if passed else None,
            sent,
            one.in_ordinal if sent else one.out_ordinal,
            one.cause or "",
            one.of,
        )
        if not moment.whole and self.withheld is None:
            self.withheld = moment.proof
        return (self._of_client if one.direction == C2S else self._of_server)(moment)

    def _of_client(self, moment: Moment) -> Moment:
        conn, frame = moment.conn, moment.frame
        if frame.op in PUBLISHES:
            if frame.subject.startswith(b"$JS.ACK."):
                moment = moment._replace(ack=parse_ack(frame.subject))
            if frame.reply:
                moment = moment._replace(request=self._note_request(moment))
        elif frame.op == Op.PING:
            conn.pings += moment.sent
        elif frame.op == Op.SUB:
            known = conn.subs.get(frame.sid)
            if moment.sent and (known is None or not known.live):
                conn.subs.pop(frame.sid, None)
                sub = Sub(frame.sid, frame.subject, frame.queue, moment.proof, conn.pings)
                conn.subs[frame.sid] = sub
                sub.refused = not moment.passed
            elif known is not None and moment.passed:
                known.refused = False
        elif frame.op == Op.UNSUB:
            gone = conn.subs.get(frame.sid)
            if gone is not None and moment.sent:
                gone.max, gone.unsub, gone.mark = unsub_max(frame.args), moment.proof, conn.pings
        elif frame.op == Op.CONNECT:
            conn.connect = _connect(frame.args)
        return moment

    def _note_request(self, moment: Moment) -> RecordedRequest | None:
        frame = moment.frame
        known = self.requests.get(frame.reply)
        if not moment.sent:  # in the place of one that the client sent
            if known is not None and moment.of is not None:
                known.reached = True
            return known
        body = frame.body if moment.whole else b""
        found = self.requests[frame.reply] = RecordedRequest(
            moment.conn,
            frame.subject,
            frame.reply,
            hash((frame.subject, frame.headers, body)),
            hash((frame.subject, body)),
            hash((frame.subject, _VALUE.sub(b"", body[:_SHAPED]))),
            moment.proof,
            moment.t,
            moment.passed,
            moment.whole,
            again=known is not None,
            call=parse_api(frame.subject),
        )
        return found

    def _of_server(self, moment: Moment) -> Moment:
        conn, frame = moment.conn, moment.frame
        if frame.op in DELIVERIES:
            sub = conn.subs.get(frame.sid)
            if sub is not None and not frame.no_responders:
                sub.came += moment.sent
                # A frame that the proxy changed came before as another record.
                sub.got += moment.passed
            status = None
            if frame.header_size and moment.whole:
                code = headers.parse(frame.headers)
                status = status_kind(code.code, code.description) if code.code else None
            ack = parse_ack(frame.reply) if frame.reply.startswith(b"$JS.ACK.") else None
            if ack is not None and moment.sent:
                self._note_delivery(ack)
            request = self.requests.get(frame.subject)
            moment = moment._replace(sub=sub, ack=ack, status=status, request=request)
            if request is not None:
                self._note_answer(request, moment)
        elif frame.op == Op.PONG:
            conn.pongs = min(conn.pings, conn.pongs + moment.passed)
        elif frame.op == Op.ERR:
            denied = errors.classify(errors.err_text(frame.args))
            for sub in conn.subs.values() if denied.subject else ():
                if sub.subject == denied.subject and denied.kind is errors.SUBSCRIBE_DENIED:
                    sub.refused = True
        elif frame.op == Op.INFO and b"remote_account" in frame.args:
            conn.account = str(members(frame.args).get("remote_account") or conn.account)
        return moment

    def _note_delivery(self, ack: AckSubject) -> None:
        span = self._spans.setdefault((ack.stream, ack.consumer), [ack.consumer_seq, ack.consumer_seq, 0])
        span[0], span[1] = min(span[0], ack.consumer_seq), max(span[1], ack.consumer_seq)
        span[2] += 1

    def is_shared(self, consumer: Consumer) -> bool:
        """Tell whether some deliveries of a consumer went elsewhere, or it was made anew."""
        first, last, count = self._spans.get(consumer, (0, 0, 1))
        return last - first + 1 != count

    def _note_answer(self, request: RecordedRequest, moment: Moment) -> None:
        request.came += moment.sent
        request.got += moment.passed
        request.lost = request.lost if moment.passed else moment.proof
        if not moment.whole or moment.status is not None or not moment.sent or request.came > 1:
            return
        body = moment.frame.body
        if request.call is None:
            if b'"seq"' in body and (ack := publish_ack(body)) is not None:
                request.ack, request.ack_proof = ack, moment.proof
        elif (
            request.call.verb.startswith((b"STREAM.", b"CONSUMER."))
            and b"CONSUMER.MSG" not in request.call.verb
        ):
            self._note_configuration(request.call, body)

    def _note_configuration(self, call: ApiCall, body: bytes) -> None:
        """Learn from answers of the API how streams and consumers are configured."""
        read = members(body)
        config = read.get("config")
        if isinstance(config, dict):
            if call.verb.startswith(b"STREAM."):
                self.streams[str(config.get("name"))] = config
            elif isinstance(read.get("name"), str):
                self.consumers[call.stream, str(read["name"]).encode(errors="replace")] = config
        elif call.verb in (b"STREAM.DELETE", b"STREAM.PURGE", b"STREAM.MSG.DELETE"):
            self.changed[call.stream.decode(errors="replace")] = call.verb.decode()

    # -- what may be missing

    def until(self, conn: ClientConnection) -> int:
        """Return the time up to which a connection was seen."""
        return conn.until if conn.until is not None else self._last.get(conn.id.recorder, self.end)

    def missed(self, since: int, *conns: ClientConnection) -> str:
        """Return the reason why frames of connections since a time may be missing, "" where all are there."""
        if self.filtered:
            return self.filtered
        if self.gap >= since:
            return "frames are missing in the recording"
        return next((conn.why for conn in conns if conn.gap >= since), "")


def _connect(args: bytes) -> Connect:
    try:
        return parse_connect(args)
    except ValueError:
        return Connect()
