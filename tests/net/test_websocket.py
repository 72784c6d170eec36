"""NATS over WebSocket through the proxy, on either leg or both, with real clients and servers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import nats
import pytest
import trio
from websockets.frames import Opcode

from natsproxy import close_reasons
from natsproxy.addresses import Address
from natsproxy.capture.format.records import Frames, OpenRecord
from natsproxy.capture.read.reader import open_capture
from natsproxy.config.endpoints import Listener, Server
from natsproxy.config.recording import RecordSettings
from natsproxy.config.settings import ProxySettings
from natsproxy.events import Closed, Event
from natsproxy.net.proxy import Proxy
from natsproxy.protocol.credentials import Credentials
from natsproxy.session.values import Identity, SessionSettings
from natsproxy.units import MIB
from tests.kit.node import run_node
from tests.kit.servers import NatsServer
from tests.net.test_websocket_leg import Peer

PROGRAM = Path(__file__).parent / "programs" / "client.js"
ALSO_WEBSOCKET = 'websocket { listen: "127.0.0.1:-1", no_tls: true, user_cookie: "u", pass_cookie: "p" }\n'
pytestmark = pytest.mark.filterwarnings("ignore:parameter 'timeout' of type 'float'")  # nats-py's own call
SCHEMES = [("ws", "nats"), ("nats", "ws"), ("ws", "ws")]


def websocket_port(server: NatsServer) -> int:
    """Return the port for WebSocket clients of a server."""
    found = re.search(r"websocket clients on wss?://127\.0\.0\.1:(\d+)", server.log())
    assert found
    return int(found[1])


@asynccontextmanager
async def before(
    server: NatsServer,
    schemes: tuple[str, str],
    events: list[Event] | None = None,
    record: Path | None = None,
    **more: Any,
) -> AsyncIterator[str]:
    """Run a proxy before a server; give its URL.

    schemes: of its listener and of its upstream.  more: of its settings.
    """
    port = websocket_port(server) if schemes[1].startswith("ws") else server.port
    settings = ProxySettings(
        listen=(Listener(Address(), schemes[0]),),
        upstream=(Server(Address("127.0.0.1", port), schemes[1]),),
        record=None if record is None else RecordSettings(record),
        **more,
    )
    proxy = Proxy(settings)
    if events is not None:
        proxy.subscribe(events.append)
    async with trio.open_nursery() as nursery:
        (address,) = await nursery.start(proxy.serve)
        yield f"{schemes[0]}://{address}"
        nursery.cancel_scope.cancel()


async def in_thread(program: Callable[[], object]) -> None:
    """Run a program of another library's event loop."""
    await trio.to_thread.run_sync(program)


@pytest.mark.parametrize("schemes", SCHEMES)
async def test_nats_js(schemes: tuple[str, str]) -> None:
    with NatsServer(ALSO_WEBSOCKET) as server:
        async with before(server, schemes) as url:
            output = await trio.to_thread.run_sync(run_node, PROGRAM, url)
    assert output == "hello: 11 headers: yes\n"


@pytest.mark.parametrize("schemes", SCHEMES)
async def test_nats_py_with_large_messages(schemes: tuple[str, str], tmp_path: Path) -> None:
    async def program(url: str) -> None:
        client = await nats.connect(url, allow_reconnect=False)
        subscription = await client.subscribe("a")
        for size in (0, 100, 70_000, 1_000_000):
            await client.publish("a", b"x" * size)
            assert len((await subscription.next_msg(10)).data) == size
        await client.close()

    capture = tmp_path / "c.ncap"
    with NatsServer(ALSO_WEBSOCKET) as server:
        async with before(server, schemes, record=capture) as url:
            await in_thread(lambda: asyncio.run(program(url)))
    items = [item for _, item in open_capture(capture).items()]
    recorded = b"".join(bytes(item.data) for item in items if isinstance(item, Frames))
    assert recorded.count(b"PUB a") == 4
    assert b"GET " not in recorded


async def until_pong(stream: trio.SocketStream, data: bytes) -> bytes:
    """Send, and return what comes up to a PONG."""
    await stream.send_all(data + b"PING\r\n")
    received = b""
    while not received.endswith(b"PONG\r\n"):
        received += await stream.receive_some()
    return received


async def test_a_subscriber_that_pauses_gets_all_that_waited() -> None:
    """The server sends all that waits for a client of WebSocket as one frame."""
    count, payload = 400, bytes(65_536)
    left = count * len(b"MSG a 1 65536\r\n" + payload + b"\r\n")
    with NatsServer(ALSO_WEBSOCKET) as server, trio.fail_after(30):
        async with (
            before(server, ("nats", "ws"), session=SessionSettings(queue_bytes=MIB)) as url,
            await trio.open_tcp_stream("127.0.0.1", int(url.rpartition(":")[2])) as subscriber,
            await trio.open_tcp_stream("127.0.0.1", server.port) as publisher,
        ):
            await until_pong(subscriber, b'CONNECT {"verbose":false}\r\nSUB a 1\r\n')
            message = b"PUB a 65536\r\n" + payload + b"\r\n"
            await until_pong(publisher, b'CONNECT {"verbose":false}\r\n' + message * count)
            while left:
                received = await subscriber.receive_some()
                assert received, left
                left -= len(received)


