"""The connections of a proxy: an accepted leg gets a session, a server leg and a relay.

The order matters: a connection that a rule refuses never reaches the server, the `Opened` event comes after
the server's greeting, and every connection ends with `Closed`, however it ends.

On the native plane a connection between plain legs has no task while all goes as usual: one task waits for
the greetings of all servers (`quick_dials.py`), the plane calls the relay, and relays that are over are
finished behind its step.  What takes time gets a task: a layer that is opened, a server that is slow or
fails, a peer to wait for at the end.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

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
from natsproxy.net.dial import BegunDial, Dialled, NoServer
from natsproxy.net.endpoints import Endpoint
from natsproxy.net.failover import HeldClients
from natsproxy.net.leg import AnyLeg, Leg, LegLost, linger
from natsproxy.net.limits import Limits
from natsproxy.net.opening import Accepted, ClientFacts, Opening, OpeningFailed, SettingsOfSessions
from natsproxy.net.plane_interface import Plane
from natsproxy.net.quick_dials import QuickDials
from natsproxy.net.recording import ProxyRecording
from natsproxy.net.relay import Relay
from natsproxy.net.server_ends import ServerEnds
from natsproxy.net.shortage import OwnShortage, Shortage
from natsproxy.net.timeslice import LENGTH
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
_LEFT: Final = End(close_reasons.CLIENT_CLOSED, "the client left before there was a server")
_REFUSALS: Final = ("refuse", "close")


Layers = Callable[[int, AnyLeg, AnyLeg], AbstractAsyncContextManager[tuple[AnyLeg, AnyLeg]]]
"""Puts layers over the client leg and the server leg of a connection, of that number, while it is relayed."""


class _Pending(NamedTuple):
    """A connection without a server.  chain: when its session was made.  since: that time (ns).

    exceeded: the limit of connections that it exceeds, as a clause, or None.
    """

    accepted: Accepted
    session: Session
    record: Callable[[records.Item], None]
    chain: Chain
    since: int
    exceeded: str | None


class Connections:
    """Serves the accepted connections of one proxy.

    relays: the connections with both legs, by their numbers.  chain: the rules of new connections.
    upstreams: the servers.  seed: of the choice between them.  plane: moves their bytes.
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
        self._quick_dials = QuickDials(keepalive=settings.keepalive)
        self._nursery: trio.Nursery | None = None  # of all tasks of connections, while they are served
        self._over: deque[Relay] = deque()  # to be finished
        self._some_over = trio.Event()

    def ride(self, plane: Plane) -> None:
        """Let a plane move the bytes; call before the first connection."""
        self.plane = plane
        plane.stepped = self._finish_some

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

    async def run(self) -> None:
        """Serve connections until cancelled; then they end at once."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                nursery.start_soon(self._quick_dials.run)
                await self._finish_relays()
            finally:
                self._nursery = None
                for then in self._quick_dials.stop():
                    then(None)
                for relay in list(self.relays.values()):
                    nursery.start_soon(self._finish, relay, True)

    async def _finish_relays(self) -> None:
        while True:
            await self._some_over.wait()
            self._some_over = trio.Event()
            self._finish_some()

    def _finish_some(self) -> None:
        """Finish relays that are over, for a time slice."""
        if not self._over or self._nursery is None:
            return
        until = time.perf_counter_ns() + LENGTH
        while self._over:
            self._finish_next(self._nursery)
            if self._over and time.perf_counter_ns() >= until:
                self._some_over.set()  # the rest after the tasks of others
                return

    def _finish_next(self, nursery: trio.Nursery) -> None:
        # Not a part of the loop: its variables would keep the last relay until the next one is over.
        relay = self._over.popleft()
        if relay.finishing:
            return
        if relay.finish_at_once():
            self._finished(relay)
        else:
            nursery.start_soon(self._finish, relay)

    def _is_over(self, relay: Relay) -> None:
        self._over.append(relay)
        # The plane calls `_finish_some` behind its step, without the way through the loop.
        if self.plane is None or not self.plane.stepping:
            self._some_over.set()

    async def _finish(self, relay: Relay, cancelled: bool = False) -> None:
        """Finish a relay that takes time, unless that is being done."""
        if not relay.finishing:
            relay.finishing = True
            await relay.finish(cancelled=cancelled)
            self._finished(relay)

    def _finished(self, relay: Relay) -> None:
        end, error = relay.end or _CANCELLED, relay.error
        if isinstance(error, Exception):
            end = self._failed(relay.conn, error)
        elif error is not None:
            raise error
        self._end(relay.session, relay.accepted, end)

    def serve(self, leg: Leg, listener: Listener, conn: int) -> None:
        """Serve a connection to its end, without a task where nothing has to be waited for.

        conn: its number, counted from 1.
        """
        if self._nursery is None:  # we are cancelled
            self._end_unserved(leg, leg.peer, now_ns(), conn, _CANCELLED)
            return
        if self.layers is None and not (listener.tls or listener.websocket or listener.proxy_protocol):
            endpoint = self.upstreams.quick()
            if endpoint is not None and self._recording.refusal() is None:
                facts = ClientFacts(leg.peer, leg.local)
                self._serve_at_once(Accepted(leg, leg, facts, conn, now_ns(), listener), endpoint)
                return
        self._nursery.start_soon(self._open, leg, listener, conn)

    def _serve_at_once(self, accepted: Accepted, endpoint: Endpoint) -> None:
        """Serve a connection with plain legs; a task goes on with it where something takes time."""
        assert self._nursery is not None
        conn = accepted.conn
        try:
            pending = self._begin(accepted)
        except Exception as error:  # as in `_open`
            end = self._failed(conn, error)
            self._end_unserved(accepted.plain, accepted.facts.peer, accepted.opened, conn, end)
            return
        welcome = pending.exceeded is None and pending.session.rules.opening not in _REFUSALS
        if not (welcome and self._quick_dials.begin(endpoint, partial(self._dialled, pending))):
            self._nursery.start_soon(self._serve, pending, None)

    def _dialled(self, pending: _Pending, dial: BegunDial | None) -> None:
        """Go on with a connection whose server has greeted, or has not in time; None: it is cancelled."""
        end: End | None = _CANCELLED
        try:
            if dial is not None:
                dialled = self.upstreams.greeted(dial) if self.layers is None else None
                if dialled is None:
                    assert self._nursery is not None
                    self._nursery.start_soon(self._serve, pending, dial)
                    return
                self._arrivals.greeted(pending.accepted.conn, now_ns() - pending.since)
                if pending.accepted.plain.has_left():
                    dialled.leg.close()
                    end = _LEFT
                else:
                    end = self._relay(pending, dialled)
        except Exception as error:  # as in `_serve`
            end = self._failed(pending.accepted.conn, error)
        if end is not None:
            self._end(pending.session, pending.accepted, end)

    async def _open(self, leg: Leg, listener: Listener, conn: int) -> None:
        """Open a client leg, and serve its connection."""
        opened, peer = now_ns(), leg.peer
        end: End | None = _CANCELLED  # the end if this task is cancelled before there is a session
        try:
            with self._limits.opening():
                client, facts = await self._opening.open(leg, listener)
            end, peer = self._recording.refusal(), facts.peer
            if end is None:
                await self._serve(self._begin(Accepted(client, leg, facts, conn, opened, listener)), None)
        except OpeningFailed as error:
            probe = leg.silent and leg.has_left() and error.cause != close_reasons.LIMIT
            end = End(close_reasons.CLIENT_CLOSED) if probe else End(error.cause, str(error))
        except Exception as error:  # as in `_serve`
            end = self._failed(conn, error)
        finally:
            if end is not None:
                self._end_unserved(leg, peer, opened, conn, end)

    def gone(self, peer: str, conn: int) -> None:
        """Report a connection whose client had left before it was accepted.  peer: `host:port`."""
        self._emit(Closed(now_ns(), conn, close_reasons.CLIENT_CLOSED, "", duration=0, who=Who(peer)))

    def _begin(self, accepted: Accepted) -> _Pending:
        """Give an accepted connection a session."""
        session = self._session(accepted)
        if (tls := accepted.facts.tls) is not None and not tls.secured:
            tls.on_secured = session.secured  # the handshake comes after INFO
        record = self._recording.open(accepted.conn, session)
        exceeded = self._limits.enter(accepted.facts.peer)
        return _Pending(accepted, session, record, self.chain, now_ns(), exceeded)

    async def _serve(self, pending: _Pending, dial: BegunDial | None) -> None:
        """Find a server for a connection, and start its relay.  dial: one that was begun."""
        accepted, session = pending.accepted, pending.session
        end: End | None = _CANCELLED  # the end if this task is cancelled
        try:
            if pending.exceeded is not None:
                self._arrivals.arrived(accepted.conn)  # nobody waits while it lingers
                end = await self._turn_away(session, accepted.leg, pending.exceeded)
            elif (refused := self._refuse(session, accepted.leg)) is not None:
                end = refused
            else:
                dialled = await self._dial(accepted, accepted.plain, dial)
                refused = self._relay(pending, dialled)
                if refused is None and self.layers is not None:
                    end = await _relay_layered(self.relays[accepted.conn], self.layers)
                else:  # the relay goes on without this task
                    end = refused
        except ClientLeft:
            end = _LEFT
        except OwnShortage as error:
            end = End(close_reasons.LIMIT, str(error))
        except NoServer as error:
            end = End(close_reasons.UPSTREAM_DOWN, str(error))
        except Exception as error:  # a bug that the bytes of one peer reach must not end the others
            end = self._failed(accepted.conn, error)
        finally:
            if dial is not None:
                dial.close()
            if end is not None:
                self._end(session, accepted, end)

    def _end(self, session: Session, accepted: Accepted, end: End) -> None:
        """Close a connection and report its end."""
        self._limits.leave(accepted.facts.peer)
        accepted.leg.close()
        accepted.plain.close()
        try:
            self._close(session, self._end_of(end), accepted)
        except Exception as error:  # it is reported nevertheless
            end = self._failed(accepted.conn, error)
            self._end_unserved(accepted.plain, accepted.facts.peer, accepted.opened, accepted.conn, end)
        else:
            self._arrivals.arrived(accepted.conn)
            self.open -= 1
        finally:
            self.relays.pop(accepted.conn, None)  # last: subscribers to the end may still look it up
            session.dispose()
            self._closed.set()

    def _end_unserved(self, leg: Leg, peer: str, opened: int, conn: int, end: End) -> None:
        """Close a connection whose session is not asked, and report its end."""
        leg.close()
        self._arrivals.arrived(conn)
        self.open -= 1
        now, end = now_ns(), self._end_of(end)
        self._emit(Closed(now, conn, end.cause, end.detail, duration=now - opened, who=Who(peer)))

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
        if opening not in _REFUSALS:
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

    def _relay(self, pending: _Pending, dialled: Dialled) -> End | None:
        """Start the relay of a connection that has a server; return the end where it gets none."""
        refusal = self._recording.refusal()  # the disk may have filled up meanwhile
        if self.draining:
            refusal = _DRAINED
        if refusal is not None:
            dialled.leg.close()
            return refusal
        try:
            relay = self._make_relay(pending, dialled)
        except Exception:  # a subscriber's, or the recorder's
            dialled.leg.close()
            raise
        if self.chain is not pending.chain:  # it was swapped during the dial
            relay.swap(self.chain)
        if self.layers is None:
            relay.start()
        return None

    def _make_relay(self, pending: _Pending, dialled: Dialled) -> Relay:
        """Create and register the relay of a connection, and report and record its opening."""
        accepted, record = pending.accepted, pending.record
        facts, conn = accepted.facts, accepted.conn
        if dialled.secured and not (accepted.listener.tls or self._warned_of_plain):
            self._warned_of_plain = True
            self._emit(Notice(now_ns(), conn, "warning", _PLAIN_CLIENTS))
        upstream = str(dialled.endpoint.address)
        self._endpoints[conn] = dialled.endpoint
        self._greeting = dialled.greeting.partition(b"\n")[0] + b"\n"
        local = str(facts.local)
        self._emit(Opened(accepted.opened, conn, facts.peer, upstream, local, conn, facts.proxied_by))
        assert self.plane is not None
        assert self._nursery is not None
        relay = Relay(
            pending.session,
            accepted,
            dialled.leg,
            dialled.greeting,
            self.plane,
            self._emit,
            record,
            self._nursery,
            self._is_over,
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
        endpoint, server, greeting, _, _ = await self._dial(accepted, None, within=within)
        self._endpoints[relay.conn] = endpoint
        return server, str(endpoint.address), greeting

    async def _dial(
        self, accepted: Accepted, leg: Leg | None, begun: BegunDial | None = None, within: int | None = None
    ) -> Dialled:
        """Connect to a server when it is the connection's turn; the arguments: see `Upstreams.dial`."""
        conn, arrivals, since = accepted.conn, self._arrivals, now_ns()
        if begun is not None:
            since -= int(begun.seconds * 1e9)

        async def turn() -> None:
            nonlocal since
            await arrivals.turn(conn, split_host_port(accepted.facts.peer)[0])
            since = now_ns()

        if leg is None:  # it is no new client
            await turn()
        held = partial(arrivals.arrived, conn)
        dialled = await self.upstreams.dial(accepted.facts, leg, held, turn, begun=begun, within=within)
        arrivals.greeted(conn, now_ns() - since)
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


async def _relay_layered(relay: Relay, layers: Layers) -> End:
    """Relay between legs with layers over them, and return the end."""
    over = trio.Event()
    relay.on_over, relay.finishing = lambda _: over.set(), True
    if relay.session.over:  # another chain has ended it
        over.set()
    with ExitStack() as below:
        for leg in relay.legs:
            below.callback(leg.close)  # also where the layers fail
        async with layers(relay.conn, *relay.legs) as relay.legs:
            relay.start()
            try:
                await over.wait()
            finally:
                await relay.finish(cancelled=relay.end is None)
    if relay.error is not None:
        raise relay.error
    assert relay.end is not None
    return relay.end
