"""The recording of a run, as the lists that positions, timers and the judge ask for.

The program's side counts: what its clients sent as it came to the proxy, whatever a rule did with it then,
and what they got as it left the proxy, whether a server or a rule made it.  A message that a rule took on its
way to the program is in `touched` alone.  Times are ns of the proxy's clock, as in firings.

A frame has the connection key that its rules see, that of `Connections`: `#ordinal` until the CONNECT, then
`name/n`, the n-th client of that name to introduce itself; a client without a name keeps its ordinal.  A name
that is new in each run (`worker-<uuid>`) is known by its template instead: `worker-*/n`.  So are
streams and consumers.  Several clean runs show which names are new; one alone shows the consumers that are
not durable, whose names client libraries and servers make up.

A run is short, and is read whole.  `natsproxy.check` reads captures of any length, with bounded tables.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple

from natsproxy import close_reasons
from natsproxy.capture.format.connection import ConnectionId
from natsproxy.capture.format.records import CloseRecord, Flags, Frames, OpenRecord
from natsproxy.capture.read.frames import CapturedFrame, frames_of
from natsproxy.capture.read.reader import open_capture
from natsproxy.protocol import headers
from natsproxy.protocol.connect import parse_connect
from natsproxy.protocol.jetstream import ACK_PREFIX, flow_names_at, members, parse_ack, parse_api
from natsproxy.protocol.meaning import INBOX
from natsproxy.replay.diff.compared_frame import group_of
from natsproxy.session.client_keys import ClientKeys
from natsproxy.units import MILLISECOND
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, MESSAGE_OPS, S2C, Direction, Op

_OWN: Final = (b"$KV.", b"$O.")
"""Subjects below `$` that programs publish to: key-value entries and objects."""
_Ordinal = tuple[ConnectionId, Direction, int]


class Arrived(NamedTuple):
    """A frame that a client or a server sent.

    key: the connection key in force at it.  alike: the key that it has by the template of its client's name.
    t: when it came.  ordinal: its number on its connection and direction.  passed: it went on.  whole: all of
    it came and is recorded.  cut: its connection ended inside it, so that no rule saw it.
    """

    conn: ConnectionId
    key: str
    direction: Direction
    t: int
    ordinal: int
    frame: Frame
    alike: str = ""
    passed: bool = True
    whole: bool = True
    cut: bool = False


class Got(NamedTuple):
    """A message that a client got.  t: when it left.  made: a rule made it."""

    t: int
    conn: ConnectionId
    frame: Frame
    made: bool = False

    @property
    def status(self) -> bytes:
        """The code of its status line, `b""` without one."""
        return headers.parse(self.frame.headers).code if self.frame.header_size else b""


class Lost(NamedTuple):
    """A connection ended, and not because its client had closed it."""

    t: int
    conn: ConnectionId


class Touched(NamedTuple):
    """A frame that was withheld, or held for longer than a millisecond."""

    t: int
    direction: Direction
    frame: Frame


class RunNames(NamedTuple):
    """The names in a run, or in several.

    clients: of connections.  jetstream: of streams and consumers.
    """

    clients: frozenset[str]
    jetstream: frozenset[bytes]


@dataclass
class RunTraffic:
    """A recorded run.

    arrived: the frames by the time of their arrival.  opened, closed: when connections did.  got: by the time
    when they left.  began: the time of the first record.  clients: their names.  generated: names of streams
    and consumers that are new in each run.
    """

    arrived: list[Arrived]
    opened: dict[ConnectionId, int] = field(default_factory=dict)
    closed: dict[ConnectionId, int] = field(default_factory=dict)
    got: list[Got] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    touched: list[Touched] = field(default_factory=list)
    began: int = 0
    clients: frozenset[str] = frozenset()
    generated: frozenset[bytes] = frozenset()

    @cached_property
    def frames(self) -> list[Arrived]:
        """The frames that rules saw."""
        return [one for one in self.arrived if not one.cut]

    @cached_property
    def sent(self) -> list[Arrived]:
        """The frames of clients."""
        return [one for one in self.arrived if one.direction == C2S]

    @cached_property
    def published(self) -> list[Arrived]:
        """The messages of the application: no acks, no calls of JetStream's API, no answers to an inbox."""
        return [one for one in self.sent if is_published(one.frame)]

    @cached_property
    def jetstream(self) -> frozenset[bytes]:
        """The names of streams and consumers."""
        return frozenset(name for one in self.arrived for name in _jetstream_names(one) if name)

    @cached_property
    def ephemeral(self) -> frozenset[bytes]:
        """The names of the consumers that were made without being durable."""
        return frozenset(_ephemeral(self.arrived))

    def known_by(self, names: RunNames) -> RunTraffic:
        """Return this run with each name that is not among these replaced by its template."""
        arrived = [
            one if one.key.rpartition("/")[0] in names.clients else one._replace(key=one.alike)
            for one in self.arrived
        ]
        return replace(self, arrived=arrived, generated=self.jetstream - names.jetstream)


