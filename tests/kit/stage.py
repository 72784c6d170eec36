"""A proxy whose connections have both of their ends in the test, past the first PONG."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from natsproxy.addresses import Address
from natsproxy.config.endpoints import Listener, Server
from natsproxy.config.settings import ProxySettings
from natsproxy.events import Closed
from natsproxy.net.proxy import Proxy
from natsproxy.rules.engine.chain import RuleChain

DEADLINE = 60.0  # seconds
INFO = b'INFO {"server_id":"x","version":"2.15.1","headers":true,"max_payload":8388608}\r\n'
HELLO = b'CONNECT {"verbose":false,"headers":true,"protocol":1}\r\nPING\r\n'
FRAME = b"PUB a 5\r\nhello\r\n"


async def receive(stream: trio.SocketStream, size: int) -> bytes:
    """Return so many bytes, or fewer at the end of the stream."""
    received = bytearray()
    while len(received) < size and (data := await stream.receive_some(size - len(received))):
        received += data
    return bytes(received)


class Stage:
    """A proxy, the listener behind it, and the ends of its connections.

    streams: all that `connect` has made; `stage` closes them, for a test that fails.
    """

    def __init__(self, proxy: Proxy, listener: trio.SocketListener) -> None:
        self.proxy, self.listener = proxy, listener
        self.streams: list[trio.SocketStream] = []
        self.ends: dict[int, Closed] = {}
        self._ended = trio.Event()
        proxy.subscribe(self._on_event)

    def _on_event(self, event: object) -> None:
        if isinstance(event, Closed):
            self.ends[event.conn] = event
            self._ended.set()

    async def end_of(self, conn: int) -> str:
        """Wait for the end of a connection; return its cause."""
        while conn not in self.ends:
            self._ended = trio.Event()
            await self._ended.wait()
        return self.ends[conn].cause

    async def connect(self) -> tuple[trio.SocketStream, trio.SocketStream]:
        """Return a client and its server, past the first PONG."""
        client = await trio.open_tcp_stream("127.0.0.1", self.proxy.listen[0].port)
        self.streams.append(client)
        server = await self.listener.accept()
        self.streams.append(server)
        await server.send_all(INFO)
        greeting = b""
        while b"\r\n" not in greeting:
            greeting += await client.receive_some()
        await client.send_all(HELLO)
        assert await receive(server, len(HELLO)) == HELLO
        await server.send_all(b"PONG\r\n")
        assert await receive(client, 6) == b"PONG\r\n"
        return client, server


@asynccontextmanager
async def stage(
    chain: RuleChain | None = None, *, deadline: float = DEADLINE, **settings: Any
) -> AsyncIterator[Stage]:
    """Give a stage; chain: the rules; deadline: seconds for all of it; settings: of the proxy."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1", backlog=5_000)
    upstream = Address("127.0.0.1", listener.socket.getsockname()[1])
    settings = {"listen": (Listener(),), **settings}
    proxy = Proxy(ProxySettings(upstream=(Server(upstream),), **settings), chain)
    made = Stage(proxy, listener)
    async with listener, trio.open_nursery() as nursery:
        await nursery.start(proxy.serve)
        try:
            with trio.fail_after(deadline):
                yield made
        finally:
            for stream in made.streams:
                stream.socket.close()
        nursery.cancel_scope.cancel()
