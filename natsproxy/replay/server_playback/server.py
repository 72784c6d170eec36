"""A server that plays a capture to any client that connects, on trio.

`CassetteServer.serve` listens, feeds a `ServerPlayback` machine and performs its actions.  `natsproxy replay
to-client`, `natsproxy cassette run`, `natsproxy.testing` and the pytest plugin are built on it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Final, Literal

import trio

from natsproxy.addresses import Address
from natsproxy.errors import ConfigError, NatsproxyError
from natsproxy.net.clock import now_ns
from natsproxy.net.leg import Leg, LegLost
from natsproxy.net.readers import Readers
from natsproxy.replay.conversation.exchanges import RecordedExchange
from natsproxy.replay.conversation.match_options import Given, MatchOptions, combine
from natsproxy.replay.conversation.steps import events, stored_options
from natsproxy.replay.errors import Stalled
from natsproxy.replay.handshake import UNLIMITED
from natsproxy.replay.server_playback.actions import Action, ForwardToServer, join_sends
from natsproxy.replay.server_playback.mismatch import Mismatch
from natsproxy.replay.server_playback.new_episodes import Addition
from natsproxy.replay.server_playback.playback import ServerPlayback, Unrecorded
from natsproxy.replay.server_playback.progress import WINDOW
from natsproxy.replay.server_playback.upstream import Upstream
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame, Malformed
from natsproxy.wire.ops import C2S
from natsproxy.wire.parse import EVERYTHING
from natsproxy.wire.scanner import Scanner

_ROUNDS: Final = 5  # of trio's loop
BACKLOG = 8 << 20
"""Unread bytes of one client beyond which no client is read from, until it has taken them."""


class CassetteServer:
    """Plays the server of a capture.

    path: the capture.  unrecorded: what to do with unrecorded frames: "error", "ignore", "pass" (to
    `upstream`, a real server) or "record" (the same, and `take_additions` returns them).  timing: "answers"
    (at once, timed frames at their recorded delay) or "recorded".  options: of the comparison; they override
    those in the capture.  upstream: may be set until `serve`; so may `prepare`, which is called before the
    first connection to it.  tap: called with (client number, "c2s" or "s2c", bytes) for each live client
    frame and each send.

    Raises CaptureError where the capture cannot be read.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        listen: Address | None = None,
        unrecorded: Unrecorded = "error",
        timing: Literal["answers", "recorded"] = "answers",
        options: Given | None = None,
        upstream: Address | None = None,
        window: int = WINDOW,
        tap: Callable[[int, str, bytes], None] | None = None,
    ) -> None:
        if unrecorded in ("pass", "record") and upstream is None:
            raise ConfigError("unrecorded frames can be passed on only with an upstream")
        self.path = Path(path)
        self.options = MatchOptions(**combine(stored_options(path), options or {}))
        self.machine = ServerPlayback(
            events(path, self.options.filters),
            window=window,
            unrecorded=unrecorded,
            timing=timing,
            options=self.options,
        )
        self.address = listen or Address()
        self.connected = 0
        self.accepted = 0
        self.dialled = False
        self.last_activity = 0
        self.upstream = upstream
        self.prepare: Callable[[], Awaitable[None]] | None = None
        self._preparing = trio.Lock()
        self.unrecorded = unrecorded
        self._legs: dict[int, Leg] = {}
        self._full: set[int] = set()  # clients that have too many bytes to read
        self._scopes: dict[int, trio.CancelScope] = {}
        self._upstreams: dict[int, Upstream] = {}
        self._tap = tap
        self._deadline_changed = trio.Event()
        self._awaited_deadline: int | None = None  # the deadline that the timer waits for
        self._changed = trio.Event()
        self._nursery: trio.Nursery | None = None
        self._readers: Readers | None = None
        self.failure: NatsproxyError | None = None

    # -- state

    @property
    def url(self) -> str:
        """The URL for clients, once `serve` has started."""
        return f"nats://{self.address}"

    @property
    def mismatches(self) -> list[Mismatch]:
        """The client frames that were never recorded (the first thousand)."""
        return self.machine.mismatches

    def unused(self) -> list[RecordedExchange]:
        """Return the recorded client frames that no client sent."""
        return self.machine.unused()

    @property
    def unprepared(self) -> str:
        """A sentence about streams or consumers that the real server lacks, "" if none."""
        new_episodes = self.machine.new_episodes
        if new_episodes is None or not new_episodes.lacking:
            return ""
        return (
            f"the server at nats://{self.upstream} answered {new_episodes.lacking}: recorded frames were "
            "played, not sent to it; prepare it (--setup COMMAND, pytest: --nats-setup), or record anew"
        )

    def take_additions(self) -> list[Addition]:
        """Return, once, the unrecorded frames and their answers, for `cassette.merge`."""
        new_episodes = self.machine.new_episodes
        if new_episodes is None:
            return []
        additions, new_episodes.additions = new_episodes.additions, []
        return additions

    async def finished(self, idle: float | None = None) -> None:
        """Wait until everything was played and every client has left.

        idle: seconds without traffic after which Stalled is raised, which names the awaited frame.
        """
        began = now_ns()
        while not (self.machine.done and not self.connected):
            if self.failure is not None:
                raise self.failure
            quiet = (now_ns() - max(began, self.last_activity)) / 1e9
            if idle is not None and quiet >= idle:
                raise Stalled(f"no traffic for {idle:g} s while waiting for {self._waiting_for()}")
            with trio.move_on_after(float("inf") if idle is None else idle - quiet):
                await self._changed.wait()

    def _waiting_for(self) -> str:
        full, upstream = self._full_client(), self._full_upstream()
        if full is not None:
            return f"client {full} to read {self._legs[full].backlog} bytes"
        if upstream is not None:
            return f"the real server to take {upstream.backlog} bytes"
        frame = self.machine.waiting_for()
        return f"{self.connected} clients to leave" if frame == "nothing" else frame

    async def wait_for_clients(self, limit: float) -> None:
        """Wait until all clients have disconnected and every frame that they sent was played.

        limit: seconds to wait for clients that stay connected.
        """
        with trio.move_on_after(limit):
            for _ in range(_ROUNDS):  # clients that have come and gone may not be accepted yet
                await trio.lowlevel.checkpoint()
            while self.connected:
                await self._changed.wait()

    # -- serving

    async def serve(self, *, task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen and play until cancelled; the task starts with the address, once it listens.

        Raises ConfigError for an address that cannot be listened on.
        """
        try:
            listeners = await trio.open_tcp_listeners(self.address.port, host=self.address.host)
        except OSError as error:
            raise ConfigError(f"cannot listen on {self.address}: {error.strerror or error}") from None
        # Port 0 was chosen by the system, and clients need the number.
        self.address = Address(self.address.host, listeners[0].socket.getsockname()[1])
        readers = self._readers = Readers(self._is_full, self._room)
        with closing(readers):
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(readers.run)
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

    async def _connection(self, client_id: int, stream: trio.SocketStream) -> None:
        leg = Leg.from_stream(stream)
        self._legs[client_id] = leg
        self.connected += 1
        try:
            with trio.CancelScope() as scope:
                self._scopes[client_id] = scope
                try:
                    self._perform(self.machine.opened(client_id, (self.address.host, self.address.port)))
                    await self._read(client_id, leg)
                except LegLost:
                    pass  # the client is gone; `closed` below reports it to the machine
                except NatsproxyError as error:
                    self.failure = error
        finally:
            leg.close()  # in any case: serving may be cancelled, a user's matcher may raise
        del self._legs[client_id], self._scopes[client_id]
        self.connected -= 1
        upstream = self._upstreams.pop(client_id, None)
        if upstream is not None:
            upstream.close()
        try:
            self._perform(self.machine.closed(client_id, now_ns()))
        except NatsproxyError as error:
            self.failure = error
        self._notify()

    async def _read(self, client_id: int, leg: Leg) -> None:
        assert self._readers is not None
        scanner = Scanner(C2S, EVERYTHING, buffer_limit=UNLIMITED, hold=UNLIMITED)

        def received(data: bytes) -> bool:
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
                    self._tap(client_id, "c2s", frame.raw)
            self.last_activity = now_ns()
            self._perform(self.machine.received(client_id, frames, self.last_activity))
            # The frames before the malformed one were played: nats-server handles them too.
            if isinstance(wrong, Malformed):
                self.machine.malformed(client_id, wrong.reason)
                leg.write(encode.err("Unknown Protocol Operation"))
                return False
            return True

        await self._readers.read(leg, received)

    def _is_full(self) -> bool:
        """Return whether a client or a real server has more than `BACKLOG` unread bytes."""
        return bool(self._full or self._upstreams) and (
            self._full_client() is not None or self._full_upstream() is not None
        )

    async def _room(self) -> None:
        """Wait while a client reads too slowly: more input would cause more frames to it.

        It waits also for real servers that read more slowly than clients send.
        """
        while self._full and (full := self._full_client()) is not None:
            with suppress(LegLost):  # it is gone, and its own task ends
                await self._legs[full].flush()
        while (upstream := self._full_upstream()) is not None:
            await upstream.room()

    def _full_client(self) -> int | None:
        self._full = {one for one in self._full if one in self._legs and self._legs[one].backlog > BACKLOG}
        return next(iter(self._full), None)

    def _full_upstream(self) -> Upstream | None:
        return next((upstream for upstream in self._upstreams.values() if upstream.backlog > BACKLOG), None)

    # -- actions of the machine

    def _perform(self, actions: list[Action]) -> None:
        for client_id, data in join_sends(actions):
            leg = self._legs.get(client_id)
            if leg is None:
                continue
            if isinstance(data, ForwardToServer):
                self._forward(data)
            elif data is None:
                self._end_connection(client_id)
            else:
                self._send(client_id, leg, data)
        if self.machine.deadline != self._awaited_deadline:
            self._deadline_changed.set()

    def _send(self, client_id: int, leg: Leg, data: bytes) -> None:
        assert self._nursery is not None
        if self._tap is not None:
            self._tap(client_id, "s2c", data)
        # A client that is gone may have sent frames that are not read yet: its task reads on to the end.
        with suppress(LegLost):
            idle = not leg.backlog  # else a flush of it is running already
            leg.write(data)
            if idle and leg.backlog:
                self._nursery.start_soon(self._flush, leg)
            if leg.backlog > BACKLOG:
                self._full.add(client_id)

    async def _flush(self, leg: Leg) -> None:
        with suppress(LegLost):
            await leg.flush()

    def _end_connection(self, client_id: int) -> None:
        self._legs[client_id].finish()  # half-close first: frames already sent still arrive
        self._scopes[client_id].cancel()

    def _forward(self, action: ForwardToServer) -> None:
        assert self.upstream is not None
        assert self._nursery is not None
        client_id = action.client_id
        upstream = self._upstreams.get(client_id)
        if upstream is None:
            self.dialled = True
            barriers = [one for one in self._upstreams.values() if not one.passed.is_set()]
            behind = () if action.barrier else barriers
            upstream = Upstream(self.upstream, partial(self._answered, client_id), behind=behind)
            self._upstreams[client_id] = upstream
            self._nursery.start_soon(self._carry, client_id, upstream)
        if action.barrier:
            upstream.send_barrier(action.data)
        else:
            upstream.send(action.data)

    async def _carry(self, client_id: int, upstream: Upstream) -> None:
        try:
            await self._prepared()
            await upstream.run()
        except NatsproxyError as error:
            self.failure = error
            self._notify()
        finally:
            upstream.passed.set()  # nobody waits for it any longer
        scope = self._scopes.get(client_id)
        if scope is not None:  # the client is connected, the real server is not
            scope.cancel()

    async def _prepared(self) -> None:
        """Prepare the real server once; wait while another client does."""
        async with self._preparing:
            prepare, self.prepare = self.prepare, None
            if prepare is not None:
                await prepare()

    def _answered(self, client_id: int, frame: Frame) -> None:
        try:
            self.last_activity = now_ns()
            self._perform(self.machine.answered(client_id, frame, self.last_activity))
        except NatsproxyError as error:
            self.failure = error
            self._notify()

    def _notify(self) -> None:
        """Wake `finished`: a client disconnected, a timed frame was sent, or an error happened."""
        self.last_activity = now_ns()
        self._changed.set()
        self._changed = trio.Event()

    async def _timer(self) -> None:
        while True:
            self._deadline_changed = trio.Event()
            deadline = self._awaited_deadline = self.machine.deadline
            wait = float("inf") if deadline is None else max(0, deadline - now_ns()) / 1e9
            with trio.move_on_after(wait):
                await self._deadline_changed.wait()
                continue
            while self._is_full():
                await self._room()
            try:
                self._perform(self.machine.tick(now_ns()))
            except NatsproxyError as error:
                self.failure = error
            self._notify()
