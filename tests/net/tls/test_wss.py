"""NATS over WebSocket with TLS, on either leg or both, with real clients and servers."""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import nats
import pytest
import trio

from natsproxy import close_reasons
from natsproxy.config.tls import TlsSettings, UpstreamTls
from natsproxy.events import Closed, Event
from natsproxy.log import LogFile, log_event, logger
from tests.kit.authority import Authority
from tests.kit.node import run_node
from tests.kit.servers import NatsServer
from tests.net.test_websocket import PROGRAM, before
from tests.net.tls.legs import in_asyncio

pytestmark = [
    pytest.mark.server,
    pytest.mark.filterwarnings("ignore:parameter 'timeout' of type 'float'"),  # nats-py's own call
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),  # it does not wait for the end of TLS
]
SCHEMES = [("wss", "nats"), ("nats", "wss"), ("wss", "wss"), ("wss", "ws"), ("tls", "wss"), ("wss", "tls")]


async def play(program: Callable[[], Awaitable[None]]) -> None:
    """Run a program of nats-py, and let go of what it leaves open: a later test would be warned of it."""
    await in_asyncio(program)
    gc.collect()


def config(authority: Authority, scheme: str, more: str = "") -> str:
    """Return the configuration of a server for an upstream of a scheme."""
    if scheme == "tls":
        return authority.server_config()
    tls = authority.server_config() if scheme == "wss" else "no_tls: true"
    lines = ['listen: "127.0.0.1:-1"', tls, more]
    return "" if scheme == "nats" else "websocket {\n" + "\n".join(lines) + "\n}\n"


def tls_of(authority: Authority, schemes: tuple[str, str]) -> dict[str, Any]:
    """Return the settings of TLS for two schemes."""
    cert = authority.server() if schemes[0] in ("tls", "wss") else None
    return {"tls": TlsSettings(cert=cert), "upstream_tls": UpstreamTls(ca=authority.file)}


@pytest.mark.parametrize("schemes", SCHEMES)
async def test_nats_py(authority: Authority, schemes: tuple[str, str]) -> None:
    """Messages of all sizes, both ways."""

    async def program() -> None:
        context = None if schemes[0] == "nats" else authority.client_context()
        client = await nats.connect(url, allow_reconnect=False, tls=context)
        subscription = await client.subscribe("a")
        for size in (0, 100, 70_000, 1_000_000):
            await client.publish("a", b"x" * size)
            assert len((await subscription.next_msg(20)).data) == size
        await client.close()

    with NatsServer(config(authority, schemes[1])) as server:
        async with before(server, schemes, **tls_of(authority, schemes)) as url:
            await play(program)


@pytest.mark.parametrize("schemes", SCHEMES[:3])
async def test_nats_js(authority: Authority, schemes: tuple[str, str]) -> None:
    """It trusts the CA by the variable of Node.js."""
    env = {"NODE_EXTRA_CA_CERTS": str(authority.file)}
    with NatsServer(config(authority, schemes[1])) as server:
        async with before(server, schemes, **tls_of(authority, schemes)) as url:
            output = await trio.to_thread.run_sync(partial(run_node, PROGRAM, url, env=env))
    assert output == "hello: 11 headers: yes\n"


@pytest.mark.parametrize("scheme", ["nats", "wss"])
async def test_a_cookie_reaches_neither_capture_nor_log(
    authority: Authority, scheme: str, tmp_path: Path
) -> None:
    """A server of WebSocket gets it, and may take a password from it."""
    users = 'authorization { users: [{ user: "alice", password: "hunter2hunter2" }] }\n'
    cookies = 'user_cookie: "u", pass_cookie: "p"'
    own = {} if scheme == "wss" else {"user": "alice", "password": "hunter2hunter2"}
    capture, lines, events = tmp_path / "c.ncap", tmp_path / "log", list[Event]()

    async def program() -> None:
        headers = {"Cookie": ["u=alice; p=hunter2hunter2; session=5e551011"]}
        more: dict[str, Any] = {"ws_connection_headers": headers, "tls": authority.client_context()}
        client = await nats.connect(url, allow_reconnect=False, **own, **more)
        await client.flush()
        await client.close()

    schemes = ("wss", scheme)
    with NatsServer(config(authority, scheme, cookies) + users) as server:
        async with before(server, schemes, events, capture, **tls_of(authority, schemes)) as url:
            await play(program)
    with LogFile(lines) as file:
        for event in events:
            log_event(logger(file, "json", "debug"), event)
    raw = capture.read_bytes()
    assert b"CONNECT" in raw
    for secret in (b"hunter2", b"5e551011", b"Cookie"):
        assert secret not in raw
        assert secret not in lines.read_bytes()


async def test_a_plain_client_on_a_wss_listener(authority: Authority) -> None:
    """It is closed without a word, and the log says why."""
    events = list[Event]()
    with NatsServer() as server:
        schemes = ("wss", "nats")
        async with before(server, schemes, events, **tls_of(authority, schemes)) as url:
            stream = await trio.open_tcp_stream("127.0.0.1", int(url.rpartition(":")[2]))
            async with stream:
                await stream.send_all(b"GET / HTTP/1.1\r\nUpgrade: websocket\r\n\r\n")
                with trio.fail_after(20):
                    assert await stream.receive_some() == b""
    (closed,) = [event for event in events if isinstance(event, Closed)]
    assert closed.cause == close_reasons.CLIENT_PROTOCOL
    assert closed.detail == "TLS handshake: the peer speaks no TLS"


@pytest.mark.parametrize(
    ("serves", "reason"),
    [("ws", "the peer speaks no TLS"), ("wss", "the peer's certificate was refused")],
)
async def test_an_upstream_that_cannot_be_trusted(
    authority: Authority, stranger: Authority, serves: str, reason: str
) -> None:
    """Nothing goes to it, and the log says why."""
    events, schemes = list[Event](), ("nats", "wss")
    with NatsServer(config(stranger, serves)) as server:
        async with before(server, schemes, events, **tls_of(authority, schemes)) as url:
            stream = await trio.open_tcp_stream("127.0.0.1", int(url.rpartition(":")[2]))
            async with stream:
                with trio.fail_after(20):
                    assert await stream.receive_some() == b""
    (closed,) = [event for event in events if isinstance(event, Closed)]
    assert closed.cause == close_reasons.UPSTREAM_DOWN
    assert reason in closed.detail
