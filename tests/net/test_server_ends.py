"""A server that goes with all of its connections: few warnings, with counts."""

from __future__ import annotations

import signal
import socket
from contextlib import ExitStack

import pytest
import trio
import trio.testing

from natsproxy.addresses import Address
from natsproxy.config.endpoints import Server
from natsproxy.events import Event, Notice
from natsproxy.net.endpoints import Endpoint
from natsproxy.net.server_ends import MOMENT, ServerEnds
from tests.kit.process import ProxyProcess
from tests.kit.servers import NatsServer

HELLO = b'CONNECT {"verbose":false}\r\nPING\r\n'
CLIENTS = 30


def connect(port: int, into: ExitStack) -> None:
    """Open a connection that stays open; wait for its first PONG."""
    sock = into.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
    sock.sendall(HELLO)
    received = b""
    while b"PONG\r\n" not in received:
        received += sock.recv(1 << 16)


@pytest.mark.server
def test_a_server_that_is_killed_is_one_warning() -> None:
    """One more when a client finds out that it is an outage, and one when that is over."""
    with NatsServer() as server, ProxyProcess(server.url) as proxy, ExitStack() as clients:
        for _ in range(CLIENTS):
            connect(proxy.port, clients)
        server.stop(signal.SIGKILL)
        told = proxy.wait_for(lambda line: "ended all its connections" in line["event"])
        assert told["connections"] == CLIENTS
        ends = [line["level"] for line in proxy.lines() if line["event"] == "closed"]
        assert ends == ["info"] * CLIENTS
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=30) as turned_away:
            assert turned_away.recv(100) == b""
        server.start()
        connect(proxy.port, clients)
        back = proxy.wait_for(lambda line: line["event"] == "the upstream is back")
        assert back["connections_turned_away"] == 1
        warnings = [line["event"] for line in proxy.lines() if line["level"] == "warning"]
    name = f"127.0.0.1:{server.port}"
    assert warnings == [
        f"the server {name} ended all its connections",
        f"the upstream cannot be used: cannot connect to {name}: Connection refused",
        "the upstream is back",
    ]


async def test_each_server_is_told_by_itself(autojump_clock: trio.abc.Clock) -> None:
    """And each moment; what is not told at the end of the proxy is told then."""
    one, other = (
        Endpoint(Server(Address("127.0.0.1", port)), socket.AF_INET, ("127.0.0.1", port)) for port in (1, 2)
    )
    events: list[Event] = []
    ends = ServerEnds({7: other}, events.append)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ends.run)
        for endpoint in (one, other, one):
            ends.count(endpoint)
        await trio.sleep(2 * MOMENT)
        assert len(events) == 2
        await trio.sleep(2 * MOMENT)
        ends.count(other)
        await trio.testing.wait_all_tasks_blocked()
        assert len(events) == 2
        nursery.cancel_scope.cancel()
    told = [(event.level, event.text, event.data) for event in events if isinstance(event, Notice)]
    assert told == [
        ("warning", "the server 127.0.0.1:1 ended all its connections", {"connections": 2}),
        ("warning", "the server 127.0.0.1:2 ended connections", {"connections": 1}),
        ("warning", "the server 127.0.0.1:2 ended connections", {"connections": 1}),
    ]
