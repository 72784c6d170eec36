"""Actions that a session asks for, in order, and its settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from natsproxy.capture.format.records import Item
from natsproxy.events import Event
from natsproxy.session.identity import Identity
from natsproxy.wire.ops import Direction


class Send(NamedTuple):
    """Write bytes: C2S to the server leg, S2C to the client leg."""

    direction: Direction
    data: bytes | memoryview


class Finish(NamedTuple):
    """No more bytes in this direction: half-close the leg that it goes to."""

    direction: Direction


class Record(NamedTuple):
    """Give an item to the recorder."""

    item: Item


class Emit(NamedTuple):
    """Give an event to its subscribers."""

    event: Event


class Authenticate(NamedTuple):
    """Check the password of a client, and call `Session.authenticated` with the answer.

    The client's frames wait meanwhile.
    """

    user: str
    password: str

    def __repr__(self) -> str:
        return f"Authenticate({self.user!r})"


class End(NamedTuple):
    """End the connection.

    Flush the bytes sent, half-close the client leg and drain it, then close both; `reset`: RST on both, now.
    """

    cause: str
    detail: str = ""
    reset: bool = False


Action = Send | Finish | Record | Emit | Authenticate | End


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """The part of the configuration that a session needs; sizes in bytes, times in ns.

    frame_hold_limit: the largest frame that waits until it is whole; a larger one passes in pieces.
    rule_buffer: the same, of a frame whose payload a rule wants.
    advertise: "strip", "self" or "pass", for the addresses in INFO (see `greeting.py`).  self_host,
    self_port: the address that the client dialled.  self_urls: that and the others at which it can come
    back.  tls: the members of INFO that say what TLS the client leg
    has.  unparsed: "close" or "pass".  queue_bytes: the bytes that
    each direction may hold back before its sender is no longer read.  fence_timeout: the time that the
    server's PONG may take.  boundary_timeout: the time that a frame may keep back frames of ours behind it.
    auth_timeout: the time that a client may take from INFO to its first frame, 0 for ever.
    identity: the proxy's own, None where clients log in at the server themselves.
    """

    max_control_line: int = 4096
    frame_hold_limit: int = 65536
    rule_buffer: int = 8 << 20
    advertise: str = "strip"
    self_host: str = ""
    self_port: int = 0
    self_urls: tuple[str, ...] = ()
    tls: tuple[str, ...] = ()
    unparsed: str = "close"
    queue_bytes: int = 8 << 20
    record_frame_max: int = 8 << 20
    fence_timeout: int = 5_000_000_000
    boundary_timeout: int = 30_000_000_000
    auth_timeout: int = 0
    identity: Identity | None = None
