"""Dialling a server: one attempt at one address (`Dialer`), and the race of several attempts (`Race`).

A dial goes from the TCP connection to the server's first line, INFO.

The steps in their order: connect, the PROXY protocol header, TLS where that is first, the upgrade to
WebSocket, the first line, TLS after it where the server requires it or the upstream is tls://.  A step that
is not configured costs nothing.

A TCP connection alone proves nothing: a load balancer, or the port mapping of a container, accepts
connections for a server that is gone, and a server with `handshake_first` accepts them and sends nothing.
One ClientHello, on a separate connection, tells these two apart; a server that has greeted since it was last
started, and is frozen now, does not get one.

A probe, which is a dial for no client, also sends PING.  Before CONNECT a server answers PING if it needs
no login; otherwise PING would be a failed login in its log, so INFO is enough.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Final, NamedTuple

import trio

from natsproxy.addresses import Address, split_host_port
from natsproxy.bounded import BoundedDict
from natsproxy.config.settings import ProxySettings
from natsproxy.net import proxy_protocol
from natsproxy.net.endpoints import Endpoint
from natsproxy.net.leg import AnyLeg, Leg, LegLost
from natsproxy.net.opening import ClientFacts
from natsproxy.net.shortage import ERRNOS, OwnShortage, Shortage
from natsproxy.net.tls_contexts import TlsContexts
from natsproxy.net.tls_leg import TlsLeg
from natsproxy.protocol.errors import err_text
from natsproxy.protocol.info import Info, parse_greeting, why_unusable
from natsproxy.units import format_duration

LONGEST_LINE = 1 << 20
"""Bytes of the first line at most."""
_HELLO_TIMEOUT = 1.0  # seconds for the answer to a ClientHello
_SIGN_TIMEOUT = 0.2  # seconds in which a server may show that it accepted our certificate; less than SLOW
_HANDSHAKE_FIRST = "name it tls://, and set upstream-tls-handshake-first"
_PING = b"PING\r\n"
_OURSELVES = ClientFacts("127.0.0.1:0", Address("127.0.0.1", 0))
_TLS_RECORDS = (b"\x15", b"\x16")  # the first byte of an alert and of a handshake


class NoServer(Exception):
    """A server cannot be used now; the text is the reason, and names the server."""


@dataclass(slots=True)
class BegunDial:
    """A dial that was begun without a task (`quick_dials.py`), and is to be gone on with.

    leg: None once it is used.  said: what has come from the server.  seconds: that it has taken.
    """

    endpoint: Endpoint
    leg: Leg | None
    said: bytes = b""
    seconds: float = 0.0

    def take(self) -> tuple[Leg | None, bytes, float]:
        """Take out the leg, what came on it, and the seconds."""
        taken = self.leg, self.said, self.seconds
        self.leg, self.said, self.seconds = None, b"", 0.0
        return taken

    def close(self) -> None:
        """Close a leg that nobody has taken: the endpoint is to be dialled anew."""
        if self.leg is not None:
            self.leg.close()
        self.leg, self.said = None, b""


class Dialled(NamedTuple):
    """A connection to a server, with the bytes received on it: its first line, and perhaps more.

    secured: the leg has TLS.  unheard: the leg, if the server has sent nothing since the TLS handshake.
    """

    endpoint: Endpoint
    leg: AnyLeg
    greeting: bytes
    secured: bool = False
    unheard: TlsLeg | None = None


class Dialer:
    """Connects to servers, each time with the settings of a proxy.

    expiries: when the certificate of a server expires, as its last TLS handshake has shown it (Unix seconds).
    """

    def __init__(self, settings: ProxySettings, contexts: TlsContexts, shortage: Shortage) -> None:
        self._settings = settings
        self._longest = settings.connect_timeout / 1e9
        self._within = format_duration(settings.connect_timeout)
        self._shortage = shortage
        self._contexts = contexts
        self.expiries: BoundedDict[Endpoint, int] = BoundedDict()
        # Only what is known; bounded, since the addresses behind a name may keep changing.
        self._speaks_tls: BoundedDict[Endpoint, bool] = BoundedDict()
        self._gives_no_sign: BoundedDict[Endpoint, bool] = BoundedDict()  # see `_wait_for_sign`
        self._refuses_ping: BoundedDict[Endpoint, None] = BoundedDict()  # before CONNECT
        self._probing = trio.Lock()

    async def dial(
        self, endpoint: Endpoint, within: float, client: ClientFacts | None, begun: BegunDial | None = None
    ) -> Dialled | None:
        """Connect to a server for a client and wait for its first line; None where it takes too long.

        within: seconds for it, at most the connect time-out.  client: None for a probe.  begun: is gone on
        with, if it leads there.
        Raises NoServer, also at that time-out, and OwnShortage.
        """
        attempt, longest = _Attempt(f"cannot connect to {endpoint}: no answer in time"), self._longest
        said, taken = b"", 0.0
        if begun is not None and begun.endpoint == endpoint:
            attempt.leg, said, taken = begun.take()
        try:
            with trio.move_on_after(max(0, min(within, longest) - taken)) as scope:
                dialled = await self._steps(endpoint, client or _OURSELVES, attempt, said)
                if dialled is not None:
                    if client is None:
                        await self._ask(dialled, attempt)
                    attempt.leg = None
                    return dialled
        except OSError as error:
            if error.errno in ERRNOS:  # the shortage is ours, not the server's
                raise OwnShortage(self._shortage.met(error)) from None
            self._speaks_tls.pop(endpoint, None)  # the next one at this address may be another server
            raise NoServer(f"cannot connect to {endpoint}: {os.strerror(error.errno or 0)}") from None
        except LegLost as lost:
            raise NoServer(f"{endpoint}: {lost}") from None
        finally:
            if attempt.leg is not None:
                attempt.leg.close()
        if scope.cancelled_caught and within < longest:
            return None
        if attempt.silent and await self._wants_tls(endpoint):
            raise NoServer(f"{endpoint} speaks TLS before INFO: {_HANDSHAKE_FIRST}")
        raise NoServer(attempt.failure)

    async def _steps(
        self, endpoint: Endpoint, client: ClientFacts, attempt: _Attempt, said: bytes
    ) -> Dialled | None:
        """Take the steps; None where the server has no INFO.  Raises OSError, LegLost and NoServer."""
        server, within = endpoint.server, self._within
        if attempt.leg is None:
            attempt.leg = await self._connect(endpoint)
        elif not said:
            await attempt.leg.wait_connected()
        leg: AnyLeg = attempt.leg
        if (version := self._settings.upstream_proxy_protocol) is not None:
            leg.write(proxy_protocol.header(version, client.peer, client.local))
        tls_first = server.tls and (server.websocket or self._settings.upstream_tls.handshake_first)
        if tls_first:
            attempt.failure = f"{endpoint} did not complete the TLS handshake in {within}"
            leg = await self._secured(endpoint, leg)
        if server.websocket:
            attempt.failure = f"{endpoint} did not answer the WebSocket upgrade in {within}"
            leg = await self._with_websocket(leg, endpoint, client)
        attempt.silent = not (tls_first or server.websocket)
        attempt.failure = f"{endpoint} accepts connections but sent no INFO in {within}"
        greeting = await _first_line(leg, said)
        if not greeting:
            attempt.failure = f"{endpoint} closes connections before sending INFO"
            return None
        self._speaks_tls[endpoint] = attempt.silent = False
        info = parse_greeting(greeting) or Info()
        if tls_first or server.websocket or not (info.tls_required or server.tls):
            return Dialled(endpoint, leg, greeting, tls_first)
        attempt.failure = f"{endpoint} did not complete the TLS handshake in {within}"
        if not (info.tls_required or info.tls_available):
            raise NoServer(f"{endpoint} does not offer TLS, which the upstream {server} requires")
        secured = await self._upgraded(endpoint, leg, greeting)
        if info.tls_verify:
            await self._wait_for_sign(endpoint, secured)
        return Dialled(endpoint, secured, greeting, True, secured)

    async def _ask(self, dialled: Dialled, attempt: _Attempt) -> None:
        """Wait for an answer to PING, where a server takes one before CONNECT, or for the connection's end.

        Only silence counts against a server: one that says nothing at all is frozen.
        """
        endpoint, info = dialled.endpoint, parse_greeting(dialled.greeting)
        if (
            info is None
            or info.auth_required
            or why_unusable(info) is not None
            or endpoint in self._refuses_ping
        ):
            return
        if dialled.unheard is not None:  # the handshake was an answer; `Upstreams` reads on
            return
        attempt.failure = f"{endpoint} sent INFO but did not answer PING in {self._within}"
        with suppress(LegLost):
            dialled.leg.write(_PING)
            if (await dialled.leg.receive()).startswith(b"-ERR"):  # another proxy's server may want a login
                self._refuses_ping[endpoint] = None

    async def _wait_for_sign(self, endpoint: Endpoint, secured: TlsLeg) -> None:
        """Wait until the server has accepted our certificate.  Raises LegLost where it refuses.

        A server that gives no sign may have accepted it: only its first connection waits for one.
        """
        if endpoint not in self._gives_no_sign:
            with trio.move_on_after(_SIGN_TIMEOUT) as scope:
                await secured.judged()
            if scope.cancelled_caught:
                self._gives_no_sign[endpoint] = True

    async def _upgraded(self, endpoint: Endpoint, leg: AnyLeg, greeting: bytes) -> TlsLeg:
        """Return a leg with TLS after INFO.  Raises LegLost, and NoServer where the server says -ERR instead.

        A server at its connection limit sends one, in plain text.
        """
        secured = self._tls_leg(endpoint, leg)
        said = greeting.partition(b"\n")[2]
        try:
            if not said:
                await self._handshake(endpoint, secured)
                return secured
        except LegLost:
            said = secured.plain
            if not said:
                raise
        line = said.partition(b"\n")[0]
        if line.startswith(b"-ERR"):
            raise NoServer(f"{endpoint} refuses connections: {err_text(line[4:])}")
        raise NoServer(f"{endpoint} answered the TLS handshake in plain text")

    async def _secured(self, endpoint: Endpoint, leg: AnyLeg) -> AnyLeg:
        """Return a leg with TLS.  Raises LegLost."""
        secured = self._tls_leg(endpoint, leg)
        await self._handshake(endpoint, secured)
        return secured

    async def _handshake(self, endpoint: Endpoint, secured: TlsLeg) -> None:
        await secured.handshake()
        if (expiry := secured.peer_expiry) is not None:
            self.expiries[endpoint] = expiry

    def _tls_leg(self, endpoint: Endpoint, leg: AnyLeg) -> TlsLeg:
        server = endpoint.server
        name = self._settings.upstream_tls.name or server.tls_name or server.address.host
        return TlsLeg(leg, self._contexts.server_leg, server_name=name, timeout=0)  # `dial` limits the time

    async def _connect(self, endpoint: Endpoint) -> Leg:
        sock = socket.socket(endpoint.family, socket.SOCK_STREAM)
        try:
            await _connect(sock, endpoint)
            return Leg(sock, keepalive=self._settings.keepalive)
        except BaseException:
            sock.close()
            raise

    async def _with_websocket(self, leg: AnyLeg, endpoint: Endpoint, client: ClientFacts) -> AnyLeg:
        from natsproxy.net import websocket_leg  # only then: the library takes a while to load

        # nats-server takes the client's address from this header.
        headers = {**client.upgrade, "X-Forwarded-For": split_host_port(client.peer)[0]}
        try:
            return await websocket_leg.connect_websocket(
                leg,
                endpoint.server.address,
                "/",
                secure=endpoint.server.tls,
                headers=headers,
            )
        except (websocket_leg.WebSocketRefused, LegLost) as error:
            raise NoServer(f"{endpoint} does not speak WebSocket: {error}") from None

    async def _wants_tls(self, endpoint: Endpoint) -> bool:
        """Tell whether a server that gives no greeting answers a ClientHello; it gets one."""
        async with self._probing:
            if endpoint not in self._speaks_tls:
                self._speaks_tls[endpoint] = False
                with trio.move_on_after(_HELLO_TIMEOUT):
                    self._speaks_tls[endpoint] = await self._answers_hello(endpoint)
            return self._speaks_tls[endpoint]

    async def _answers_hello(self, endpoint: Endpoint) -> bool:
        try:
            leg = await self._connect(endpoint)
        except OSError:
            return False
        try:
            leg.write(_client_hello())
            return (await leg.receive())[:1] in _TLS_RECORDS
        except LegLost:
            return False
        finally:
            leg.close()


class _Attempt:
    """One attempt.

    failure: the reason if nothing more comes.  leg: its connection.  silent: the server has said nothing.
    """

    def __init__(self, failure: str) -> None:
        self.failure = failure
        self.leg: Leg | None = None
        self.silent = False


async def _connect(sock: socket.socket, endpoint: Endpoint) -> None:
    """Connect a socket; trio's own would wait for a server on this machine, which is connected at once."""
    sock.setblocking(False)
    error = sock.connect_ex(endpoint.sockaddr)
    if error == errno.EINPROGRESS:
        if _has_peer(sock):
            return
        await trio.lowlevel.wait_writable(sock)
        error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if error:
        raise OSError(error, os.strerror(error))


