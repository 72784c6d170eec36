"""A tls:// listener whose clients may do without TLS: clients see what the server with that setting shows."""

from __future__ import annotations

import json
from typing import Any

import nats
import pytest
import trio

from natsproxy.config.tls import HandshakeFirst
from tests.kit.authority import Authority
from tests.kit.node import run_node
from tests.kit.servers import NatsServer
from tests.net.test_websocket import PROGRAM
from tests.net.tls.legs import between, in_asyncio
from tests.net.tls.test_failures import CONNECT, converse, first_line, read_to_end

pytestmark = [
    pytest.mark.server,
    pytest.mark.filterwarnings("ignore:parameter 'timeout' of type 'float'"),  # nats-py's own call
]
MS = 1_000_000
ALLOW = "allow_non_tls: true\n"


async def offered(port: int) -> dict[str, Any]:
    """Return what INFO says of TLS."""
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream:
        info = json.loads((await first_line(stream)).removeprefix(b"INFO "))
    return {key: value for key, value in info.items() if key.startswith("tls") and value}


async def plain(port: int, sent: bytes = CONNECT) -> bytes:
    """Log in without TLS; return the answer."""
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream:
        await first_line(stream)
        await stream.send_all(sent)
        return bytes(await stream.receive_some())


@pytest.mark.parametrize("verify", [False, True])
async def test_both_kinds_of_clients_on_one_port(authority: Authority, verify: bool) -> None:
    """As at the server itself, INFO and all."""
    config = authority.server_config("verify: true" if verify else "") + ALLOW
    context = authority.client_context(authority.client() if verify else None)
    tls = {"allow_non_tls": True, "ca": authority.file if verify else None}
    with NatsServer(config) as real, NatsServer() as behind:
        async with between(authority, "after INFO", behind, "plain", tls=tls) as one:
            for port in (real.port, one.address.port):
                assert (await offered(port))["tls_available"]
                assert await plain(port) == await converse(port, context) == b"PONG\r\n"
            assert await offered(real.port) == await offered(one.address.port)


async def test_real_clients(authority: Authority) -> None:
    """nats.js takes TLS where it is offered; nats-py only where it is required."""

    async def program() -> None:
        client = await nats.connect(f"nats://{one.address}", allow_reconnect=False)
        subscription = await client.subscribe("a")
        for size in (0, 70_000, 1_000_000):
            await client.publish("a", b"x" * size)
            assert len((await subscription.next_msg(20)).data) == size
        await client.close()

    more = json.dumps({"tls": {"caFile": str(authority.file)}})
    with NatsServer() as behind:
        async with between(authority, "after INFO", behind, "plain", tls={"allow_non_tls": True}) as one:
            await in_asyncio(program)
            output = await trio.to_thread.run_sync(run_node, PROGRAM, f"nats://{one.address}", more)
    assert output == "hello: 11 headers: yes\n"


async def test_with_a_fallback_delay(authority: Authority) -> None:
    """Clients that wait get INFO, and then have the choice."""
    tls = {"allow_non_tls": True, "handshake_first": HandshakeFirst(20 * MS)}
    with NatsServer() as behind:
        async with between(authority, "after INFO", behind, "plain", tls=tls) as one:
            assert await plain(one.address.port) == b"PONG\r\n"
            assert await converse(one.address.port, authority.client_context()) == b"PONG\r\n"


async def test_a_client_that_says_nothing(authority: Authority) -> None:
    """It is closed at the time-out of the handshake, as by the server."""
    tls = {"allow_non_tls": True, "timeout": 50 * MS}
    with NatsServer() as behind:
        async with between(authority, "after INFO", behind, "plain", tls=tls) as one:
            stream = await trio.open_tcp_stream("127.0.0.1", one.address.port)
            assert (await read_to_end(stream)).count(b"\n") == 1
            assert (await one.closed()).detail == "TLS handshake: not completed in 50ms"
