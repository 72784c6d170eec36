"""A drain waits for requests in flight: not for pulls, not for ever, and not without `answers`."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import nats
import nats.errors
import pytest
import trio
import trio.testing

from natsproxy.addresses import Address
from natsproxy.config.endpoints import Listener, Server
from natsproxy.config.settings import ProxySettings
from natsproxy.config.tls import HandshakeFirst, TlsSettings
from natsproxy.events import Closed, Event
from natsproxy.net.proxy import Proxy
from tests.kit.authority import Authority
from tests.kit.clients import settle
from tests.kit.process import ProxyProcess
from tests.kit.servers import NatsServer

pytestmark = pytest.mark.server
Program = Callable[[ProxyProcess, Any, asyncio.Event], Awaitable[object]]
LATE = 0.3  # seconds after the signal
ANSWERED = "natsproxy is shutting down"
LATE_END = "the drain deadline passed"
GREETING = b'INFO {"max_payload":1048576}\r\n'


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Give a CA."""
    return Authority(tmp_path)


async def connect(port: int) -> tuple[Any, asyncio.Event]:
    """Return a client, and an event for when its connection is gone and its transport closed."""
    gone = asyncio.Event()

    async def quiet(error: Exception) -> None:
        pass

    async def closed() -> None:
        gone.set()

    url = f"nats://127.0.0.1:{port}"
    return await nats.connect(url, allow_reconnect=False, error_cb=quiet, closed_cb=closed), gone


def run(server: NatsServer, program: Program, drain: str) -> set[tuple[str, str]]:
    """Run a nats-py program that ends its proxy; return causes and details of the ends of connections.

    The program is told when its connection is gone.
    """

    async def connected(proxy: ProxyProcess) -> None:
        nc, gone = await connect(proxy.port)
        with contextlib.suppress(nats.errors.ConnectionClosedError):
            await program(proxy, nc, gone)
            await nc.close()

    with ProxyProcess(f"nats://127.0.0.1:{server.port}", "--drain", drain) as proxy:
        asyncio.run(connected(proxy))
        proxy.process.wait(20)
        return {(line["cause"], line["detail"]) for line in proxy.lines() if line["event"] == "closed"}


@pytest.mark.parametrize("behind", ["the server", "the proxy"])
def test_a_request_in_flight_gets_its_answer(nats_server: NatsServer, behind: str) -> None:
    """The service may be a client of the same proxy."""
    answers: list[bytes] = []

    async def program(proxy: ProxyProcess, nc: Any, gone: asyncio.Event) -> None:
        port = proxy.port if behind == "the proxy" else nats_server.port
        service, service_gone = await connect(port)

        async def answer(message: Any) -> None:
            proxy.process.send_signal(signal.SIGTERM)
            await asyncio.sleep(LATE)
            await message.respond(b"late")

        await service.subscribe("drain.service", cb=answer)
        await settle(service)
        answers.append((await nc.request("drain.service", b"x", timeout=10)).data)
        await gone.wait()
        if behind == "the server":
            await service.close()
        await service_gone.wait()

    assert run(nats_server, program, "20s") == {("drained", ANSWERED)}
    assert answers == [b"late"]


def test_a_request_that_nobody_will_answer_ends_at_the_deadline(nats_server: NatsServer) -> None:
    async def program(proxy: ProxyProcess, nc: Any, gone: asyncio.Event) -> None:
        await nc.subscribe("drain.silent")
        request = asyncio.ensure_future(nc.request("drain.silent", b"x", timeout=10))
        await settle(nc)
        proxy.process.send_signal(signal.SIGTERM)
        await gone.wait()
        request.cancel()

    assert run(nats_server, program, "1s") == {("drained", LATE_END)}


def test_a_pull_does_not_hold_a_drain(nats_server: NatsServer) -> None:
    async def program(proxy: ProxyProcess, nc: Any, gone: asyncio.Event) -> None:
        js = nc.jetstream()
        await js.add_stream(name="DRAIN", subjects=["drain.stream"])
        pull = await js.pull_subscribe("drain.stream", "puller")
        fetch = asyncio.ensure_future(pull.fetch(1, timeout=15))
        await settle(nc)
        proxy.process.send_signal(signal.SIGTERM)
        await gone.wait()
        fetch.cancel()

    assert run(nats_server, program, "16s") == {("drained", ANSWERED)}


async def test_a_server_that_is_found_too_late_serves_nobody() -> None:
    """A client that waits for its server while others end has none, and keeps no drain waiting."""
    greeted, ending, found = trio.Event(), trio.Event(), trio.Event()

    async def upstream(stream: trio.SocketStream) -> None:
        """Greet the first client at once, the second one while the first one ends."""
        if not greeted.is_set():
            greeted.set()
            await stream.send_all(GREETING)
            while await stream.receive_some(100):
                pass
            ending.set()
        else:
            found.set()
            await ending.wait()
            await stream.send_all(GREETING)
        await trio.sleep_forever()

    events: list[Event] = []
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            serve = partial(trio.serve_tcp, upstream, 0, host="127.0.0.1")
            (server,) = await nursery.start(serve)
            port = server.socket.getsockname()[1]
            proxy = Proxy(ProxySettings(listen=(Listener(),), upstream=(Server(Address("127.0.0.1", port)),)))
            proxy.subscribe(events.append)
            (address,) = await nursery.start(proxy.serve)
            async with await trio.open_tcp_stream(address.host, address.port) as first:
                await first.receive_some(100)
                async with await trio.open_tcp_stream(address.host, address.port) as late:
                    await found.wait()
                    await proxy.drain(0)
                    assert await late.receive_some(100) == b""
            nursery.cancel_scope.cancel()
    ends = {event.conn: event.cause for event in events if isinstance(event, Closed)}
    assert ends == {1: "drained", 2: "drained"}


async def test_a_connection_that_is_still_opening_is_drained(authority: Authority) -> None:
    """In its TLS handshake, say: the drain ends it, and is the cause."""
    events: list[Event] = []
    settings = ProxySettings(
        listen=(Listener(Address(), "tls"),),
        upstream=(Server(Address("127.0.0.1", 1)),),
        tls=TlsSettings(cert=authority.server(), handshake_first=HandshakeFirst(), timeout=0),
    )
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            proxy = Proxy(settings)
            proxy.subscribe(events.append)
            (address,) = await nursery.start(proxy.serve)
            async with await trio.open_tcp_stream(address.host, address.port) as stream:
                await trio.testing.wait_all_tasks_blocked()
                await proxy.drain(0)
                assert await stream.receive_some(100) == b""
    (closed,) = [event for event in events if isinstance(event, Closed)]
    assert (closed.cause, closed.detail) == ("drained", ANSWERED)
