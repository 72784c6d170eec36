"""One proxied connection on trio: two pumps, one session, and what the session asks for.

A pump reads its leg, gives the bytes to the session, performs the actions and stops reading while the other
leg cannot take bytes or the session holds back too much.  What a turn leaves is dealt with in the next one,
before more is read (`pace.py`).  Timers run in a third task that exists only while the session waits for
something.

A leg that takes no more is still read: its peer may have said why before it closed, and the kernel holds
that.  What is there is passed on, as at the end of a stream, and then the connection is over.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import trio

from natsproxy.net.gate import Gate
from natsproxy.net.pace import Pace
from natsproxy.net.stream import Leg, LegLost
from natsproxy.session import close_reasons
from natsproxy.session.actions import Action, Emit, End, Finish, Record, Send
from natsproxy.wire.ops import C2S, S2C, Direction

if TYPE_CHECKING:
    from natsproxy.capture.format.records import Item
    from natsproxy.events import Event
    from natsproxy.rules.interface import Chain
    from natsproxy.session.session import Session

LINGER = 1.0  # seconds for a peer to take what came before the end


def now_ns() -> int:
    """Return trio's clock in nanoseconds."""
    return int(trio.current_time() * 1_000_000_000)


class Relay:
    """Runs one session between two legs."""

    def __init__(
        self,
        session: Session,
        client: Leg,
        server: Leg,
        emit: Callable[[Event], None],
        record: Callable[[Item], None],
        most: Callable[[], int],
        gate: Gate,
    ) -> None:
        """Most: the frames that the recorder takes at once (see `Recorder.most`)."""
        self.session = session
        self.opened = now_ns()
        self.last_activity = self.opened
        self.end: End | None = None
        self._client = client
        self._server = server
        self._to = (server, client)  # where a direction's bytes go
        self._from = (client, server)
        self._emit = emit
        self._record = record
        self._most = most
        self._gate = gate
        self._nursery: trio.Nursery | None = None
        self._ticking = False
        self._retick = trio.Event()
        self._unblocked = trio.Event()
        self._over = trio.Event()

    async def run(self, greeting: bytes = b"") -> End:
        """Relay until the connection ends; return why.  greeting: what the server has said already."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                if greeting:
                    self._perform(self.session.receive(S2C, greeting, now_ns()))
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
                await self._forget()
        return end

    async def _forget(self) -> None:
        """Record what was read and is not sent."""
        pace = Pace(self._most)
        while True:
            for action in self.session.closed(now_ns(), pace):
                if isinstance(action, Record):
                    self._record(action.item)
            if not any(pipe.unsent for pipe in self.session.pipes):
                return
            await trio.lowlevel.checkpoint()
            pace.begin()

    def kill(self, cause: str, detail: str = "", *, reset: bool = False) -> None:
        """End the connection now."""
        self._stop(End(cause, detail, reset))

    def swap(self, chain: Chain) -> None:
        """Put another chain in force."""
        self._perform(self.session.swap(chain, now_ns()))

    def lame_duck(self) -> None:
        """Tell the client that its connection ends soon, if it can hear it."""
        self._perform(self.session.lame_duck(now_ns()))

    def drain(self) -> None:
        """End the connection once what the client has sent is answered."""
        self._perform(self.session.drain(now_ns()))

    async def barrier(self) -> None:
        """Wait until what the client has sent so far is handled by us and by the server."""
        while (self._client.readable or self.session.pipes[C2S].pending) and not self.session.over:
            await trio.lowlevel.checkpoint()
        passed = trio.Event()
        self._perform(self.session.fence(lambda _: passed.set(), now_ns()))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._until_over, passed)
            await passed.wait()
            nursery.cancel_scope.cancel()

    @property
    def _sent(self) -> int:
        return sum(pipe.out_next for pipe in self.session.pipes)

    async def _until_over(self, passed: trio.Event) -> None:
        await self._over.wait()
        passed.set()

    # -- pumps

    async def _pump(self, direction: Direction) -> None:
        source, target = self._from[direction], self._to[direction]
        session, pipe = self.session, self.session.pipes[direction]
        pace = Pace(self._most)
        while not target.gone:
            while pipe.full and not session.over:
                if self._unblocked.is_set():
                    self._unblocked = trio.Event()
                await self._unblocked.wait()
                pace.begin()
            while self._gate.shut:
                await self._gate.opened()
                pace.begin()
            data = b"" if pipe.pending else self._receive(source)
            if data is None:
                await source.wait_readable()
                pace.begin()
                continue
            now = self.last_activity = now_ns()
            if not (data or pipe.pending):
                self._perform(session.eof(direction, now))
                return
            before = pipe.scanner.ordinal
            self._perform(session.receive(direction, data, now, pace))
            over = pace.stepped(pipe.scanner.ordinal - before)
            if target.backlog:
                await self._flush(target)
            elif over:
                await trio.lowlevel.checkpoint()
            else:
                continue
            pace.begin()

    def _receive(self, source: Leg) -> bytes | None:
        """Return what a leg has to say: `b""` when it says no more, None when nothing is there yet."""
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
        """Go on until all that the peer of a leg has said is passed on, but not for long."""
        self._fade()
        if self.end is None and self._nursery is not None:
            self._nursery.start_soon(self._fade_out, self._from.index(lost.leg))

    async def _fade_out(self, direction: int) -> None:
        await trio.sleep(LINGER)
        if not self.session.pipes[direction].ended:  # else the session has its own time for what it holds
            self._stop(self._left(direction))

    def _fade(self) -> None:
        """End the connection if a leg is gone and nothing of it is left to pass on."""
        for pipe, leg in zip(self.session.pipes, self._from, strict=True):
            if leg.gone and pipe.ended and not (pipe.pending or pipe.outbox.bytes):
                self._stop(self._left(pipe.direction))

    def _left(self, direction: int) -> End:
        goodbye = direction == C2S or self.session.pipes[C2S].ended
        return End(close_reasons.CLIENT_CLOSED if goodbye else close_reasons.SERVER_CLOSED)

    def _perform(self, actions: list[Action]) -> None:
        """Do what the session asks; what goes to one leg goes with one system call where it can."""
        pieces: tuple[list[bytes | memoryview], list[bytes | memoryview]] = ([], [])
        for action in actions:
            if isinstance(action, Send):
                pieces[action.direction].append(action.data)
            elif isinstance(action, Record):
                self._record(action.item)
            elif isinstance(action, Emit):
                self._emit(action.event)
            else:
                self._send(pieces)
                if isinstance(action, Finish):
                    self._spawn(self._finish, self._to[action.direction])
                else:
                    self._stop(action)
        self._send(pieces)
        if self._client.gone or self._server.gone:
            self._fade()
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

    def _spawn(self, task: Callable[[Leg], object], leg: Leg) -> None:
        if self._nursery is not None:
            self._nursery.start_soon(task, leg)  # type: ignore[arg-type]

    async def _finish(self, leg: Leg) -> None:
        await self._flush(leg)
        leg.finish()

    def _stop(self, end: End) -> None:
        if self.end is None:
            self.end = self._named(end)
            self.session.stop()
            if self._nursery is not None:
                self._nursery.cancel_scope.cancel()

    def _named(self, end: End) -> End:
        """Return why the connection ended: to the session a leg that was lost has only closed."""
        if end.cause == close_reasons.CLIENT_CLOSED and self._client.lost is not None:
            return End(close_reasons.CLIENT_LOST, self._client.lost)
        if end.cause == close_reasons.SERVER_CLOSED and self._server.lost is not None:
            return End(close_reasons.SERVER_LOST, self._server.lost)
        return end

    # -- time

    def _arm(self) -> None:
        if self.session.next_tick() is None or self._nursery is None:
            return
        if self._ticking:
            self._retick.set()
        else:
            self._ticking = True
            self._nursery.start_soon(self._tick)

    async def _tick(self) -> None:
        pace = Pace(self._most)
        while (due := self.session.next_tick()) is not None:
            self._retick = trio.Event()
            with trio.move_on_at(due / 1_000_000_000):
                await self._retick.wait()
            now = now_ns()
            if now < due and due - now > 1_000:
                continue
            pace.begin()
            before = self._sent
            self._perform(self.session.tick(max(now, due), pace))
            pace.stepped(self._sent - before)
            for leg in self._to:
                if leg.backlog:
                    await self._flush(leg)
        self._ticking = False

    # -- the end

    async def _linger(self, end: End) -> None:
        """Let both peers take what came before the end."""
        if end.reset:
            self._client.reset()
            self._server.reset()
            return
        with trio.move_on_after(LINGER):
            async with trio.open_nursery() as nursery:
                for leg in self._from:
                    nursery.start_soon(_part, leg)


async def _part(leg: Leg) -> None:
    """Flush, half-close, drain: unread bytes would turn our close into an RST."""
    with suppress(LegLost):
        await leg.flush()
        leg.finish()
        while (data := leg.try_receive()) != b"":
            if data is None:
                await leg.wait_readable()
