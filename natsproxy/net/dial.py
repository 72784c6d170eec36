"""The dial: one attempt at one address of a server, from the TCP connection to its first line, INFO.

The steps in their order: connect, the PROXY protocol header, the upgrade to WebSocket, then the first line.
A step that is not configured costs nothing.

A connection alone proves nothing: a load balancer, or the port mapping of a container, accepts connections
for a server that is gone, and a server with `handshake_first` accepts them and sends nothing.  One
ClientHello per outage, on a connection of its own, tells these two apart.
"""

from __future__ import annotations

import os
import socket
import ssl
from contextlib import suppress
from typing import NamedTuple

import trio

from natsproxy.addresses import split_host_port
from natsproxy.config.settings import ProxySettings
from natsproxy.net import proxy_protocol
from natsproxy.net.endpoints import Endpoint
from natsproxy.net.leg import AnyLeg, Leg, LegLost
from natsproxy.net.opening import ClientFacts
from natsproxy.units import format_duration

_LONGEST_LINE = 1 << 20  # bytes of the first line
_HELLO_TIMEOUT = 1.0  # seconds for the answer to a ClientHello
_TLS_RECORDS = (b"\x15", b"\x16")  # the first byte of an alert and of a handshake


class NoServer(Exception):
    """A server cannot be used now; the text is the reason, and names the server."""


class Dialled(NamedTuple):
    """A connection to a server, with the bytes received on it: its first line, and perhaps more."""

    endpoint: Endpoint
    leg: AnyLeg
    greeting: bytes


class Dialer:
    """Connects to servers, each time with the settings of a proxy."""

    def __init__(self, settings: ProxySettings) -> None:
        self._settings = settings
        self._speaks_tls: dict[Endpoint, bool] = {}  # of servers without a greeting, once it is known
        self._probing = trio.Lock()

    async def dial(self, endpoint: Endpoint, client: ClientFacts) -> Dialled:
        """Connect to a server for a client and wait for its first line.  Raises NoServer."""
        limit = self._settings.connect_timeout
        reason = f"cannot connect to {endpoint}: no answer in time"
        leg: AnyLeg | None = None
        try:
            with trio.move_on_after(limit / 1e9):
                leg = await self._connect(endpoint)
                if (version := self._settings.upstream_proxy_protocol) is not None:
                    leg.write(proxy_protocol.header(version, client.peer, client.local))
                if endpoint.server.scheme == "ws":
                    reason = f"{endpoint} answers no WebSocket upgrade in {format_duration(limit)}"
                    leg = await self._upgrade(leg, endpoint, client)
                reason = f"{endpoint} accepts connections and sends no INFO in {format_duration(limit)}"
                greeting = await _first_line(leg)
                if greeting:
                    self._speaks_tls.pop(endpoint, None)
                    kept, leg = leg, None
                    return Dialled(endpoint, kept, greeting)
                reason = f"{endpoint} closes connections before its INFO"
        except LegLost as lost:  # before its header
            raise NoServer(f"cannot connect to {endpoint}: {lost}") from None
        except OSError as error:
            raise NoServer(f"cannot connect to {endpoint}: {os.strerror(error.errno or 0)}") from None
        finally:
            if leg is not None:
                leg.close()
        if leg is not None and await self._wants_tls(endpoint):
            reason = f"{endpoint} speaks TLS from the first byte (handshake_first), natsproxy does not yet"
        raise NoServer(reason)

    async def _connect(self, endpoint: Endpoint) -> Leg:
        with trio.socket.socket(endpoint.family, socket.SOCK_STREAM) as connecting:
            await connecting.connect(endpoint.sockaddr)
            return Leg(socket.socket(fileno=connecting.detach()), keepalive=self._settings.keepalive)

    async def _upgrade(self, leg: AnyLeg, endpoint: Endpoint, client: ClientFacts) -> AnyLeg:
        from natsproxy.net import websocket_leg  # only then: the library takes a while to load

        # nats-server takes the client's address from this header.
        headers = {**client.upgrade, "X-Forwarded-For": split_host_port(client.peer)[0]}
        try:
            return await websocket_leg.connect_websocket(
                leg,
                endpoint.server.address,
                "/",
                secure=False,
                frame_max=self._settings.queue_bytes,
                headers=headers,
            )
        except (websocket_leg.WebSocketRefused, LegLost) as error:
            raise NoServer(f"{endpoint} does not speak WebSocket: {error}") from None

    async def _wants_tls(self, endpoint: Endpoint) -> bool:
        """Tell whether a server that gave no greeting answers a ClientHello; it gets one per outage."""
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


async def _first_line(leg: AnyLeg) -> bytes:
    """Return the bytes of a server up to its first line end or more; `b""` where the stream ends before."""
    line = b""
    try:
        while b"\n" not in line and len(line) < _LONGEST_LINE:
            data = await leg.receive()
            if not data:
                return b""
            line += data
    except LegLost:
        return b""
    return line


def _client_hello() -> bytes:
    out = ssl.MemoryBIO()
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).wrap_bio(ssl.MemoryBIO(), out, server_hostname="nats")
    with suppress(ssl.SSLWantReadError):  # it waits for an answer that it will not be given
        client.do_handshake()
    return out.read()
