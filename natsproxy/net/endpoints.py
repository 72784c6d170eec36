"""Endpoints: the addresses of servers, looked up for each connection.

A server that is named by an IP address has one endpoint, and no look-up.  A name may have several addresses,
which may change: each is an endpoint of its own, since one may be down while the others serve.

While a resolver fails or is slow, a name keeps its last addresses.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import trio

from natsproxy.addresses import WILDCARDS, Address
from natsproxy.config.endpoints import Server

_PATIENCE = 1.0  # seconds for a resolver once there is an endpoint to use


class Endpoint(NamedTuple):
    """One address of a server.  family, sockaddr: as sockets take them."""

    server: Server
    family: int
    sockaddr: tuple[Any, ...]

    @property
    def address(self) -> Address:
        """The IP address and the port."""
        return Address(self.sockaddr[0], self.sockaddr[1])

    def __hash__(self) -> int:
        return hash(self.sockaddr)  # asked for often; formatting it each time is slow

    def leads_to(self, listening: Iterable[Address]) -> bool:
        """Tell whether a connection to it would reach one of these listeners of this process."""
        host, port = self.sockaddr[:2]
        return any(
            port == listener.port
            and (host == listener.host or (listener.host in WILDCARDS and self._is_here()))
            for listener in listening
        )

    def _is_here(self) -> bool:
        try:
            with socket.socket(self.family, socket.SOCK_DGRAM) as trial:
                trial.bind((self.sockaddr[0], 0, *self.sockaddr[2:]))
        except OSError:  # no address of this machine; or no descriptor, and so none to connect with
            return False
        return True

    def __str__(self) -> str:
        named, host = self.server.address, self.sockaddr[0]
        return str(named) if named.host == host else f"{named} ({host})"


class Resolver:
    """Looks up the endpoints of servers.  limit: the longest wait for the first of them, in seconds."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._last: dict[Server, list[Endpoint]] = {}  # the last addresses of names
        self._servers: Sequence[Server] = ()  # of the last call, mostly those of the next one too
        self._names: list[Server] = []  # those of them that need a resolver
        self._numeric: dict[Server, list[Endpoint]] = {}  # the others: connections share an endpoint

    def known(self, servers: Sequence[Server]) -> list[Endpoint] | None:
        """Return the endpoints of servers in their order; None where that takes a look-up."""
        self._take(servers)
        if self._names:
            return None
        return [endpoint for server in servers for endpoint in self._numeric[server]]

    def _take(self, servers: Sequence[Server]) -> None:
        """Find out which servers need a resolver."""
        if servers is not self._servers:
            self._servers = servers
            self._numeric = {server: self._numeric.get(server) or _numeric(server) for server in servers}
            self._names = [server for server in servers if not self._numeric[server]]
            self._last = {name: self._last.get(name, []) for name in self._names}

    async def look_up(self, servers: Sequence[Server]) -> tuple[list[Endpoint], list[str]]:
        """Return the endpoints of servers in their order, and why some have none, as sentences."""
        self._take(servers)
        found, names = self._numeric, self._names
        reasons = dict.fromkeys(names, "no answer from the resolver in time")
        if names:
            usable = any(found.values()) or any(self._last.values())
            with trio.move_on_after(_PATIENCE if usable else self._limit) as patience:
                async with trio.open_nursery() as nursery:
                    for name in names:
                        nursery.start_soon(self._look_up_name, name, reasons, patience)
            found = found | self._last
        endpoints = [endpoint for server in servers for endpoint in found[server]]
        return endpoints, [
            f"cannot connect to {name.address}: {reasons[name]}" for name in names if not found[name]
        ]

    async def _look_up_name(
        self, server: Server, reasons: dict[Server, str], patience: trio.CancelScope
    ) -> None:
        host, port = server.address.host, server.address.port
        try:
            infos = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            reasons[server] = error.strerror or str(error)
        except UnicodeError:
            reasons[server] = "not a host name"
        else:
            self._last[server] = [Endpoint(server, info[0], info[4]) for info in infos]
            patience.deadline = min(patience.deadline, trio.current_time() + _PATIENCE)


def _numeric(server: Server) -> list[Endpoint]:
    """Return the endpoint of a server that an IP address names, nothing for a name."""
    host, port = server.address.host, server.address.port
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        return []
    return [Endpoint(server, info[0], info[4]) for info in infos]
