"""The memory of connections on which nothing happens."""

from __future__ import annotations

import gc
import socket
import tracemalloc
from contextlib import ExitStack

import pytest
import trio
import trio.testing

from natsproxy.addresses import Address
from natsproxy.config.endpoints import Listener, Server
from natsproxy.config.settings import ProxySettings
from natsproxy.net.proxy import Proxy
from natsproxy.testing import NatsServer
from natsproxy.wire.scanner import COMPILED

MOST = 13 << 10  # bytes
HELLO = b'CONNECT {"verbose":false,"lang":"go","version":"1.50.0","protocol":1,"headers":true}\r\nPING\r\n'
COUNT = 100


def connect(port: int, into: ExitStack, count: int) -> None:
    """Open connections; wait for the first PONG of each."""
    for _ in range(count):
        sock = into.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
        sock.sendall(HELLO)
        received = b""
        while b"PONG\r\n" not in received:
            received += sock.recv(1 << 16)


@pytest.mark.skipif(not COMPILED, reason="not compiled")
async def test_an_idle_connection_takes_little_memory(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the native plane."""
    monkeypatch.delenv("NATSPROXY_PLANE", raising=False)
    settings = ProxySettings(
        listen=(Listener(Address("127.0.0.1", 0)),),
        upstream=(Server(Address("127.0.0.1", nats_server.port)),),
    )
    with ExitStack() as clients:
        async with trio.open_nursery() as nursery:
            (address,) = await nursery.start(Proxy(settings).serve)
            # The first ones make what all share.
            await trio.to_thread.run_sync(connect, address.port, clients, 40)
            gc.collect()
            tracemalloc.start()
            try:
                await trio.to_thread.run_sync(connect, address.port, clients, COUNT)
                await trio.testing.wait_all_tasks_blocked()
                gc.collect()
                taken = tracemalloc.get_traced_memory()[0] / COUNT
            finally:
                tracemalloc.stop()
            nursery.cancel_scope.cancel()
    assert taken < MOST
