"""The proxy: the one surface that controls listeners, connections, rules and captures.

The commands, the testing API and the tests all use `Proxy`; nobody else composes one.

Two nurseries: one accepts, one serves the connections.  A drain cancels the first and gives the second a
deadline.  A third one, around both, runs the recorder, which outlives the connections.
"""

from __future__ import annotations

import secrets
import socket
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import trio

from natsproxy import close_reasons
from natsproxy.addresses import Address
from natsproxy.capture.format import records
from natsproxy.config.endpoints import Listener
from natsproxy.config.recording import RecordSettings
from natsproxy.config.settings import ProxySettings
from natsproxy.errors import ConfigError
from natsproxy.events import PASSED, Event, Firing, Notice
from natsproxy.net.arrivals import Arrivals, Take
from natsproxy.net.clock import now_ns, unix_ns
from natsproxy.net.connections import Connections, Layers
from natsproxy.net.leg import Leg
from natsproxy.net.listener import accept, close, local_address, open_listeners
from natsproxy.net.live_blocks import LiveBlocks, Look
from natsproxy.net.plane import check_threads, open_plane
from natsproxy.net.plane_interface import Plane
from natsproxy.net.recorder import Recorder
from natsproxy.net.recording import ProxyRecording
from natsproxy.net.relay import Relay
from natsproxy.net.rule_book import RuleBook
from natsproxy.net.tcp import INHERITED
from natsproxy.net.tls_contexts import TlsContexts
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.interface import Chain, EmptyChain
from natsproxy.rules.model.rule import Rule
from natsproxy.session.session import Session
from natsproxy.session.values import Identity, SessionSettings
from natsproxy.units import MIB

_MOST_NAMES: Final = 10_000  # names of rules whose firings are counted
_DRAIN_STEP: Final = 50  # connections that a drain ends at once, or more where half its time needs more
_DRAIN_PAUSE: Final = 0.1  # seconds between two steps
_DRAIN_LOOK: Final = 0.02  # seconds between two looks at the requests without an answer


