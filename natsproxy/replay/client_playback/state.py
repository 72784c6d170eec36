"""What a replay to a server is made of: what it asks for, what it keeps of each live connection, of all."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from natsproxy.replay.client_playback.batches import PlainBatch, subjects_of
from natsproxy.replay.client_playback.bulk_scan import BulkScanner, BulkSearch
from natsproxy.replay.client_playback.dependencies import Count, Planned, PlannedEnd
from natsproxy.replay.client_playback.server_names import ServerNames
from natsproxy.replay.conversation.bounded import BoundedDict
from natsproxy.replay.conversation.steps import Began

PART: Final = 64
"""What a small `bytes` costs beside its bytes."""
_FRAME: Final = 256
"""What a frame that is looked at costs beside its bytes."""
_BULK: Final = 64 << 10


class Dial(NamedTuple):
    """Open a live connection; connect: the recorded CONNECT's arguments, `b""` where there was none."""

    conn: int
    connect: bytes


class Write(NamedTuple):
    """Send whole frames."""

    conn: int
    data: bytes


class EndConnection(NamedTuple):
    """Close a live connection."""

    conn: int


@dataclass(frozen=True, slots=True)
class Missing:
    """What a frame waited for in vain."""

    conn: int
    frame: str
    need: str

    def __str__(self) -> str:
        return f"connection {self.conn}: {self.frame} waited in vain for {self.need}"


Action = Dial | Write | EndConnection


@dataclass(slots=True, eq=False)
class Bulk:
    """Neighbouring publishes that need nothing but their turn: the hot path.

    mark: publishes behind another mark do not join (`Reading`).  t: when they were recorded.  counts, api:
    what the first of them needs after all.
    """

    seq: int
    t: int
    mark: int
    counts: tuple[Count, ...] = ()
    api: tuple[tuple[int, bytes], ...] = ()
    parts: list[bytes] = field(default_factory=list)
    frames: int = 0
    size: int = 0
    _subjects: set[bytes] | None = None

    @property
    def cost(self) -> int:
        """What it takes of the window, in bytes, Python's objects included."""
        return self.size + PART * len(self.parts)

    @property
    def subjects(self) -> set[bytes]:
        """The subjects of its publishes."""
        if self._subjects is None:
            self._subjects = set().union(*map(subjects_of, self.parts))
        return self._subjects

    def add(self, plain: PlainBatch) -> None:
        """Take publishes in."""
        self.parts.append(plain.data)
        self.frames += plain.frames
        self.size += len(plain.data)
        self._subjects = None

    def takes(self, mark: int, t: int | None) -> bool:
        """Tell whether other publishes may join; t: their time, None where times do not count."""
        return self.mark == mark and self.size < _BULK and (t is None or t == self.t)


def cost_of(head: Planned | Bulk) -> int:
    """Return what the head of a queue takes of the window, in bytes."""
    return head.cost if isinstance(head, Bulk) else head.step.frame.wire_size + _FRAME


class Fence(NamedTuple):
    """A PING of ours: the first frame that it fences (None: nothing new), and the SUBs among them."""

    first: int | None
    subs: list[int]


Head = Planned | Bulk | Began | PlannedEnd


def seq_of(head: Planned | Bulk | PlannedEnd) -> int:
    """Return the number of the first frame of the head of a queue; of an end, the number behind it."""
    return head.step.seq if isinstance(head, Planned) else head.seq


@dataclass(slots=True, eq=False)
class LiveConnection:
    """A live connection and the frames that wait to be sent on it.

    received: messages by sid.  sids: its subscriptions, with their subjects.  dirty: the first frame sent
    behind our last PING.  fence: somebody waits for the server to have handled what was sent here.  final:
    the last PING went out.
    since: from when the wait of the head of the queue for what it needs counts.  look: when to look again
    whether it counts, None where it does.  blocked: the SUB that it waits for.
    """

    conn: int
    scanner: BulkScanner
    queue: deque[Head] = field(default_factory=deque)
    ready: bool = False
    dialled: bool = False
    gone: bool = False
    received: dict[bytes, int] = field(default_factory=dict)
    sids: dict[bytes, bytes] = field(default_factory=dict)
    dirty: int | None = None
    fence: bool = False
    final: bool = False
    since: int | None = None
    look: int | None = None
    blocked: int = -1
    unfenced: deque[Fence] = field(default_factory=deque)


@dataclass(slots=True, eq=False)
class PlaybackState:
    """What is known of all connections.

    connects: recorded CONNECT by connection.  unsent: seqs of what was read and not sent, in order.
    leaving: connections whose end was read, and the seq behind it.  interest: SUBs that the server may not
    know yet, by seq: (connection, pattern).  calls: inboxes of JetStream API calls.  api: those that were
    answered live, with their connection.  asked: replies of requests that came live.
    """

    lives: dict[int, LiveConnection] = field(default_factory=dict)
    connects: dict[int, bytes] = field(default_factory=dict)
    unsent: dict[int, None] = field(default_factory=dict)
    leaving: dict[int, int] = field(default_factory=dict)
    interest: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    calls: BoundedDict[bytes, None] = field(default_factory=BoundedDict)
    api: BoundedDict[tuple[int, bytes], None] = field(default_factory=BoundedDict)
    asked: BoundedDict[bytes, None] = field(default_factory=BoundedDict)
    names: ServerNames = field(default_factory=ServerNames)
    search: BulkSearch = field(default_factory=BulkSearch)

    def live(self, conn: int) -> LiveConnection:
        """Return a connection, made when it is first named."""
        found = self.lives.get(conn)
        if found is None:
            found = self.lives[conn] = LiveConnection(conn, BulkScanner(self.search))
        return found
