"""Values that go into a session and come out of it.

In: settings, the identities of the proxy and of the client, hooks, memory budget and work limit.  Out: the
actions that it asks for, in order, and the traffic that it has counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from natsproxy.capture.format.records import Item
from natsproxy.events import Event
from natsproxy.option import DURATION, SIZE_ABOVE_ZERO, setting, words
from natsproxy.protocol.credentials import Credentials, KeyPair
from natsproxy.protocol.info import Info
from natsproxy.wire.frames import NO_LIMIT
from natsproxy.wire.ops import C2S, OPS, S2C, Direction, Op

# -- in


class Certificate(NamedTuple):
    """The verified certificate of a client.

    subject: as nats-server writes it, "" without a certificate.  names: those that may identify a user.
    """

    subject: str = ""
    names: tuple[str, ...] = ()


NO_CERTIFICATE: Final = Certificate()


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of the proxy: its own login at the server (see `login.py`).

    credentials: its own; None: clients log in with theirs.  clients: how it authenticates clients otherwise:
    "users" (a table of passwords), "certificate" (one that the listener has verified) or "none".  users:
    those that certificates may identify; None: any certificate will do.  key: of a trusted proxy, or None.
    """

    credentials: Credentials | None = None
    clients: str = "none"
    key: KeyPair | None = field(default=None, repr=False)
    users: frozenset[str] | None = None

    @property
    def logs_in(self) -> bool:
        """True if the proxy logs in at the server in place of its clients."""
        return self.credentials is not None

    @property
    def asks(self) -> bool:
        """True if clients must authenticate to the proxy."""
        return self.logs_in and self.clients != "none"

    def user_of(self, certificate: Certificate) -> str:
        """Return the user that a certificate identifies: the first of its names that is one; "" for none."""
        return next((name for name in certificate.names if name in (self.users or ())), "")


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """The part of the configuration that a session needs; sizes in bytes, times in ns.

    Those that users set stand first, in the table of options; `net/opening.py` adds what depends on the
    listener and on the address that the client dialled.

    advertise: what happens to the addresses in INFO (see `login.py`).  failover: what happens to the client
    of a lost server (see `failover.py`).  rule_buffer: the largest frame that is
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
    failover: str = setting(
        words("close", "hold"),
        "close",
        "When a server is lost: close its clients, or hold them and give them another server.",
    )
    failover_hold: int = setting(DURATION, "30s", "How long failover = hold keeps a client without a server.")
    queue_bytes: int = setting(
        SIZE_ABOVE_ZERO,
        "8MiB",
        "Limit of delayed or held traffic, for each direction of a connection.",
        name="queue",
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


# -- out: actions


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
    """Check the password of a client, and call `Session.authenticated` with the result.

    The client's frames wait meanwhile.
    """

    user: str
    password: str

    def __repr__(self) -> str:
        return f"Authenticate({self.user!r})"


class End(NamedTuple):
    """End the connection.

    Flush the bytes sent, half-close the client leg and drain it, then close both; `reset`: RST on both, now;
    with `flush` when the peers have the bytes sent before.
    """

    cause: str
    detail: str = ""
    reset: bool = False
    flush: bool = False


class Redial(NamedTuple):
    """The server is lost: connect to another one, and give its bytes to `receive`."""


class Restored(NamedTuple):
    """The new server has the login and the subscriptions: call `Session.resume` when the client may go on."""


Action = Send | Finish | Record | Emit | Authenticate | Redial | Restored | End
Act = Callable[[Action], None]
"""Adds an action to those that a session is to return: all that its parts know of them."""


# -- out: traffic

WIDTH: Final = len(OPS) + 1  # the numbers of a point: its frames by op, and its bytes


class Point(NamedTuple):
    """A point at which traffic is counted: a direction, and the leg on which its bytes come or go."""

    direction: Direction
    leg: str


POINTS: Final = (Point(C2S, "client"), Point(C2S, "server"), Point(S2C, "server"), Point(S2C, "client"))
FROM_CLIENT, TO_SERVER, FROM_SERVER, TO_CLIENT = range(4)


class Traffic:
    """The traffic of a connection, or of many: frames by op and bytes at four points.

    Each direction is counted where its bytes come in and where they go out.  numbers: those of one point
    after the other, in one list, so that many connections are summed quickly.
    """

    __slots__ = ("numbers",)

    def __init__(self, numbers: list[int] | None = None) -> None:
        self.numbers = [0] * (WIDTH * len(POINTS)) if numbers is None else numbers

    def add(self, other: Traffic) -> None:
        """Add the traffic of another connection."""
        self.numbers = [one + more for one, more in zip(self.numbers, other.numbers, strict=True)]

    def copy(self) -> Traffic:
        """Return a copy."""
        return Traffic(self.numbers.copy())

    def frames(self, point: int) -> list[int]:
        """Return the frames at a point, by op."""
        return self.numbers[point * WIDTH : point * WIDTH + WIDTH - 1]

    def bytes(self, point: int) -> int:
        """Return the bytes at a point."""
        return self.numbers[point * WIDTH + WIDTH - 1]

    def messages(self, point: int) -> int:
        """Return the messages at a point, with and without headers."""
        first = point * WIDTH
        ops = (Op.PUB, Op.HPUB) if POINTS[point].direction == C2S else (Op.MSG, Op.HMSG)
        return sum(self.numbers[first + op] for op in ops)
