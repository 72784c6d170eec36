"""Probes: what they ask of a server, and what an answer means for `unready`."""

from __future__ import annotations

from functools import partial

import pytest
import trio

from natsproxy.addresses import Address
from natsproxy.config.endpoints import Listener, Server
from natsproxy.config.settings import ProxySettings
from natsproxy.net.proxy import Proxy
from natsproxy.testing import NatsServer
from natsproxy.units import MILLISECOND
from tests.kit.stage import INFO

LIMIT = 20.0  # seconds


async def probed(nursery: trio.Nursery, port: int, times: int = 1) -> Proxy:
    """Return a proxy that has probed a server so often."""
    upstream = (Server(Address("127.0.0.1", port)),)
    proxy = Proxy(ProxySettings(listen=(Listener(),), upstream=upstream, connect_timeout=500 * MILLISECOND))
    await nursery.start(proxy.serve)
    with trio.fail_after(LIMIT):
        for _ in range(times):
            await proxy.try_upstream()
    return proxy


async def fake(nursery: trio.Nursery, info: bytes, answer: bytes | None, heard: list[bytes]) -> int:
    """Run a server that answers the first bytes of a client, or ends the connection (b""); return its port.

    answer: None for silence.  heard: gets these bytes.
    """

    async def serve(stream: trio.SocketStream) -> None:
        await stream.send_all(info)
        heard.append(await stream.receive_some())
        if answer is None:
            await trio.sleep_forever()
        await stream.send_all(answer)

    (listener,) = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
    return int(listener.socket.getsockname()[1])


@pytest.mark.parametrize(
    ("answer", "unready"),
    [(b"PONG\r\n", None), (b"", None), (None, "sent INFO but did not answer PING in 500ms")],
)
async def test_silence_behind_a_ping_is_an_outage(
    nursery: trio.Nursery, answer: bytes | None, unready: str | None
) -> None:
    """Not so the end of the connection: INFO has come, and other servers may take no PING yet."""
    heard: list[bytes] = []
    port = await fake(nursery, INFO, answer, heard)
    proxy = await probed(nursery, port)
    assert heard == [b"PING\r\n"]
    assert proxy.unready == (None if unready is None else f"127.0.0.1:{port} {unready}")


async def test_a_server_that_refuses_the_ping_gets_no_more(nursery: trio.Nursery) -> None:
    """As another proxy does whose own login waits for CONNECT."""
    heard: list[bytes] = []
    port = await fake(nursery, INFO, b"-ERR 'Authorization Violation'\r\n", heard)
    proxy = await probed(nursery, port, times=3)
    with trio.fail_after(LIMIT):
        while len(heard) < 3:  # noqa: ASYNC110 - it is polled
            await trio.sleep(0.001)
    assert heard == [b"PING\r\n", b"", b""]
    assert proxy.unready is None


@pytest.mark.server
@pytest.mark.parametrize("config", ["", 'authorization { token: "s3cr3t" }'])
async def test_a_server_notices_nothing_of_a_probe(nursery: trio.Nursery, config: str) -> None:
    """Neither with a login, which a probe does not have, nor without."""
    with NatsServer(config) as server:
        proxy = await probed(nursery, server.port, times=3)
        assert proxy.unready is None
    assert "authentication error" not in server.log()
    assert "parser ERROR" not in server.log()
