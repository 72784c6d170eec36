"""The connections of a proxy: an accepted leg gets a session, a server leg and a relay.

The order matters: a connection that a rule refuses never reaches the server, the `Opened` event comes after
the server's greeting, and every connection ends with `Closed`, however it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

import trio

from natsproxy import close_reasons
from natsproxy.addresses import Address, split_host_port
from natsproxy.capture.format import records
from natsproxy.config.endpoints import Listener
from natsproxy.config.settings import ProxySettings
from natsproxy.errors import place_of
from natsproxy.events import Closed, Event, Notice, Opened, Who
from natsproxy.net.arrivals import Arrivals
from natsproxy.net.chain_swap import ChainSwap
from natsproxy.net.client_users import ClientUsers
from natsproxy.net.clock import now_ns
from natsproxy.net.deadlines import Deadlines
from natsproxy.net.dial import Dialled, NoServer
from natsproxy.net.endpoints import Endpoint
from natsproxy.net.failover import HeldClients
from natsproxy.net.leg import AnyLeg, Leg, LegLost, linger
from natsproxy.net.limits import Limits
from natsproxy.net.opening import Accepted, Opening, OpeningFailed, SettingsOfSessions
from natsproxy.net.plane_interface import Plane
from natsproxy.net.recording import ProxyRecording
from natsproxy.net.relay import Relay
from natsproxy.net.server_ends import ServerEnds
from natsproxy.net.shortage import OwnShortage, Shortage
from natsproxy.net.tls_contexts import TlsContexts
from natsproxy.net.upstreams import ClientLeft, Upstreams
from natsproxy.protocol.errors import MAX_CONNECTIONS, err_frame
from natsproxy.protocol.info import Info
from natsproxy.protocol.request_meter import RequestMeter
from natsproxy.rules.interface import Chain
from natsproxy.session.client_keys import ClientKeys
from natsproxy.session.session import Session
from natsproxy.session.values import NO_CERTIFICATE, Budget, Emit, End, Hooks, Identity, Send
from natsproxy.wire.ops import S2C

_PLAIN_CLIENTS: Final = "clients connect without TLS, and the server has it: listen on tls:// to protect them"
_CANCELLED: Final = End(close_reasons.KILLED)
_DRAINED: Final = End(close_reasons.DRAINED, "natsproxy is shutting down")


Layers = Callable[[int, AnyLeg, AnyLeg], AbstractAsyncContextManager[tuple[AnyLeg, AnyLeg]]]
"""Puts layers over the client leg and the server leg of a connection, of that number, while it is relayed."""


class Connections:
    """Serves the accepted connections of one proxy.

    relays: the connections with both legs, by their numbers.  chain: the rules of new connections.
    upstreams: the servers.  seed: of the choice between them.  plane: moves their bytes; the proxy sets it.
    draining: those that have no server yet get none, because the drain would not end them.
    open: the number of those that have not ended; whoever accepts one counts it.  observe: takes the time
    (ns) of each step that a connection takes in Python.  layers: over the legs of new connections; None for
    none.  held: those whose server was lost.  meter: of requests; None where they are not measured.
    """

    def __init__(
        self,
        settings: ProxySettings,
        chain: Chain,
        seed: int,
        relays: dict[int, Relay],
        recording: ProxyRecording,
        contexts: TlsContexts,
        arrivals: Arrivals,
        emit: Callable[[Event], None],
    ) -> None:
        self.relays = relays
        self.chain = chain
        self.plane: Plane | None = None
        self.draining = False
        self.open = 0
        self.observe: Callable[[int], None] | None = None
        self.layers: Layers | None = None
        self.held = HeldClients(arrivals.arrived)
        self.meter: RequestMeter | None = settings.request_metrics.meter()
        self._settings = settings
        self._session_settings = SettingsOfSessions(settings)
        self._recording = recording
        self._arrivals = arrivals
        self._emit = emit
        # Made once, because each connection keeps them.
        self._hooks = Hooks(ClientKeys().of, self._heard)
        self._most_frames, self._check = recording.most_frames, self._refusal_of
        self._redialling = self._redial
        self._limits = Limits(settings)
        self._opening = Opening(settings, contexts, self._limits.opening_from)
        self.shortage = Shortage(emit, now_ns)
        self.upstreams = Upstreams(settings, contexts, emit, now_ns, seed, self.shortage)
        self._endpoints: dict[int, Endpoint] = {}  # by the number of the connection
        self._server_ends = ServerEnds(self._endpoints, emit)
        self._greeting = b""  # the last INFO of a server
        self._warned_of_plain = False
        self.budget = Budget(settings.buffers)
        self._users = ClientUsers(settings.client_users) if settings.client_users else None
        self._closed = trio.Event()
        self._deadlines = Deadlines(relays)
        self._chain_swap = ChainSwap(relays)

    def swap(self, chain: Chain) -> None:
        """Put another chain in force on all connections: on each between two of its frames."""
        self.chain = chain
        self._chain_swap.begin(chain)

    async def swapped(self) -> None:
        """Wait until the chain is in force on all connections."""
        await self._chain_swap.finished()

    def listen(self, addresses: tuple[Address, ...], schemes: tuple[str, ...]) -> None:
        """Take the addresses and schemes of the proxy's own listeners."""
        self.upstreams.listening = addresses
        self._session_settings.listen(zip(schemes, addresses, strict=True))

    def load_identity(self, identity: Identity | None, users: Mapping[str, bytes]) -> None:
        """Use another login at servers for new connections, and another table for later logins of clients."""
        self._session_settings.load_identity(identity)
        if self._users is not None:
            self._users.load(users)

    async def wait_closed(self) -> None:
        """Wait until no connection is relayed."""
        while self.relays:
            self._closed = trio.Event()
            await self._closed.wait()

    async def watch(self) -> None:
        """Run the deadlines, rule swaps, reports of server ends and idle limits, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._deadlines.run)
            nursery.start_soon(self._chain_swap.run)
            nursery.start_soon(self._server_ends.run)
            if self._limits.watches:
                await self._limits.watch(self.relays)

    async def serve(self, leg: Leg, listener: Listener, conn: int) -> None:
        """Serve one connection to its end.  conn: its number, counted from 1."""
        opened, peer = now_ns(), leg.peer
        end: End | None = _CANCELLED  # the end if this task is cancelled before there is a session
        try:
            with self._limits.opening():
                client, facts = await self._opening.open(leg, listener)
            end, peer = self._recording.refusal(), facts.peer
            if end is None:
                await self._serve(Accepted(client, leg, facts, conn, opened, listener))
        except OpeningFailed as error:
            probe = leg.silent and leg.has_left() and error.cause != close_reasons.LIMIT
            end = End(close_reasons.CLIENT_CLOSED) if probe else End(error.cause, str(error))
        except Exception as error:  # as in `_serve`
            end = self._failed(conn, error)
        finally:
            leg.close()
            self._arrivals.arrived(conn)
            if end is not None:
                now, end = now_ns(), self._end_of(end)
                self._emit(Closed(now, conn, end.cause, end.detail, duration=now - opened, who=Who(peer)))
            self.open -= 1

    def gone(self, peer: str, conn: int) -> None:
        """Report a connection whose client had left before it was accepted.  peer: `host:port`."""
        self._emit(Closed(now_ns(), conn, close_reasons.CLIENT_CLOSED, "", duration=0, who=Who(peer)))

    async def _serve(self, accepted: Accepted) -> None:
        client, conn, peer = accepted.leg, accepted.conn, accepted.facts.peer
        session = self._session(accepted)
        if (tls := accepted.facts.tls) is not None and not tls.secured:
            tls.on_secured = session.secured  # the handshake comes after INFO
        record = self._recording.open(conn, session)
        end = _CANCELLED  # the end if this task is cancelled
        exceeded = self._limits.enter(peer)
        try:
            if exceeded is not None:
                self._arrivals.arrived(conn)  # nobody waits while it lingers
                end = await self._turn_away(session, client, exceeded)
            elif (refused := self._refuse(session, client)) is not None:
                end = refused
            else:
                relay = await self._connect(session, accepted, record)
                end = relay if isinstance(relay, End) else await self._run(relay)
        except ClientLeft:
            end = End(close_reasons.CLIENT_CLOSED, "the client left before there was a server")
        except OwnShortage as error:
            end = End(close_reasons.LIMIT, str(error))
        except NoServer as error:
            end = End(close_reasons.UPSTREAM_DOWN, str(error))
        except Exception as error:  # a bug that the bytes of one peer reach must not end the others
            end = self._failed(conn, error)
        finally:
            self._limits.leave(peer)
            client.close()
            self._close(session, self._end_of(end), accepted)

    def _end_of(self, end: End) -> End:
        """Return the end of a connection; a drain cancels what is still there after its deadline."""
        return _DRAINED if end is _CANCELLED and self.draining else end

    def _failed(self, conn: int, error: Exception) -> End:
        """Report a bug in the code of a connection; return the end of the connection."""
        end = End(close_reasons.INTERNAL, f"natsproxy failed, please report it: {place_of(error)}")
        self._emit(Notice(now_ns(), conn, "error", end.detail))
        return end

    def _refuse(self, session: Session, client: AnyLeg) -> End | None:
        """Close the client leg where a rule refuses the connection, and return its end."""
        opening = session.rules.opening
        if opening not in ("refuse", "close"):
            return None
        for action in session.take_actions():
            if isinstance(action, Emit):
                self._emit(action.event)
        if opening == "refuse":
            client.reset()
        else:
            client.close()
        return End(close_reasons.RULE, f"a rule says: {opening}", opening == "refuse")

    async def _turn_away(self, session: Session, client: AnyLeg, why: str) -> End:
        """Refuse a client as a server at its connection limit does, and return the end."""
        actions = session.receive(S2C, self._greeting, now_ns()) if self._greeting else []
        said = [bytes(action.data) for action in actions if isinstance(action, Send)]
        with suppress(LegLost):
            client.write(b"".join([*said, err_frame(MAX_CONNECTIONS.text)]))
        await linger((client,))
        return End(close_reasons.LIMIT, why)

    async def _connect(
        self, session: Session, accepted: Accepted, record: Callable[[records.Item], None]
    ) -> Relay | End:
        """Connect to the server, and return the relay; the end where there is none.  Raises NoServer."""
        chain = self.chain
        endpoint, server, greeting, secured, _ = await self._dial(accepted, accepted.plain)
        refusal = self._recording.refusal()  # the disk may have filled up meanwhile
        if self.draining:
            refusal = _DRAINED
        if refusal is not None:
            server.close()
            return refusal
        conn, facts = accepted.conn, accepted.facts
        if secured and not (accepted.listener.tls or self._warned_of_plain):
            self._warned_of_plain = True
            self._emit(Notice(now_ns(), conn, "warning", _PLAIN_CLIENTS))
        upstream = str(endpoint.address)
        self._endpoints[conn] = endpoint
        self._greeting = greeting.partition(b"\n")[0] + b"\n"
        local = str(facts.local)
        self._emit(Opened(accepted.opened, conn, facts.peer, upstream, local, conn, facts.proxied_by))
        relay = self._make_relay(session, accepted, server, greeting, upstream, record)
        if self.chain is not chain:  # it was swapped during the dial
            relay.swap(self.chain)
        return relay

    def _run(self, relay: Relay) -> Coroutine[Any, Any, End]:
        # No coroutine of its own: it would take memory as long as the connection lasts.
        return relay.run() if self.layers is None else _run_layered(relay, self.layers)

    def _make_relay(
        self,
        session: Session,
        accepted: Accepted,
        server: AnyLeg,
        greeting: bytes,
        upstream: str,
        record: Callable[[records.Item], None],
    ) -> Relay:
        """Create and register the relay of a connection, and record its opening."""
        facts, conn = accepted.facts, accepted.conn
        assert self.plane is not None
        relay = Relay(
            session,
            accepted,
            server,
            greeting,
            self.plane,
            self._emit,
            record,
            self._most_frames,
            self._check,
            self._deadlines,
            self.held,
            self._redialling,
        )
        for timeslice in relay.timeslices:
            timeslice.observe = self.observe
        relay.on_arrived = self._arrivals.arrived
        relay.opened |= {"client": facts.peer, "upstream": upstream, "ordinal": conn}
        if facts.proxied_by:
            relay.opened["proxied_by"] = facts.proxied_by
        record(records.OpenRecord(conn, accepted.opened, relay.opened))
        self.relays[conn] = relay
        return relay

    async def _redial(self, relay: Relay) -> tuple[AnyLeg, str, bytes]:
        """Connect a relay whose server is lost to another one; see `Redialling`."""
        accepted = relay.accepted
        lost = self._endpoints.pop(relay.conn, None)
        if lost is not None:
            self._server_ends.count(lost)
        within = self._settings.session.failover_hold
        endpoint, server, greeting, _, _ = await self._dial(accepted, None, within)
        self._endpoints[relay.conn] = endpoint
        return server, str(endpoint.address), greeting

    async def _dial(self, accepted: Accepted, leg: Leg | None, within: int | None = None) -> Dialled:
        """Connect to a server when it is the connection's turn; leg, within: see `Upstreams.dial`."""
        conn, arrivals, begun = accepted.conn, self._arrivals, now_ns()

        async def turn() -> None:
            nonlocal begun
            await arrivals.turn(conn, split_host_port(accepted.facts.peer)[0])
            begun = now_ns()

        if leg is None:  # it is no new client
            await turn()
        held = partial(arrivals.arrived, conn)
        dialled = await self.upstreams.dial(accepted.facts, leg, held, turn, within=within)
        arrivals.greeted(conn, now_ns() - begun)
        return dialled

    def _session(self, accepted: Accepted) -> Session:
        settings = self._session_settings.for_client(accepted.listener, accepted.facts)
        if self.layers is not None:  # layers cannot move to another server leg
            settings = replace(settings, failover="close")
        return Session(
            settings,
            self.chain,
            conn=accepted.conn,
            ordinal=accepted.conn,
            address=accepted.facts.peer,
            certificate=NO_CERTIFICATE if accepted.facts.tls is None else accepted.facts.tls.certificate,
            record=self._recording.active,
            now=accepted.opened,
            budget=self.budget,
            hooks=self._hooks,
            meter=self.meter,
        )

    def _heard(self, conn: int, said: Info | str) -> None:
        """Pass on what the server of a connection says, which may concern later connections."""
        if (endpoint := self._endpoints.get(conn)) is not None:
            self.upstreams.heard(endpoint, said)

    async def _refusal_of(self, peer: str, user: str, password: str) -> str | None:
        """Return why a client is not who it says it is, as a clause; None where it is.  peer: `host:port`."""
        if self._users is None:
            return "there are no users"
        return await self._users.refusal(user, password, split_host_port(peer)[0])

    def _close(self, session: Session, end: End, accepted: Accepted) -> None:
        now, conn = now_ns(), accepted.conn
        endpoint = self._endpoints.pop(conn, None)
        counts = session.counts()
        item: records.CloseRecord | None = None
        if self._recording.active:
            info = {**counts, "detail": end.detail, **session.verified_client()}
            item = records.CloseRecord(conn, now, end.cause, info)
        self._recording.close(conn, item, end.cause)
        self._emit(
            Closed(
                now,
                conn,
                end.cause,
                end.detail,
                duration=now - accepted.opened,
                error=session.server_error,
                upstream=str(endpoint.address) if endpoint is not None else "",
                who=session.who,
                **counts,
            )
        )
        if endpoint is not None and end.cause in close_reasons.BY_SERVER and not session.server_error:
            self._server_ends.count(endpoint)
        self.relays.pop(conn, None)  # last: subscribers to the end may still look it up
        session.dispose()
        self._closed.set()


async def _run_layered(relay: Relay, layers: Layers) -> End:
    async with layers(relay.conn, *relay.legs) as relay.legs:
        return await relay.run()