async def test_a_publish_that_is_larger_than_the_queue() -> None:
    size, config = 9 * MIB, ALSO_WEBSOCKET + "max_payload: 32MB\n"
    with NatsServer(config) as server, trio.fail_after(30):
        async with (
            before(server, ("ws", "nats")) as url,
            await trio.open_tcp_stream("127.0.0.1", int(url.rpartition(":")[2])) as stream,
        ):
            peer = Peer(stream)
            await peer.upgrade()
            assert (await peer.frame(Opcode.BINARY)).startswith(b"INFO")
            peer.protocol.send_binary(b'CONNECT {"verbose":false}\r\nPUB a %d\r\n' % size)
            peer.protocol.send_binary(bytes(size) + b"\r\nPING\r\n")
            await peer.send()
            while not (await peer.frame(Opcode.BINARY)).endswith(b"PONG\r\n"):
                pass


async def test_a_server_of_websocket_sees_the_client_and_its_cookies(tmp_path: Path) -> None:
    users = 'authorization { users: [{ user: "alice", password: "hunter2hunter2" }] }\n'
    capture, events = tmp_path / "c.ncap", list[Event]()
    with NatsServer(ALSO_WEBSOCKET + users) as server:
        async with before(server, ("ws", "ws"), events, capture) as url:

            async def program() -> None:
                cookies = {"Cookie": ["u=alice; p=hunter2hunter2"]}
                client = await nats.connect(url, allow_reconnect=False, ws_connection_headers=cookies)
                await client.flush()
                await client.close()

            await in_thread(lambda: asyncio.run(program()))
    assert b"hunter2" not in capture.read_bytes()
    assert "hunter2" not in repr(events)
    assert any(isinstance(item, OpenRecord) for _, item in open_capture(capture).items())


@pytest.mark.parametrize("identity", [None, Identity(Credentials(token="own"))])
async def test_a_cookie_passes_only_where_clients_log_in_themselves(identity: Identity | None) -> None:
    """A server may take a cookie for a login: it would be another one than the proxy's own."""
    asked, got = list[bytes](), trio.Event()

    async def upstream(stream: trio.SocketStream) -> None:
        asked.append(await stream.receive_some(4096))
        got.set()

    async with trio.open_nursery() as nursery:
        (server,) = await nursery.start(partial(trio.serve_tcp, upstream, 0, host="127.0.0.1"))
        port = server.socket.getsockname()[1]
        settings = ProxySettings(
            listen=(Listener(scheme="ws"),),
            upstream=(Server(Address("127.0.0.1", port), "ws"),),
            identity=identity,
        )
        (address,) = await nursery.start(Proxy(settings).serve)
        async with await trio.open_tcp_stream(address.host, address.port) as stream:
            await stream.send_all(
                b"GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
                b"Origin: http://page\r\nCookie: u=alice; p=hunter2\r\n\r\n"
            )
            with trio.fail_after(20):
                await got.wait()
        nursery.cancel_scope.cancel()
    assert b"Origin: http://page\r\n" in asked[0]
    assert (b"hunter2" in asked[0]) == (identity is None)


@pytest.mark.parametrize("origin", ["http://good.example", "http://evil.example", None])
async def test_the_pages_that_may_connect(origin: str | None) -> None:
    """As at the server: another page may not, and a program, which names none, may."""
    allowed = "http://good.example"
    config = f'websocket {{ listen: "127.0.0.1:-1", no_tls: true, allowed_origins: ["{allowed}"] }}\n'
    said = []
    with NatsServer(config) as server:
        async with before(server, ("ws", "nats"), websocket_origin=(allowed,)) as url:
            for port in (websocket_port(server), int(url.rpartition(":")[2])):
                async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                    named = "" if origin is None else f"Origin: {origin}\r\n"
                    await stream.send_all(
                        f"GET / HTTP/1.1\r\nHost: h\r\n{named}Upgrade: websocket\r\nConnection: Upgrade\r\n"
                        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
                        "Sec-WebSocket-Version: 13\r\n\r\n".encode()
                    )
                    with trio.fail_after(20):
                        said.append((await stream.receive_some())[:12])
    assert said[0] == said[1] == (b"HTTP/1.1 403" if origin == "http://evil.example" else b"HTTP/1.1 101")


async def test_a_client_of_the_wrong_kind_is_told_so(nats_server: NatsServer) -> None:
    events = list[Event]()
    async with before(nats_server, ("ws", "nats"), events) as url:
        stream = await trio.open_tcp_stream("127.0.0.1", int(url.rpartition(":")[2]))
        async with stream:
            await stream.send_all(b'CONNECT {"pass":"hunter2"}\r\nPING\r\n')
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 400 Bad Request")
            assert await stream.receive_some() == b""
    (closed,) = [event for event in events if isinstance(event, Closed)]
    assert (closed.cause, "hunter2" in closed.detail) == (close_reasons.CLIENT_PROTOCOL, False)


async def test_a_server_of_the_wrong_kind_is_named(nats_server: NatsServer) -> None:
    events = list[Event]()
    settings = ProxySettings(
        listen=(Listener(),), upstream=(Server(Address("127.0.0.1", nats_server.port), "ws"),)
    )
    proxy = Proxy(settings)
    proxy.subscribe(events.append)
    async with trio.open_nursery() as nursery:
        (address,) = await nursery.start(proxy.serve)
        async with await trio.open_tcp_stream("127.0.0.1", address.port) as stream:
            assert await stream.receive_some() == b""
        nursery.cancel_scope.cancel()
    (closed,) = [event for event in events if isinstance(event, Closed)]
    assert closed.cause == close_reasons.UPSTREAM_DOWN
    assert "does not speak WebSocket" in closed.detail
