"""Nobody gets past a policy or a limit by the way a frame is written, by a domain, or by a kind of leg."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import nats
import pytest
import trio
from websockets.frames import Opcode

from natsproxy.addresses import Address
from natsproxy.config.endpoints import Listener
from natsproxy.config.tls import HandshakeFirst
from natsproxy.net.proxy import Proxy
from natsproxy.rules.cookbook import COOKBOOK
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.file.parser import load
from natsproxy.rules.kinds import KINDS
from tests.kit.authority import Authority
from tests.kit.servers import NatsServer
from tests.net.test_websocket_leg import Peer
from tests.net.tls.legs import settings

pytestmark = pytest.mark.server
LIMIT = 20.0  # seconds
RULES = "".join(COOKBOOK[name].rules for name in ("keep-streams", "no-wide-subscriptions"))
CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\n'
DELETE = b"$JS.API.STREAM.DELETE.ORDERS"
PURGE = b"$JS.API.STREAM.PURGE.ORDERS"


def hpub(subject: bytes, block: bytes) -> bytes:
    return b"HPUB %b r %d %d\r\n%b\r\n" % (subject, len(block), len(block), block)


ATTACKS = {
    "plain": b"PUB %b r 0\r\n\r\n" % DELETE,
    "letter case of the op": b"pUb %b r 0\r\n\r\n" % DELETE,
    "blanks": b"PUB \t %b \t r   000  \r\n\r\n" % DELETE,
    "LF alone": b"PUB %b r 0\n\r\n" % DELETE,
    "domain": b"PUB $JS.here.API.STREAM.DELETE.ORDERS r 0\r\n\r\n",
    "domain, purge": b"PUB $JS.here.API.STREAM.PURGE.ORDERS r 0\r\n\r\n",
    "purge": b"PUB %b 0\r\n\r\n" % PURGE,
    "message": b'PUB $JS.API.STREAM.MSG.DELETE.ORDERS r 9\r\n{"seq":1}\r\n',
    "headers": hpub(DELETE, b"NATS/1.0\r\nA: b\r\n\r\n"),
    "status": hpub(DELETE, b"NATS/1.0 200 OK\r\n\r\n"),
    "no version": hpub(DELETE, b"A: b\r\n\r\n"),
    "no block": b"HPUB %b r 0 0\r\n\r\n" % DELETE,
    "trace": hpub(b"a", b"NATS/1.0\r\nNats-Trace-Dest: %b\r\n\r\n" % PURGE),
    "reply of the API": b"PUB $JS.API.INFO %b 0\r\n\r\n" % PURGE,
    "rollup": hpub(b"orders.a", b"NATS/1.0\r\nNats-Rollup: all\r\n\r\n"),
    "rollup behind the blank line": hpub(b"orders.a", b"NATS/1.0\r\nA: b\r\n\r\nNats-Rollup: all\r\n\r\n"),
    "rollup twice": hpub(b"orders.a", b"NATS/1.0\r\nNats-Rollup: no\r\nNats-Rollup: all\r\n\r\n"),
    "a second CONNECT": b'CONNECT {"name":"admin"}\r\nPUB %b r 0\r\n\r\n' % DELETE,
    "wide": b"SUB > 1\r\n",
    "wide, in a queue": b"sub  *.>\tworkers 2\r\n",
}
IN_FORCE = {
    "plain": b"PUB %b r 0\r\n\r\n" % DELETE,
    "rollup": ATTACKS["rollup"],
    "rollup behind the blank line": ATTACKS["rollup behind the blank line"],
}
"""Those that the server obeys where there is no proxy."""
HARMLESS = ("reply of the API",)
"""Those that no server obeys, and that pass."""


async def over_nats(port: int, attack: bytes, step: int, authority: Authority | None = None) -> bytes:
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        return await _attack(stream, attack, step)


async def over_tls(port: int, attack: bytes, step: int, authority: Authority) -> bytes:
    plain = await trio.open_tcp_stream("127.0.0.1", port)
    async with trio.SSLStream(plain, authority.client_context(None), server_hostname="127.0.0.1") as stream:
        return await _attack(stream, attack, step)


async def _attack(stream: trio.abc.Stream, attack: bytes, step: int) -> bytes:
    got = b""
    for data in (CONNECT, attack, b"PING\r\n"):
        for at in range(0, len(data), step):
            await stream.send_all(data[at : at + step])
    while not got.endswith(b"PONG\r\n") and (more := await stream.receive_some()):
        got += more
    return got


async def over_websocket(port: int, attack: bytes, step: int, authority: Authority) -> bytes:
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        peer = Peer(stream)
        await peer.upgrade()
        got = await peer.frame(Opcode.BINARY)
        for data in (CONNECT, attack, b"PING\r\n"):
            for at in range(0, len(data), step):
                peer.protocol.send_binary(data[at : at + step])
                await peer.send()
        while not got.endswith(b"PONG\r\n"):
            got += await peer.frame(Opcode.BINARY)
        return got


LEGS: dict[str, Callable[[int, bytes, int, Authority], Awaitable[bytes]]] = {
    "nats": over_nats,
    "tls": over_tls,
    "ws": over_websocket,
}


@asynccontextmanager
async def before(
    server: NatsServer, authority: Authority, rules: str = RULES
) -> AsyncIterator[dict[str, int]]:
    """Run a proxy with rules, the policies if no others; give its ports by their schemes."""
    made = settings(authority, "before INFO", "plain", server.port)
    made = replace(
        made,
        listen=(Listener(), Listener(Address(), "tls"), Listener(scheme="ws")),
        tls=replace(made.tls, handshake_first=HandshakeFirst()),
    )
    proxy = Proxy(made, RuleChain(load(rules, KINDS)))
    async with trio.open_nursery() as nursery:
        await nursery.start(proxy.serve)
        yield {leg: address.port for leg, address in zip(LEGS, proxy.listen, strict=True)}
        nursery.cancel_scope.cancel()


async def in_asyncio(program: Callable[[], Awaitable[object]]) -> None:
    await trio.to_thread.run_sync(lambda: asyncio.run(asyncio.wait_for(program(), LIMIT)))


@pytest.mark.parametrize(
    "leg", ["nats", pytest.param("tls", marks=pytest.mark.long), pytest.param("ws", marks=pytest.mark.long)]
)
async def test_no_attack_gets_past_the_policies(leg: str, tmp_path: Path) -> None:
    """Each on a connection of its own, whole and cut."""
    authority = Authority(tmp_path)
    with NatsServer("jetstream { domain: here }\n", jetstream=True) as server:

        async def begin() -> None:
            nc = await nats.connect(server.url)
            js = nc.jetstream()
            await js.add_stream(name="ORDERS", subjects=["orders.>"], allow_rollup_hdrs=True)
            await js.publish("orders.a", b"kept")
            await nc.close()

        async def is_kept() -> None:
            nc = await nats.connect(server.url)
            assert (await nc.jetstream().get_msg("ORDERS", 1)).data == b"kept"
            await nc.close()

        await in_asyncio(begin)
        async with before(server, authority) as ports:
            for name, attack in ATTACKS.items():
                for step in (len(attack), 5):
                    with trio.fail_after(LIMIT):
                        answer = await LEGS[leg](ports[leg], attack, step, authority)
                    assert (b"Permissions Violation" in answer) is (name not in HARMLESS), (
                        name,
                        step,
                        answer,
                    )
        await in_asyncio(is_kept)


QUOTA = (
    '[[rules]]\nname = "few"\nkind = "limit"\nmessages = "3/h"\nburst = 3\nper = "address"\naction = "deny"\n'
)
SPELLINGS = (
    b"PUB a.b 0\r\n\r\n",
    b"pUb \t a.b \t 000 \r\n\r\n",
    b"PUB a.b 0\n\r\n",
    b"HPUB a.b 12 12\r\nNATS/1.0\r\n\r\n\r\n",
    b"PUB a.b r 0\r\n\r\n",
)
"""Messages that the server delivers, each written in another way."""


@pytest.mark.parametrize("limited", [True, False])
async def test_no_spelling_and_no_leg_gets_past_a_limit(limited: bool, tmp_path: Path) -> None:
    """A client comes back on each kind of leg, and has one quota of three messages for all of it."""
    authority = Authority(tmp_path)
    with NatsServer() as server:
        async with (
            before(server, authority, QUOTA if limited else "rules = []") as ports,
            await trio.open_tcp_stream("127.0.0.1", server.port) as listener,
        ):
            assert (await _attack(listener, b"SUB a.b 1\r\n", 100)).endswith(b"PONG\r\n")
            answers = b""
            for leg, talk in LEGS.items():
                for attack in SPELLINGS:
                    for step in (len(attack), 3):
                        with trio.fail_after(LIMIT):
                            answers += await talk(ports[leg], attack, step, authority)
            await listener.send_all(b"PING\r\n")
            came = b""
            while not came.endswith(b"PONG\r\n"):
                came += await listener.receive_some()
    sent = len(LEGS) * len(SPELLINGS) * 2
    passed = 3 if limited else sent
    assert came.count(b"MSG a.b") == passed
    assert answers.count(b"Permissions Violation") == sent - passed


@pytest.mark.parametrize("name", IN_FORCE)
async def test_the_server_obeys_them_without_the_policies(name: str) -> None:
    with NatsServer(jetstream=True) as server:

        async def program() -> None:
            nc = await nats.connect(server.url)
            js = nc.jetstream()
            await js.add_stream(name="ORDERS", subjects=["orders.>"], allow_rollup_hdrs=True)
            await js.publish("orders.a", b"kept")
            await asyncio.to_thread(lambda: trio.run(over_nats, server.port, IN_FORCE[name], 1000))
            with pytest.raises(nats.js.errors.NotFoundError):
                await js.get_msg("ORDERS", 1)
            await nc.close()

        await in_asyncio(program)