class Proxy:
    """A running proxy.

    sockets: those that listen already on addresses of its listeners.
    listen, schemes: of its listeners, once `serve` has started.  seed: of all randomness.  relays: the
    open connections by their numbers.  accepted: the number of connections so far.  done: set at its end.
    rules: those in force and those that are not now, as a book.  arrivals: its new clients.  connections:
    serves them; both for their facts.  threads: the number that carry traffic, once it serves.
    fired: how often rules have acted, or would have in shadow, by their names.
    """

    def __init__(
        self, settings: ProxySettings, chain: Chain | None = None, sockets: Sequence[socket.socket] = ()
    ) -> None:
        check_threads(settings.threads)
        self.settings = settings
        self._sockets = sockets
        # Clients that connected before they came to us have inherited nothing.
        self._inherited = INHERITED and not sockets
        self.seed = settings.seed if settings.seed is not None else secrets.randbits(32)
        self.listen: tuple[Address, ...] = ()
        self.schemes: tuple[str, ...] = ()
        self.relays: dict[int, Relay] = {}
        self.accepted = 0
        self.threads = 1
        self.done = trio.Event()
        self._subscribers: list[Callable[[Event], None]] = []
        self.fired: Counter[str] = Counter()
        self._contexts = TlsContexts(settings)
        self._recording = ProxyRecording(self.relays, self.seed, self.emit)
        self.arrivals = Arrivals(self.emit, self._gone, now_ns)
        self.connections = Connections(
            settings,
            chain or EmptyChain(),
            self.seed,
            self.relays,
            self._recording,
            self._contexts,
            self.arrivals,
            self.emit,
        )
        self.rules = RuleBook(
            self._compile, self.swap, self._fault_ended, chain.rules if isinstance(chain, RuleChain) else ()
        )
        self._accepting = trio.CancelScope()
        self._serving = trio.CancelScope()
        self._background: trio.Nursery | None = None

    # -- its life

    async def serve(
        self, *, task_status: trio.TaskStatus[tuple[Address, ...]] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Listen and relay until `drain` or cancellation.

        Starts (in the sense of `nursery.start`) with the addresses once the listeners stand.  Raises
        ConfigError for an address that cannot be listened on.
        """
        async with trio.open_nursery() as background:
            self._background = background
            background.start_soon(self._open_plane().run)
            background.start_soon(self.connections.watch)
            background.start_soon(self.rules.run)
            listeners = await open_listeners(
                self.settings.listen, self._sockets, keepalive=self.settings.keepalive and self._inherited
            )
            self.listen = tuple(local_address(opened) for opened, _ in listeners)
            self.schemes = tuple(listener.scheme for _, listener in listeners)
            self.connections.listen(self.listen, self.schemes)
            self.chain.begin(now_ns(), unix_ns)
            try:
                if self.settings.record is not None:
                    self.start_recording(self.settings.record)
                task_status.started(self.listen)
                with self._serving:
                    async with trio.open_nursery() as serving:
                        serving.start_soon(self.connections.run)
                        with self._accepting:
                            async with trio.open_nursery() as accepting:
                                accepting.start_soon(self.arrivals.run)
                                for opened, listener in listeners:
                                    take = self._taking(listener)
                                    shortage = self.connections.shortage
                                    accepting.start_soon(accept, opened, self.arrivals, take, shortage)
                        # Closed before the connections end: a client that comes back is refused at once.
                        for opened, _ in listeners:
                            close(opened)
                        self.arrivals.close()
            finally:
                for opened, _ in listeners:
                    close(opened)
                self.arrivals.close()
                with trio.CancelScope(shield=True):
                    await self.stop_recording()
                background.cancel_scope.cancel()
                self.done.set()

    def _open_plane(self) -> Plane:
        plane = open_plane(
            self._recording.admission,
            self.connections.budget,
            threads=self.settings.threads,
            record_room=self.settings.buffers // 4,
            record_most=min(MIB, self.settings.record.frame_max if self.settings.record else MIB),
        )
        self._recording.plane = plane
        self.connections.ride(plane)
        self.threads = plane.threads
        return plane

    def _taking(self, listener: Listener) -> Take:
        def take(client: socket.socket) -> tuple[int, Callable[[], None]]:
            self.accepted += 1
            self.connections.open += 1
            leg = Leg(client, keepalive=self.settings.keepalive and not self._inherited)
            return self.accepted, partial(self.connections.serve, leg, listener, self.accepted)

        return take

    def _gone(self, peer: str) -> None:
        self.accepted += 1
        self.connections.gone(peer, self.accepted)

    async def drain(self, deadline: float | None = None, *, answers: bool = True) -> None:
        """Stop accepting, and end each connection once it is answered, or at the deadline (seconds).

        Clients that understand lame duck mode get that INFO first.  answers: requests in flight get theirs.
        For the first half of the time no connection ends while one is in flight, because the client that has
        to answer may be behind this proxy too.  Connections end in steps, so that clients do not all
        reconnect to one server at once.
        """
        self._accepting.cancel()
        self.connections.draining = True
        limit = self.settings.drain / 1e9 if deadline is None else deadline
        with trio.move_on_after(limit):
            relays = list(self.relays.values())
            for relay in relays:
                relay.control(Session.lame_duck)
            if answers:
                with trio.move_on_after(limit / 2):
                    await self._answered(relays)
            step = max(_DRAIN_STEP, int(len(relays) * _DRAIN_PAUSE / (limit / 2 or 1)) + 1)
            for first in range(0, len(relays), step):
                if first:
                    await trio.sleep(_DRAIN_PAUSE)
                for relay in relays[first : first + step]:
                    relay.control(partial(Session.drain, answers=answers))
            await self.connections.wait_closed()
        for relay in list(self.relays.values()):
            relay.kill(close_reasons.DRAINED, "the drain deadline passed")
        await self.connections.wait_closed()
        self._serving.cancel()

    def start_drain(self, deadline: float | None = None) -> None:
        """Begin `drain`, and return."""
        assert self._background is not None
        self._background.start_soon(self.drain, deadline)

    async def _answered(self, relays: list[Relay]) -> None:
        """Wait for the answers to the requests that are in flight now.

        Later requests do not count: among many busy clients one is always waiting for something.
        """
        in_flight = {relay: relay.requests() or frozenset() for relay in relays}
        while any(in_flight.values()):  # polled: an event for each answer would slow the traffic down
            await trio.sleep(_DRAIN_LOOK)
            in_flight = {
                relay: left & (relay.requests() or frozenset()) for relay, left in in_flight.items() if left
            }

    # -- the upstream

    @property
    def unready(self) -> str | None:
        """The reason why clients are not served now; None where the upstream has answered with its INFO."""
        if not self.listen or self._accepting.cancel_called:
            return "no connections are accepted"
        return self.connections.upstreams.unready

    async def try_upstream(self) -> None:
        """Dial the upstream as for a client, and close the connection; `unready` has the outcome."""
        await self.connections.upstreams.probe()

    # -- events

    def subscribe(self, subscriber: Callable[[Event], None]) -> Callable[[], None]:
        """Call `subscriber` for each event; return a function that ends it."""
        self._subscribers.append(subscriber)
        return lambda: self._subscribers.remove(subscriber)

    def emit(self, event: Event) -> None:
        """Give an event to the subscribers; a firing also goes into the capture."""
        if isinstance(event, Firing):
            self._recording.record_firing(event)
            # Bounded: rules, and so names, come and go by the admin API.
            if event.action != PASSED and (event.rule in self.fired or len(self.fired) < _MOST_NAMES):
                self.fired[event.rule] += event.count
        for subscriber in tuple(self._subscribers):
            subscriber(event)

    # -- rules

    @property
    def chain(self) -> Chain:
        """The rules in force."""
        return self.connections.chain

    def unfired(self) -> list[Rule]:
        """Return the enabled rules that have never acted."""
        return [
            one.rule for one in self.rules.entries.values() if one.enabled and not self.fired[one.rule.name]
        ]

    def swap(self, chain: Chain) -> None:
        """Put another chain in force on all connections, between frames; `rules` does it for its changes.

        A few connections get it at once, the others one after the other (`net/chain_swap.py`):
        `rules_in_force` waits for them.
        Raises ConfigError where the settings are a way around it; then nothing changes.
        """
        check_bypass(chain, self.settings.session)
        self._recording.record_rules(chain.text)
        if self._background is not None:  # else `serve` puts it in force
            chain.begin(now_ns(), unix_ns)
        self.connections.swap(chain)

    def _compile(self, rules: tuple[Rule, ...]) -> RuleChain:
        """Return the enabled rules of the book as a chain; those that were before keep their states."""
        before = self.chain if isinstance(self.chain, RuleChain) else None
        chain = RuleChain(rules, seed=self.seed, previous=before)
        chain.compile(relay.session for relay in list(self.relays.values()))
        return chain

    async def rules_in_force(self) -> None:
        """Wait until the last change of the rules is in force on all connections."""
        await self.connections.swapped()

    def _fault_ended(self, name: str) -> None:
        self.emit(Notice(now_ns(), None, "info", "fault expired", {"rule": name}))

    async def barrier(self) -> None:
        """Wait until we have handled all bytes in our sockets, and the server has answered a fence.

        A connection that ends meanwhile counts as answered.
        """
        await trio.lowlevel.checkpoint()
        async with trio.open_nursery() as nursery:
            for relay in list(self.relays.values()):
                nursery.start_soon(relay.barrier)

    def load_certificates(self) -> bool:
        """Read the files of TLS anew, for new connections; return whether there are any.

        Raises ConfigError for a file that cannot be used; then nothing changes.
        """
        if self._contexts.configured:
            self._contexts.load()
        return self._contexts.configured

    @property
    def certificate_expiries(self) -> Mapping[str, int]:
        """When the certificates that the proxy shows expire (Unix seconds), by their settings."""
        return self._contexts.expiries

    # -- connections

    def suspend(self, conn: int, on: bool = True) -> None:
        """Drop the messages of a connection, and keep it alive: its client does not reconnect.

        on: False to let them pass again.  Raises KeyError where there is no such connection.
        """
        self.relays[conn].control(partial(Session.suspend, on=on))

    def pause(self, conn: int, lasts: int | None) -> None:
        """Read nothing from either side of a connection for a time (ns); None: until a call with 0.

        Raises KeyError where there is no such connection.
        """
        self.relays[conn].control(partial(Session.pause, lasts=lasts))

    def send_held(self) -> None:
        """Send the frames that rules hold back; those of rules in force go on to be held."""
        for relay in list(self.relays.values()):
            relay.control(Session.send_held)

    async def ask_client(self, conn: int) -> bool:
        """Send the client of a connection a PING and wait for its PONG, until cancelled.

        Return False if the connection ends before it.  The server notices nothing.
        Raises KeyError where there is no such connection.
        """
        return await self.relays[conn].ask_client()

    def put_over_legs(self, layers: Layers) -> None:
        """Put layers over the legs of later connections, which the plane in Python then serves."""
        self.connections.layers = layers

    def load_identity(self, identity: Identity | None, users: Mapping[str, bytes]) -> None:
        """Use another login at servers for new connections, and another table for later logins of clients."""
        self.connections.load_identity(identity, users)

    # -- captures

    @property
    def recorder(self) -> Recorder | None:
        """The recorder of the capture that is being made."""
        return self._recording.recorder

    @property
    def recorded_frames(self) -> int:
        """The number of frames in the captures so far, but for the last moment's."""
        return self._recording.frames

    @property
    def unwritten(self) -> str | None:
        """The reason why the last capture that has ended is not whole, as a sentence; None where it is."""
        return self._recording.unwritten

    def tap(self, tap: Callable[[records.Item], None]) -> Callable[[], None]:
        """Call `tap` for each record of later connections, capture or not; return a function that ends it."""
        return self._recording.tap(tap)

    async def look_on(self, live: LiveBlocks | None) -> None:
        """Sample the traffic into these blocks, in place of others; None: stop."""
        await self._recording.look_on(live)

    def look(self) -> Look:
        """Return the traffic since the last look, while it is sampled (see `look_on`)."""
        return self._recording.look()

    def start_recording(self, settings: RecordSettings, rules: str | None = None) -> None:
        """Begin a capture; connections that are open get a preamble.

        rules: the text that the capture has as its rules, if not the chain's.  Raises CaptureError if the
        file cannot be created, and ConfigError during another capture.
        """
        assert self._background is not None
        listen = " ".join(map(str, self.listen))
        self._recording.start(
            settings,
            rules or self.chain.text or None,
            self._background,
            owner=f"{socket.gethostname()} {listen}",
        )

    async def stop_recording(self) -> None:
        """End the capture; return when its index is written."""
        await self._recording.stop()

    def rotate(self) -> None:
        """Begin a new segment of the capture."""
        self._recording.rotate()

    def mark(self, text: str) -> None:
        """Write a note into the capture, where one is being made."""
        self._recording.mark(text)


def check_bypass(chain: Chain, settings: SessionSettings) -> None:
    """Raise ConfigError where the settings are a way around the rules."""
    if chain.guards and settings.unparsed == "pass":
        raise ConfigError('unparsed = "pass" is a way around rules that deny or rewrite: make it "close"')
