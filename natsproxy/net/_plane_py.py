"""The plane in Python: two tasks for each connection, which give all bytes to the session.

It is used where nothing is compiled or there is no epoll, on a mock clock, and for connections with a leg
that is not plain.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from natsproxy.net.admission import Admission
from natsproxy.net.connection_tasks import ConnectionTasks
from natsproxy.net.leg import AnyLeg, LegLost
from natsproxy.net.plane_interface import Rider
from natsproxy.net.timeslice import Timeslice
from natsproxy.session.direction import HeldFrames, Passed
from natsproxy.wire.ops import C2S, S2C, Direction


class PythonPlane:
    """Moves bytes by tasks of the connections themselves."""

    threads = 1
    stepping = False
    stepped: Callable[[], None]

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    def adopt(self, rider: Rider, client: AnyLeg, server: AnyLeg, tasks: ConnectionTasks) -> Pumps:
        """Start the tasks of a connection."""
        pumps = Pumps(rider, (server, client), self._admission, tasks)
        tasks.start_soon(pumps.run, C2S, client, server)
        tasks.start_soon(pumps.run, S2C, server, client)
        return pumps

    def record_into(self, builder: object, recorded: Callable[[], None]) -> None:
        """Do nothing: all frames are the session's to record."""

    def recall_all(self) -> None:
        """Do nothing: there are no threads."""

    async def run(self) -> None:
        """Do nothing: the connections have tasks of their own."""


class Pumps:
    """The two tasks of one connection.

    A pump stops reading while the other leg cannot take bytes (unless the session loses the messages), while
    the session holds back too much, or while the recorder holds traffic.  Work that one time slice leaves
    undone is done by the next one, before more is read.  A pump flushes what it has written; what others
    write, for example at a deadline of the session, is flushed by a task of its own.

    targets: the legs that the directions go to.
    """

    def __init__(
        self, rider: Rider, targets: tuple[AnyLeg, AnyLeg], admission: Admission, tasks: ConnectionTasks
    ) -> None:
        self._rider = rider
        self._targets = targets
        self._left = False
        self._scopes: list[trio.CancelScope] = []  # of what runs
        self._admission = admission
        self._tasks = tasks
        self._unblocked = trio.Event()
        self._stepping: int | None = None  # the direction whose pump is giving bytes to the session
        self._flushes: dict[int, trio.CancelScope] = {}  # of pumps, by direction
        self._flushing = [False, False]  # whether a task of its own flushes, by direction

    def take(self, direction: int) -> Passed | None:
        """Return None: every frame goes through the session."""
        return None

    def give_back(self, direction: int) -> list[HeldFrames]:
        """Return nothing: no frame waits without the session."""
        return []

    def update(self, *, recording: bool) -> None:
        """Wake the pumps that the session no longer holds back, and flush the legs' backlogs."""
        pipes = self._rider.session.pipes
        if not all(pipe.full for pipe in pipes):
            self._unblocked.set()
        for direction, flush in self._flushes.items():
            if pipes[direction].swallowing:
                flush.cancel()
        for direction, leg in enumerate(self._targets):
            alone = direction != self._stepping and direction not in self._flushes
            if leg.backlog and alone and not self._flushing[direction]:
                self._flushing[direction] = True
                self._tasks.start_soon(self._flush_backlog, direction)

    def stop(self) -> None:
        """Do nothing: the tasks are cancelled."""

    def leave(self) -> tuple[bytes, bytes]:
        """End the tasks; return no bytes: all that came is the session's."""
        self._left = True
        for scope in self._scopes:
            scope.cancel()
        return b"", b""

    async def run(self, direction: Direction, source: AnyLeg, target: AnyLeg) -> None:
        """Pump one direction to the end of its stream."""
        with trio.CancelScope() as scope:
            self._scopes.append(scope)
            if not self._left:
                await self._pump(direction, source, target)

    async def _pump(self, direction: Direction, source: AnyLeg, target: AnyLeg) -> None:
        rider, pipe = self._rider, self._rider.session.pipes[direction]
        timeslice = rider.timeslices[direction]
        while not target.gone:
            await self._until_admitted(direction, timeslice)
            data = b"" if pipe.pending else self._receive(source)
            if data is None:
                await source.wait_readable()
                timeslice.begin()
                continue
            if not (data or pipe.pending):
                rider.ended(direction)
                return
            self._stepping = direction
            over = rider.received(direction, data)
            self._stepping = None
            if target.backlog and not pipe.swallowing:
                await self._flush_unless_swallowing(direction)
            elif over:
                await trio.lowlevel.checkpoint()
            else:
                continue
            timeslice.begin()

    async def _until_admitted(self, direction: Direction, timeslice: Timeslice) -> None:
        session = self._rider.session
        while session.pipes[direction].full and not session.over:
            # An event of trio is set once; each wait needs a fresh one.
            if self._unblocked.is_set():
                self._unblocked = trio.Event()
            await self._unblocked.wait()
            timeslice.begin()
        while self._admission.held:
            await self._admission.wait_open()
            timeslice.begin()

    def _receive(self, source: AnyLeg) -> bytes | None:
        """Return the bytes of a leg: `b""` at its end or where it is lost, None when there are none yet."""
        try:
            data = source.try_receive()
        except LegLost as lost:
            self._rider.leg_lost(lost.leg)
            return b""
        return b"" if data is None and source.gone else data

    async def _flush_unless_swallowing(self, direction: Direction) -> None:
        """Wait for the end of a backlog, or until the session loses the messages that would follow it."""
        with trio.CancelScope() as self._flushes[direction]:
            await self._flush(direction)
        del self._flushes[direction]

    async def _flush_backlog(self, direction: int) -> None:
        await self._flush(direction)
        self._flushing[direction] = False

    async def _flush(self, direction: int) -> None:
        try:
            await self._targets[direction].flush()
        except LegLost as lost:
            self._rider.leg_lost(lost.leg)
