"""A sign of life of a client: one that reads gives it, one whose program is stuck does not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import nats
import pytest
import trio

from natsproxy.addresses import Address
from natsproxy.config.endpoints import Listener, Server
from natsproxy.config.settings import ProxySettings
from natsproxy.net.proxy import Proxy
from tests.kit.servers import NatsServer
from tests.kit.stage import receive, stage

PING, PONG = b"PING\r\n", b"PONG\r\n"
pytestmark = pytest.mark.parametrize("plane", ["native", "python"])


@pytest.fixture(autouse=True)
def _plane(plane: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NATSPROXY_PLANE", plane)


class Program:
    """A nats-py program in a thread of its own, which can be stuck for a while."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.connected, self.stuck, self.go_on = threading.Event(), threading.Event(), threading.Event()
        self._stick, self._leave = False, False
        self.received = 0

    def run(self) -> None:
        """Run to the end."""
        asyncio.run(self._run())

    async def _run(self) -> None:
        async def count(message: object) -> None:
            self.received += 1

        client = await nats.connect(self._url)
        await client.subscribe("a", cb=count)
        await client.flush()
        self.connected.set()
        while not self._leave:
            await asyncio.sleep(0.005)
            if self._stick:
                self.stuck.set()
                self.go_on.wait(60)  # the event loop stands still
                self._stick = False
        await client.close()

    def stick(self) -> None:
        """Make it stick; return when it does."""
        self._stick = True
        assert self.stuck.wait(60)

    def leave(self) -> None:
        """Let it end."""
        self._leave = True
        self.go_on.set()


@asynccontextmanager
async def running(server: NatsServer) -> AsyncIterator[tuple[Proxy, Program]]:
    """Run a proxy before a server, with one program that is connected."""
    proxy = Proxy(ProxySettings(listen=(Listener(),), upstream=(Server(Address("127.0.0.1", server.port)),)))
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            (address,) = await nursery.start(proxy.serve)
            program = Program(f"nats://{address}")
            async with trio.open_nursery() as programs:
                programs.start_soon(trio.to_thread.run_sync, program.run)
                try:
                    await trio.to_thread.run_sync(program.connected.wait)
                    yield proxy, program
                finally:
                    program.leave()
            nursery.cancel_scope.cancel()


@pytest.mark.server
async def test_nats_py(nats_server: NatsServer) -> None:
    """It answers, unless it is stuck; later the late answers are swallowed, and all is as before."""
    async with running(nats_server) as (proxy, program):
        for _ in range(3):
            assert await proxy.ask_client(1)
        await trio.to_thread.run_sync(program.stick)
        for _ in range(2):
            with trio.move_on_after(0.1) as scope:
                await proxy.ask_client(1)
            assert scope.cancelled_caught
        program.go_on.set()
        assert await proxy.ask_client(1)


async def test_a_connection_that_ends_gives_no_sign() -> None:
    async with stage() as made:
        client, server = await made.connect()
        answers: list[bool] = []

        async def ask() -> None:
            answers.append(await made.proxy.ask_client(1))

        async with server, trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            assert await receive(client, len(PING)) == PING
            await client.aclose()
            await server.aclose()
        assert answers == [False]
        await made.end_of(1)
        with pytest.raises(KeyError):
            await made.proxy.ask_client(1)


async def test_amid_traffic_the_server_gets_its_own_pongs_only() -> None:
    """PINGs of the server and of the proxy, in one stream with messages, some of which bypass the session."""
    message = b"MSG a 1 5\r\nhello\r\n"
    async with stage() as made:
        client, server = await made.connect()
        got = bytearray()
        heard: list[bool] = []

        async def answer() -> None:
            """Answer each PING, with a publish before each."""
            buffer = b""
            async for data in client:
                buffer += data
                while b"\r\n" in buffer:
                    line, _, buffer = buffer.partition(b"\r\n")
                    if line == b"PING":
                        await client.send_all(b"PUB b 0\r\n\r\n" + PONG)

        async def listen() -> None:
            async for data in server:
                got.extend(data)

        async def ask() -> None:
            heard.append(await made.proxy.ask_client(1))

        async with client, server, trio.open_nursery() as nursery:
            nursery.start_soon(answer)
            nursery.start_soon(listen)
            async with trio.open_nursery() as asking:
                for number in range(30):
                    await server.send_all(message * 3 + PING * (number % 3))
                    if number % 2:
                        asking.start_soon(ask)
                    await trio.lowlevel.checkpoint()
            owed = sum(number % 3 for number in range(30))
            while got.count(b"PUB b 0") < owed + 15 or got.count(PONG) < owed:
                await trio.lowlevel.checkpoint()
            assert heard == [True] * 15
            assert (got.count(PONG), got.count(b"PUB b 0")) == (owed, owed + 15)
            nursery.cancel_scope.cancel()
