"""The interface between a plane, which moves bytes, and the connections that are given to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from natsproxy.net.connection_tasks import ConnectionTasks
from natsproxy.net.leg import AnyLeg, PlaneLeg
from natsproxy.net.timeslice import Timeslice
from natsproxy.session.direction import PassedFrames
from natsproxy.session.session import Session
from natsproxy.wire.ops import Direction


class Rider(Protocol):
    """A connection that is given to a plane; `net/relay.py` implements it.

    client, server: the legs.  session: its pipes say what the plane may do.  timeslices: of both directions.
    """

    session: Session
    timeslices: tuple[Timeslice, Timeslice]
    conn: int
    client: PlaneLeg
    server: PlaneLeg

    def received(self, direction: Direction, data: bytes) -> bool:
        """Handle bytes, or continue the work of the session; return whether the time slice is over."""
        ...

    def report(self) -> None:
        """Tell of the rules that have acted on frames that bypassed the session."""
        ...

    def ended(self, direction: Direction) -> None:
        """Handle the end of a stream."""
        ...

    def leg_lost(self, leg: PlaneLeg) -> None:
        """Handle a leg that accepts no more bytes."""
        ...

    def failed(self, error: BaseException) -> None:
        """End the connection for a bug in its code."""
        ...


class PlaneConnection(PassedFrames, Protocol):
    """One connection as a plane has it."""

    def update(self, *, recording: bool) -> None:
        """Apply the state of the session's pipes; call whenever the session has worked."""
        ...

    def stop(self) -> None:
        """Read no more."""
        ...

    def leave(self) -> tuple[bytes, bytes]:
        """Give the legs back; return the unfinished control lines of both directions."""
        ...


class Plane(Protocol):
    """Moves the bytes of all connections.

    threads: how many carry traffic; 1 where only the loop's own does.
    stepping: it moves bytes, and calls `stepped` behind that; one in Python never does.
    """

    threads: int
    stepping: bool
    stepped: Callable[[], None]

    def adopt(self, rider: Rider, client: AnyLeg, server: AnyLeg, tasks: ConnectionTasks) -> PlaneConnection:
        """Take over two legs; the rider gets legs of the plane in their place until it leaves."""
        ...

    def record_into(self, builder: Any, recorded: Callable[[], None]) -> None:
        """Record frames that pass without Python; builder: of the recorder's blocks, None for none.

        recorded: called after records were added.
        """
        ...

    def recall_all(self) -> None:
        """Pass no frame, in any thread, until the loop goes on."""
        ...

    async def run(self) -> None:
        """Move bytes until cancelled."""
        ...
