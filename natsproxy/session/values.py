"""Values that a session is given: settings, hooks, memory budget and work limit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from natsproxy.option import SIZE_ABOVE_ZERO, setting, words
from natsproxy.protocol.info import Info
from natsproxy.session.identity import Identity
from natsproxy.wire.frames import NO_LIMIT


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """The part of the configuration that a session needs; sizes in bytes, times in ns.

    Those that users set stand first, in the table of options; `net/opening.py` adds what depends on the
    listener and on the address that the client dialled.

    advertise: what happens to the addresses in INFO (see `login.py`).  rule_buffer: the largest frame that is
    buffered until it is whole, because a rule wants its payload; a larger one passes in pieces.  queue_bytes:
    the bytes that each direction may hold back before its sender is no longer read.  frame_hold_limit: as
    rule_buffer, for other frames.  fence_timeout: the time that the server's PONG may take.
    boundary_timeout: the time that injected frames may wait for the end of a frame.  self_host, self_port:
    the address that the client dialled.  self_urls: that and others at which it can reconnect.  tls: the
    members of INFO that say what TLS the client leg has.  auth_timeout: the time that a client may take from
    INFO to its first frame, 0 for no limit.  identity: the proxy's own, None where clients log in at the
    server themselves.
    """

    advertise: str = setting(
        words("strip", "self", "pass"),
        "strip",
        "Server addresses in INFO: strip them, put the proxy's own in their place, or pass them.",
    )
    unparsed: str = setting(
        words("close", "pass"),
        "close",
        "Client bytes that are not NATS: close the connection, or pass them unread.",
    )
    max_control_line: int = setting(
        SIZE_ABOVE_ZERO, "4KiB", "The server's max_control_line (it is not in INFO)."
    )
    rule_buffer: int = setting(SIZE_ABOVE_ZERO, "8MiB", "The largest payload that rules can see.")
    queue_bytes: int = setting(
        SIZE_ABOVE_ZERO, "8MiB", "Limit of delayed traffic, for each direction of a connection.", name="queue"
    )
    frame_hold_limit: int = 65536
    record_frame_max: int = 8 << 20
    fence_timeout: int = 5_000_000_000
    boundary_timeout: int = 30_000_000_000
    self_host: str = ""
    self_port: int = 0
    self_urls: tuple[str, ...] = ()
    tls: tuple[str, ...] = ()
    auth_timeout: int = 0
    identity: Identity | None = None


KeyOf = Callable[[str, int], tuple[str, str]]
"""Maps the name in CONNECT and the ordinal of a connection to its key, and that of those alike (`View`)."""


def name_or_ordinal(name: str, ordinal: int) -> tuple[str, str]:
    """Return the client's own name as the key of its connection, or else its ordinal."""
    key = name or f"#{ordinal}"
    return key, key


def _not_heard(conn: int, said: Info | str) -> None:
    """Default hook: ignore what servers say."""


class Hooks(NamedTuple):
    """The functions of a proxy that its sessions call.

    key_of: returns the keys of a connection at its CONNECT.  heard: called with the number of a connection
    and each INFO of its server, or the text of the -ERR with which the server closes.
    """

    key_of: KeyOf = name_or_ordinal
    heard: Callable[[int, Info | str], None] = _not_heard


SMALL = 65536
"""Bytes that each direction may hold even if the budget is spent, so that one connection cannot block all."""


@dataclass(slots=True)
class Budget:
    """The memory budget for held bytes: `total` may be held, `used` are."""

    total: int
    used: int = 0

    @property
    def spent(self) -> bool:
        """True if no byte is left."""
        return self.used >= self.total


UNLIMITED = 1 << 62


class WorkLimit:
    """No limit; a relay has its own (`net/timeslice.py`).

    frames: the most frames that a call may deal with.
    """

    __slots__ = ()

    frames = NO_LIMIT

    def reached(self) -> bool:
        """Return whether it is time to stop."""
        return False


UNLIMITED_WORK = WorkLimit()
