"""The uses of subjects in captures: each publish and each subscription that a client sent.

A frame counts as the client sent it, whatever the proxy or the server did with it; frames that the proxy made
do not count.  The subscriptions of a connection that was open before the capture began count from its
preamble.

The server's -ERR about a subject comes as one more, denied use of it.

A publish to the reply subject of a message that its connection got before is a response: `allow_responses`
admits it, and no line is needed.  Not so where a message with that reply subject came again: the server
counts that as a response, and whether it admits those that follow depends on the number that
`allow_responses` has.  Subjects of JetStream (`$JS.ACK`, `$JS.FC`) are not: acks come later and more often
than responses may, so they have lines.

The captures are read twice: an account is known only after the client's first frames.  Segments of one run
are read in their order, whatever capture they are in, so parts give the same as the whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple

from natsproxy.bounded import BoundedDict
from natsproxy.capture.format.connection import ConnectionId
from natsproxy.capture.format.records import CloseRecord, Flags, Frames, OpenRecord, Preamble
from natsproxy.capture.read.frames import CapturedFrame, frames_of
from natsproxy.capture.read.reader import CaptureReader, Tell, open_capture
from natsproxy.capture.read.segment import BlockRef
from natsproxy.errors import CaptureError, ProtocolError
from natsproxy.protocol.connect import parse_connect
from natsproxy.protocol.errors import PUBLISH_DENIED, SUBSCRIBE_DENIED, classify, err_text
from natsproxy.protocol.headers import trace_subject
from natsproxy.protocol.jetstream import asks_flow_control, members, parse_api
from natsproxy.replay.conversation.steps import PUBLISHES, preamble_frames
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, Op

DELIVERIES: Final = (Op.MSG, Op.HMSG)
_INTRODUCES: Final = re.compile(rb"\b(?:CONNECT|INFO)[ \t]*{", re.IGNORECASE)
"""Found in each record with a CONNECT or an INFO, and in few others."""


class By(StrEnum):
    """The fact that tells clients apart."""

    USER = "user"
    NAME = "name"
    ACCOUNT = "account"


class Verb(StrEnum):
    """The permission that a use needs."""

    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"


VERBS_OF_ERRORS: Final = {PUBLISH_DENIED: Verb.PUBLISH, SUBSCRIBE_DENIED: Verb.SUBSCRIBE}


class ClientDetails(NamedTuple):
    """The facts about the client of a connection; unknown ones are empty.  lang: of its library."""

    user: str = ""
    name: str = ""
    account: str = ""
    lang: str = ""

    def label(self, by: By) -> str:
        """Return its label.

        A client without the fact that is asked for has its name, then its user; one without all is "".
        """
        return str(getattr(self, by)) or self.name or self.user


class Response(NamedTuple):
    """A publish that answers a message.

    nth: its number among the responses to that message, from 1.  elapsed: ns since the message.
    """

    nth: int
    elapsed: int


class Use(NamedTuple):
    """A use of a subject.

    t: Unix ns.  queue: of a subscription.  response: of a publish that answered a message.  flow_control: it
    created a consumer with flow control.  denied: the server denied an earlier use.
    """

    conn: ConnectionId
    client: ClientDetails
    verb: Verb
    subject: bytes
    queue: bytes
    t: int
    response: Response | None = None
    flow_control: bool = False
    denied: bool = False


Clients = dict[ConnectionId, ClientDetails]


def opened(captures: Iterable[Path], lost: Tell | None = None) -> CaptureReader:
    """Return one reader of several captures.  lost: as in `open_capture`.  Raises CaptureError."""
    paths = dict.fromkeys(path for one in captures for path in open_capture(one, lost).paths)
    return CaptureReader(list(paths), lost)


def clients(reader: CaptureReader) -> Clients:
    """Return the clients of all connections.  Raises CaptureError."""
    found: Clients = {}
    for ref, item in reader.items():
        conn = ref.connection(item)
        if conn is None:
            continue
        known = found.setdefault(conn, ClientDetails())
        if isinstance(item, Frames):
            for one in frames_of(ref, item) if _INTRODUCES.search(item.data) else ():
                if one.in_ordinal is not None and one.head is not None:
                    known = merged(known, introduced(one.head.op, one.head.args))
        elif isinstance(item, OpenRecord | CloseRecord):
            known = merged(known, recorded(item.info))
        elif isinstance(item, Preamble):
            for frame in _preamble(item, ref):
                known = merged(known, introduced(frame.op, frame.args))
        found[conn] = known
    return found


def introduced(op: Op, args: bytes) -> ClientDetails:
    """Return the facts that a CONNECT or an INFO tells; none for any other frame."""
    if op == Op.INFO:
        return ClientDetails(account=str(members(args).get("remote_account") or ""))
    if op != Op.CONNECT:
        return ClientDetails()
    try:
        connect = parse_connect(args)
    except ValueError:  # the server closes such a connection
        return ClientDetails()
    return ClientDetails(connect.user or connect.nkey, connect.name, connect.account, connect.lang)


def recorded(info: Mapping[str, Any]) -> ClientDetails:
    """Return the facts in the record of a connection's begin or end."""
    return ClientDetails(*(str(info.get(key) or "") for key in ("user", "name", "account")))


