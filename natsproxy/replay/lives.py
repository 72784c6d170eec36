"""What a replay to a server is made of: what it asks for, what it keeps of each live connection."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from natsproxy.replay.needs import Goodbye, Planned
from natsproxy.replay.plan import Began

PART = 64
"""What a small `bytes` costs beside its bytes."""
_BULK = 64 << 10
_BULK_SUBJECTS = 16


class Dial(NamedTuple):
    """Open a live connection; connect: the recorded CONNECT's arguments, `b""` where there was none."""

    conn: int
    connect: bytes


class Write(NamedTuple):
    """Send whole frames."""

    conn: int
    data: bytes


class Leave(NamedTuple):
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


Action = Dial | Write | Leave


@dataclass(slots=True, eq=False)
class Bulk:
    """Neighbouring publishes of one time that need nothing but their turn: the hot path."""

    seq: int
    t: int
    parts: list[bytes]
    subjects: set[bytes]
    size: int = 0

    @property
    def cost(self) -> int:
        """What it takes of the window, in bytes, Python's objects included."""
        return self.size + PART * len(self.parts)

    def takes(self, t: int, subject: bytes) -> bool:
        """Tell whether another publish may join."""
        if self.t != t or self.size > _BULK:
            return False
        return subject in self.subjects or len(self.subjects) < _BULK_SUBJECTS


class Fence(NamedTuple):
    """A PING of ours: the first frame that it fences (None: nothing new), and the SUBs among them."""

    first: int | None
    subs: list[int]


Head = Planned | Bulk | Began | Goodbye


@dataclass(slots=True, eq=False)
class Live:
    """A live connection and the frames that wait to be sent on it."""

    conn: int
    queue: deque[Head] = field(default_factory=deque)
    ready: bool = False
    dialled: bool = False
    gone: bool = False
    received: dict[bytes, int] = field(default_factory=dict)
    sids: dict[bytes, None] = field(default_factory=dict)
    dirty: int | None = None  # the first frame sent behind our last PING
    fence: bool = False  # somebody waits for the server to have handled what was sent here
    final: bool = False  # the last PING went out
    since: int | None = None  # when the head of the queue began to wait for what it needs
    unfenced: deque[Fence] = field(default_factory=deque)
