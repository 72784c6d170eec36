"""The upstream: the servers of a proxy, and the choice of one for each connection.

The servers are those of the settings and, where the operator wants that, those that the cluster names in its
INFO.  `endpoints.py` looks up their addresses, `health.py` puts those in order, `dial.py` dials until one
serves.  Where none does, the client is held for the time of `upstream_hold`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import inf
from random import Random
from typing import Final, NamedTuple

import trio

from natsproxy.addresses import Address, is_ip, parse_address
from natsproxy.bounded import BoundedDict
from natsproxy.config.endpoints import Server
from natsproxy.config.settings import ProxySettings
from natsproxy.events import Event
from natsproxy.net.dial import GOOD, LAME, REFUSED, SLOW, BegunDial, Dialer, Dialled, NoServer, Race, worth
from natsproxy.net.endpoints import Endpoint, Resolver
from natsproxy.net.health import Health
from natsproxy.net.leg import Leg, LegLost
from natsproxy.net.opening import ClientFacts
from natsproxy.net.shortage import OwnShortage, Shortage
from natsproxy.net.tls_contexts import TlsContexts
from natsproxy.protocol.errors import MAX_CONNECTIONS, classify
from natsproxy.protocol.info import Info, parse_greeting

_RETRY: Final = 0.05  # seconds between attempts while a client is held
_AT_THAT_PACE: Final = 10  # clients that are held; with more of them each retries less often
_AT_ONCE: Final = 0.25  # seconds in which a server that refuses our certificate ends the connection
_OFTEN: Final = 2  # a server that is slow once may just be busy
_LAME: Final = "is in lame duck mode"
_PROBES: Final = 16  # at once
_MOST_LEARNED: Final = 256  # servers that INFO names: more are not a cluster


def _nothing() -> None:
    return None


async def _at_once() -> None:
    return None


class ServerState(NamedTuple):
    """The state of an endpoint that was dialled.  up: it has not failed since it last served.

    name: as in log lines.  connected, failed: attempts by their outcome.  expiry: of its certificate (Unix
    seconds), None where it has shown none.
    """

    name: str
    up: bool
    connected: int
    failed: int
    expiry: int | None


class ClientLeft(Exception):
    """The client left before it had a server."""


class Upstreams:
    """The servers of a proxy.  clock: in nanoseconds, for events.  seed: of the random order.

    listening: the addresses of our own listeners.
    unready: the reason why there was no server at the last attempt, or why each ends connections behind its
    TLS handshake; None after an attempt that had an INFO.
    info: the last INFO.  dials: attempts by their outcome, "connected" or "failed".
    """

    def __init__(
        self,
        settings: ProxySettings,
        contexts: TlsContexts,
        emit: Callable[[Event], None],
        clock: Callable[[], int],
        seed: int,
        shortage: Shortage,
    ) -> None:
        self.listening: tuple[Address, ...] = ()
        self.unready: str | None = "no server has answered yet"
        self.info = Info()
        self.dials = Counter(connected=0, failed=0)
        self._settings = settings
        self._servers = settings.upstream  # and those that INFOs have named
        self._endpoints: list[Endpoint] = []  # of the last attempt that had a server
        self._held = 0  # clients
        self._found = trio.Event()  # a server, while clients are held
        self._dials: dict[Endpoint, Counter[str]] = {}  # as `dials`, of those that the last look-up had
        self._resolver = Resolver(settings.connect_timeout / 1e9)
        self._dialer = Dialer(settings, contexts, shortage)
        self._quick: BoundedDict[Endpoint, None] = BoundedDict()  # see `Race`
        self._health = Health(emit, clock, Random(seed) if settings.upstream_randomize else None)  # noqa: S311

    async def dial(
        self,
        client: ClientFacts,
        leg: Leg | None,
        held: Callable[[], None] = _nothing,
        turn: Callable[[], Awaitable[None]] = _at_once,
        *,
        begun: BegunDial | None = None,
        within: int | None = None,
    ) -> Dialled:
        """Return a connection to a server; try again for `within` ns, else for the time of `upstream_hold`.

        leg: of the client, which may leave meanwhile; None where that does not matter.  held: called when it
        has to wait for that.  turn: awaited before each further attempt.  begun: the first dial, to be gone
        on with.
        Raises NoServer, OwnShortage and ClientLeft.
        """
        longest = self._settings.upstream_hold if within is None else within
        deadline = trio.current_time() + longest / 1e9
        while True:
            # A client that reconnected several times gets one server, not several.
            if leg is not None and leg.has_left():
                raise ClientLeft
            try:
                dialled, reasons = await self._attempt(client, begun)
            except OwnShortage:
                if trio.current_time() >= deadline:
                    raise
            else:
                over = trio.current_time() >= deadline
                if reasons:
                    self._health.down(reasons, turned_away=over or dialled is not None)
                if dialled is not None:
                    if leg is not None and leg.has_left():
                        dialled.leg.close()
                        raise ClientLeft
                    return dialled
                if over:
                    raise NoServer("; ".join(reasons))
            held()
            await self._hold(deadline)
            await turn()

    async def _hold(self, deadline: float) -> None:
        """Wait for the next attempt of a client that is held, or until another one finds a server."""
        self._held += 1
        pause = _RETRY * (1 + self._held / _AT_THAT_PACE)
        try:
            with trio.move_on_at(min(trio.current_time() + pause, deadline)):
                await self._found.wait()
        finally:
            self._held -= 1

    def _has_found(self) -> None:
        """Let the clients that are held try again."""
        if self._held:
            self._found.set()
            self._found = trio.Event()

    async def probe(self) -> None:
        """Dial each server once, for no client, and close the connections; this updates `unready`."""
        endpoints, unresolved = await self._look_up()
        race, slots = Race(partial(self._dialer.dial, client=None), self._quick), trio.Semaphore(_PROBES)
        served: list[Endpoint] = []
        async with trio.open_nursery() as nursery:
            for endpoint in endpoints:
                nursery.start_soon(self._probe_one, endpoint, slots, race, served)
        for endpoint in race.failures:
            self._health.failed(endpoint, asked=True)
            self._count(endpoint, "failed")
        if served:
            self._endpoints = endpoints
            self._report(endpoints, unresolved, race)
        elif race.shortage is not None:  # it says nothing about the servers
            self.unready = race.shortage
        else:
            reasons = [*unresolved, *race.failures.values()]
            self.unready = "; ".join(reasons)
            self._health.down(reasons, turned_away=False)

    async def _probe_one(
        self, endpoint: Endpoint, slots: trio.Semaphore, race: Race, served: list[Endpoint]
    ) -> None:
        """Dial a server for no client.  race: takes why it cannot be used.  served: those that can be."""
        async with slots:
            try:
                dialled = await self._dialer.dial(endpoint, inf, None)
            except NoServer as error:
                race.failures[endpoint] = str(error)
                return
            except OwnShortage as error:
                race.shortage = str(error)
                return
            if dialled is None:  # never happens without a time limit
                return
            try:
                kind, why = worth(dialled)
                why = why or await _end_after_tls(dialled)
            finally:
                dialled.leg.close()
        if kind == REFUSED or why:
            race.failures[endpoint] = why
            return
        served.append(endpoint)
        self._count(endpoint, "connected")
        self.info = parse_greeting(dialled.greeting) or self.info
        if kind == LAME:
            self._health.takes_no_more(endpoint, _LAME)
        self._serves(endpoint)
        self._has_found()

    async def _look_up(self) -> tuple[list[Endpoint], list[str]]:
        """Return the endpoints of the servers, and why some cannot be dialled."""
        endpoints, unresolved = await self._resolver.look_up(self._servers)
        unresolved += self._without_own(endpoints)
        if len(self._dials) > len(endpoints):
            self._dials = {one: self._dials[one] for one in endpoints if one in self._dials}
        return endpoints, unresolved

    def _without_own(self, endpoints: list[Endpoint]) -> list[str]:
        """Take out those that lead back to us, as a name may, or what a cluster advertises; return why.

        Each connection to one would make another one.
        """
        own = [one for one in endpoints if one.leads_to(self.listening)]
        for endpoint in own:
            endpoints.remove(endpoint)
        return [f"{endpoint} is natsproxy's own address: name the server" for endpoint in own]

    def _count(self, endpoint: Endpoint, outcome: str) -> None:
        self.dials[outcome] += 1
        if (dials := self._dials.get(endpoint)) is None:
            dials = self._dials[endpoint] = Counter()
        dials[outcome] += 1

    @property
    def servers(self) -> Iterator[ServerState]:
        """The states of the servers that were dialled."""
        for endpoint, dials in self._dials.items():
            yield ServerState(
                str(endpoint),
                not self._health.fails(endpoint),
                dials["connected"],
                dials["failed"],
                self._dialer.expiries.get(endpoint),
            )

    async def _attempt(
        self, client: ClientFacts, begun: BegunDial | None
    ) -> tuple[Dialled | None, list[str]]:
        """Try all servers once.  Return the best one that greets, and the reasons why none can be used.

        With reasons, a server that greets is one that tells the client why.  Raises OwnShortage.
        """
        endpoints, unresolved = await self._look_up()
        race = Race(partial(self._dialer.dial, client=client, begun=begun), self._quick)
        ordered = self._health.in_order(endpoints)
        if begun is not None and begun.leg is not None and begun.endpoint in ordered:
            ordered.sort(key=begun.endpoint.__ne__)
        dialled = await race.run(ordered)
        for endpoint in (*race.failures, *race.slow):
            self._health.failed(endpoint)
        for endpoint in race.failures:
            self._count(endpoint, "failed")
        for endpoint in race.lame:
            self._health.takes_no_more(endpoint, _LAME)
        if dialled is None and race.shortage is not None:  # it says nothing about the servers
            self.unready = race.shortage
            raise OwnShortage(race.shortage)
        if dialled is None or race.refused:
            reasons = [*unresolved, *race.failures.values()]
            self.unready = "; ".join(reasons)
            return dialled, reasons
        self._greeted(dialled, endpoints)
        if dialled.unheard is None:
            self._judged(dialled.endpoint, "")
        else:
            dialled.unheard.on_word = partial(self._judged, dialled.endpoint)
            if not self._health.fails(dialled.endpoint):
                self.unready = None
        self._report(endpoints, unresolved, race)
        return dialled, []

    def _greeted(self, dialled: Dialled, endpoints: list[Endpoint]) -> None:
        self._count(dialled.endpoint, "connected")
        self.info = parse_greeting(dialled.greeting) or self.info
        self._has_found()
        self._endpoints = endpoints

    def quick(self) -> Endpoint | None:
        """Return the endpoint to dial next if it should greet at once, in plain text; None for none."""
        endpoints = self._resolver.known(self._servers)
        if (
            not endpoints
            or self._settings.upstream_proxy_protocol is not None
            or self._without_own(endpoints)
        ):
            return None
        first, *others = self._health.in_order(endpoints)
        if (others and first not in self._quick) or self._health.fails(first):
            return None
        return None if first.server.tls or first.server.websocket else first

    def greeted(self, dial: BegunDial) -> Dialled | None:
        """Return what came of a dial of `quick`; None where `dial` is to go on with it."""
        if dial.leg is None:
            return None
        dialled = Dialled(dial.endpoint, dial.leg, dial.said)
        info = parse_greeting(dial.said)
        if info is None or info.tls_required or worth(dialled)[0] != GOOD:
            return None
        dial.take()
        endpoints = self._resolver.known(self._servers) or [dial.endpoint]
        self._greeted(dialled, endpoints)
        self._serves(dial.endpoint)
        self._health.unresolved(())
        return dialled

    def _judged(self, endpoint: Endpoint, refusal: str) -> None:
        """Note that a server serves, or the reason why it ended a connection after its TLS handshake."""
        if not refusal:
            self._serves(endpoint)
            return
        reason = f"{endpoint}: {refusal}"
        self._health.failed(endpoint)
        if all(map(self._health.fails, self._endpoints)):
            self.unready = reason
            self._health.down([reason], turned_away=False)
        else:
            self._health.report(endpoint, reason, "warning")

    def _serves(self, endpoint: Endpoint) -> None:
        self.unready = None
        self._health.up()
        self._health.answered(endpoint)

    def _report(self, endpoints: list[Endpoint], unresolved: list[str], race: Race) -> None:
        """Report the servers that could not be used while another one can."""
        health = self._health
        health.unresolved(unresolved)
        addresses = Counter(endpoint.server for endpoint in endpoints)
        for endpoint, reason in race.failures.items():
            # A name leads to other addresses that are in use: the failure of one is only informative.
            health.report(endpoint, reason, "warning" if addresses[endpoint.server] == 1 else "info")
        for endpoint in race.slow:
            reason = f"{endpoint} sent no INFO in {SLOW} s"
            health.report(endpoint, reason, "warning", from_count=_OFTEN)

    def heard(self, endpoint: Endpoint, said: Info | str) -> None:
        """Handle an INFO of a server, or the text of an -ERR with which it closes."""
        if isinstance(said, str):
            if classify(said).kind is MAX_CONNECTIONS:
                self._health.takes_no_more(endpoint, "has reached its connection limit")
            return
        if said.ldm:
            self._health.takes_no_more(endpoint, _LAME)
        if self._settings.upstream_discover and said.connect_urls:
            named = self._settings.upstream
            known = {server.address for server in named}
            learned = _named(said.connect_urls[:_MOST_LEARNED], endpoint.server)
            self._servers = (*named, *(server for server in learned if server.address not in known))


async def _end_after_tls(dialled: Dialled) -> str:
    """Return the reason why a server ends a connection behind its TLS handshake, "" where it does not.

    A server that accepts us says nothing until CONNECT, so silence for a while means that it serves.
    """
    reasons: list[str] = []
    if dialled.unheard is not None:
        dialled.unheard.on_word = reasons.append
        with trio.move_on_after(_AT_ONCE), suppress(LegLost):
            await dialled.leg.receive()
    return f"{dialled.endpoint}: {reasons[0]}" if reasons and reasons[0] else ""


def _named(urls: Sequence[str], server: Server) -> Iterator[Server]:
    """Yield the servers that another one of their cluster names: they are dialled like that one.

    One that is named by its IP address must have a certificate of that other one's name, as for NATS clients.
    """
    name = server.tls_name or ("" if is_ip(server.address.host) else server.address.host)
    for url in urls:
        with suppress(ValueError):  # an address that does not parse is left out
            address = parse_address(url)
            yield replace(server, address=address, tls_name=name if is_ip(address.host) else "")
