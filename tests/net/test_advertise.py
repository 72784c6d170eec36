"""The addresses that clients learn: none, the proxy's own, or those that servers advertise for their proxies.

The clients are those of nats-py, with its discovery on.
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from ipaddress import ip_network
from typing import Any
from urllib.parse import ParseResult

import pytest
import trio
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.transport import TcpTransport
from nats.errors import Error as NatsError

from natsproxy.addresses import Address
from natsproxy.config.endpoints import Listener, Server
from natsproxy.config.settings import ProxySettings
from natsproxy.net.opening import own_addresses
from natsproxy.net.proxy import Proxy
from natsproxy.session.values import SessionSettings
from natsproxy.testing import NatsServer
from tests.kit.cluster import Cluster, free_ports
from tests.kit.documents import ROOT
from tests.kit.process import ProxyProcess

pytestmark = pytest.mark.server
LIMIT = 60.0  # seconds
LOOPBACK = Listener(Address("127.0.0.1", 0))


def told(port: int, header: bytes = b"") -> Any:
    """Return the `connect_urls` of a proxy's first INFO, None without them."""
    place = ("127.0.0.1", port)
    with socket.create_connection(place, timeout=LIMIT) as client, client.makefile("rb") as lines:
        client.sendall(header)
        return json.loads(lines.readline().removeprefix(b"INFO ")).get("connect_urls")


@asynccontextmanager
async def advertising(server: NatsServer, *listen: Listener, **settings: Any) -> AsyncIterator[Proxy]:
    upstream = (Server(Address("127.0.0.1", server.port)),)
    proxy = Proxy(
        ProxySettings(listen=listen, upstream=upstream, session=SessionSettings(advertise="self"), **settings)
    )
    with trio.fail_after(LIMIT):
        async with trio.open_nursery() as nursery:
            await nursery.start(proxy.serve)
            yield proxy
            nursery.cancel_scope.cancel()


async def test_self_is_every_listener_that_the_client_can_use(nats_server: NatsServer) -> None:
    """Its own first; those of WebSocket are for other clients."""
    web = Listener(Address("127.0.0.1", 0), "ws")
    everywhere = Listener(Address("", 0))
    async with advertising(nats_server, LOOPBACK, web, everywhere) as proxy:
        first, _, third = (address.port for address in proxy.listen[:3])
        for own, other in ((first, third), (third, first)):
            urls = await trio.to_thread.run_sync(told, own)
            assert urls == [f"127.0.0.1:{own}", f"127.0.0.1:{other}"]


async def test_behind_a_load_balancer_it_is_the_address_that_was_dialled(nats_server: NatsServer) -> None:
    balanced = Listener(proxy_protocol=(ip_network("127.0.0.0/8"),))
    header = b"PROXY TCP4 10.0.0.9 10.0.0.1 50000 4222\r\n"
    async with advertising(nats_server, balanced, LOOPBACK) as proxy:
        urls = await trio.to_thread.run_sync(told, proxy.listen[0].port, header)
        assert urls == ["10.0.0.1:4222"]


@pytest.mark.parametrize(
    ("local", "expected"),
    [
        ("10.0.0.1:1", ["10.0.0.1:1", "10.0.0.1:2", "10.0.0.1:7", "10.0.0.2:3"]),
        ("10.0.0.2:3", ["10.0.0.2:3", "10.0.0.1:1", "10.0.0.2:2", "10.0.0.2:7"]),
        ("127.0.0.1:2", ["127.0.0.1:2", "127.0.0.1:7", "127.0.0.1:4", "[::1]:4"]),
        ("[::1]:4", ["[::1]:4", "[::1]:7", "127.0.0.1:4"]),
        ("[fd00::1]:7", ["[fd00::1]:7", "10.0.0.1:1", "10.0.0.2:3"]),
    ],
)
def test_addresses_of_loopback_are_for_loopback(local: str, expected: list[str]) -> None:
    """To a client elsewhere they are its own machine."""
    listening = [
        ("nats", Address("10.0.0.1", 1)),
        ("nats", Address("0.0.0.0", 2)),
        ("nats", Address("::", 7)),
        ("nats", Address("10.0.0.2", 3)),
        ("nats", Address("127.0.0.1", 4)),
        ("nats", Address("::1", 4)),
        ("tls", Address("10.0.0.1", 5)),
        ("ws", Address("127.0.0.1", 6)),
    ]
    host, _, port = local.rpartition(":")
    assert [
        str(one) for one in own_addresses("nats", Address(host.strip("[]"), int(port)), listening)
    ] == expected


# -- the recipe of the guide, for a proxy in front of each server

GUIDE = (ROOT / "deploy" / "sidecar.md").read_text()
MACHINES = (1, 2, 3)


