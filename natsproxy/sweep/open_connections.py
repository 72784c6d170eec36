"""The connections of a proxy that are open when a run's time is over, and bytes that clients left unread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import trio

from natsproxy.net.proxy import Proxy
from natsproxy.sweep.values import OpenConnection

_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


async def open_connections(proxy: Proxy, patience: float = 1.0) -> list[OpenConnection]:
    """Return the open connections, in the order of their numbers.

    patience: seconds that a client has to answer a PING; it is not asked where a fault holds frames back,
    which would be before the PING or its answer.
    """
    ports = {one.port for one in proxy.listen}
    queues = {local: unread for local, remote, unread in _sockets() if remote in ports}
    relays = sorted(proxy.relays.items())  # before the PINGs, which may go unread
    alive: dict[int, bool | None] = dict.fromkeys(proxy.relays)

    async def ask(conn: int) -> None:
        alive[conn] = False
        try:
            alive[conn] = await proxy.ask_client(conn)
        except KeyError:  # it had ended before
            del alive[conn]

    with trio.move_on_after(patience):
        async with trio.open_nursery() as nursery:
            for conn, relay in relays:
                relay.catch_up()
                if not any(pipe.outbox.active for pipe in relay.session.pipes):
                    nursery.start_soon(ask, conn)
    found = []
    for conn, relay in relays:
        if conn not in alive:
            continue
        session = relay.session
        port = relay.accepted.facts.peer.rpartition(":")[2]
        unread = queues.get(int(port)) if port.isdecimal() else None
        found.append(OpenConnection(session.key, len(session.subs), alive[conn], unread))
    return found


def _sockets() -> Iterator[tuple[int, int, int]]:
    """Yield local port, remote port and unread bytes of each socket; none where the system does not tell."""
    for table in _TABLES:
        with suppress(OSError):
            for line in table.read_text().splitlines()[1:]:
                _, local, remote, _, queues, *_ = line.split()
                yield _port(local), _port(remote), int(queues.partition(":")[2], 16)


def _port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)
