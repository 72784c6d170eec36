"""The listeners of a proxy: they take connections and hand them on as legs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import trio

from natsproxy.addresses import Address
from natsproxy.config.settings import Listener
from natsproxy.errors import ConfigError
from natsproxy.events import Event, Notice
from natsproxy.net.clock import now_ns
from natsproxy.net.leg import Leg

_RETRY: Final = 0.1  # seconds until the next try where the process is out of descriptors


async def open_listeners(listeners: Sequence[Listener]) -> list[tuple[trio.SocketListener, Listener]]:
    """Listen on the addresses of all listeners, or on none; one may stand for several sockets.

    Raises ConfigError that names the address at fault.
    """
    sockets: list[tuple[trio.SocketListener, Listener]] = []
    for listener in listeners:
        address = listener.address
        try:
            for opened in await trio.open_tcp_listeners(address.port, host=address.host or None):
                sockets.append((opened, listener))
        except OSError as error:
            for opened, _ in sockets:
                await opened.aclose()
            reason = error.strerror or str(error)
            raise ConfigError(f"cannot listen on {address}: {reason}") from None
    return sockets


def local_address(listener: trio.SocketListener) -> Address:
    """Return the address of a listener, with the port that the system chose."""
    host, port = listener.socket.getsockname()[:2]
    return Address(host, port)


async def accept(
    listener: trio.SocketListener, take: Callable[[Leg], None], emit: Callable[[Event], None]
) -> None:
    """Accept connections until cancelled."""
    while True:
        try:
            stream = await listener.accept()
        except OSError as error:  # out of descriptors: closing connections give some back
            emit(Notice(now_ns(), None, "error", f"cannot accept connections: {error.strerror}"))
            await trio.sleep(_RETRY)
            continue
        take(Leg.from_stream(stream))
