"""The PROXY protocol under TLS and WebSocket: its header comes before both, on either leg."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from ipaddress import ip_network
from typing import Any

import pytest
import trio
from websockets.frames import Opcode

from natsproxy.addresses import Address
from natsproxy.events import Opened
from natsproxy.protocol.proxy_header import write
from tests.kit.authority import Authority
from tests.kit.servers import NatsServer
from tests.net.test_websocket_leg import Peer
from tests.net.tls.legs import running, server_config, settings
from tests.net.tls.test_failures import first_line

CLIENT, DIALLED = Address("192.0.2.7", 7777), Address("192.0.2.1", 4222)
HELLO = b'CONNECT {"verbose":false,"protocol":1}\r\nPING\r\n'


async def secured(stream: trio.SocketStream, authority: Authority) -> trio.SSLStream[trio.SocketStream]:
    """Return a client's stream with TLS."""
    context = authority.client_context()
    return trio.SSLStream(stream, context, server_hostname="127.0.0.1", https_compatible=True)


async def after_info(stream: trio.SocketStream, authority: Authority) -> bytes:
    """Log in with TLS after INFO; return the answer."""
    await first_line(stream)
    upgraded = await secured(stream, authority)
    await upgraded.send_all(HELLO)
    return bytes(await upgraded.receive_some())


async def before_info(stream: trio.SocketStream, authority: Authority) -> bytes:
    """Log in with TLS before INFO."""
    upgraded = await secured(stream, authority)
    assert (await upgraded.receive_some()).startswith(b"INFO ")
    await upgraded.send_all(HELLO)
    return bytes(await upgraded.receive_some())


async def by_websocket(stream: trio.SocketStream, authority: Authority) -> bytes:
    """Log in over WebSocket."""
    peer = Peer(stream)
    await peer.upgrade()
    while not peer.protocol.events_received():  # the answer to the upgrade, and perhaps INFO
        peer.protocol.receive_data(await stream.receive_some())
    peer.protocol.send_binary(HELLO)
    await peer.send()
    got = b""
    while b"PONG" not in got:
        got = await peer.frame(Opcode.BINARY)
    return got


@pytest.mark.server
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("leg", "scheme", "log_in"),
    [
        ("after INFO", "tls", after_info),
        ("before INFO", "tls", before_info),
        ("plain", "ws", by_websocket),
    ],
)
async def test_a_load_balancer_before_us(
    authority: Authority, leg: str, scheme: str, log_in: Callable[..., Any], version: int
) -> None:
    """Its header is in plain text, and the address in it is the client's, as for a plain listener."""
    with NatsServer() as server:
        made = settings(authority, leg, "plain", server.port)
        listener = replace(made.listen[0], scheme=scheme, proxy_protocol=(ip_network("127.0.0.0/8"),))
        async with running(replace(made, listen=(listener,))) as one:
            async with await trio.open_tcp_stream("127.0.0.1", one.address.port) as stream:
                with trio.fail_after(20):
                    await stream.send_all(write(version, CLIENT, DIALLED))
                    assert b"PONG" in await log_in(stream, authority)
            closed = await one.closed()
            (opened,) = [event for event in one.events if isinstance(event, Opened)]
    assert opened.client == closed.who.client == str(CLIENT)
    assert opened.proxied_by.startswith("127.0.0.1:")


@pytest.mark.server
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("leg", ["after INFO", "before INFO"])
async def test_a_real_server_with_tls_learns_the_address(
    authority: Authority, leg: str, version: int
) -> None:
    """It reads the header before TLS, and tells the client its address."""
    with NatsServer("proxy_protocol: true\n" + server_config(authority, leg)) as server:
        made = settings(authority, "plain", leg, server.port)
        balanced = replace(made.listen[0], proxy_protocol=(ip_network("127.0.0.0/8"),))
        made = replace(made, listen=(balanced,), upstream_proxy_protocol=version)
        async with running(made) as one, await trio.open_tcp_stream("127.0.0.1", one.address.port) as stream:
            with trio.fail_after(20):
                await stream.send_all(write(3 - version, CLIENT, DIALLED))
                said = await first_line(stream)
                await stream.send_all(HELLO)
                while b'"connect_info":true' not in said or not said.endswith(b"\r\n"):
                    said += await stream.receive_some()
            await stream.aclose()
    infos = [json.loads(line[5:]) for line in said.split(b"\r\n") if line.startswith(b"INFO")]
    assert infos[-1]["client_ip"] == CLIENT.host


async def test_a_websocket_server_gets_it_before_the_upgrade(authority: Authority) -> None:
    """nats-server takes no header there, but a load balancer before it may."""
    got, done = bytearray(), trio.Event()

    async def serve(stream: trio.SocketStream) -> None:
        while not got.endswith(b"\r\n\r\n"):
            got.extend(await stream.receive_some())
        done.set()

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        made = settings(authority, "plain", "plain", listener.socket.getsockname()[1])
        made = replace(made, upstream=(replace(made.upstream[0], scheme="ws"),), upstream_proxy_protocol=2)
        async with running(made) as one, await trio.open_tcp_stream("127.0.0.1", one.address.port) as stream:
            with trio.fail_after(20):
                await done.wait()
            header = write(2, Address(*stream.socket.getsockname()), one.address)
            await stream.aclose()
        nursery.cancel_scope.cancel()
    assert got.startswith(header + b"GET / HTTP/1.1\r\n")
