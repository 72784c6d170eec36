"""A real cluster of three behind the proxy: servers come and go, and nobody goes around the proxy.

The clients are those of nats-py, with its discovery on.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from urllib.error import URLError
from urllib.parse import ParseResult

import pytest
import trio
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.transport import TcpTransport
from nats.errors import Error as NatsError

from natsproxy import close_reasons
from natsproxy.config.endpoints import Listener, read_upstream
from natsproxy.config.settings import ProxySettings
from natsproxy.events import Closed, Event
from natsproxy.net.proxy import Proxy
from natsproxy.units import SECOND
from tests.kit.cluster import Cluster, cluster

pytestmark = pytest.mark.server
LIMIT = 60.0  # seconds


@pytest.fixture(params=["native", "python"], autouse=True)
def _plane(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NATSPROXY_PLANE", request.param)


DIALLED: set[str] = set()
"""The places that clients of a test have dialled."""


class Transport(TcpTransport):
    """A transport that tells where it goes, and its own address."""

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        """Connect to a server."""
        DIALLED.add(uri.netloc)
        await super().connect(uri, buffer_size, connect_timeout)

    @property
    def peer(self) -> str:
        """The address that its socket is connected to; `""` for none."""
        if self._io_writer is None or self._io_writer.is_closing():
            return ""
        return ":".join(map(str, self._io_writer.get_extra_info("peername")[:2]))


@pytest.fixture(autouse=True)
def _watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nats.aio.client.TcpTransport", Transport)
    DIALLED.clear()


class App:
    """Clients behind one proxy."""

    def __init__(self, url: str, servers: Cluster) -> None:
        self._url = url
        self._servers = servers
        self.clients: list[Client] = []

    async def connect(self, count: int) -> None:
        """Add clients, each with a responder."""
        for _ in range(count):
            client = Client()
            await client.connect(
                self._url,
                connect_timeout=10,
                reconnect_time_wait=0,
                max_reconnect_attempts=-1,
                error_cb=_ignore,
            )
            await client.subscribe("svc", "queue", _respond)
            self.clients.append(client)

    async def ask(self) -> None:
        """Wait until each client has its answer, through whatever server it has."""
        await asyncio.wait_for(asyncio.gather(*map(_answered, self.clients)), LIMIT)

    async def check(self) -> None:
        """Assert that each client is and was connected to the proxy alone, and knows no other address."""
        proxy = self._url.removeprefix("nats://")
        assert {proxy} == DIALLED
        for client in self.clients:
            assert isinstance(client._transport, Transport)
            assert client._transport.peer in ("", proxy)
            assert [url.netloc for url in client.servers] == [proxy]
            assert client.discovered_servers == []

    async def change(self, what: Callable[[int], None], *numbers: int) -> None:
        """Let something happen to servers, and wait until the others know."""
        for number in numbers:
            await asyncio.to_thread(what, number)
        await asyncio.to_thread(self._servers.wait_whole)

    async def close(self) -> None:
        """Close all clients."""
        for client in self.clients:
            await client.close()


async def _ignore(error: Exception) -> None:
    """Take an error that belongs to a server that went."""


async def _respond(message: Msg) -> None:
    await message.respond(b"ok")


async def _answered(client: Client) -> None:
    while True:
        try:
            answer = await client.request("svc", b"", timeout=0.5)
        except NatsError:  # its server went, or that of the responder
            await asyncio.sleep(0.01)
        else:
            assert answer.data == b"ok"
            return


async def through(
    servers: Cluster, story: Callable[[App], Awaitable[None]], *, urls: list[str], discover: bool = False
) -> list[Event]:
    """Run a story with clients behind a proxy; return the proxy's events."""
    settings = ProxySettings(
        listen=(Listener(),),
        upstream=tuple(map(read_upstream, urls)),
        upstream_discover=discover,
        seed=1,
        drain=SECOND,
    )
    proxy = Proxy(settings)
    events: list[Event] = []

    async def run(url: str) -> None:
        app = App(url, servers)
        try:
            await story(app)
        finally:
            await app.close()

    proxy.subscribe(events.append)
    async with trio.open_nursery() as nursery:
        (address,) = await nursery.start(proxy.serve)
        await trio.to_thread.run_sync(lambda: asyncio.run(run(f"nats://{address}")))
        await proxy.drain(1)
    return events


def causes(events: list[Event]) -> set[str]:
    """Return the causes of all ends."""
    return {event.cause for event in events if isinstance(event, Closed)}


async def test_servers_come_and_go() -> None:
    """A crash, a restart, lame duck mode, and one that is left alone: every request has its answer."""

    async def story(app: App) -> None:
        await app.connect(6)
        await app.ask()
        await app.check()
        await app.change(servers.kill, 0)
        await app.ask()
        await app.check()
        await app.change(servers.start, 0)
        had = servers.clients(1)
        await app.change(servers.lame_duck, 1)
        await app.connect(4)
        await app.ask()
        await app.check()
        with suppress(URLError):  # it ends when it has moved its clients: then nobody is there, either
            assert servers.clients(1) == had
        await app.change(servers.stop, 1)
        await app.change(servers.start, 1)
        await app.ask()
        await app.check()
        await app.change(servers.kill, 0, 2)
        await app.ask()
        await app.check()
        assert len(servers.clients(1)) >= len(app.clients)

    with cluster() as servers:
        events = await through(servers, story, urls=servers.urls)
    assert close_reasons.UPSTREAM_DOWN not in causes(events)
    assert causes(events) & {close_reasons.SERVER_CLOSED, close_reasons.SERVER_LOST}


async def test_one_server_leads_to_the_others() -> None:
    """With discovery the proxy needs one address only, and its clients learn none all the same."""

    async def story(app: App) -> None:
        await app.connect(2)
        await app.ask()
        await app.change(servers.kill, 0)
        await app.connect(1)
        await app.ask()
        await app.check()

    with cluster() as servers:
        events = await through(servers, story, urls=servers.urls[:1], discover=True)
    assert close_reasons.UPSTREAM_DOWN not in causes(events)


@pytest.mark.long
@pytest.mark.parametrize("discover", [True, False])
async def test_servers_come_and_go_for_a_while(discover: bool) -> None:
    """At random, while all clients ask without a pause; one server always lives."""
    dice = random.Random(7)

    async def story(app: App) -> None:
        await app.connect(20)
        await app.ask()
        for _ in range(30):
            asking = asyncio.ensure_future(app.ask())
            away = sorted(set(range(3)) - servers.live)
            if away and (len(servers.live) == 1 or dice.random() < 0.5):
                number = dice.choice(away)
                await asyncio.to_thread(servers.stop, number)  # one in lame duck mode may still be there
                await app.change(servers.start, number)
            else:
                end = dice.choice([servers.kill, servers.stop, servers.lame_duck])
                await app.change(end, dice.choice(sorted(servers.live)))
            await asking
            await app.ask()
            await app.check()

    with cluster() as servers:
        events = await through(servers, story, urls=servers.urls, discover=discover)
    assert close_reasons.UPSTREAM_DOWN not in causes(events)
