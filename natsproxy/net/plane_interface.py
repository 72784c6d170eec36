"""The interface between a plane, which moves bytes, and the connections that are given to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import trio

from natsproxy.net.leg import Leg
from natsproxy.net.timeslice import Timeslice
from natsproxy.session.passed import PassedFrames
from natsproxy.session.session import Session
from natsproxy.wire.ops import Direction


class PlaneLeg(Protocol):
    """A leg on a plane, as a relay uses it.

    backlog, gone, lost: as in `Leg`.
    """

    @property
    def backlog(self) -> int:
        """Bytes written that the kernel has not taken yet."""
        ...

    @property
    def gone(self) -> bool:
        """True if the peer takes no more; writes are dropped."""
        ...

    @property
    def lost(self) -> str | None:
        """The reason why it was lost; None where it is not, or the peer had ended the stream."""
        ...

    @property
    def readable(self) -> bool:
        """True if bytes are waiting in the kernel."""
        ...

    def write_all(self, parts: list[bytes | memoryview]) -> object:
        """Send several pieces; what the kernel does not take is kept.  Raises LegLost."""
        ...

    async def flush(self) -> None:
        """Wait until the kernel has all written bytes.  Raises LegLost, or returns where the leg is lost."""
        ...

    def finish(self) -> None:
        """Half-close: the peer sees the end of the stream after the bytes that were sent."""
        ...


class Rider(Protocol):
    """A connection that is given to a plane; `net/relay.py` has the one that there is.

    client, server: the legs.  session: its pipes say what the plane may do.  timeslices: of both directions.
    """

    session: Session
    timeslices: tuple[Timeslice, Timeslice]
    conn: int
    client: PlaneLeg
    server: PlaneLeg

    def received(self, direction: Direction, data: bytes) -> bool:
        """Take bytes, or go on with the work of the session; return whether the time slice is over."""
        ...

    def ended(self, direction: Direction) -> None:
        """Take the end of a stream."""
        ...

    def leg_lost(self, leg: PlaneLeg) -> None:
        """Learn that a leg takes no more bytes."""
        ...

    def failed(self, error: BaseException) -> None:
        """End the connection for a bug in its code."""
        ...


class Place(PassedFrames, Protocol):
    """The place of one connection on a plane."""

    def settle(self, *, recording: bool) -> None:
        """Go on as the pipes of the session say now; called whenever the session has worked."""
        ...

    def stop(self) -> None:
        """Read no more."""
        ...

    def leave(self) -> tuple[bytes, bytes]:
        """Give the legs back; return the unfinished control lines of both directions."""
        ...


class Plane(Protocol):
    """Moves the bytes of all connections."""

    def adopt(self, rider: Rider, client: Leg, server: Leg, nursery: trio.Nursery) -> Place:
        """Take over two legs; the rider gets others in their place until it leaves."""
        ...

    def record_into(self, builder: Any, recorded: Callable[[], None]) -> None:
        """Record frames that pass without Python; builder: of the recorder's blocks, None for none.

        recorded: called after records were added.
        """
        ...

    async def run(self) -> None:
        """Move bytes until cancelled."""
        ...
