"""Thousands of TLS clients at once."""

from __future__ import annotations

import resource
import ssl
from contextlib import ExitStack

import pytest
import trio

from natsproxy.testing import NatsServer
from tests.kit.authority import Authority
from tests.kit.process import ProxyProcess

CONNECTIONS = 5_000
TALKING = 10  # one in so many talks
AT_ONCE = 100  # that come at the same time
CONNECT = b'CONNECT {"verbose":false,"name":"many"}\r\nPING\r\n'
DEADLINE = 60.0
MORE = ("--auth-timeout", "1m", "--log-rate", "0")


@pytest.mark.long
async def test_five_thousand_clients_at_once_with_traffic_on_a_tenth(authority: Authority) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * CONNECTIONS + 1_000), hard))
    context = authority.client_context()
    files = ("--tls-cert", str(authority.server()))
    with (
        NatsServer() as server,
        ProxyProcess(server.url, "--listen", "tls://127.0.0.1:0", *files, *MORE) as proxy,
        ExitStack() as sockets,
    ):
        port = int(proxy.lines()[0]["listen"][-1].rpartition(":")[2])
        before = proxy.memory()
        clients: list[trio.SSLStream[trio.SocketStream]] = []

        async def come(room: trio.CapacityLimiter) -> None:
            async with room:
                with trio.fail_after(DEADLINE):
                    clients.append(await _connected(port, context, sockets))

        room = trio.CapacityLimiter(AT_ONCE)
        async with trio.open_nursery() as nursery:
            for _ in range(CONNECTIONS):
                nursery.start_soon(come, room)
        print(f"{(proxy.memory() - before) / CONNECTIONS / 1024:.1f} KiB a connection")
        async with trio.open_nursery() as nursery:
            for number in range(0, CONNECTIONS, TALKING):
                nursery.start_soon(_talk, clients[number], number)
        sockets.close()
        assert proxy.drain() == 0
        ends = [line for line in proxy.lines() if line["event"] == "closed"]
        assert len(ends) == CONNECTIONS
        assert {line["cause"] for line in ends} <= {"client-closed", "client-lost", "drained"}


async def _connected(
    port: int, context: ssl.SSLContext, sockets: ExitStack
) -> trio.SSLStream[trio.SocketStream]:
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    sockets.callback(stream.socket.close)
    await _until(stream, b"\r\n")
    secured = trio.SSLStream(stream, context, server_hostname="127.0.0.1", https_compatible=True)
    await secured.send_all(CONNECT)
    await _until(secured, b"PONG\r\n")
    return secured


async def _talk(client: trio.abc.Stream, number: int) -> None:
    with trio.fail_after(DEADLINE):
        await client.send_all(b"SUB a.%d 1\r\n" % number)
        for _ in range(20):
            await client.send_all(b"PUB a.%d 3000\r\n%b\r\nPING\r\n" % (number, bytes(3_000)))
            await _until(client, b"PONG\r\n")


async def _until(stream: trio.abc.Stream, end: bytes) -> None:
    data = b""
    while end not in data:
        more = await stream.receive_some()
        if not more:
            raise EOFError("the proxy closed")
        data = data[-len(end) :] + more
