"""A relay: one proxied connection, that is one session and two legs.

A plane moves the bytes (`plane.py`) and calls the relay for those that the session is to see.  The relay
gives them to the session and performs the session's actions.  Tasks exist only while there is something to
wait for, such as a backlog; the deadlines of all sessions have one task (`deadlines.py`), and the ends of all
relays another one (`connections.py`).

A leg that takes no more bytes is still read: its peer may have sent the reason before it closed, and the
kernel still has those bytes.  The relay passes them on, as at the end of a stream, and then ends the
connection.

A session that fails over (`session/failover.py`) asks for another server leg.  Until there is one, its client
leg lies beside an `AbsentLeg` on the plane.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio

from natsproxy import close_reasons
from natsproxy.capture.format.records import Item
from natsproxy.events import Event
from natsproxy.net.client_users import Check
from natsproxy.net.clock import now_ns
from natsproxy.net.connection_tasks import ConnectionTasks
from natsproxy.net.deadlines import EARLY, NEVER, Deadlines
from natsproxy.net.dial import NoServer
from natsproxy.net.error_boundary import error_boundary
from natsproxy.net.failover import AbsentLeg, HeldClients
from natsproxy.net.leg import LINGER, AnyLeg, LegLost, PlaneLeg, arrive, linger, still_open
from natsproxy.net.opening import Accepted
from natsproxy.net.plane_interface import Plane, PlaneConnection
from natsproxy.net.shortage import OwnShortage
from natsproxy.net.tcp import TcpInfo
from natsproxy.net.timeslice import Timeslice
from natsproxy.rules.interface import Chain
from natsproxy.session.direction import DirectionPipe
from natsproxy.session.session import Session
from natsproxy.session.values import (
    UNLIMITED_WORK,
    Action,
    Authenticate,
    Emit,
    End,
    Finish,
    Record,
    Redial,
    Restored,
    Send,
    WorkLimit,
)
from natsproxy.wire.ops import C2S, S2C, Direction

_PAUSE: Final = 0.1  # seconds before another server is dialled, if the last one did not stay
Redialling = Callable[["Relay"], Awaitable[tuple[AnyLeg, str, bytes]]]
"""Connects a relay to another server: returns the leg, the address and the first bytes; raises NoServer."""


class Relay:
    """Runs one session between two legs, from `start` to `finish`.

    accepted: its client.  conn: its number.  legs: those that it is given; client, server: the same, or the
    plane's legs on them.  greeting: bytes that were received from the server already.  emit, record:
    take the events and the records of the session.  nursery: of its tasks.  on_over: called with the relay,
    once there is nothing left to relay.  finishing: somebody is calling `finish`.
    unrecorded: there are frames that were never sent, and are still to be recorded.
    most_frames: returns the frames of one record at most.
    check: tells why a client is not who it says it is.  deadlines: call `tick` at `due` (ns).
    held: the connections without a server.  redial: connects to another server and returns its leg, its
    address and the first bytes.
    opened: the facts of its Open record.  on_arrived: called with its number at the client's first PONG, if
    there is one.
    kernel: what the kernel knew of the client's leg at its end.  error: the bug that it ends for.
    """

    __slots__ = (
        "__weakref__",
        "_awaited",
        "_check",
        "_closed",
        "_deadlines",
        "_emit",
        "_greeting",
        "_halted",
        "_held",
        "_place",
        "_plane",
        "_record",
        "_redial",
        "_redials",
        "_tasks",
        "_ticks",
        "accepted",
        "client",
        "conn",
        "due",
        "end",
        "error",
        "finishing",
        "kernel",
        "legs",
        "on_arrived",
        "on_over",
        "opened",
        "server",
        "session",
        "timeslices",
        "unrecorded",
    )

    def __init__(
        self,
        session: Session,
        accepted: Accepted,
        server: AnyLeg,
        greeting: bytes,
        plane: Plane,
        emit: Callable[[Event], None],
        record: Callable[[Item], None],
        nursery: trio.Nursery,
        on_over: Callable[[Relay], None],
        most_frames: Callable[[], int],
        check: Check,
        deadlines: Deadlines,
        held: HeldClients,
        redial: Redialling,
    ) -> None:
        self.session = session
        self.accepted = accepted
        self.conn = accepted.conn
        self.end: End | None = None
        self.on_arrived: Callable[[int], None] | None = None
        self.opened: dict[str, Any] = {"upstream_local": str(server.local)}
        self.client: PlaneLeg = accepted.leg
        self.server: PlaneLeg = server
        self.timeslices = (Timeslice(most_frames), Timeslice(most_frames))
        self.legs: tuple[AnyLeg, AnyLeg] = (accepted.leg, server)
        self._greeting = greeting
        self._plane = plane
        self._place: PlaneConnection | None = None
        self._emit, self._record, self._check = emit, record, check
        self._tasks = ConnectionTasks(nursery, self.failed)
        self.on_over = on_over
        self.finishing = False
        self._halted = self._closed = self.unrecorded = False
        self.error: BaseException | None = None
        self.due, self._deadlines = NEVER, deadlines
        self._ticks = Timeslice(most_frames)
        self._held, self._redial = held, redial
        self._redials = 0  # since the client last had a server
        self._awaited: tuple[trio.Event, ...] = ()  # set at the end of the connection at the latest
        self.kernel: TcpInfo | None = None

    @property
    def _to(self) -> tuple[PlaneLeg, PlaneLeg]:
        """The legs that the directions go to."""
        return self.server, self.client

    def start(self) -> None:
        """Handle the greeting, and put the legs on the plane."""
        self.client, self.server = self.legs
        greeting, self._greeting = self._greeting, b""
        try:
            self._perform(self.session.receive(S2C, greeting, now_ns()))
            if not self.session.over:  # a kill, a bug or another chain may have ended it before
                self._place = self._plane.adopt(self, *self.legs, self._tasks)
                self._update_plane()
        except Exception as error:
            self.failed(error)

    def finish_at_once(self) -> bool:
        """Finish a relay that is over; return False where it takes time: `finish` does the rest then."""
        if self._tasks or not self._part_at_once():
            return False
        self._close()
        return not self.unrecorded

    def _part_at_once(self) -> bool:
        """Part from both peers in good order; return False where that takes time."""
        try:
            self._leave()
            if self.error is not None:
                return True
            assert self.end is not None  # only `_stop` and `failed` end a relay
            if not self.end.reset:
                return not still_open(self.legs)
            if not self.end.flush:
                self._reset()
            return not self.end.flush
        except Exception as error:
            self.error = error
            return True

    async def finish(self, *, cancelled: bool = False) -> None:
        """Finish a relay that is over.  cancelled: without a word to the peers."""
        self._tasks.stop()
        with trio.CancelScope(shield=True):
            await self._tasks.wait_over()
        if not self._closed:
            try:
                if not (cancelled or self._part_at_once()):
                    await self._part()
            except Exception as error:
                self.error = error
            finally:
                self._close()
        while self.unrecorded:
            with trio.CancelScope(shield=True):  # record all of it, even if this task is cancelled
                await trio.lowlevel.checkpoint()
            self._record_unsent()

    async def _part(self) -> None:
        """Part from both peers in good order."""
        assert self.end is not None
        if self.end.reset:
            await arrive(self.legs)
            self._reset()
        else:
            await linger(self.legs, shield=True)

    def _reset(self) -> None:
        for leg in self.legs:
            leg.reset()

    def _close(self) -> None:
        """Close the legs, and let go of all that waits for the connection."""
        self._closed = True
        self._tasks.dispose()
        if self._place is not None:
            self._place.stop()  # nobody reads a leg once it is closed: its descriptor may be another's
        self.kernel = self.accepted.plain.tcp_info()
        for leg in self.legs:
            leg.close()
        self.session.stop()
        self._held.discard(self.conn)
        for event in self._awaited:
            event.set()
        try:
            self._leave()  # last: a bug there must not keep the sockets
        except Exception as error:
            self.error = error
        self._record_unsent()

    def _leave(self) -> None:
        """Take the legs back from the plane."""
        if self._place is not None:
            try:
                self._take_back()
            finally:  # a bug there must not keep the sockets
                place, self._place = self._place, None
                rests = place.leave()
            self.session.take_over(rests)

    def _catch_up(self) -> None:
        """Let the session count the frames that bypassed it: called before it does anything."""
        if self._place is not None:
            # At once: not every call goes on to perform actions, nor does the end of the connection.
            for firing in self.session.catch_up(self._place):
                self._emit(firing)

    def _take_back(self) -> None:
        """Let the session have the frames that wait in the plane, too; update the plane behind it."""
        self._catch_up()
        if self._place is not None:
            self.session.take_back(self._place)

    def _update_plane(self) -> None:
        """Tell the plane the state of the session; call whenever the session has worked."""
        if self._place is not None:
            self._place.update(recording=self.session.pipes[C2S].records.on)

    # -- another server

    async def _fail_over(self) -> None:
        """Put the client aside until there is another server for it."""
        self._held.add(self.conn)
        self._replace_server(AbsentLeg(self.legs[S2C].local))
        if self._redials:  # the last one did not stay
            await trio.sleep(_PAUSE)
        self._redials += 1
        try:
            server, upstream, greeting = await self._redial(self)
        except (NoServer, OwnShortage) as error:
            self._stop(End(close_reasons.UPSTREAM_DOWN, str(error)))
            return
        self.opened |= {"upstream": upstream, "upstream_local": str(server.local)}
        self._replace_server(server)
        self._give(greeting)

    @error_boundary
    def _give(self, greeting: bytes) -> None:
        self._perform(self.session.receive(S2C, greeting, now_ns()))

    @error_boundary
    def _replace_server(self, server: AnyLeg) -> None:
        """Close the server leg, and put another one in its place."""
        if self._place is not None:
            self._take_back()
            place, self._place = self._place, None
            rest, _ = place.leave()  # the server's unfinished line is lost with it
            self.session.take_over((rest, b""))
            self.session.pipes[C2S].pending |= bool(rest)
        client, lost = self.legs
        lost.close()
        self.legs = self.client, self.server = client, server
        self._place = self._plane.adopt(self, *self.legs, self._tasks)
        self._update_plane()

    async def _resume(self) -> None:
        """Let the client go on, together with others."""
        self._held.discard(self.conn)
        await self._held.settled()
        self._redials = 0
        self._catch_up()
        self._perform(self.session.resume(now_ns()))

    def _record_unsent(self) -> None:
        """Record frames that were read and never sent, for a slice; there may be more (`unrecorded`)."""
        self._ticks.begin()  # no deadline is due any more
        try:
            for action in self.session.closed(now_ns(), self._ticks):
                if isinstance(action, Record):
                    self._record(action.item)
            self.unrecorded = self.session.unrecorded
        except Exception as error:
            self.error, self.unrecorded = error, False

    # -- control

    @error_boundary
    def catch_up(self) -> None:
        """Let the session count the frames that bypassed it."""
        self._catch_up()

    @error_boundary
    def record(self, on: bool) -> None:
        """Make records from the next frame on, or stop making them."""
        self._catch_up()
        self.session.record(on)
        self._update_plane()
        self._arm()  # frames that waited in the plane may wait in the session now

    @error_boundary
    def snapshot(self) -> dict[str, Any]:
        """Return the state of the connection for a preamble (see `Session.snapshot`)."""
        self._catch_up()
        state = self.session.snapshot()
        state["open"] |= self.opened
        return state

    def kill(self, cause: str, detail: str = "", *, reset: bool = False) -> None:
        """End the connection now."""
        self._stop(End(cause, detail, reset))

    @error_boundary
    def swap(self, chain: Chain, limit: WorkLimit = UNLIMITED_WORK) -> bool:
        """Put another chain in force; return whether it is, or the connection over: else call it again."""
        self._catch_up()
        self._perform(self.session.swap(chain, now_ns(), limit))
        return self.session.chain is chain or self.session.over

    @error_boundary
    def control(self, act: Callable[[Session, int], None]) -> None:
        """Let an operator act on the connection: a command of `Session`, given the time (ns)."""
        self._take_back()
        act(self.session, now_ns())
        self._perform(self.session.take_actions())

    @error_boundary
    def requests(self) -> frozenset[bytes]:
        """Return the reply subjects of the client's requests that have no answer yet."""
        self._catch_up()
        return self.session.requests()

    async def barrier(self) -> None:
        """Wait until we and the server have handled all that the client has sent so far."""
        # Bytes in our socket, or read and not scanned, were sent before the barrier.
        while (self.client.readable or self.session.pipes[C2S].pending) and not self.session.over:
            await trio.lowlevel.checkpoint()
        if not self.session.over:
            passed = self._event()
            self._fence(passed)
            await passed.wait()

    @error_boundary
    def _fence(self, passed: trio.Event) -> None:
        self._catch_up()
        self._perform(self.session.fence(lambda _: passed.set(), now_ns()))

    async def ask_client(self) -> bool:
        """Send the client a PING and wait for its PONG; return False if the connection ends before it."""
        if self.session.over:
            return False
        done, heard = self._event(), False

        def answered(now: int) -> None:
            nonlocal heard
            heard = True
            done.set()

        self.control(lambda session, now: session.ask(now, answered))
        await done.wait()
        return heard

    def _event(self) -> trio.Event:
        """Return an event that is set at the end of the connection at the latest."""
        event = trio.Event()
        self._awaited = (*(one for one in self._awaited if not one.is_set()), event)
        return event

    # -- called by the plane

    def received(self, direction: Direction, data: bytes) -> bool:
        """Give bytes to the session, or let it continue its work; return whether the slice is over."""
        timeslice, pipe = self.timeslices[direction], self.session.pipes[direction]
        self._catch_up()
        self._perform(self.session.receive(direction, data, now_ns(), timeslice))
        return timeslice.end_step(pipe.handled)

    def report(self) -> None:
        """Emit the firings of rules on frames that bypassed the session, which has nothing else to do."""
        for firing in self.session.take_firings():
            self._emit(firing)

    def ended(self, direction: Direction) -> None:
        """Handle the end of a stream."""
        self._take_back()
        self._perform(self.session.eof(direction, now_ns()))

    def leg_lost(self, leg: PlaneLeg) -> None:
        """Pass on the bytes that the peer of a lost leg had sent, for a while, then end the connection."""
        self._catch_up()
        if any(pipe.outbox.ahead[0] for pipe in self.session.pipes):  # the plane sends nothing to it any more
            self._take_back()
            self._perform([])
        self._end_if_gone()
        if self.end is None and leg in (self.client, self.server):
            self._tasks.start_soon(self._end_after_linger, leg)

    def failed(self, error: BaseException) -> None:
        """End the connection for a bug in its code, and forward nothing more."""
        self.error = self.error or error
        self._halt()
        self.session.take_actions()  # the actions of the work that failed are not performed

    async def _flush(self, leg: PlaneLeg) -> None:
        try:
            await leg.flush()
        except LegLost:
            self.leg_lost(leg)

    async def _end_after_linger(self, leg: PlaneLeg) -> None:
        await trio.sleep(LINGER)
        if leg not in (self.client, self.server):  # it was replaced
            return
        direction = C2S if leg is self.client else S2C
        if self.session.pipes[direction].ended:  # the session ends it: it has deadlines
            return
        if direction == S2C:
            self.ended(S2C)
        if not self.session.held:
            self._stop(self._end_of(direction))

    def _end_if_gone(self) -> None:
        """End the connection if a leg is gone and all of its bytes are passed on."""
        for pipe, leg in zip(self.session.pipes, (self.client, self.server), strict=True):
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
            elif isinstance(action, Authenticate):
                self._tasks.start_soon(self._authenticate, action)
            elif isinstance(action, Redial):
                self._tasks.start_soon(self._fail_over)
            elif isinstance(action, Restored):
                self._tasks.start_soon(self._resume)
            else:
                self._send(pieces)  # the bytes before an end go out before it
                if not isinstance(action, Finish):
                    self._stop(action)
                elif (leg := self._to[action.direction]).backlog:
                    self._tasks.start_soon(self._finish, leg)
                else:
                    leg.finish()
        self._send(pieces)
        if self.end is not None:  # nothing is read any more, and nothing is due
            return
        if self.client.gone or self.server.gone:
            self._end_if_gone()
        self._update_plane()
        self._arm()
        if self.on_arrived is not None and self.session.arrived:
            arrived, self.on_arrived = self.on_arrived, None
            arrived(self.conn)

    def _send(self, pieces: tuple[list[bytes | memoryview], list[bytes | memoryview]]) -> None:
        for direction, leg in ((C2S, self.server), (S2C, self.client)):
            if parts := pieces[direction]:
                try:
                    leg.write_all(parts)
                except LegLost:
                    self.leg_lost(leg)
                parts.clear()
            pipe = self.session.pipes[direction]
            # Frames that the session holds, or goes on to read, must not make the backlog grow.
            if leg.backlog and not pipe.outbox.blocked and (pipe.outbox.bytes or pipe.swallowing):
                pipe.outbox.blocked = True
                self._tasks.start_soon(self._unblock, pipe)

    async def _unblock(self, pipe: DirectionPipe) -> None:
        await self._flush(self._to[pipe.direction])
        self._catch_up()
        pipe.outbox.blocked = False
        self._perform([])

    async def _authenticate(self, asked: Authenticate) -> None:
        refusal = await self._check(self.accepted.facts.peer, asked.user, asked.password)
        self._catch_up()
        self._perform(self.session.authenticated(refusal, now_ns()))

    async def _finish(self, leg: PlaneLeg) -> None:
        await self._flush(leg)
        leg.finish()

    def _stop(self, end: End) -> None:
        if self.end is None:
            self.end = _with_lost_cause(end, self.client, self.server, self.session.server_error)
            self._halt()

    def _halt(self) -> None:
        self.session.stop()
        if self._place is not None:
            self._place.stop()
        self._tasks.stop()
        if not self._halted:
            self._halted = True
            self.on_over(self)

    # -- deadlines of the session

    def _arm(self) -> None:
        due = self.session.next_tick()
        if due is not None and due < self.due:  # an earlier call is harmless: it finds nothing to do
            self.due = due
            self._deadlines.add(due, self.conn)

    @error_boundary
    def tick(self) -> None:
        """Do the work of the session that is due, for a time slice at most."""
        self._catch_up()
        due, now = self.session.next_tick(), now_ns()
        if due is None or due > now + EARLY:  # it is gone, or has moved
            self._arm()
            return
        self._take_back()
        self._ticks.begin()
        before = self.session.frames_sent
        self._perform(self.session.tick(max(now, due), self._ticks))
        self._ticks.end_step(self.session.frames_sent - before)


def _with_lost_cause(end: End, client: PlaneLeg, server: PlaneLeg, error: str) -> End:
    """Return an end with the cause that the sockets know: to the session, a lost leg has only closed.

    error: the -ERR with which the server closes; it may reset as well, where bytes of the client are left.
    """
    if end.cause not in close_reasons.LOST or (error and end.cause == close_reasons.SERVER_CLOSED):
        return end
    leg = client if end.cause == close_reasons.CLIENT_CLOSED else server
    return end if leg.lost is None else End(close_reasons.LOST[end.cause][leg.broken], leg.lost)
