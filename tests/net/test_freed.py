"""What a connection leaves behind: nothing.

All of it is freed at its end, by reference counts alone.  A cycle among its objects would keep its buffers
until Python's collector comes to them: that is late, and takes the time of other connections.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from natsproxy.config.recording import RecordSettings
from natsproxy.net.proxy import Proxy
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.file.parser import load
from natsproxy.rules.kinds import KINDS
from natsproxy.session.session import Session
from tests.kit.authority import Authority
from tests.kit.servers import NatsServer
from tests.kit.stage import FRAME, INFO, Stage, receive, stage
from tests.net.tls.legs import running, settings

RULES = """rules = [
    { name = "late", kind = "latency", subject = "a", delay = "1ms" },
    { name = "no", kind = "deny", subject = "b" },
    { name = "renamed", kind = "rewrite", from = "c", to = "d" },
]"""
REFUSES = 'rules = [{ name = "no", kind = "refuse" }]'
LARGE = b"PUB e 4000000\r\n%b\r\n" % bytes(4_000_000)


@pytest.fixture(params=["native", "python"], autouse=True)
def _plane(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NATSPROXY_PLANE", request.param)


@pytest.fixture(autouse=True)
def _without_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def parts(proxy: Proxy) -> list[weakref.ref[object]]:
    """Return references to the parts of the one connection, which do not keep them."""
    (relay,) = proxy.relays.values()
    session = relay.session
    return [weakref.ref(part) for part in (relay, session, *session.pipes, *relay.legs)]


async def check_gone(left: list[weakref.ref[object]]) -> None:
    """Check that all parts of a connection are gone, whose end was told just now."""
    for _ in range(10):  # its task returns
        await trio.lowlevel.checkpoint()
    assert [part() for part in left] == [None] * len(left)


async def leave(
    made: Stage, client: trio.SocketStream, server: trio.SocketStream, left: list[weakref.ref[object]]
) -> None:
    """Let a client leave, and its server as servers do then; check that nothing stays."""
    await client.aclose()
    await server.aclose()
    await made.end_of(1)
    await check_gone(left)


async def leaves(made: Stage) -> None:
    """Let a client leave after traffic on which rules act."""
    client, server = await made.connect()
    async with client, server:
        sent = b"SUB a 1\r\nPUB c 5\r\nhello\r\nPUB b 5\r\nhello\r\n"
        await client.send_all(sent + FRAME)
        await receive(server, len(sent + FRAME) - len(b"PUB b 5\r\nhello\r\n"))
        left = parts(made.proxy)
        await leave(made, client, server, left)


async def is_silent(made: Stage) -> None:
    """Let a client leave that has said nothing."""
    client = await trio.open_tcp_stream("127.0.0.1", made.proxy.listen[0].port)
    async with client, await made.listener.accept() as server:
        await server.send_all(INFO)
        await client.receive_some()
        left = parts(made.proxy)
        await leave(made, client, server, left)


async def takes_nothing(made: Stage) -> None:
    """Let a client leave whose server takes nothing: bytes wait for it."""
    client, server = await made.connect()
    async with client, server:
        (relay,) = made.proxy.relays.values()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send_all, LARGE * 10)
            while not relay.server.backlog:
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        del relay
        left = parts(made.proxy)
        await leave(made, client, server, left)


async def is_killed(made: Stage) -> None:
    """End a connection with a frame half sent."""
    client, server = await made.connect()
    async with client, server:
        await client.send_all(LARGE[:100_000])
        left = parts(made.proxy)
        made.proxy.relays[1].kill("killed")
        await made.end_of(1)
        await check_gone(left)


@pytest.mark.parametrize("conversation", [leaves, is_silent, takes_nothing, is_killed])
@pytest.mark.parametrize("rules", ["", RULES], ids=["without rules", "with rules"])
async def test_nothing_of_a_connection_stays(
    conversation: Callable[[Stage], Awaitable[None]], rules: str, tmp_path: Path
) -> None:
    chain = RuleChain(load(rules, KINDS), seed=1) if rules else None
    async with stage(chain, record=RecordSettings(tmp_path / "x.ncap")) as made:
        await conversation(made)


@pytest.mark.parametrize(
    ("rule", "settings"),
    [(RULES, {"connect_timeout": 1}), (REFUSES, {}), (RULES, {"max_connections": 1})],
    ids=["no server", "refused by a rule", "too many"],
)
async def test_nothing_of_a_client_without_a_server_stays(
    rule: str, settings: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even where many of them are held for long, in an outage."""
    sessions: list[weakref.ref[object]] = []
    made_as = Session.__init__

    def noted(session: Session, *args: Any, **options: Any) -> None:
        made_as(session, *args, **options)
        sessions.append(weakref.ref(session))

    monkeypatch.setattr(Session, "__init__", noted)
    async with stage(RuleChain(load(rule, KINDS), seed=1), **settings) as made:
        first = await made.connect() if "max_connections" in settings else None
        client = await trio.open_tcp_stream("127.0.0.1", made.proxy.listen[0].port)
        async with client:
            await made.end_of(1 if first is None else 2)
            await check_gone(sessions[-1:])
        for stream in first or ():
            await stream.aclose()


@pytest.mark.parametrize("leg", ["after INFO", "before INFO"])
async def test_nothing_of_a_connection_with_tls_stays(leg: str, authority: Authority) -> None:
    with NatsServer() as behind:
        async with running(settings(authority, leg, "plain", behind.port)) as one:
            raw = await trio.open_tcp_stream("127.0.0.1", one.address.port)
            if leg == "after INFO":
                await raw.receive_some()
            context = authority.client_context()
            client = trio.SSLStream(raw, context, server_hostname="localhost", https_compatible=True)
            await client.send_all(b'CONNECT {"verbose":false}\r\nPING\r\n')
            received = b""
            while b"PONG" not in received:
                received += await client.receive_some()
            left = parts(one.proxy)
            await client.aclose()
            await one.closed()
            await check_gone(left)
