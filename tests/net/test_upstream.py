"""Upstreams that cannot be used: each outage is reported once, with its reason, and when it is over."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from nats.aio.client import Client
from nats.errors import Error as NatsError

from natsproxy import bounded, close_reasons
from natsproxy.addresses import Address
from natsproxy.capture.format.records import CloseRecord, Frames, OpenRecord, Preamble
from natsproxy.capture.read.reader import open_capture
from natsproxy.config.endpoints import Listener, Server
from natsproxy.config.recording import RecordSettings
from natsproxy.config.settings import ProxySettings
from natsproxy.events import Closed, Event, Notice
from natsproxy.log import LogFile, log_event, logger
from natsproxy.net.clock import now_ns
from natsproxy.net.dial import Dialer, NoServer
from natsproxy.net.endpoints import Endpoint
from natsproxy.net.opening import ClientFacts
from natsproxy.net.proxy import Proxy
from natsproxy.net.shortage import Shortage
from natsproxy.net.tls_contexts import TlsContexts
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.file.parser import load
from natsproxy.rules.kinds import KINDS
from tests.kit.servers import NatsServer

MS = 1_000_000
INFO = b'INFO {"server_id":"S","version":"2.15.1","headers":true,"max_payload":1048576} \r\n'
TLS = Path(__file__).parent.parent / "kit" / "tls"
WITH_TLS = f'tls {{ cert_file: "{TLS / "cert.pem"}", key_file: "{TLS / "key.pem"}", %s }}\n'
FIRST = WITH_TLS % "handshake_first: true"


class UnreliableServer:
    """A server that greets, sends nothing or hangs up, as the test wants."""

    def __init__(self) -> None:
        self.mood = "silent"

    async def serve(self, stream: trio.SocketStream) -> None:
        """Treat one connection."""
        if self.mood == "greets":
            await stream.send_all(INFO[:7])  # in two pieces
            await stream.send_all(INFO[7:])
        with suppress(trio.BrokenResourceError):
            while self.mood != "hangs up" and (data := await stream.receive_some()):
                await stream.send_all(b"PONG\r\n" * data.count(b"PING"))


@asynccontextmanager
async def before(
    port: int, *, hold: int = 0, auth_timeout: int = 20_000 * MS, connect_timeout: int = 10_000 * MS
) -> AsyncIterator[tuple[Proxy, list[Event]]]:
    """Run a proxy before a port of the loopback."""
    settings = ProxySettings(listen=(Listener(),), upstream=(Server(Address("127.0.0.1", port)),))
    proxy = Proxy(
        replace(settings, connect_timeout=connect_timeout, upstream_hold=hold, auth_timeout=auth_timeout)
    )
    events: list[Event] = []
    proxy.subscribe(events.append)
    async with trio.open_nursery() as nursery:
        await nursery.start(proxy.serve)
        yield proxy, events
        await proxy.drain(5)


async def ask(proxy: Proxy, sent: bytes = b"", until: bytes = b"") -> bytes:
    """Connect, send something, and return the bytes that come, up to a text or the end."""
    (address,) = proxy.listen
    got = b""
    with trio.fail_after(20):
        async with await trio.open_tcp_stream(address.host, address.port) as stream:
            if sent:
                await stream.send_all(sent)
            with suppress(trio.BrokenResourceError):  # turned away before it was heard
                async for data in stream:
                    got += data
                    if until and until in got:
                        break
    return got


def warnings(events: list[Event]) -> list[str]:
    """Return the lines that an operator reads."""
    return [event.text for event in events if isinstance(event, Notice) and event.level == "warning"]


async def test_an_outage_is_reported_once_and_when_it_is_over(nursery: trio.Nursery) -> None:
    """Silence, a hang-up, and nobody there: each reason is named, however many clients it meets."""
    server = UnreliableServer()
    (listener,) = await nursery.start(partial(trio.serve_tcp, server.serve, 0, host="127.0.0.1"))
    port = listener.socket.getsockname()[1]
    async with before(port, connect_timeout=100 * MS) as (proxy, events):
        for _ in range(3):
            assert await ask(proxy) == b""
        server.mood = "hangs up"
        for _ in range(2):
            assert await ask(proxy) == b""
        assert warnings(events) == [
            f"the upstream cannot be used: 127.0.0.1:{port} accepts connections but sent no INFO in 100ms",
            f"the upstream cannot be used: 127.0.0.1:{port} closes connections before sending INFO",
        ]
        assert {event.cause for event in events if isinstance(event, Closed)} == {close_reasons.UPSTREAM_DOWN}
        server.mood = "greets"
        assert (await ask(proxy, b"PING\r\n", until=b"PONG")).endswith(b"PONG\r\n")
        (over,) = [event for event in events if isinstance(event, Notice)][2:]
        assert (over.level, over.text) == ("warning", "the upstream is back")
        assert over.data["connections_turned_away"] == 5
        server.mood = "hangs up"
        await ask(proxy)
        assert len(warnings(events)) == 4
    nursery.cancel_scope.cancel()


async def test_a_client_is_held_until_the_server_greets(nursery: trio.Nursery) -> None:
    """A load balancer that accepts for a server that is gone does not end the wait; rules may change."""
    server = UnreliableServer()
    server.mood = "hangs up"
    (listener,) = await nursery.start(partial(trio.serve_tcp, server.serve, 0, host="127.0.0.1"))
    async with before(listener.socket.getsockname()[1], hold=60_000 * MS) as (proxy, events):
        got: list[bytes] = []

        async def client() -> None:
            got.append(await ask(proxy, b"PUB secret 0\r\n\r\nPING\r\n", until=b"PONG"))

        async with trio.open_nursery() as clients:
            clients.start_soon(client)
            while not warnings(events):  # a first failure is no outage yet: the server is dialled again
                await trio.lowlevel.checkpoint()
            rule = '[[rules]]\nname = "r"\nkind = "deny"\nsubject = "secret"\n'
            proxy.swap(RuleChain(load(rule, KINDS)))
            server.mood = "greets"
        assert b"Permissions Violation for Publish" in got[0]
        assert [event for event in events if isinstance(event, Notice)][-1].data[
            "connections_turned_away"
        ] == 0
    nursery.cancel_scope.cancel()


@pytest.mark.server
@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (FIRST, "speaks TLS before INFO: name it tls://, and set upstream-tls-handshake-first"),
        (WITH_TLS % "", "TLS handshake: the peer's certificate was refused: self-signed certificate"),
    ],
)
async def test_a_server_that_wants_other_tls_is_named(config: str, expected: str) -> None:
    """To the operator; the client sees a server that is gone."""
    limit = 300 * MS if config == FIRST else 10_000 * MS  # that of a server that says nothing
    with NatsServer(config) as server:
        async with before(server.port, connect_timeout=limit) as (proxy, events):
            for _ in range(3):
                assert await ask(proxy, b'CONNECT {"verbose":false}\r\nPING\r\n') == b""
            with pytest.raises(NatsError):
                await trio.to_thread.run_sync(lambda: asyncio.run(connected(proxy, name="app")))
            (text,) = warnings(events)
            assert f"127.0.0.1:{server.port}" in text
            assert expected in text


async def connected(proxy: Proxy, **options: Any) -> None:
    """Connect with nats-py, which may be refused."""
    client = Client()
    try:
        await client.connect(f"nats://{proxy.listen[0]}", allow_reconnect=False, **options)
    finally:
        await client.close()


@pytest.mark.server
async def test_a_refused_login_is_logged_with_its_names(tmp_path: Path) -> None:
    """The server's text, the client's name and user; no secret."""
    options = {"name": "app", "user": "somebody", "password": "hunter2"}
    with NatsServer('authorization { user: "u", password: "right" }') as server:
        async with before(server.port) as (proxy, events):
            with pytest.raises(NatsError, match="Authorization Violation"):
                await trio.to_thread.run_sync(lambda: asyncio.run(connected(proxy, **options)))
        (closed,) = [event for event in events if isinstance(event, Closed)]
    assert (closed.cause, closed.error) == (close_reasons.SERVER_CLOSED, "Authorization Violation")
    with LogFile(tmp_path / "log") as file:
        log = logger(file, "json", "warning")
        for event in events:
            log_event(log, event)
    (line,) = map(json.loads, (tmp_path / "log").read_text().splitlines())
    facts = {"level": "warning", "error": "Authorization Violation", "name": "app", "user": "somebody"}
    assert {key: line[key] for key in facts} == facts
    assert "hunter2" not in str(line)


@pytest.mark.server
async def test_the_servers_own_time_out_is_passed_on() -> None:
    """Its -ERR comes as it came, and nothing of ours with it."""
    with NatsServer('authorization { user: "u", password: "p", timeout: 0.2 }') as server:
        async with before(server.port) as (proxy, events):
            received = await ask(proxy)
    assert received.count(b"-ERR") == 1
    assert received.endswith(b"-ERR 'Authentication Timeout'\r\n")
    (closed,) = [event for event in events if isinstance(event, Closed)]
    assert (closed.cause, closed.error) == (close_reasons.SERVER_CLOSED, "Authentication Timeout")


@pytest.mark.server
async def test_a_silent_client_is_timed_out(nats_server: NatsServer) -> None:
    """A server without users would keep it; a client that sends a frame stays."""
    async with before(nats_server.port, auth_timeout=100 * MS) as (proxy, events):
        (address,) = proxy.listen
        speaking = await trio.open_tcp_stream(address.host, address.port)
        await speaking.send_all(b"PING\r\n")
        received = await ask(proxy)
        await speaking.send_all(b"PING\r\n")
        got = b""
        with trio.fail_after(20):
            while got.count(b"PONG") < 2:
                got += await speaking.receive_some()
        await speaking.aclose()
    assert received.endswith(b"-ERR 'Authentication Timeout'\r\n")
    causes = {event.conn: event.cause for event in events if isinstance(event, Closed)}
    assert causes[1] in (close_reasons.CLIENT_CLOSED, close_reasons.DRAINED)  # whichever is seen first
    assert causes[2] == close_reasons.STALLED


@pytest.mark.server
async def test_a_probe_leaves_nothing_in_the_capture(nats_server: NatsServer, tmp_path: Path) -> None:
    """One that speaks late is recorded whole, also by a capture that begins meanwhile."""
    path = tmp_path / "x.ncap"
    gone = trio.Event()
    async with before(nats_server.port) as (proxy, _):
        (address,) = proxy.listen
        proxy.subscribe(lambda event: gone.set() if isinstance(event, Closed) else None)
        early = await trio.open_tcp_stream(address.host, address.port)
        await early.receive_some()
        proxy.start_recording(RecordSettings(path))
        late = await trio.open_tcp_stream(address.host, address.port)
        await late.receive_some()
        probe = await trio.open_tcp_stream(address.host, address.port)
        await probe.receive_some()
        await probe.aclose()
        with trio.fail_after(20):
            await gone.wait()
        for stream in (early, late):
            await stream.send_all(b"PING\r\n")
            await stream.receive_some()
            await stream.aclose()
    items = [item for _, item in open_capture(path).items()]
    kinds: dict[int | None, list[type]] = {}
    for item in items:
        if isinstance(item, OpenRecord | CloseRecord | Preamble | Frames):
            kinds.setdefault(item.conn, []).append(type(item))
    assert set(kinds) == {1, 2}
    assert kinds[1][0] is Preamble
    assert kinds[2][:2] == [OpenRecord, Frames]
    assert kinds[1][-1] is kinds[2][-1] is CloseRecord
    (info, *_) = [item for item in items if isinstance(item, Frames) and item.conn == 2]
    assert bytes(info.data).startswith(b"INFO")


@pytest.mark.server
async def test_both_ends_of_the_server_leg_are_recorded_alike(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    """Of two proxies in a row one records as `upstream_local` what the other records as `client`."""
    near, far = tmp_path / "near.ncap", tmp_path / "far.ncap"
    async with before(nats_server.port) as (behind, _), before(behind.listen[0].port) as (front, _):
        behind.start_recording(RecordSettings(far))
        async with AsyncExitStack() as streams:
            for early in (True, False):
                if not early:
                    front.start_recording(RecordSettings(near))
                stream = await trio.open_tcp_stream("127.0.0.1", front.listen[0].port)
                await streams.enter_async_context(stream)
                await stream.receive_some()
                await stream.send_all(b"PING\r\n")
                await stream.receive_some()
            await front.stop_recording()
            await behind.stop_recording()
    clients = [item.info["client"] for _, item in open_capture(far).items() if isinstance(item, OpenRecord)]
    opened = [item.info for _, item in open_capture(near).items() if isinstance(item, OpenRecord)]
    before_it = [item.info["open"] for _, item in open_capture(near).items() if isinstance(item, Preamble)]
    assert [info["upstream_local"] for info in (*before_it, *opened)] == clients
    assert len(clients) == 2


async def test_servers_without_a_greeting_are_remembered_within_bounds(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Addresses behind a name may change for ever.  Each gets one ClientHello while it is remembered."""
    monkeypatch.setattr(bounded, "LIMIT", 2)
    dialled = 0

    async def hang_up(stream: trio.SocketStream) -> None:
        nonlocal dialled
        dialled += 1
        await stream.aclose()

    (listener,) = await nursery.start(partial(trio.serve_tcp, hang_up, 0, host="127.0.0.1"))
    sockaddr = listener.socket.getsockname()
    settings = ProxySettings()
    dialer = Dialer(settings, TlsContexts(settings), Shortage(lambda _: None, now_ns))
    found = []
    for name in "aabca":
        endpoint = Endpoint(Server(Address(name, 1)), socket.AF_INET, sockaddr)
        before = dialled
        with pytest.raises(NoServer):
            await dialer.dial(endpoint, 5.0, ClientFacts("127.0.0.1:1", Address()))
        found.append(dialled - before)
    assert found == [2, 1, 2, 2, 2]
    nursery.cancel_scope.cancel()
