"""The native plane on trio: one task steps it, and goes back to trio only where trio has something to do.

A step goes on while trio has nothing to do (`idle_loop.py`).  It looks at trio's own epoll every 200 µs, and
while it waits for bytes, a millisecond at most.  After a long round of trio's other tasks, such as hundreds
that open connections, a step takes as long as that round, without a look: else the connections that are open
would starve.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any, Final

import trio

from natsproxy.net import _plane  # type: ignore[attr-defined, unused-ignore]
from natsproxy.net._plane_py import PythonPlane
from natsproxy.net.admission import Admission
from natsproxy.net.clock import ahead_of_monotonic
from natsproxy.net.connection_tasks import ConnectionTasks
from natsproxy.net.idle_loop import IdleLoop
from natsproxy.net.leg import AnyLeg, Leg, LegLost
from natsproxy.net.plane_interface import PlaneConnection, Rider
from natsproxy.session.values import Budget
from natsproxy.wire.ops import C2S, S2C, Direction

STEP = 1_000_000  # ns of a step where other tasks are ready
LONGEST = 20_000_000  # ns of a step after a long round of the other tasks
BUSY = 16  # reads
LOOP = 2  # a step ended because trio's epoll has an event


class NativeLeg(_plane.NativeLeg):  # type: ignore[misc, unused-ignore]
    """A leg on the native plane."""

    __slots__ = ()
    flushed: trio.Event | None
    broken: Final = False  # as in `Leg`

    def write_all(self, parts: list[bytes | memoryview]) -> None:
        """Send several pieces; what the kernel does not take is kept.  Raises LegLost."""
        if super().write_all(parts):
            raise LegLost(self, self.lost or "gone")

    async def flush(self) -> None:
        """Wait until the kernel has all written bytes, or the leg is lost."""
        while self.backlog:
            if self.flushed is None:
                self.flushed = trio.Event()  # type: ignore[misc]  # a member of the compiled class
                self.expect_flush()
            await self.flushed.wait()


class NativePlace(_plane.Connection):  # type: ignore[misc, unused-ignore]
    """The place of one connection on the native plane."""

    __slots__ = ()
    relay: Rider

    def enter(self) -> None:
        """Give the relay its legs, with the bytes that they have not sent yet."""
        self.relay.client, self.relay.server = self.client, self.server
        self.limit_held(self.relay.session.settings.queue_bytes)
        for leg in (self.client, self.server):
            if backlog := leg.origin.take_backlog():
                with suppress(LegLost):  # its end is read later
                    leg.write_all(backlog)

    def received(self, direction: Direction, data: bytes) -> None:
        """Give bytes to the session, for a time slice."""
        self.relay.timeslices[direction].begin()
        self.relay.received(direction, data)

    def flushed(self, leg: NativeLeg) -> None:
        """Wake the tasks that wait for the end of a backlog."""
        if leg.flushed is not None:
            leg.flushed.set()
            leg.flushed = None  # type: ignore[misc]

    def update(self, *, recording: bool) -> None:
        """Apply the state of the session's pipes to the flows."""
        session = self.relay.session
        for direction in (C2S, S2C):
            if session.pipes[direction].outbox.waiting:
                self._move_held(direction, recording)
            clear = session.clear(direction)
            decisions = session.decisions(direction) if clear else None
            self.update_flow(direction, clear, session.pipes[direction], recording, decisions)

    def _move_held(self, direction: Direction, recording: bool) -> None:
        """Have the frames that wait here, where they may, else all in the session."""
        session = self.relay.session
        pipe = session.pipes[direction]
        if session.may_hand_over(direction) and self.may_hold(direction, recording):
            self.hold(direction, pipe.hand_over())
        elif pipe.outbox.ahead[0]:
            pipe.take_back(self.give_back(direction))
        pipe.charge()

    def leave(self) -> tuple[bytes, bytes]:
        """Give the legs back; return the unfinished control lines of both directions."""
        legs = self.client, self.server
        for leg, (backlog, ended) in zip(legs, self.remove(), strict=True):
            leg.origin.take_back(backlog, leg.lost, gone=leg.gone, ended=ended)
            self.flushed(leg)  # whoever waits for it looks at the other leg
        self.relay.client, self.relay.server = (leg.origin for leg in legs)
        return self.rest(C2S), self.rest(S2C)


class NativePlane:
    """Moves the bytes of all connections by one task, and by threads beside it.

    workers: the number of those threads.  busy: one of them gets a connection after so many reads in a row
    without a byte for the session.
    """

    def __init__(
        self,
        admission: Admission,
        budget: Budget,
        record_room: int,
        record_most: int,
        workers: int = 0,
        busy: int = BUSY,
    ) -> None:
        self._plane = _plane.Plane(ahead_of_monotonic(), record_room, record_most, workers, busy)
        self._plane.recorded = _nothing
        self._plane.budget = budget
        self.threads = workers or 1
        self.stepping = False
        self.stepped: Callable[[], None] = _nothing
        self._layered = PythonPlane(admission)
        self._idle = IdleLoop()
        admission.on_change = self._admit

    def adopt(self, rider: Rider, client: AnyLeg, server: AnyLeg, tasks: ConnectionTasks) -> PlaneConnection:
        """Take over two legs; the plane in Python takes those that are not plain."""
        if isinstance(client, Leg) and isinstance(server, Leg):
            place: NativePlace = self._plane.adopt(rider, rider.conn, client, server, NativeLeg, NativePlace)
            place.enter()
            return place
        return self._layered.adopt(rider, client, server, tasks)

    def record_into(self, builder: Any, recorded: Callable[[], None]) -> None:
        """Record frames that pass without Python; builder: of the recorder's blocks, None for none."""
        self._plane.set_builder(builder)
        self._plane.recorded = recorded

    def recall_all(self) -> None:
        """Take all connections back from the threads, until the next step."""
        self._plane.recall_all()

    def _admit(self, held: bool) -> None:
        self._plane.hold(held)

    async def run(self) -> None:
        """Move bytes until cancelled."""
        with closing(self._plane), self._workers(), self._idle.watched():
            while True:
                await trio.lowlevel.wait_readable(self._plane.fd)
                spare, most, fd = self._idle.spare(), STEP, self._idle.fd
                while found := self._step(most, spare, fd):
                    spare, most, fd = self._idle.spare(), STEP, self._idle.fd
                    if found == LOOP or not spare:
                        left = time.thread_time_ns()  # other programs have their time beside it
                        await trio.lowlevel.checkpoint()
                        spare, away = self._idle.spare(), time.thread_time_ns() - left
                        if away >= STEP:
                            spare, most, fd = 0, min(away, LONGEST), -1

    def _step(self, most: int, spare: int, fd: int) -> int:
        """Move bytes for a while; return why that has ended."""
        self.stepping = True
        try:
            found: int = self._plane.step(most, spare, fd)
        finally:
            self.stepping = False
        self.stepped()
        return found

    @contextmanager
    def _workers(self) -> Iterator[None]:
        """Run the threads inside."""
        threads = [
            threading.Thread(target=_run_worker, args=(worker,), name=f"plane-{number}", daemon=True)
            for number, worker in enumerate(self._plane.workers, 1)
        ]
        try:
            for thread in threads:
                thread.start()
            yield
        finally:
            for worker in self._plane.workers:
                worker.stop()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()  # it serves for a slice at most


def _run_worker(worker: Any) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # the main thread waits for them
    worker.run()


def _nothing() -> None:
    return None