def _has_peer(sock: socket.socket) -> bool:
    try:
        sock.getpeername()
    except OSError:
        return False
    return True


async def _first_line(leg: AnyLeg, line: bytes) -> bytes:
    """Return the bytes of a server up to its first line end or more; `b""` where the stream ends before.

    line: what has come of it.  Raises LegLost for a leg whose TLS has failed.
    """
    try:
        while b"\n" not in line and len(line) < LONGEST_LINE:
            data = await leg.receive()
            if not data:
                return b""
            line += data
    except LegLost:
        if leg.broken:
            raise
        return b""
    return line


def _client_hello() -> bytes:
    out = ssl.MemoryBIO()
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).wrap_bio(ssl.MemoryBIO(), out, server_hostname="nats")
    with suppress(ssl.SSLWantReadError):  # it wants the server's answer, which nobody feeds it
        client.do_handshake()
    return out.read()


SLOW: Final = 0.25
"""The seconds after which a dial no longer holds up the next one."""
GOOD, LAME, REFUSED = range(3)
"""The usability of a server that greets, best first."""


def worth(dialled: Dialled) -> tuple[int, str]:
    """Return how usable a server that greets is, and the reason if it is `REFUSED`."""
    info, endpoint = parse_greeting(dialled.greeting), dialled.endpoint
    why = why_unusable(info) if info is not None else "it is no NATS server: its first line is no INFO"
    if info is None or why is not None:
        return REFUSED, f"{endpoint}: {why}"
    return LAME if info.ldm else GOOD, ""