def common_names(runs: Sequence[RunTraffic]) -> RunNames:
    """Return the names that all runs have; of one run, those that are not new in each run by their nature."""
    clients = frozenset.intersection(*(run.clients for run in runs))
    jetstream = frozenset.intersection(*(run.jetstream for run in runs))
    return RunNames(clients, jetstream - runs[0].ephemeral if len(runs) == 1 else jetstream)


def _jetstream_names(one: Arrived) -> tuple[bytes, bytes]:
    """Return the stream and the consumer that a frame names; empty for none."""
    subject = one.frame.subject if one.direction == C2S else one.frame.reply
    if not subject.startswith(b"$JS."):
        return b"", b""
    if (call := parse_api(subject)) is not None:
        return call.stream, call.consumer
    if (ack := parse_ack(subject)) is not None:
        return ack.stream, ack.consumer
    tokens = subject.split(b".")
    at = flow_names_at(len(tokens)) if tokens[1] == b"FC" else None
    return (b"", b"") if at is None else (tokens[at], tokens[at + 1])


def _ephemeral(arrived: Iterable[Arrived]) -> Iterator[bytes]:
    """Yield the names of consumers made without being durable: by the request, or by the answer to it."""
    asked: set[tuple[ConnectionId, bytes]] = set()
    for one in arrived:
        frame = one.frame
        if one.direction == C2S:
            call = parse_api(frame.subject)
            if call is None or call.verb != b"CONSUMER.CREATE":
                continue
            config = members(frame.body).get("config")
            if isinstance(config, dict) and not config.get("durable_name"):
                asked.add((one.conn, frame.reply))
                yield call.consumer
        elif (one.conn, frame.subject) in asked:
            yield str(members(frame.body).get("name", "")).encode("utf-8", "surrogatepass")


def group(one: Arrived) -> str:
    """Return the row of a publish: its subject with all that may be generated as `*`."""
    return group_of(one.frame.subject)


def is_published(frame: Frame) -> bool:
    """Tell whether a client frame is a message of the application, other than an answer to an inbox."""
    if frame.op not in (Op.PUB, Op.HPUB) or frame.subject.startswith(INBOX):
        return False
    return not frame.subject.startswith(b"$") or frame.subject.startswith(_OWN)


def is_delivery(frame: Frame) -> bool:
    """Tell whether a message comes from a consumer of JetStream."""
    return frame.op in MESSAGE_OPS and frame.reply.startswith(ACK_PREFIX)


def traffic(capture: Path) -> RunTraffic:
    """Read a capture.  Raises CaptureError."""
    found, reading = RunTraffic([]), _Reading()
    ordinals: dict[ConnectionId, int] = {}
    clocks: dict[int, int] = {}  # of the runs of a proxy: Unix ns at their zero
    first: int | None = None
    for ref, item in open_capture(capture).items():
        zero = clocks.setdefault(ref.segment.run, ref.wall(item.t) - item.t)
        if first is None:
            first, found.began = zero, item.t
        later = zero - first  # a later run of the proxy has another clock
        conn = ref.connection(item)
        if isinstance(item, OpenRecord):
            assert conn is not None
            found.opened[conn] = item.t + later
            ordinals[conn] = int(item.info.get("ordinal") or item.conn)
        elif isinstance(item, CloseRecord):
            assert conn is not None
            found.closed[conn] = item.t + later
            if item.cause != close_reasons.CLIENT_CLOSED:
                found.lost.append(Lost(item.t + later, conn))
        elif isinstance(item, Frames):
            for one in frames_of(ref, item):
                reading.note(found, one._replace(t=one.t + later))
    found.got.sort(key=attrgetter("t"))
    found.touched.extend(reading.withheld.values())
    passed = [one._replace(passed=_ordinal(one) not in reading.withheld) for one in found.arrived]
    found.arrived, found.clients = _with_keys(_in_order(passed), ordinals)
    return found