class Machines:
    """Three machines as the guide describes them, on ports of this one.

    proxies: the ports for clients, by machine.
    """

    def __init__(self) -> None:
        ports = free_ports(9)
        self.proxies, self._servers, self._routes = (
            dict(zip(MACHINES, ports[first : first + 3], strict=True)) for first in (0, 3, 6)
        )
        self._stack = ExitStack()
        self._servers_of: dict[int, NatsServer] = {}
        self._proxies_of: dict[int, ProxyProcess] = {}

    def __enter__(self) -> Machines:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    @property
    def addresses(self) -> set[str]:
        """The addresses of all proxies."""
        return {f"127.0.0.1:{port}" for port in self.proxies.values()}

    def _told(self, language: str, machine: int) -> str:
        text: str
        (text,) = re.findall(rf"^```{language}\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)
        for other in MACHINES:
            text = text.replace(f"nats://10.0.0.{other}:6222", f"nats://127.0.0.1:{self._routes[other]}")
        text = text.replace("n1", f"n{machine}").replace(
            "127.0.0.1:4223", f"127.0.0.1:{self._servers[machine]}"
        )
        text = text.replace("10.0.0.1:4222", f"127.0.0.1:{self.proxies[machine]}")
        return text.replace("10.0.0.1:6222", f"127.0.0.1:{self._routes[machine]}")

    def start(self, *machines: int) -> None:
        """Start machines, and wait until each server names the proxies of all of them."""
        for machine in machines:
            server = NatsServer(self._told("conf", machine), port=self._servers[machine])
            self._servers_of[machine] = self._stack.enter_context(server)
            _, _, *options = shlex.split(self._told("console", machine))
            at = options.index("--upstream")
            upstream = options[at + 1]
            del options[at : at + 2]
            proxy = ProxyProcess(upstream, *options)
            self._proxies_of[machine] = self._stack.enter_context(proxy)
        Cluster(list(self._servers_of.values()), []).wait_whole()

    def kill(self, machine: int) -> None:
        """Let a machine crash."""
        self._proxies_of[machine].kill()
        self._servers_of[machine].stop(signal.SIGKILL)


DIALLED: set[str] = set()
"""The places that the client of a test has dialled."""


class Transport(TcpTransport):
    """A transport that tells where it goes."""

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        """Connect to a server."""
        DIALLED.add(uri.netloc)
        await super().connect(uri, buffer_size, connect_timeout)


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machines]:
    """Give the machines, none of them started."""
    monkeypatch.setattr("nats.aio.client.TcpTransport", Transport)
    DIALLED.clear()
    with Machines() as made:
        yield made
    assert made.addresses >= DIALLED


def told_by(machines: Machines, story: Callable[[Client], Awaitable[None]], **callbacks: Any) -> None:
    """Run a story with a client of the first machine."""

    async def run() -> None:
        client = Client()
        await client.connect(
            f"nats://127.0.0.1:{machines.proxies[1]}",
            connect_timeout=10,
            reconnect_time_wait=0,
            max_reconnect_attempts=-1,
            error_cb=_ignore,
            **callbacks,
        )
        try:
            await asyncio.wait_for(story(client), LIMIT)
        finally:
            await client.close()

    asyncio.run(run())


async def _ignore(error: Exception) -> None:
    """Take an error that belongs to a machine that went."""


async def _respond(message: Msg) -> None:
    await message.respond(b"ok")


def known(client: Client) -> set[str]:
    """Return the addresses that a client knows."""
    return {url.netloc for url in client.servers}


def test_clients_learn_the_proxies_of_all_servers(machines: Machines) -> None:
    """With their first INFO."""

    async def story(client: Client) -> None:
        assert known(client) == machines.addresses
        assert len(client.discovered_servers) == 2

    machines.start(*MACHINES)
    told_by(machines, story)


@pytest.mark.long
def test_and_those_that_come_later(machines: Machines) -> None:
    """With one more INFO, and a call to the program."""
    discovered: list[int] = []

    async def found() -> None:
        discovered.append(1)

    async def story(client: Client) -> None:
        assert known(client) < machines.addresses
        await asyncio.to_thread(machines.start, 2, 3)
        while known(client) != machines.addresses:  # noqa: ASYNC110 - it is polled
            await asyncio.sleep(0.01)
        assert discovered

    machines.start(1)
    told_by(machines, story, discovered_server_cb=found)


@pytest.mark.long
def test_a_machine_that_goes_leaves_its_clients_to_the_others(machines: Machines) -> None:
    """They go on through another proxy, with their subscriptions."""

    async def story(client: Client) -> None:
        await client.subscribe("svc", cb=_respond)
        assert (await client.request("svc", b"")).data == b"ok"
        await asyncio.to_thread(machines.kill, 1)
        while True:
            try:
                answer = await client.request("svc", b"", timeout=0.5)
            except NatsError:  # it is on its way
                await asyncio.sleep(0.01)
            else:
                break
        assert answer.data == b"ok"
        assert client.connected_url is not None
        assert client.connected_url.netloc in machines.addresses - {f"127.0.0.1:{machines.proxies[1]}"}

    machines.start(*MACHINES)
    told_by(machines, story)
