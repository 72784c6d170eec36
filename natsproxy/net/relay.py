"""A relay: one proxied connection on trio, that is two pumps and one session.

A pump reads its leg, gives the bytes to the session and performs the session's actions.  It stops reading
while the other leg cannot take bytes, while the session holds back too much, or while the recorder holds
traffic.  The next time slice does the work that one leaves undone, before more is read (`timeslice.py`).  A
third task wakes the session at its deadlines; it exists only while the session has one.

A leg that takes no more bytes is still read: its peer may have sent the reason before it closed, and the
kernel still has those bytes.  The relay passes them on, as at the end of a stream, and then ends the
connection.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import trio

from natsproxy.capture.format.records import Item
from natsproxy.events import Event
from natsproxy.net.admission import Admission
from natsproxy.net.clock import now_ns
from natsproxy.net.leg import Leg, LegLost
from natsproxy.net.timeslice import Timeslice
from natsproxy.rules.interface import Chain
from natsproxy.session import close_reasons
from natsproxy.session.actions import Action, Emit, End, Finish, Record, Send
from natsproxy.session.session import Session
from natsproxy.wire.ops import C2S, S2C, Direction

LINGER = 1.0  # seconds that a peer has to take the bytes before the end


class Relay:
    """Runs one session between two legs.

    emit, record: take the events and the records of the session.  most_frames: returns the frames of one
    record at most.  admission: tells when the recorder lets no traffic pass.  upstream_local: the address of
    the server leg's own end.
    """

    def __init__(
        self,
        session: Session,
        client: Leg,
        server: Leg,
        emit: Callable[[Event], None],
        record: Callable[[Item], None],
        most_frames: Callable[[], int],
        admission: Admission,
    ) -> None:
        self.session = session
        self.opened = now_ns()
        self.last_activity = self.opened
        self.end: End | None = None
        self.upstream_local = str(server.local)
        self._client = client
        self._server = server
        # Both are indexed by direction.
        self._to = (server, client)
        self._from = (client, server)
        self._emit = emit
        self._record = record
        self._most_frames = most_frames
        self._admission = admission
        self._nursery: trio.Nursery | None = None
        self._ticking = False
        self._retick = trio.Event()
        self._unblocked = trio.Event()
        self._over = trio.Event()

    def snapshot(self) -> dict[str, Any]:
        """Return the state of the connection, without secrets, for a preamble of a capture."""
        state = self.session.snapshot()
        state["open"]["upstream_local"] = self.upstream_local
        return state

    async def run(self, greeting: bytes = b"") -> End:
        """Relay until the connection ends, and return its end.

        greeting: the bytes that were received from the server already.
        """
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                if greeting:
                    self._perform(self.session.receive(S2C, greeting, now_ns()))
                # A kill or another chain may have ended it before there was a nursery to cancel.
                if self.end is not None:
                    nursery.cancel_scope.cancel()
                nursery.start_soon(self._pump, C2S)
                nursery.start_soon(self._pump, S2C)
                self._arm()
            end = self.end or End(close_reasons.KILLED)
            with trio.CancelScope(shield=True):
                await self._linger(end)
        finally:
            self._client.close()
            self._server.close()
            self._over.set()
            with trio.CancelScope(shield=True):
                await self._record_unsent()
        return end

    async def _record_unsent(self) -> None:
        """Record the frames that were read and never sent, a slice at a time."""
        timeslice = Timeslice(self._most_frames)
        while True:
            for action in self.session.closed(now_ns(), timeslice):
                if isinstance(action, Record):
                    self._record(action.item)
            if not self.session.unrecorded:
                return
            await trio.lowlevel.checkpoint()
            timeslice.begin()

    def kill(self, cause: str, detail: str = "", *, reset: bool = False) -> None:
        """End the connection now."""
        self._stop(End(cause, detail, reset))

    def swap(self, chain: Chain) -> None:
        """Put another chain in force."""
        self._perform(self.session.swap(chain, now_ns()))

    def lame_duck(self) -> None:
        """Send the client an INFO in lame duck mode, where it can take one."""
        self._perform(self.session.lame_duck(now_ns()))

    def drain(self, *, answers: bool = True) -> None:
        """End the connection once the client has the answers that are due; answers: to its requests too."""
        self._perform(self.session.drain(now_ns(), answers=answers))

    async def barrier(self) -> None:
        """Wait until we and the server have handled all that the client has sent so far."""
        # Bytes in our socket, or read and not scanned, were sent before the barrier.
        while (self._client.readable or self.session.pipes[C2S].pending) and not self.session.over:
            await trio.lowlevel.checkpoint()
        passed = trio.Event()
        self._perform(self.session.fence(lambda _: passed.set(), now_ns()))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._until_over, passed)
            await passed.wait()
            nursery.cancel_scope.cancel()

    async def _until_over(self, passed: trio.Event) -> None:
        await self._over.wait()
        passed.set()

    # -- pumps

    async def _pump(self, direction: Direction) -> None:
        source, target = self._from[direction], self._to[direction]
        session, pipe = self.session, self.session.pipes[direction]
        timeslice = Timeslice(self._most_frames)
        while not target.gone:
            while pipe.full and not session.over:
                # An event of trio is set once; each wait needs a fresh one.
                if self._unblocked.is_set():
                    self._unblocked = trio.Event()
                await self._unblocked.wait()
                timeslice.begin()
            while self._admission.held:
                await self._admission.wait_open()
                timeslice.begin()
            data = b"" if pipe.pending else self._receive(source)
            if data is None:
                await source.wait_readable()
                timeslice.begin()
                continue
            now = self.last_activity = now_ns()
            if not (data or pipe.pending):
                self._perform(session.eof(direction, now))
                return
            self._perform(session.receive(direction, data, now, timeslice))
            over = timeslice.end_step(pipe.handled)
            if target.backlog:
                await self._flush(target)
            elif over:
                await trio.lowlevel.checkpoint()
            else:
                continue
            timeslice.begin()

    def _receive(self, source: Leg) -> bytes | None:
        """Return the bytes of a leg: `b""` at its end or where it is lost, None when there are none yet."""
        try:
            data = source.try_receive()
        except LegLost as lost:
            self._lost(lost)
            return b""
        return b"" if data is None and source.gone else data

    async def _flush(self, leg: Leg) -> None:
        try:
            await leg.flush()
        except LegLost as lost:
            self._lost(lost)

    def _lost(self, lost: LegLost) -> None:
        """Pass on the bytes that the peer of a lost leg had sent, for a while, then end the connection."""
        self._end_if_gone()
        if self.end is None and self._nursery is not None:
            self._nursery.start_soon(self._end_after_linger, self._from.index(lost.leg))

    async def _end_after_linger(self, direction: int) -> None:
        await trio.sleep(LINGER)
        if not self.session.pipes[direction].ended:  # else the session ends it: it has deadlines
            self._stop(self._end_of(direction))

    def _end_if_gone(self) -> None:
        """End the connection if a leg is gone and all of its bytes are passed on."""
        for pipe, leg in zip(self.session.pipes, self._from, strict=True):
            if leg.gone and pipe.passed_on:
                self._stop(self._end_of(pipe.direction))

    def _end_of(self, direction: int) -> End:
        client_first = direction == C2S or self.session.pipes[C2S].ended
        return End(close_reasons.CLIENT_CLOSED if client_first else close_reasons.SERVER_CLOSED)

    def _perform(self, actions: list[Action]) -> None:
        """Perform the session's actions; the bytes for one leg go with one system call where they can."""
        pieces: tuple[list[bytes | memoryview], list[bytes | memoryview]] = ([], [])
        for action in actions:
            if isinstance(action, Send):
                pieces[action.direction].append(action.data)
            elif isinstance(action, Record):
                self._record(action.item)
            elif isinstance(action, Emit):
                self._emit(action.event)
            else:
                self._send(pieces)  # the bytes before an end go out before it
                if not isinstance(action, Finish):
                    self._stop(action)
                elif self._nursery is not None:
                    self._nursery.start_soon(self._finish, self._to[action.direction])
        self._send(pieces)
        if self._client.gone or self._server.gone:
            self._end_if_gone()
        if not any(pipe.full for pipe in self.session.pipes):
            self._unblocked.set()
        self._arm()

    def _send(self, pieces: tuple[list[bytes | memoryview], list[bytes | memoryview]]) -> None:
        for leg, parts in zip(self._to, pieces, strict=True):
            if parts:
                try:
                    leg.write_all(parts)
                except LegLost as lost:
                    self._lost(lost)
                parts.clear()

    async def _finish(self, leg: Leg) -> None:
        await self._flush(leg)
        leg.finish()

    def _stop(self, end: End) -> None:
        if self.end is None:
            self.end = self._with_lost_cause(end)
            self.session.stop()
            if self._nursery is not None:
                self._nursery.cancel_scope.cancel()

    def _with_lost_cause(self, end: End) -> End:
        """Return an end with the cause that the sockets tell: to the session, a lost leg has only closed."""
        if end.cause == close_reasons.CLIENT_CLOSED and self._client.lost is not None:
            return End(close_reasons.CLIENT_LOST, self._client.lost)
        if end.cause == close_reasons.SERVER_CLOSED and self._server.lost is not None:
            return End(close_reasons.SERVER_LOST, self._server.lost)
        return end

    # -- deadlines of the session

    def _arm(self) -> None:
        if self.session.next_tick() is None or self._nursery is None:
            return
        if self._ticking:
            self._retick.set()
        else:
            self._ticking = True
            self._nursery.start_soon(self._tick)

    async def _tick(self) -> None:
        timeslice = Timeslice(self._most_frames)
        while (due := self.session.next_tick()) is not None:
            self._retick = trio.Event()
            with trio.move_on_at(due / 1_000_000_000):
                await self._retick.wait()
            now = now_ns()
            if now < due and due - now > 1_000:  # woken for another deadline; trio's clock is a float
                continue
            # The slice begins after the wait: only work counts against it.
            timeslice.begin()
            before = self.session.frames_sent
            self._perform(self.session.tick(max(now, due), timeslice))
            timeslice.end_step(self.session.frames_sent - before)
            for leg in self._to:
                if leg.backlog:
                    await self._flush(leg)
        self._ticking = False

    # -- the end

    async def _linger(self, end: End) -> None:
        """Let both peers take the bytes before the end."""
        if end.reset:
            self._client.reset()
            self._server.reset()
            return
        with trio.move_on_after(LINGER):
            async with trio.open_nursery() as nursery:
                for leg in self._from:
                    nursery.start_soon(_close_in_order, leg)


async def _close_in_order(leg: Leg) -> None:
    """Flush, half-close, then read to the end: unread bytes would turn our close into an RST."""
    with suppress(LegLost):
        await leg.flush()
        leg.finish()
        while await leg.receive():
            await trio.lowlevel.checkpoint()  # a peer that never stops sending must not keep the loop
