"""The listeners of a proxy: they accept connections and hand them on as legs.

They are plain sockets, not trio's listeners: the `accept` of those would first make a stream of each
connection, with settings that no leg needs, and that would cost more than everything else here.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Collection, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Final

import trio

from natsproxy.addresses import WILDCARDS, Address
from natsproxy.config.endpoints import Listener
from natsproxy.errors import ConfigError
from natsproxy.net.arrivals import Arrivals, Take
from natsproxy.net.shortage import Shortage
from natsproxy.net.tcp import keep_alive
from natsproxy.net.timeslice import LENGTH
from natsproxy.units import SECOND

_RETRY: Final = 0.1  # seconds until the next try where the process is out of descriptors
_UNSENT: Final = 16_384  # bytes that the kernel takes and cannot send yet, about; connections inherit it
_BACKLOG: Final = 65_535  # connections that wait; the system has a limit of its own
_TRIES: Final = 20  # to find a port that both families have, where the system chooses it
_NO_FAMILY: Final = frozenset(
    {errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL}
)  # there is no IPv6, or it is disabled

_At = tuple[int, tuple[Any, ...]]


async def open_listeners(
    listeners: Sequence[Listener], passed: Sequence[socket.socket] = (), *, keepalive: bool = False
) -> list[tuple[socket.socket, Listener]]:
    """Listen on the addresses of all listeners, or on none; one may stand for several sockets.

    passed: sockets that listen already.  A listener whose address one has gets it, and each must find its
    listener.  keepalive: of the connections that they accept, which inherit it.
    Raises ConfigError that names the address at fault.
    """
    sockets: list[tuple[socket.socket, Listener]] = []
    waiting = list(passed)
    try:
        for listener in listeners:
            sockets += [
                (_prepared(one, keepalive), listener) for one in await _open(listener.address, waiting)
            ]
        if waiting:
            place = Address(*waiting[0].getsockname()[:2])
            raise ConfigError(f"the service manager passed a socket for {place}, which no --listen names")
    except BaseException:
        for opened, _ in sockets:
            opened.close()
        raise
    return sockets


async def _open(address: Address, waiting: list[socket.socket]) -> list[socket.socket]:
    """Listen on an address, with the sockets that are there for it; they are taken out of `waiting`."""
    try:
        places = await _places(address)
        mine = [
            one for one in waiting if _place(*one.getsockname()[:2]) in {_place(*at[:2]) for _, at in places}
        ]
        for one in mine:
            waiting.remove(one)
        return mine or _listen(address, places)
    except OSError as error:
        raise ConfigError(f"cannot listen on {address}: {error.strerror or error}") from None


async def _places(address: Address) -> list[_At]:
    """Return the families and socket addresses of an address; a wildcard has both families, as Go's has."""
    if address.host in WILDCARDS:
        return [(socket.AF_INET, ("0.0.0.0", address.port)), (socket.AF_INET6, ("::", address.port))]  # noqa: S104
    found = await trio.socket.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    return [(family, sockaddr) for family, *_, sockaddr in found]


def _place(host: str | int, port: int | str) -> tuple[str, int]:
    """Return host and port; all addresses of IPv4 and of IPv6 are one place, since a socket may have both."""
    return "*" if str(host) in WILDCARDS else str(host), int(port)


def _listen(address: Address, places: Sequence[_At]) -> list[socket.socket]:
    """Listen on all places that this machine can have, on one port.  Raises OSError."""
    lacking = _NO_FAMILY if address.host in WILDCARDS else frozenset({errno.EAFNOSUPPORT})
    tries = 1 if address.port else _TRIES
    while True:
        tries -= 1
        with ExitStack() as opened:
            try:
                sockets = _bind(places, address.port, lacking, opened)
            except OSError as error:
                if not (tries and error.errno == errno.EADDRINUSE):
                    raise
                continue  # the system chose a port that another program has in the other family
            for one in sockets:
                one.listen(_BACKLOG)
            opened.pop_all()
            return sockets


def _bind(
    places: Sequence[_At], port: int, lacking: Collection[int], opened: ExitStack
) -> list[socket.socket]:
    """Return sockets bound to places, `opened` too; not to those for which this machine lacks something."""
    sockets: list[socket.socket] = []
    absent = OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
    for family, (host, _, *scope) in places:
        try:
            sockets.append(opened.enter_context(_bound(family, (host, port, *scope))))
        except OSError as error:
            if error.errno not in lacking:
                raise
            absent = error
        else:
            port = sockets[0].getsockname()[1]
    if not sockets:
        raise absent
    return sockets


def _bound(family: int, sockaddr: tuple[Any, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # IPv4 has a socket of its own
        sock.bind(sockaddr)
    except BaseException:
        sock.close()
        raise
    return sock


def _prepared(listening: socket.socket, keepalive: bool) -> socket.socket:
    listening.setblocking(False)
    if keepalive:  # five system calls of each connection
        keep_alive(listening)
    with suppress(OSError):  # bytes for a slow reader wait here, counted and bounded, and not in the kernel
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT)
    return listening


def local_address(listening: socket.socket) -> Address:
    """Return the address of a listener, with the port that the system chose."""
    return Address(*listening.getsockname()[:2])


def close(listening: socket.socket) -> None:
    """Close a listener; idempotent."""
    if listening.fileno() >= 0:
        trio.lowlevel.notify_closing(listening)
        listening.close()


async def accept(listening: socket.socket, arrivals: Arrivals, take: Take, shortage: Shortage) -> None:
    """Accept connections until cancelled.  arrivals: where they go.  take: see `Arrivals.come`."""
    while True:
        await _until_readable(listening, shortage.look())
        while arrivals.full:
            await arrivals.wait_shorter()
        try:
            _accept_some(listening, arrivals, take)
        except BlockingIOError:  # no more are waiting, or it was time to check the shortage
            continue
        except OSError as error:  # connections that close free descriptors
            shortage.met(error)
            await trio.sleep(_RETRY)


def _accept_some(listening: socket.socket, arrivals: Arrivals, take: Take) -> None:
    """Accept clients for a time slice: into the line, but for the first one.  Raises OSError."""
    until, more = time.perf_counter_ns() + LENGTH, False
    while not arrivals.full and time.perf_counter_ns() < until:
        client, (host, port, *_) = listening.accept()
        more |= arrivals.come(client, host, port, take, more=more)


async def _until_readable(listening: socket.socket, most: int | None) -> None:
    """Wait for a connection.  most: the longest time (ns), None for any."""
    if most is None:
        await trio.lowlevel.wait_readable(listening)
    else:
        with trio.move_on_after(most / SECOND):
            await trio.lowlevel.wait_readable(listening)
