"""The state of a playback of clients: its actions, its queues, its live connections."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from natsproxy.bounded import BoundedDict
from natsproxy.capture.format.connection import ConnectionId
from natsproxy.replay.client_playback.batches import PlainBatch, subjects_of
from natsproxy.replay.client_playback.bulk_scan import BulkScanner, BulkSearch
from natsproxy.replay.client_playback.dependencies import Answer, MessageCount, Planned, PlannedEnd
from natsproxy.replay.client_playback.server_names import ServerNames
from natsproxy.replay.conversation.steps import Began

PART_OVERHEAD: Final = 64
"""Bytes of memory of a small `bytes` object beside its content."""
_FRAME_OVERHEAD: Final = 256
"""Bytes of memory of a parsed frame beside its content."""
_CONNECTION_OVERHEAD: Final = 2048
"""Bytes of memory that the beginning of a connection stands for, and its end too."""
_BATCH_BYTES: Final = 64 << 10
_MISSING_KEPT: Final = 1000


class Dial(NamedTuple):
    """Open a live connection; connect: the recorded CONNECT's arguments, `b""` where there was none."""

    conn: ConnectionId
    connect: bytes


class Write(NamedTuple):
    """Send whole frames."""

    conn: ConnectionId
    data: bytes


class CloseConnection(NamedTuple):
    """Close a live connection."""

    conn: ConnectionId


@dataclass(frozen=True, slots=True)
class Missing:
    """A requirement that was not met, and the frame that waited for it."""

    conn: ConnectionId
    frame: str
    requirement: str

    def __str__(self) -> str:
        return f"connection {self.conn}: {self.frame} waited in vain for {self.requirement}"


class MissingList(list[Missing]):
    """The first thousand requirements that were not met.  total: the number of all."""

    total = 0

    def add(self, one: Missing) -> None:
        """Count a requirement, and keep it if it is one of the first."""
        self.total += 1
        if len(self) < _MISSING_KEPT:
            self.append(one)

    def join(self, later: MissingList) -> None:
        """Add those of a later iteration."""
        self.total += later.total
        self += later[: _MISSING_KEPT - len(self)]


Action = Dial | Write | CloseConnection


@dataclass(slots=True, eq=False)
class QueuedBatch:
    """Neighbouring publishes that require nothing but their order: the hot path.

    mark: publishes with another mark do not join (`ReadAhead`).  t: recorded time, ns.  counts, api:
    requirements of the first of them, as in `Planned`.
    """

    seq: int
    t: int
    mark: int
    counts: tuple[MessageCount, ...] = ()
    api: tuple[Answer, ...] = ()
    parts: list[bytes] = field(default_factory=list)
    frames: int = 0
    size: int = 0
    _subjects: set[bytes] | None = None

    @property
    def cost(self) -> int:
        """The bytes that it takes of the window, Python's objects included."""
        return self.size + PART_OVERHEAD * len(self.parts)

    @property
    def subjects(self) -> set[bytes]:
        """The subjects of its publishes."""
        if self._subjects is None:
            self._subjects = set().union(*map(subjects_of, self.parts))
        return self._subjects

    def add(self, plain: PlainBatch) -> None:
        """Add publishes."""
        self.parts.append(plain.data)
        self.frames += plain.frames
        self.size += len(plain.data)
        self._subjects = None

    def takes(self, mark: int, t: int | None) -> bool:
        """Return whether other publishes may join; t: their time, None where times do not count."""
        return self.mark == mark and self.size < _BATCH_BYTES and (t is None or t == self.t)


class PingFence(NamedTuple):
    """A PING of ours.  first: the first frame that it fences, None for none; subs: the SUBs among them."""

    first: int | None
    subs: list[int]


Head = Planned | QueuedBatch | Began | PlannedEnd


def cost_of(head: Head) -> int:
    """Return the bytes that the head of a queue takes of the window."""
    if isinstance(head, QueuedBatch):
        return head.cost
    return head.step.frame.wire_size + _FRAME_OVERHEAD if isinstance(head, Planned) else _CONNECTION_OVERHEAD


def seq_of(head: Planned | QueuedBatch | PlannedEnd) -> int:
    """Return the number of the first frame of a queue's head; of an end, the number behind it."""
    return head.step.seq if isinstance(head, Planned) else head.seq


@dataclass(slots=True, eq=False)
class LiveConnection:
    """A live connection and the frames that wait to be sent on it.

    received: messages by sid.  sids: its subscriptions, with their subjects.  first_unfenced: the first frame
    sent behind our last PING.  wants_fence: another connection waits for the server to have handled the
    frames sent here.  final_ping_sent: the last PING was sent.

    waiting_since: the start of the wait of the queue's head, in ns.  recheck_at: the next time to check
    whether that wait counts, None once it does.  blocked: seq of the SUB that the head waits for, -1 for
    none.
    """

    conn: ConnectionId
    scanner: BulkScanner
    queue: deque[Head] = field(default_factory=deque)
    ready: bool = False
    dialled: bool = False
    lost: bool = False
    received: dict[bytes, int] = field(default_factory=dict)
    sids: dict[bytes, bytes] = field(default_factory=dict)
    first_unfenced: int | None = None
    wants_fence: bool = False
    final_ping_sent: bool = False
    waiting_since: int | None = None
    recheck_at: int | None = None
    blocked: int = -1
    unfenced: deque[PingFence] = field(default_factory=deque)

    @property
    def fence_due(self) -> bool:
        """True when another connection waits for frames that no PING of ours has fenced."""
        return self.wants_fence and self.first_unfenced is not None

    @property
    def frames_left(self) -> int:
        """The number of frames in its queue."""
        return sum(h.frames if isinstance(h, QueuedBatch) else isinstance(h, Planned) for h in self.queue)


@dataclass(slots=True, eq=False)
class PlaybackState:
    """The state of all connections.

    connects: recorded CONNECT by connection.  unsent: seqs of frames that were read and not sent, in order.
    leaving: connections whose end was read, and the seq behind it.  interest: SUBs that the server may not
    know yet, by seq: (connection, pattern).  calls: inboxes of JetStream API calls.  api: those that were
    answered live, with their connection.  requests_received: replies of requests that came live.
    """

    connections: dict[ConnectionId, LiveConnection] = field(default_factory=dict)
    connects: dict[ConnectionId, bytes] = field(default_factory=dict)
    unsent: dict[int, None] = field(default_factory=dict)
    leaving: dict[ConnectionId, int] = field(default_factory=dict)
    interest: dict[int, tuple[ConnectionId, bytes]] = field(default_factory=dict)
    calls: BoundedDict[bytes, None] = field(default_factory=BoundedDict)
    api: BoundedDict[tuple[ConnectionId, bytes], None] = field(default_factory=BoundedDict)
    requests_received: BoundedDict[bytes, None] = field(default_factory=BoundedDict)
    names: ServerNames = field(default_factory=ServerNames)
    search: BulkSearch = field(default_factory=BulkSearch)

    def connection(self, conn: ConnectionId) -> LiveConnection:
        """Return a live connection, made when it is first named."""
        found = self.connections.get(conn)
        if found is None:
            found = self.connections[conn] = LiveConnection(conn, BulkScanner(self.search))
        return found
