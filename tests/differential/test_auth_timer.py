"""The time-out of a client that has not said who it is: where nobody asks, its first frame ends the timer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from natsproxy.addresses import Address
from natsproxy.config.endpoints import Listener, Server
from natsproxy.config.settings import ProxySettings
from natsproxy.net.proxy import Proxy
from natsproxy.units import MILLISECOND
from tests.kit.servers import NatsServer

pytestmark = pytest.mark.server
OPEN = "authorization { timeout: 0.3 }"
DEFAULT_USER = 'authorization { timeout: 0.3, users: [{ user: a, password: b }] }\nno_auth_user: "a"'
USERS = "authorization { timeout: 0.3, user: a, password: b }"
TIME_OUT = b"-ERR 'Authentication Timeout'\r\n"
VIOLATION = b"-ERR 'Authorization Violation'\r\n"
FIRST = [
    (b"PING\r\n", b""),
    (b"PONG\r\n", b""),
    (b"+OK\r\n", b""),
    (b"SUB a 1\r\n", b""),
    (b"PUB a 100000\r\nabc", bytes(99_997) + b"\r\n"),
]
"""The first bytes of clients without a CONNECT, and the rest of their frame."""


@asynccontextmanager
async def served(config: str, *, proxied: bool) -> AsyncIterator[int]:
    """Give the port of a server, or of a proxy before it."""
    with NatsServer(config) as server, trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            if proxied:
                upstream = Server(Address("127.0.0.1", server.port))
                limit = 300 * MILLISECOND
                settings = ProxySettings(listen=(Listener(),), upstream=(upstream,), auth_timeout=limit)
                (address,) = await nursery.start(Proxy(settings).serve)
                yield address.port
            else:
                yield server.port
            nursery.cancel_scope.cancel()


async def connect(port: int) -> trio.SocketStream:
    """Connect, and take the INFO."""
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    assert (await stream.receive_some()).startswith(b"INFO ")
    return stream


async def until(stream: trio.SocketStream, mark: bytes) -> None:
    """Receive up to a mark."""
    received = b""
    while mark not in received:
        data = await stream.receive_some()
        assert data, received
        received += data


@pytest.mark.parametrize(
    ("config", "proxied"),
    [
        pytest.param(DEFAULT_USER, False, id="a server with a default user"),
        pytest.param(DEFAULT_USER, True, id="before one with a default user"),
        pytest.param(OPEN, True, id="before one without users"),
    ],
)
async def test_a_client_that_has_sent_anything_may_stay(config: str, proxied: bool) -> None:
    """It need not send a CONNECT at all: only a silent one is ended."""
    async with served(config, proxied=proxied) as port:
        clients: list[tuple[trio.SocketStream, bytes]] = []
        for first, rest in FIRST:
            clients.append((await connect(port), rest))
            await clients[-1][0].send_all(first)
        silent = await connect(port)
        await until(silent, TIME_OUT)
        for client, rest in clients:
            await client.send_all(rest + b"PING\r\n")
            await until(client, b"PONG\r\n")
            await client.aclose()
        await silent.aclose()


@pytest.mark.parametrize("proxied", [False, True])
async def test_a_server_with_users_takes_a_connect_and_nothing_else(proxied: bool) -> None:
    async with served(USERS, proxied=proxied) as port:
        for first, _ in FIRST:
            client = await connect(port)
            await client.send_all(first)
            await until(client, VIOLATION)
            await client.aclose()