def _ordinal(one: Arrived) -> _Ordinal:
    return one.conn, one.direction, one.ordinal


class _Reading:
    """The frames that came and have not left so far.

    A frame that a rule changed or doubled has a record of its coming, and one for each form in which it left.
    """

    def __init__(self) -> None:
        self.withheld: dict[_Ordinal, Touched] = {}

    def note(self, found: RunTraffic, one: CapturedFrame) -> None:
        """Take a frame into the traffic."""
        frame = one.head
        if frame is None:
            return
        if one.in_ordinal is not None:
            self._came(found, one, one.in_ordinal, frame)
        copy = one.in_ordinal is None and not self._left(one)
        if one.direction == S2C and frame.op in MESSAGE_OPS and _is_through(one):
            found.got.append(Got(one.t + one.delay, one.conn, frame, copy))

    def _came(self, found: RunTraffic, one: CapturedFrame, ordinal: int, frame: Frame) -> None:
        cut, whole = bool(one.flags & Flags.CUT), one.frame is not None
        arrived = Arrived(one.conn, "", one.direction, one.t, ordinal, frame, whole=whole, cut=cut)
        found.arrived.append(arrived)
        if not _is_through(one):
            self.withheld[_ordinal(arrived)] = Touched(one.t, one.direction, frame)
        elif one.delay > MILLISECOND:
            found.touched.append(Touched(one.t, one.direction, frame))

    def _left(self, one: CapturedFrame) -> bool:
        """Tell whether a frame is the first form in which another one left, and note that it did."""
        if one.of is None or not _is_through(one):
            return False
        return self.withheld.pop((one.conn, one.direction, one.of), None) is not None


def _is_through(one: CapturedFrame) -> bool:
    return one.out_ordinal is not None and one.frame is not None


def _in_order(found: list[Arrived]) -> list[Arrived]:
    """Sort frames by arrival: a held one is recorded when it leaves.

    In a direction the ordinals decide: two frames of one read may have times that differ by microseconds.
    """
    latest: dict[tuple[ConnectionId, Direction], int] = {}
    ordered: list[Arrived] = []
    for one in sorted(found, key=attrgetter("ordinal")):
        way = one.conn, one.direction
        latest[way] = t = max(one.t, latest.get(way, 0))
        ordered.append(one._replace(t=t))
    return sorted(ordered, key=attrgetter("t", "ordinal"))


def _with_keys(
    found: list[Arrived], ordinals: dict[ConnectionId, int]
) -> tuple[list[Arrived], frozenset[str]]:
    runs: defaultdict[int, ClientKeys] = defaultdict(ClientKeys)
    names: set[str] = set()
    keys: dict[ConnectionId, tuple[str, str]] = {}
    greeted: set[ConnectionId] = set()
    keyed: list[Arrived] = []
    for one in found:
        conn = one.conn
        if one.frame.op == Op.CONNECT and conn not in greeted:
            greeted.add(conn)
            name = _name_of(one.frame)
            if name:
                names.add(name)
                keys[conn] = runs[conn.run].of(name, ordinals.get(conn, conn.number))
        unnamed = f"#{ordinals.get(conn, conn.number)}"
        key, alike = keys.get(conn, (unnamed, unnamed))
        keyed.append(one._replace(key=key, alike=alike))
    return keyed, frozenset(names)


def _name_of(connect: Frame) -> str:
    """Return the name in a CONNECT; empty where it cannot be read."""
    try:
        return parse_connect(connect.args).name
    except ValueError:
        return ""