def merged(known: ClientDetails, more: ClientDetails) -> ClientDetails:
    """Return the facts of both; those of `known` where both have one."""
    return ClientDetails(*(old or new for old, new in zip(known, more, strict=True)))


def uses(reader: CaptureReader, known: Clients) -> Iterator[Use]:
    """Yield the uses of all clients, those of a run in their order.  Raises CaptureError."""
    states: dict[ConnectionId, _ConnectionUses] = {}
    for ref, item in reader.items():
        conn = ref.connection(item)
        if conn is None:
            continue
        state = states.get(conn)
        if state is None:
            state = states[conn] = _ConnectionUses(conn, known.get(conn, ClientDetails()))
            if isinstance(item, Preamble):  # later ones repeat what is known
                for frame in _preamble(item, ref):
                    yield from state.sent(frame, ref.wall(item.t))
        if isinstance(item, Frames):
            for one in frames_of(ref, item):
                yield from state.seen(one)
        elif isinstance(item, CloseRecord):
            state.replies.clear()


class _ConnectionUses:
    """A connection, with the reply subjects that it got: the time of the message, and its responses."""

    def __init__(self, conn: ConnectionId, client: ClientDetails) -> None:
        self.conn, self.client = conn, client
        # A forgotten one is a publish like any other; so is one that came again (None).
        self.replies: BoundedDict[bytes, tuple[int, int] | None] = BoundedDict()

    def seen(self, one: CapturedFrame) -> Iterator[Use]:
        frame = one.head
        if frame is None or one.flags & Flags.CUT:
            return
        if one.direction == C2S:
            if one.in_ordinal is not None:
                yield from self.sent(frame, one.wall)
        elif frame.op == Op.ERR and one.out_ordinal is not None:
            yield from self.denied(frame, one.wall)
        elif frame.op in DELIVERIES and one.out_ordinal is not None and _asks(frame.reply):
            known = frame.reply in self.replies
            self.replies[frame.reply] = None if known else (one.wall + one.delay, 0)

    def sent(self, frame: Frame, t: int) -> Iterator[Use]:
        if frame.op == Op.SUB:
            yield Use(self.conn, self.client, Verb.SUBSCRIBE, frame.subject, frame.queue, t)
        elif frame.op in PUBLISHES:
            response = self._response(frame.subject, t)
            flow = response is None and _has_flow_control(frame)
            yield Use(self.conn, self.client, Verb.PUBLISH, frame.subject, b"", t, response, flow)
            traced = trace_subject(frame.headers) if frame.header_size else b""
            if traced:  # the server checks this subject too
                yield Use(self.conn, self.client, Verb.PUBLISH, traced, b"", t, self._response(traced, t))

    def denied(self, frame: Frame, t: int) -> Iterator[Use]:
        found = classify(err_text(frame.args))
        verb = VERBS_OF_ERRORS.get(found.kind)
        if verb is not None:
            yield Use(self.conn, self.client, verb, found.subject, found.queue, t, denied=True)

    def _response(self, subject: bytes, t: int) -> Response | None:
        found = self.replies.get(subject)
        if found is None:
            return None
        since, count = found
        self.replies[subject] = since, count + 1
        return Response(count + 1, max(0, t - since))


def _asks(reply: bytes) -> bool:
    return bool(reply) and not reply.startswith(b"$JS.")


def _has_flow_control(frame: Frame) -> bool:
    call = parse_api(frame.subject) if b'"flow_control"' in frame.body else None
    return call is not None and asks_flow_control(call, frame.body)


def _preamble(item: Preamble, ref: BlockRef) -> list[Frame]:
    try:
        return list(preamble_frames(item))
    except (ProtocolError, TypeError, ValueError) as error:
        raise CaptureError(f"a preamble cannot be read: {error}", path=ref.segment.path) from None
