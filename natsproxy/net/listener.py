"""The listeners of a proxy: they take connections and hand them on as legs.

trio opens them, and its own `accept` would make a stream of each connection first, with settings that no leg
needs: that costs more than all else here.  So the sockets are taken from trio's listeners.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import trio

from natsproxy.addresses import Address
from natsproxy.config.settings import Listener
from natsproxy.errors import ConfigError
from natsproxy.net.leg import Leg
from natsproxy.net.shortage import Shortage
from natsproxy.units import SECOND

_RETRY: Final = 0.1  # seconds until the next try where the process is out of descriptors
_UNSENT: Final = 16_384  # bytes that the kernel takes and cannot send yet, about; connections inherit it


async def open_listeners(
    listeners: Sequence[Listener], passed: Sequence[socket.socket] = ()
) -> list[tuple[socket.socket, Listener]]:
    """Listen on the addresses of all listeners, or on none; one may stand for several sockets.

    passed: sockets that listen already.  A listener whose address one has gets it, and each must find its
    listener.  Raises ConfigError that names the address at fault.
    """
    sockets: list[tuple[socket.socket, Listener]] = []
    waiting = list(passed)
    try:
        for listener in listeners:
            sockets += [(_taken(one), listener) for one in await _open(listener.address, waiting)]
        if waiting:
            place = Address(*waiting[0].getsockname()[:2])
            raise ConfigError(f"the service manager passed a socket for {place}, which no --listen names")
    except BaseException:
        for opened, _ in sockets:
            opened.close()
        raise
    return sockets


async def _open(address: Address, waiting: list[socket.socket]) -> Sequence[trio.SocketListener]:
    """Listen on an address, with the sockets that are there for it; they are taken out of `waiting`."""
    try:
        mine = await _at(address, waiting) if waiting else []
        for one in mine:
            waiting.remove(one)
        if mine:
            return [trio.SocketListener(trio.socket.from_stdlib_socket(one)) for one in mine]
        return await trio.open_tcp_listeners(address.port, host=address.host or None)
    except OSError as error:
        raise ConfigError(f"cannot listen on {address}: {error.strerror or error}") from None


async def _at(address: Address, sockets: Sequence[socket.socket]) -> list[socket.socket]:
    """Return the sockets that listen on an address."""
    found = await trio.socket.getaddrinfo(
        address.host or None, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    places = {_place(*sockaddr[:2]) for *_, sockaddr in found}
    return [one for one in sockets if _place(*one.getsockname()[:2]) in places]


def _place(host: str | int, port: int | str) -> tuple[str, int]:
    """Return host and port; all addresses of IPv4 and of IPv6 are one place, since a socket may have both."""
    return "*" if str(host) in ("0.0.0.0", "::") else str(host), int(port)  # noqa: S104 - only compared


def _taken(listener: trio.SocketListener) -> socket.socket:
    listening = socket.socket(fileno=listener.socket.detach())
    listening.setblocking(False)
    with suppress(OSError):  # what waits for a slow reader is ours, counted and bounded, and not the kernel's
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


async def accept(
    listening: socket.socket, take: Callable[[Leg], None], shortage: Shortage, *, keepalive: bool
) -> None:
    """Accept connections until cancelled."""
    while True:
        await _until_readable(listening, shortage.look())
        try:
            client, _ = listening.accept()  # one: the connections that are open have their turn between two
        except BlockingIOError:  # it was only time to look at the shortage again, or the client has left
            continue
        except OSError as error:  # closing connections give descriptors back
            shortage.met(error)
            await trio.sleep(_RETRY)
        else:
            take(Leg(client, keepalive=keepalive))


async def _until_readable(listening: socket.socket, most: int | None) -> None:
    """Wait for a connection.  most: the longest time (ns), None for any."""
    if most is None:
        await trio.lowlevel.wait_readable(listening)
    else:
        with trio.move_on_after(most / SECOND):
            await trio.lowlevel.wait_readable(listening)
