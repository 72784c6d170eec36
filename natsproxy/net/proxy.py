"""The proxy: listeners, connections, recorder and rules, and the one surface that controls them.

CLI, tests and the testing API all use `Proxy`; nobody else composes one.  Two nurseries: accepting and
serving.  Draining cancels the first and gives the second a deadline.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import trio

from natsproxy.addresses import Address
from natsproxy.capture.format import records
from natsproxy.config.settings import ProxySettings, RecordSettings
from natsproxy.errors import ConfigError, place_of
from natsproxy.events import Closed, Event, Firing, Notice, Opened
from natsproxy.net.gate import Gate
from natsproxy.net.recorder import Recorder
from natsproxy.net.relay import Relay, now_ns
from natsproxy.net.stream import Leg, taken
from natsproxy.net.unheard import Unheard
from natsproxy.net.upstream import NoServer, Upstream
from natsproxy.rules.interface import Chain, EmptyChain
from natsproxy.session import close_reasons
from natsproxy.session.actions import Emit, End, SessionSettings
from natsproxy.session.budget import Budget
from natsproxy.session.session import Session
from natsproxy.wire.frames import NO_LIMIT

_STEP = 50  # connections that end at once when the proxy is drained, or more where half its time asks for it
_PAUSE = 0.1  # seconds between two steps
_NAMES_MAX = 10_000  # remembered connection names: names are hostile
_FIRING = tuple(name for name in Firing.__slots__ if name != "also")


class Proxy:
    """A running proxy.

    listen: the addresses it listens on, once `serve` has started.  seed: of all dice.  unwritten: what the
    disk did not take of the last capture that has ended.
    """

    def __init__(self, settings: ProxySettings, chain: Chain | None = None) -> None:
        self.settings = settings
        self.seed = settings.seed if settings.seed is not None else secrets.randbits(32)
        self.chain: Chain = chain or EmptyChain()
        self.listen: tuple[Address, ...] = ()
        self.relays: dict[int, Relay] = {}
        self.recorder: Recorder | None = None
        self.unwritten: str | None = None
        self.accepted = 0
        self._subscribers: list[Callable[[Event], None]] = []
        self._taps: list[Callable[[records.Item], None]] = []
        self._unheard: dict[int, Unheard] = {}
        self._names: Counter[str] = Counter()
        self._budget = Budget(settings.buffers)
        self._upstream = Upstream(settings, self.emit, now_ns)
        self._gate = Gate()
        self._accepting = trio.CancelScope()
        self._serving = trio.CancelScope()
        self._background: trio.Nursery | None = None
        self._recorded = trio.Event()
        self._quiet = trio.Event()
        self.done = trio.Event()

    # -- life

    async def serve(
        self, *, task_status: trio.TaskStatus[tuple[Address, ...]] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Listen and relay until `drain` or cancellation.

        Starts (in the sense of `nursery.start`) with the addresses once the listeners stand.  Raises
        ConfigError for an address that cannot be listened on.
        """
        async with trio.open_nursery() as background:
            self._background = background
            listeners = await self._listeners()
            try:
                if self.settings.record is not None:
                    self.start_recording(self.settings.record)
                task_status.started(self.listen)
                with self._serving:
                    async with trio.open_nursery() as connections:
                        with self._accepting:
                            async with trio.open_nursery() as accepting:
                                for listener in listeners:
                                    accepting.start_soon(self._accept, listener, connections)
                        for listener in listeners:
                            await listener.aclose()
            finally:
                with trio.CancelScope(shield=True):
                    for listener in listeners:
                        await listener.aclose()
                    await self.stop_recording()
                background.cancel_scope.cancel()
                self.done.set()

    async def drain(self, deadline: float | None = None) -> None:
        """Accept no more; end each connection once it is answered, all at the deadline (in seconds).

        Clients that can hear it are told first.  Connections end in steps: all clients at once would come
        back at once.
        """
        self._accepting.cancel()
        limit = self.settings.drain / 1e9 if deadline is None else deadline
        with trio.move_on_after(limit):
            relays = list(self.relays.values())
            for relay in relays:
                relay.lame_duck()
            step = max(_STEP, int(len(relays) * _PAUSE / (limit / 2 or 1)) + 1)
            for first in range(0, len(relays), step):
                if first:
                    await trio.sleep(_PAUSE)
                for relay in relays[first : first + step]:
                    relay.drain()
            while self.relays:
                self._quiet = trio.Event()
                await self._quiet.wait()
        for relay in list(self.relays.values()):
            relay.kill(close_reasons.DRAINED, "the drain deadline passed")
        while self.relays:
            self._quiet = trio.Event()
            await self._quiet.wait()
        self._serving.cancel()

    async def _listeners(self) -> list[trio.SocketListener]:
        listeners: list[trio.SocketListener] = []
        for address in self.settings.listen:
            try:
                listeners += await trio.open_tcp_listeners(address.port, host=address.host or None)
            except OSError as error:
                for listener in listeners:
                    await listener.aclose()
                reason = error.strerror or str(error)
                raise ConfigError(f"cannot listen on {address}: {reason}") from None
        self.listen = tuple(Address(*listener.socket.getsockname()[:2]) for listener in listeners)
        return listeners

    # -- connections

    async def _accept(self, listener: trio.SocketListener, connections: trio.Nursery) -> None:
        while True:
            try:
                stream = await listener.accept()
            except OSError as error:  # out of descriptors: wait for some to come back
                self.emit(Notice(now_ns(), None, "error", f"cannot accept connections: {error.strerror}"))
                await trio.sleep(0.1)
                continue
            self.accepted += 1
            connections.start_soon(self._connection, Leg(taken(stream)), self.accepted)

    async def _connection(self, client: Leg, ordinal: int) -> None:
        conn, opened = ordinal, now_ns()
        peer, local = client.peer, client.local
        if (barred := self._gate.barred()) is not None:
            client.close()
            self.emit(Closed(opened, conn, *_unrecordable(barred)))
            return
        chain, session = self.chain, self._session(conn, ordinal, peer, local, opened)
        end = End(close_reasons.KILLED)
        upstream = str(self.settings.upstream)
        record = self._unheard[conn] = Unheard(session, self.record)
        try:
            opening = session.opening
            if opening in ("refuse", "close"):
                for action in session.take_actions():
                    if isinstance(action, Emit):
                        self.emit(action.event)
                end = End(close_reasons.RULE, f"a rule says: {opening}", opening == "refuse")
                client.reset() if opening == "refuse" else client.close()
                return
            server, greeting = await self._upstream.dial()
            if (barred := self._gate.barred()) is not None:
                server.close()
                end = End(*_unrecordable(barred))
                return
            self.emit(Opened(opened, conn, peer, upstream, str(Address(*local)), ordinal))
            record(records.Open(conn, opened, {"client": peer, "upstream": upstream, "ordinal": ordinal}))
            relay = Relay(session, client, server, self.emit, record, self._most, self._gate)
            self.relays[conn] = relay
            if self.chain is not chain:  # it was swapped meanwhile
                relay.swap(self.chain)
            end = await relay.run(greeting)
        except NoServer as error:
            end = End(close_reasons.UPSTREAM_DOWN, str(error))
        except (
            Exception
        ) as error:  # a bug of ours met by one peer's bytes must not end everybody's connection
            end = End(close_reasons.INTERNAL, f"natsproxy failed, please report it: {place_of(error)}")
            self.emit(Notice(now_ns(), conn, "error", end.detail))
        finally:
            client.close()
            self._closed(conn, session, end, opened)

    def _session(self, conn: int, ordinal: int, peer: str, local: tuple[str, int], now: int) -> Session:
        s = self.settings
        settings = SessionSettings(
            max_control_line=s.max_control_line,
            rule_buffer=s.rule_buffer,
            advertise=s.advertise,
            self_host=local[0],
            self_port=local[1],
            unparsed=s.unparsed,
            queue_bytes=s.queue_bytes,
            auth_timeout=s.auth_timeout,
            record_frame_max=s.record.frame_max if s.record else 8 << 20,
        )
        return Session(
            settings,
            self.chain,
            conn=conn,
            ordinal=ordinal,
            address=peer,
            record=self._recording,
            now=now,
            budget=self._budget,
            key_of=self._key_of,
        )

    def _key_of(self, name: str, ordinal: int) -> str:
        if not name or (len(self._names) >= _NAMES_MAX and name not in self._names):
            return f"#{ordinal}"
        self._names[name] += 1
        return f"{name}/{self._names[name]}"

    def _closed(self, conn: int, session: Session, end: End, opened: int) -> None:
        now = now_ns()
        self.relays.pop(conn, None)
        counts = session.counts()
        close = records.Close(conn, now, end.cause, {**counts, "detail": end.detail})
        self._unheard.pop(conn).close(close, end.cause)
        client = session.connect
        self.emit(
            Closed(
                now,
                conn,
                end.cause,
                end.detail,
                duration=now - opened,
                error=session.server_error,
                name=client.name,
                user=client.user or client.nkey,
                **counts,
            )
        )
        self._quiet.set()

    # -- events and records

    def subscribe(self, subscriber: Callable[[Event], None]) -> Callable[[], None]:
        """Call `subscriber` for each event; return a function that ends it."""
        self._subscribers.append(subscriber)
        return lambda: self._subscribers.remove(subscriber)

    def tap(self, tap: Callable[[records.Item], None]) -> Callable[[], None]:
        """Call `tap` for each recorded item, capture or not (connections opened from now on)."""
        self._taps.append(tap)
        return lambda: self._taps.remove(tap)

    def emit(self, event: Event) -> None:
        """Tell the subscribers; a firing also goes into the capture."""
        if self._recording and isinstance(event, Firing):
            for firing in event.each():
                info: dict[str, Any] = {name: getattr(firing, name) for name in _FIRING}
                self.record(records.Firing(event.conn, event.t, info))
        for subscriber in tuple(self._subscribers):
            subscriber(event)

    def record(self, item: records.Item) -> None:
        """Give an item to the recorder and the taps."""
        if self.recorder is not None:
            self.recorder.put(item)
        for tap in tuple(self._taps):
            tap(item)

    def _most(self) -> int:
        """Return how many frames may go into a record."""
        return NO_LIMIT if self.recorder is None else self.recorder.most

    @property
    def _recording(self) -> bool:
        return self.recorder is not None or bool(self._taps)

    # -- control

    def swap(self, chain: Chain) -> None:
        """Put another chain in force on all connections, between frames.

        Raises ConfigError where the settings are a way around it; then nothing changes.
        """
        if chain.guards and self.settings.unparsed == "pass":
            raise ConfigError('unparsed = "pass" is a way around rules that deny or rewrite: make it "close"')
        self.chain = chain
        if self.recorder is not None:
            self.recorder.put(records.Note(now_ns(), {"rules": chain.text}))
        for relay in list(self.relays.values()):
            relay.swap(chain)

    async def barrier(self) -> None:
        """Wait until all that has reached our sockets is handled, and the server has answered a fence.

        Connections that end meanwhile count as answered.
        """
        await trio.lowlevel.checkpoint()
        async with trio.open_nursery() as nursery:
            for relay in list(self.relays.values()):
                nursery.start_soon(relay.barrier)

    def start_recording(self, settings: RecordSettings, rules: str | None = None) -> None:
        """Begin a capture; connections that are open get a preamble.

        Raises CaptureError if it cannot be created.
        """
        if self.recorder is not None:
            raise ConfigError("a capture is already being recorded: stop it first")
        assert self._background is not None
        self.recorder = Recorder(
            settings,
            seed=self.seed,
            rules=rules or self.chain.text or None,
            emit=self.emit,
            preambles=self._preambles,
            gate=self._gate,
            end_all=self._end_all,
        )
        self._recorded = trio.Event()
        for unheard in self._unheard.values():
            unheard.forget()
        for preamble in self._preambles():
            self.recorder.put(preamble)
        self._background.start_soon(self._run_recorder, self.recorder)
        for relay in self.relays.values():
            relay.session.record(True)

    async def _run_recorder(self, recorder: Recorder) -> None:
        # Shielded: however the proxy ends, what was recorded is written and indexed first (`stop_recording`).
        try:
            with trio.CancelScope(shield=True):
                await recorder.run()
        finally:
            self._recorded.set()

    async def stop_recording(self) -> None:
        """End the capture; returns when its index is written."""
        recorder, self.recorder = self.recorder, None
        if recorder is None:
            return
        for relay in self.relays.values():
            relay.session.record(bool(self._taps))
        recorder.close()
        await self._recorded.wait()
        self.unwritten = recorder.failure

    def rotate(self) -> None:
        """Begin a new segment of the capture."""
        if self.recorder is not None:
            self.recorder.rotate()

    def _end_all(self, reason: str) -> None:
        for relay in list(self.relays.values()):
            relay.kill(*_unrecordable(reason))

    def _preambles(self) -> Iterator[records.Preamble]:
        for conn, relay in self.relays.items():
            if self._unheard[conn].waiting:
                continue
            yield records.Preamble(conn, now_ns(), relay.session.snapshot())


def _unrecordable(reason: str) -> tuple[str, str]:
    """Return cause and detail of the end of a connection whose traffic would not be in the capture."""
    return close_reasons.RECORDER, f"it cannot be recorded: {reason}"
