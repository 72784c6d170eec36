"""One proxied connection on trio: two pumps, one session, and what the session asks for.

A pump reads its leg, gives the bytes to the session, performs the actions and stops reading while the other
leg cannot take bytes or the session holds back too much.  What a turn leaves is dealt with in the next one,
before more is read (`pace.py`).  Timers run in a third task that exists only while the session waits for
something.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from natsproxy.net.gate import Gate
from natsproxy.net.pace import Pace
from natsproxy.net.stream import Leg, LegLost
from natsproxy.session import causes
from natsproxy.session.actions import Action, Emit, End, Finish, Record, Send
from natsproxy.wire.ops import C2S, S2C, Direction

if TYPE_CHECKING:
    from natsproxy.capture.records import Item
    from natsproxy.events import Event
    from natsproxy.rules.seam import Chain
    from natsproxy.session.session import Session

LINGER = 1.0  # seconds for the client to read what came before the end


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
            end = self.end or End(causes.KILLED)
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
            if not any(lane.unsent for lane in self.session.lanes):
                return
            await trio.lowlevel.checkpoint()
            pace.begin()

    def kill(self, cause: str, detail: str = "", *, reset: bool = False) -> None:
        """End the connection now."""
        self._stop(End(cause, detail, reset))

    def swap(self, chain: Chain) -> None:
        """Put another chain in force."""
        self._perform(self.session.swap(chain, now_ns()))

    def drain(self) -> None:
        """End the connection once what the client has sent is answered."""
        self._perform(self.session.drain(now_ns()))

    async def barrier(self) -> None:
        """Wait until what the client has sent so far is handled by us and by the server."""
        while (self._client.readable or self.session.lanes[C2S].pending) and not self.session.over:
            await trio.lowlevel.checkpoint()
        passed = trio.Event()
        self._perform(self.session.fence(lambda _: passed.set(), now_ns()))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._until_over, passed)
            await passed.wait()
            nursery.cancel_scope.cancel()

    @property
    def _sent(self) -> int:
        return sum(lane.out_next for lane in self.session.lanes)

    async def _until_over(self, passed: trio.Event) -> None:
        await self._over.wait()
        passed.set()

    # -- pumps

    async def _pump(self, direction: Direction) -> None:
        source, target = self._from[direction], self._to[direction]
        session, lane = self.session, self.session.lanes[direction]
        pace = Pace(self._most)
        try:
            while True:
                while lane.full and not session.over:
                    if self._unblocked.is_set():
                        self._unblocked = trio.Event()
                    await self._unblocked.wait()
                    pace.begin()
                while self._gate.shut:
                    await self._gate.opened()
                    pace.begin()
                data = b"" if lane.pending else source.try_receive()
                if data is None:
                    await source.wait_readable()
                    pace.begin()
                    continue
                now = self.last_activity = now_ns()
                if not (data or lane.pending):
                    self._perform(session.eof(direction, now))
                    return
                before = lane.scanner.ordinal
                self._perform(session.receive(direction, data, now, pace))
                over = pace.stepped(lane.scanner.ordinal - before)
                if target.backlog:
                    await target.flush()
                elif over:
                    await trio.lowlevel.checkpoint()
                else:
                    continue
                pace.begin()
        except LegLost as lost:
            self._lost(direction, str(lost))

    def _lost(self, direction: Direction, detail: str) -> None:
        if self.session.lanes[C2S].ended and not self.session.over:
            self._stop(End(causes.CLIENT_CLOSED))  # it had said goodbye before it was gone
            return
        self._stop(End(causes.CLIENT_LOST if direction == C2S else causes.SERVER_LOST, detail))

    def _perform(self, actions: list[Action]) -> None:
        """Do what the session asks; what goes to one leg goes with one system call where it can."""
        pieces: tuple[list[bytes | memoryview], list[bytes | memoryview]] = ([], [])
        try:
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
        except LegLost as lost:
            self._lost(C2S, str(lost))
        if not any(lane.full for lane in self.session.lanes):
            self._unblocked.set()
        self._arm()

    def _send(self, pieces: tuple[list[bytes | memoryview], list[bytes | memoryview]]) -> None:
        for leg, parts in zip(self._to, pieces, strict=True):
            if parts:
                leg.write_all(parts)
                parts.clear()

    def _spawn(self, task: Callable[[Leg], object], leg: Leg) -> None:
        if self._nursery is not None:
            self._nursery.start_soon(task, leg)  # type: ignore[arg-type]

    async def _finish(self, leg: Leg) -> None:
        try:
            await leg.flush()
        except LegLost as lost:
            self._lost(C2S, str(lost))
        leg.finish()

    def _stop(self, end: End) -> None:
        if self.end is None:
            self.end = end
            self.session.over = True
            if self._nursery is not None:
                self._nursery.cancel_scope.cancel()

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
                    try:
                        await leg.flush()
                    except LegLost as lost:
                        self._lost(C2S, str(lost))
                        return
        self._ticking = False

    # -- the end

    async def _linger(self, end: End) -> None:
        """Flush, half-close, drain, close: unread bytes would turn our close into an RST."""
        if end.reset:
            self._client.reset()
            self._server.reset()
            return
        if end.cause in (causes.CLIENT_PROTOCOL, causes.RULE, causes.DRAINED):
            self._server.finish()
        try:
            with trio.move_on_after(LINGER):
                await self._client.flush()
                self._client.finish()
                while True:
                    data = self._client.try_receive()
                    if data == b"":
                        break
                    if data is None:
                        await self._client.wait_readable()
        except LegLost:
            return
