"""The trio driver of a `ClientPlayback`: it dials, writes, reads and keeps time."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import trio

from natsproxy.addresses import Address
from natsproxy.capture.format.connection import ConnectionId
from natsproxy.errors import NatsproxyError, ProtocolError
from natsproxy.net.clock import now_ns
from natsproxy.net.leg import Leg, LegLost
from natsproxy.replay.client_playback.credentials import ReplayCredentials, rebuild_connect
from natsproxy.replay.client_playback.playback import ClientPlayback
from natsproxy.replay.client_playback.state import Action, Dial, Write
from natsproxy.replay.handshake import open_connection

_READS: Final = 16  # reads of one connection before the others get their turn


class ClientPlayer:
    """Plays the clients of a `ClientPlayback` machine against a server."""

    def __init__(
        self, machine: ClientPlayback, address: Address, credentials: ReplayCredentials | None = None
    ) -> None:
        self.machine = machine
        self.address = address
        self.credentials = credentials or ReplayCredentials()
        self.connected = 0
        self._legs: dict[ConnectionId, Leg] = {}
        self._scopes: dict[ConnectionId, trio.CancelScope] = {}
        self._wake = trio.Event()
        self._failure: NatsproxyError | None = None

    async def run(self) -> None:
        """Play to the end; every connection is closed then, also after an error.

        Raises ConfigError when the server cannot be reached or refuses a connection.
        """
        try:
            async with trio.open_nursery() as nursery:
                while not self.machine.done and self._failure is None:
                    # Made before `advance`: bytes that come during the flush end the wait below at once.
                    self._wake = trio.Event()
                    self._perform(self.machine.advance(now_ns()), nursery)
                    await self._flush()
                    if not self.machine.done:
                        await self._wait()
                nursery.cancel_scope.cancel()
            if self._failure is not None:
                raise self._failure
        finally:
            for leg in self._legs.values():
                leg.close()

    async def _wait(self) -> None:
        deadline = self.machine.deadline
        wait = float("inf") if deadline is None else max(0, deadline - now_ns()) / 1e9
        with trio.move_on_after(wait):
            await self._wake.wait()

    def _perform(self, actions: list[Action], nursery: trio.Nursery) -> None:
        for action in actions:
            if isinstance(action, Dial):
                nursery.start_soon(self._connection, action)
            elif isinstance(action, Write):
                leg = self._legs.get(action.conn)
                if leg is not None:
                    self._write(action.conn, leg, action.data)
            else:
                scope = self._scopes.get(action.conn)
                if scope is not None:
                    scope.cancel()

    def _write(self, conn: ConnectionId, leg: Leg, data: bytes) -> None:
        try:
            leg.write(data)
        except LegLost as lost:
            self._lost(conn, str(lost))

    async def _flush(self) -> None:
        for conn, leg in list(self._legs.items()):
            if leg.backlog:
                try:
                    await leg.flush()
                except LegLost as lost:
                    self._lost(conn, str(lost))

    def _lost(self, conn: ConnectionId, reason: str) -> None:
        self.machine.lost(conn, reason)
        self._wake.set()

    # -- one connection

    async def _connection(self, dial: Dial) -> None:
        with trio.CancelScope() as scope:
            self._scopes[dial.conn] = scope
            leg: Leg | None = None
            try:
                leg, early = await open_connection(self.address, partial(self._connect_arguments, dial))
                self.connected += 1
                self._legs[dial.conn] = leg
                self.machine.connected(dial.conn)
                self._received(dial.conn, leg, early)
                await self._read(dial.conn, leg)
                self._lost(dial.conn, "the server closed it")
            except ProtocolError as error:
                self._lost(dial.conn, f"the server sent bytes that are not NATS ({error})")
            except NatsproxyError as error:
                self._fail(error)
            except LegLost as lost:
                self._lost(dial.conn, str(lost))
            finally:
                self._legs.pop(dial.conn, None)
                self._scopes.pop(dial.conn, None)
                if leg is not None:
                    leg.close()

    def _fail(self, error: NatsproxyError) -> None:
        self._failure = self._failure or error
        self._wake.set()

    def _connect_arguments(self, dial: Dial, info: dict[str, Any]) -> bytes:
        return rebuild_connect(dial.connect, self.credentials.of(dial.conn), str(info.get("nonce", "")))

    async def _read(self, conn: ConnectionId, leg: Leg) -> None:
        reads = 0
        while True:
            data = leg.try_receive()
            if data is None:
                reads = 0
                await leg.wait_readable()
                continue
            if not data:  # the server's end of the stream
                return
            self._received(conn, leg, data)
            reads += 1
            if reads >= _READS:
                await trio.lowlevel.checkpoint()
                reads = 0

    def _received(self, conn: ConnectionId, leg: Leg, data: bytes) -> None:
        for action in self.machine.received(conn, data):
            if isinstance(action, Write):
                self._write(conn, leg, action.data)
        self._wake.set()