class Race:
    """The dials on behalf of one connection.

    Endpoints are dialled in their order.  The next dial begins as soon as one has failed, or is slow: an
    address that drops packets costs the client a quarter of a second instead of a time-out.  The first server
    that greets wins, and the other dials end.

    Nearly always the first one greets at once.  So it is dialled alone if it was quick the last time, or is
    the only one: tasks for a race would take a twentieth of the time of a whole connection.

    A server that greets and should not be used is kept for the case that no other greets: one in lame duck
    mode still serves, and one that cannot be proxied lets the session tell the client why.

    failures: why endpoints cannot be used.  slow: those that were too slow.  lame: those that greeted in lame
    duck mode.
    shortage: why we could not dial at all, None where we could.
    refused: True if the server that `run` returned cannot be proxied.
    dial: see `Dialer.dial`.  quick: the endpoints that were not slow the last time, for the next race too.
    """

    def __init__(
        self,
        dial: Callable[[Endpoint, float], Awaitable[Dialled | None]],
        quick: BoundedDict[Endpoint, None],
    ) -> None:
        self.failures: dict[Endpoint, str] = {}
        self.slow: list[Endpoint] = []
        self.lame: list[Endpoint] = []
        self.refused = False
        self.shortage: str | None = None
        self._dial = dial
        self._quick = quick
        self._greeted: dict[int, Dialled] = {}  # the first one of each kind
        self._over: trio.Event | None = None  # the wait for the last dial of several is over

    async def run(self, endpoints: Sequence[Endpoint]) -> Dialled | None:
        """Return the best server that greets; None where none does."""
        best = None
        try:
            if left := await self._run_alone(endpoints):
                await self._run_all(left)
            # A leg that is returned goes on the plane, which closes once everything is cancelled.
            await trio.lowlevel.checkpoint_if_cancelled()
            best = self._greeted[min(self._greeted)] if self._greeted else None
        finally:  # on cancellation, too
            for one in self._greeted.values():
                if one is not best:
                    one.leg.close()
        ended = {*self.failures, *(one.endpoint for one in self._greeted.values())}
        self.slow = [endpoint for endpoint in self.slow if endpoint not in ended]
        self.refused = best is not None and best.endpoint in self.failures
        return best

    async def _run_alone(self, endpoints: Sequence[Endpoint]) -> Sequence[Endpoint]:
        """Dial the first endpoint if it should be quick; return those that are to be dialled after that."""
        first, others = endpoints[0] if endpoints else None, endpoints[1:]
        if first is None or (others and first not in self._quick):
            return endpoints
        if not await self._try(first, SLOW if others else inf):
            self._is_slow(first)
            return [*others, first]  # dial it again: it may be the only one that serves
        return () if GOOD in self._greeted else others

    async def _run_all(self, endpoints: Sequence[Endpoint]) -> None:
        """Dial endpoints, each in a task of its own, until one is good."""
        async with trio.open_nursery() as nursery:
            for endpoint in endpoints:
                self._over = over = trio.Event()
                nursery.start_soon(self._run_one, endpoint, over, nursery)
                with trio.move_on_after(SLOW):
                    await over.wait()
                if GOOD in self._greeted:
                    break
                if not over.is_set():
                    self._is_slow(endpoint)
            if LAME in self._greeted:  # the slow ones had enough time
                nursery.cancel_scope.cancel()

    def _is_slow(self, endpoint: Endpoint) -> None:
        self._quick.pop(endpoint, None)
        if endpoint not in self.slow:
            self.slow.append(endpoint)

    async def _try(self, endpoint: Endpoint, within: float = inf) -> bool:
        """Dial an endpoint; return whether it was done within these seconds."""
        try:
            dialled = await self._dial(endpoint, within)
        except NoServer as error:
            self.failures[endpoint] = str(error)
        except OwnShortage as error:
            self.shortage = str(error)
        else:
            if dialled is None:
                return False
            self._take(dialled)
        return True

    async def _run_one(self, endpoint: Endpoint, over: trio.Event, nursery: trio.Nursery) -> None:
        begun = trio.current_time()
        await self._try(endpoint)
        if trio.current_time() - begun < SLOW:
            self._quick[endpoint] = None
        over.set()
        if GOOD in self._greeted:
            if self._over is not None:
                self._over.set()
            if len(nursery.child_tasks) > 1:  # only then: a cancellation is expensive
                nursery.cancel_scope.cancel()

    def _take(self, dialled: Dialled) -> None:
        kind, why = worth(dialled)
        if kind == REFUSED:
            self.failures[dialled.endpoint] = why
        elif kind == LAME:
            self.lame.append(dialled.endpoint)
        if self._greeted.setdefault(kind, dialled) is not dialled:
            dialled.leg.close()
