"""For clients whose server is lost: a leg that leads nowhere, and the wait that lets them resume together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from natsproxy.addresses import Address

_SETTLE: Final = 0.1
"""Seconds for the subscriptions to become known in a cluster, and for later losses to be seen here."""
_PATIENCE: Final = 2.0
"""Seconds that one client waits for the others at most."""


class HeldClients:
    """The connections of a proxy that have no server for now, or one that has not accepted them yet.

    The messages that one client has sent meanwhile may be for another one: they wait until that has its
    subscriptions back.

    arrived: called with the number of a connection that has a server again, or is gone.
    """

    def __init__(self, arrived: Callable[[int], None]) -> None:
        self._arrived = arrived
        self._held: set[int] = set()
        self._none = trio.Event()

    @property
    def count(self) -> int:
        """The number of them."""
        return len(self._held)

    def add(self, conn: int) -> None:
        """Note a connection that has lost its server."""
        self._held.add(conn)

    def discard(self, conn: int) -> None:
        """Note a connection that has a server again, or is gone."""
        self._held.discard(conn)
        self._arrived(conn)
        if not self._held:
            self._none.set()
            self._none = trio.Event()

    async def settled(self) -> None:
        """Wait until no connection is without a server, for a while at most."""
        with trio.move_on_after(_PATIENCE):
            await trio.sleep(_SETTLE)
            while self._held:
                await self._none.wait()
                await trio.sleep(_SETTLE)


class AbsentLeg:
    """The server leg of a client that has no server: nothing comes, and nothing is to be sent."""

    backlog: Final = 0
    gone: Final = False
    lost: Final = None
    broken: Final = False
    readable: Final = False
    unread: Final = 0
    arrived: Final = True
    delivered: Final = True
    peer: Final = "gone"

    def __init__(self, local: Address) -> None:
        self.local = local
        self._finished = False

    def try_receive(self) -> bytes | None:
        """Return None, or the end of the stream once this side has ended."""
        return b"" if self._finished else None

    async def receive(self) -> bytes:
        """Wait until this side has ended."""
        while (data := self.try_receive()) is None:
            await self.wait_readable()
        return data

    async def wait_readable(self) -> None:
        """Wait until cancelled."""
        if not self._finished:
            await trio.sleep_forever()

    def write(self, data: bytes | memoryview) -> None:
        """Drop bytes: there is no server."""

    def write_all(self, parts: list[bytes | memoryview]) -> None:
        """Drop bytes, as `write`."""

    async def flush(self) -> None:
        """Do nothing: there is no backlog."""

    def finish(self) -> None:
        """End this side."""
        self._finished = True

    def close(self) -> None:
        """End this side."""
        self._finished = True

    def reset(self) -> None:
        """End this side."""
        self._finished = True
