"""A server that is not there: plays a capture to any client that connects, in one trio task.

`CassetteServer.serve` listens, feeds a `ToClient` machine and performs what it asks for.  It is what
`natsproxy replay to-client`, `natsproxy cassette run`, `natsproxy.testing` and the pytest plugin stand on.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Literal

import trio

from natsproxy.addresses import Address
from natsproxy.errors import ConfigError, NatsproxyError
from natsproxy.net.relay import now_ns
from natsproxy.net.stream import Leg, LegLost, taken
from natsproxy.replay.conversation.exchanges import WINDOW, Exchange
from natsproxy.replay.conversation.matching import Matchers
from natsproxy.replay.conversation.steps import events
from natsproxy.replay.errors import Stalled
from natsproxy.replay.server_playback.actions import Action, EndConnection, Forward, Mismatch, Send
from natsproxy.replay.server_playback.new_episodes import Addition
from natsproxy.replay.server_playback.playback import ToClient, Unrecorded
from natsproxy.replay.server_playback.upstream import Upstream
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame, Malformed
from natsproxy.wire.ops import C2S
from natsproxy.wire.parse import EVERYTHING
from natsproxy.wire.scanner import Scanner

BACKLOG = 8 << 20
"""Bytes that a client may leave unread; then nothing more is read from anybody until it has taken them."""


class CassetteServer:
    """Plays the server of a capture.

    path: the capture.  unrecorded: what to do with input that was not recorded: "error", "ignore", "pass" (to
    `upstream`, a real server) or "record" (that too; `keep` adds it to the capture).  timing: "answers" (at
    once, but timed frames at their distance) or "recorded".  bodies: (subject pattern, matcher) pairs for
    application payloads.  tap: called with each live client frame and with what is sent.

    Raises CaptureError where the capture cannot be read.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        listen: Address | None = None,
        unrecorded: Unrecorded = "error",
        timing: Literal["answers", "recorded"] = "answers",
        bodies: Matchers = (),
        upstream: Address | None = None,
        window: int = WINDOW,
        tap: Callable[[int, str, bytes], None] | None = None,
    ) -> None:
        if unrecorded in ("pass", "record") and upstream is None:
            raise ConfigError("unrecorded input can be passed on only with an upstream")
        self.path = Path(path)
        self.machine = ToClient(
            events(path), window=window, unrecorded=unrecorded, timing=timing, bodies=bodies
        )
        self.address = listen or Address()
        self.connected = 0
        self.accepted = 0
        self.last_activity = 0
        self._upstream = upstream
        self._legs: dict[int, Leg] = {}
        self._scopes: dict[int, trio.CancelScope] = {}
        self._behind: dict[int, Upstream] = {}
        self._tap = tap
        self._retimed = trio.Event()
        self._timed: int | None = None  # the deadline that the timer waits for
        self._changed = trio.Event()
        self._nursery: trio.Nursery | None = None
        self.failure: NatsproxyError | None = None

    # -- what it says

    @property
    def url(self) -> str:
        """Where clients connect, once `serve` has started."""
        return f"nats://{self.address}"

    @property
    def mismatches(self) -> list[Mismatch]:
        """What clients sent that was never recorded (the first thousand)."""
        return self.machine.mismatches

    def unused(self) -> list[Exchange]:
        """Return the recorded client frames that no client sent."""
        return self.machine.unused()

    def take_additions(self) -> list[Addition]:
        """Return the unrecorded frames and their answers, once; `cassette.merge` adds them to the capture."""
        episodes = self.machine.episodes
        if episodes is None:
            return []
        additions, episodes.additions = episodes.additions, []
        return additions

    async def finished(self, idle: float | None = None) -> None:
        """Wait until everything was played and every client has left.

        idle: seconds without any traffic after which to give up.  Raises Stalled with what was waited for.
        """
        began = now_ns()
        while not (self.machine.done and not self.connected):
            if self.failure is not None:
                raise self.failure
            quiet = (now_ns() - max(began, self.last_activity)) / 1e9
            if idle is not None and quiet >= idle:
                raise Stalled(f"nothing happened for {idle:g} s; it was waiting for {self._waits_for()}")
            with trio.move_on_after(float("inf") if idle is None else idle - quiet):
                await self._changed.wait()

    def _waits_for(self) -> str:
        full, behind = self._full(), self._behind_full()
        if full is not None:
            return f"client {full} to read {self._legs[full].backlog} bytes"
        if behind is not None:
            return f"the real server to take {behind.backlog} bytes"
        what = self.machine.waits_for()
        return f"{self.connected} clients to leave" if what == "nothing" else what

    # -- life

    async def serve(self, *, task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen and play until cancelled; starts with the address once the listener stands.

        Raises ConfigError for an address that cannot be listened on.
        """
        try:
            listeners = await trio.open_tcp_listeners(self.address.port, host=self.address.host)
        except OSError as error:
            raise ConfigError(f"cannot listen on {self.address}: {error.strerror or error}") from None
        self.address = Address(self.address.host, listeners[0].socket.getsockname()[1])
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._timer)
            for listener in listeners:
                nursery.start_soon(self._accept, listener, nursery)
            task_status.started(self.address)

    async def _accept(self, listener: trio.SocketListener, nursery: trio.Nursery) -> None:
        async with listener:
            while True:
                stream = await listener.accept()
                self.accepted += 1
                nursery.start_soon(self._connection, self.accepted, stream)

    async def _connection(self, live: int, stream: trio.SocketStream) -> None:
        leg = Leg(taken(stream))
        self._legs[live] = leg
        self.connected += 1
        try:
            with trio.CancelScope() as scope:
                self._scopes[live] = scope
                try:
                    self._perform(self.machine.opened(live, (self.address.host, self.address.port)))
                    await self._read(live, leg)
                except LegLost:
                    pass  # the client is gone; the machine hears of it below
                except NatsproxyError as error:
                    self.failure = error
        finally:
            leg.close()  # however it ends: serving may be cancelled, a matcher of the user's may fail
        del self._legs[live], self._scopes[live]
        self.connected -= 1
        behind = self._behind.pop(live, None)
        if behind is not None:
            behind.close()
        try:
            self._perform(self.machine.closed(live, now_ns()))
        except NatsproxyError as error:
            self.failure = error
        self._tell()

    async def _read(self, live: int, leg: Leg) -> None:
        scanner = Scanner(C2S, EVERYTHING, buffer_limit=1 << 30, hold=1 << 30)
        while True:
            data = leg.try_receive()
            if data is None:
                await leg.wait_readable()
                continue
            if not data:
                return
            scanner.feed(data)
            frames: list[Frame] = []
            wrong = None
            while (segment := scanner.next()) is not None:
                if isinstance(segment, Frame):
                    frames.append(segment)
                else:
                    wrong = segment
            if self._tap is not None:
                for frame in frames:
                    self._tap(live, "c2s", frame.raw)
            self.last_activity = now_ns()
            self._perform(self.machine.received(live, frames, self.last_activity))
            if isinstance(wrong, Malformed):
                leg.write(encode.err("Unknown Protocol Operation"))
                return
            await self._room()

    async def _room(self) -> None:
        """Wait for the clients that were sent more than they have read: what comes in makes more of it.

        The same for real servers behind that take less than is passed on.
        """
        while (full := self._full()) is not None:
            with suppress(LegLost):  # then it has nothing left to read; its own task hears of it
                await self._legs[full].flush()
        while (behind := self._behind_full()) is not None:
            await behind.room()

    def _full(self) -> int | None:
        return next((live for live, leg in self._legs.items() if leg.backlog > BACKLOG), None)

    def _behind_full(self) -> Upstream | None:
        return next((behind for behind in self._behind.values() if behind.backlog > BACKLOG), None)

    # -- what the machine asks for

    def _perform(self, actions: list[Action]) -> None:
        for live, data in _joined(actions):
            leg = self._legs.get(live)
            if leg is None:
                continue
            if isinstance(data, Forward):
                self._forward(live, data.data)
            elif data is None:
                self._hang(live)
            else:
                self._send(live, leg, data)
        if self.machine.deadline != self._timed:
            self._retimed.set()

    def _send(self, live: int, leg: Leg, data: bytes) -> None:
        assert self._nursery is not None
        if self._tap is not None:
            self._tap(live, "s2c", data)
        try:
            idle = not leg.backlog
            leg.write(data)
            if idle and leg.backlog:
                self._nursery.start_soon(_flush, leg)
        except LegLost:
            self._scopes[live].cancel()

    def _hang(self, live: int) -> None:
        self._legs[live].finish()
        self._scopes[live].cancel()

    def _forward(self, live: int, data: bytes) -> None:
        assert self._upstream is not None
        assert self._nursery is not None
        behind = self._behind.get(live)
        if behind is None:
            behind = self._behind[live] = Upstream(self._upstream, partial(self._answered, live))
            self._nursery.start_soon(self._carry, live, behind)
        behind.send(data)

    async def _carry(self, live: int, behind: Upstream) -> None:
        try:
            await behind.run()
        except NatsproxyError as error:
            self.failure = error
            scope = self._scopes.get(live)
            if scope is not None:
                scope.cancel()
            self._tell()

    def _answered(self, live: int, frame: Frame) -> None:
        try:
            self.last_activity = now_ns()
            self._perform(self.machine.answered(live, frame, self.last_activity))
        except NatsproxyError as error:
            self.failure = error
            self._tell()

    def _tell(self) -> None:
        """Wake who waits for the end: a client left, a timed frame went, something failed."""
        self.last_activity = now_ns()
        self._changed.set()
        self._changed = trio.Event()

    async def _timer(self) -> None:
        while True:
            self._retimed = trio.Event()
            deadline = self._timed = self.machine.deadline
            wait = float("inf") if deadline is None else max(0, deadline - now_ns()) / 1e9
            with trio.move_on_after(wait):
                await self._retimed.wait()
                continue
            try:
                self._perform(self.machine.tick(now_ns()))
            except NatsproxyError as error:
                self.failure = error
            self._tell()


def _joined(actions: list[Action]) -> list[tuple[int, bytes | Forward | None]]:
    """Return the actions with neighbouring sends of one connection as one."""
    made: list[tuple[int, bytes | Forward | None]] = []
    pending: list[bytes] = []
    for index, action in enumerate(actions):
        if isinstance(action, Send):
            pending.append(action.data)
            following = actions[index + 1] if index + 1 < len(actions) else None
            if not (isinstance(following, Send) and following.live == action.live):
                made.append((action.live, b"".join(pending)))
                pending = []
        elif isinstance(action, EndConnection):
            made.append((action.live, None))
        else:
            made.append((action.live, action))
    return made


async def _flush(leg: Leg) -> None:
    try:
        await leg.flush()
    except LegLost:
        leg.close()
