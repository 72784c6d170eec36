"""Several servers behind one proxy: the choice for each connection, and servers that fail in every way."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from dataclasses import asdict
from functools import partial

import pytest
import trio

from natsproxy import close_reasons
from natsproxy.addresses import Address
from natsproxy.capture.format.records import Item, OpenRecord
from natsproxy.config.endpoints import Listener, Server
from natsproxy.config.settings import ProxySettings
from natsproxy.events import Closed, Event, Notice, Opened
from natsproxy.net import dial
from natsproxy.net.clock import now_ns
from natsproxy.net.dial import BegunDial, Dialer, Dialled, NoServer
from natsproxy.net.endpoints import Endpoint
from natsproxy.net.leg import Leg
from natsproxy.net.opening import ClientFacts
from natsproxy.net.proxy import Proxy
from natsproxy.net.shortage import Shortage
from natsproxy.net.tls_contexts import TlsContexts
from natsproxy.net.upstreams import Upstreams
from natsproxy.protocol.info import Info
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.file.parser import load
from natsproxy.rules.kinds import KINDS
from natsproxy.units import MILLISECOND, SECOND

LIMIT = 20.0  # seconds
GREETED = b'CONNECT {"verbose":false,"protocol":1}\r\nPING\r\n'


@pytest.fixture(autouse=True)
def _no_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dial, "SLOW", LIMIT)  # a busy machine must not overtake a server


@pytest.fixture(params=["native", "python"])
def _plane(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NATSPROXY_PLANE", request.param)


class FakeServer:
    """A server that the test controls.

    mood: "greets", "silent", "full", or one of `MOODS`.  info: members of its INFO, beside those that it
    needs.  accepted: the number of connections.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.mood = "greets"
        self.info: dict[str, object] = {}
        self.port = 0
        self.accepted = 0
        self._streams: set[trio.SocketStream] = set()
        self._scope = trio.CancelScope()

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Listen until `stop`, the second time on the same port."""
        with trio.CancelScope() as self._scope:
            async with trio.open_nursery() as nursery:
                serve = partial(trio.serve_tcp, self._serve, self.port, host="127.0.0.1")
                (listener,) = await nursery.start(serve)
                self.port = listener.socket.getsockname()[1]
                task_status.started()

    def stop(self) -> None:
        """Close the listener and all connections."""
        self._scope.cancel()

    @property
    def line(self) -> bytes:
        """Its INFO."""
        facts = {
            "server_id": self.name,
            "server_name": self.name,
            "version": "2.15.1",
            "proto": 1,
            "headers": True,
            "max_payload": 9,
        }
        return b"INFO %s \r\n" % json.dumps({**facts, **self.info}).encode()

    async def say(self, **info: object) -> None:
        """Send another INFO to all clients."""
        self.info |= info
        for stream in tuple(self._streams):
            await stream.socket.send(self.line)  # the stream itself may be about to finish a PONG

    async def _serve(self, stream: trio.SocketStream) -> None:
        self.accepted += 1
        self._streams.add(stream)
        try:
            if self.mood == "silent":
                await trio.sleep_forever()
            if self.mood in MOODS:
                await MOODS[self.mood](stream)
                return
            await stream.send_all(self.line)
            if self.mood == "full":
                await stream.send_all(b"-ERR 'maximum connections exceeded'\r\n")
                return
            with suppress(trio.BrokenResourceError):
                async for data in stream:
                    await stream.send_all(b"PONG\r\n" * data.count(b"PING"))
        finally:
            self._streams.discard(stream)


async def _hang_up(stream: trio.SocketStream) -> None:
    await stream.send_all(b'INFO {"server_id"')


async def _reset(stream: trio.SocketStream) -> None:
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def _drip(stream: trio.SocketStream) -> None:
    with suppress(trio.BrokenResourceError):
        while True:
            await stream.send_all(b"I")
            await trio.sleep(0.01)


async def _flood(stream: trio.SocketStream) -> None:
    with suppress(trio.BrokenResourceError):
        while True:
            await stream.send_all(bytes(65_536))


async def _answer_http(stream: trio.SocketStream) -> None:
    await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")


MOODS = {
    "hangs up in its INFO": _hang_up,
    "resets": _reset,
    "drips": _drip,
    "floods": _flood,
    "speaks HTTP": _answer_http,
}
"""What a hostile server does with a connection."""


class Stage:
    """A proxy before fake servers, with its events and the opening records of its connections."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self.events: list[Event] = []
        self.opened: list[OpenRecord] = []
        self.streams: list[trio.SocketStream] = []
        self._changed = trio.Event()
        proxy.subscribe(self._on_event)
        proxy.tap(self._on_record)

    def _on_event(self, event: Event) -> None:
        self.events.append(event)
        self._changed.set()

    async def wait_for(self, kind: type[Event], **fields: object) -> None:
        """Wait for an event with these fields, or find it among those that have been."""
        while not any(
            isinstance(event, kind) and fields.items() <= asdict(event).items() for event in self.events
        ):
            self._changed = trio.Event()
            await self._changed.wait()

    def _on_record(self, item: Item) -> None:
        if isinstance(item, OpenRecord):
            self.opened.append(item)

    async def connect(self, *, greeted: bool = True) -> tuple[str, trio.SocketStream]:
        """Connect as a client; return the name of the server, "" for none, and the stream.

        greeted: wait for the INFO.
        """
        address = self.proxy.listen[0]
        stream = await trio.open_tcp_stream(address.host, address.port)
        self.streams.append(stream)
        got = b""
        while greeted and b"\r\n" not in got and (data := await stream.receive_some()):
            got += data
        if not got:
            return "", stream
        name = json.loads(got.removeprefix(b"INFO ").splitlines()[0])["server_id"]
        return name, stream

    async def ask(self) -> str:
        """Return the name of the server of a new connection, which ends at once."""
        name, stream = await self.connect()
        await stream.aclose()
        return name

    def notices(self) -> list[str]:
        """Return the texts of the notices, warnings or not, and forget the events."""
        found = [event.text for event in self.events if isinstance(event, Notice)]
        self.events.clear()
        return found


@asynccontextmanager
async def stage(*servers: FakeServer | str, start: bool = True, **settings: object) -> AsyncIterator[Stage]:
    """Run servers, and a proxy before them; a server may be the host and port of a name."""
    async with trio.open_nursery() as nursery:
        for server in servers:
            if isinstance(server, FakeServer) and start:
                await nursery.start(server.run)
        upstream = []
        for server in servers:
            host, _, port = (
                server.rpartition(":") if isinstance(server, str) else ("127.0.0.1", "", server.port)
            )
            upstream.append(Server(Address(host, int(port))))
        values = {
            "listen": (Listener(),),
            "connect_timeout": LIMIT * SECOND,
            "upstream_randomize": False,
            "drain": SECOND,
            **settings,
        }
        proxy = Proxy(ProxySettings(upstream=tuple(upstream), **values))  # type: ignore[arg-type]
        await nursery.start(proxy.serve)
        on = Stage(proxy)
        try:
            with trio.fail_after(LIMIT):
                yield on
        finally:
            for stream in on.streams:
                stream.socket.close()
            with trio.fail_after(LIMIT):
                await proxy.drain(1, answers=False)
        nursery.cancel_scope.cancel()


@contextmanager
def black_hole() -> Iterator[int]:
    """Give a port on which connections are never made: the backlog of its listener is full."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        address = listener.getsockname()
        waiting = [socket.socket() for _ in range(4)]
        try:
            for one in waiting:
                one.setblocking(False)
                one.connect_ex(address)
            yield address[1]
        finally:
            for one in waiting:
                one.close()


async def test_the_servers_are_tried_in_their_order() -> None:
    """The second one serves while the first is gone; one notice says so, and one that it is back."""
    a, b = FakeServer("a"), FakeServer("b")
    async with stage(a, b) as on, trio.open_nursery() as nursery:
        assert [await on.ask() for _ in range(3)] == ["a"] * 3
        a.stop()
        assert [await on.ask() for _ in range(3)] == ["b"] * 3
        gone = f"cannot connect to 127.0.0.1:{a.port}: Connection refused"
        assert on.notices() == [f"a server cannot be used: {gone}"]
        b.stop()
        assert await on.ask() == ""
        assert f"the upstream cannot be used: {gone}" in on.notices()
        await nursery.start(a.run)  # the one that failed longest ago, and all are tried
        assert await on.ask() == "a"
        assert on.notices()[0] == "the upstream is back"
        a.stop()


async def test_the_order_is_random_from_the_seed() -> None:
    """Each gets its share, and the same seed gives the same choice."""
    orders = []
    for _ in range(2):
        async with stage(FakeServer("a"), FakeServer("b"), upstream_randomize=True, seed=5) as on:
            orders.append([await on.ask() for _ in range(20)])
    assert orders[0] == orders[1]
    assert set(orders[0]) == {"a", "b"}


@pytest.mark.usefixtures("_plane")
async def test_a_connection_names_its_server_in_events_and_records() -> None:
    a, b = FakeServer("a"), FakeServer("b")
    async with stage(a, b) as on:
        for server in (a, b):
            _, stream = await on.connect()
            await stream.send_all(GREETED)  # a client that says nothing is not recorded
            assert await stream.receive_some() == b"PONG\r\n"
            server.stop()
        expected = [f"127.0.0.1:{a.port}", f"127.0.0.1:{b.port}"]
        assert [event.upstream for event in on.events if isinstance(event, Opened)] == expected
        assert [item.info["upstream"] for item in on.opened] == expected


async def test_a_rule_is_about_the_connections_of_one_server() -> None:
    a, b = FakeServer("a"), FakeServer("b")
    rule = '[[rules]]\nname = "r"\nkind = "deny"\nsubject = "s"\nclient = { server = "a*" }\n'
    async with stage(a, b) as on:
        on.proxy.swap(RuleChain(load(rule, KINDS)))
        for server in (a, b):
            _, stream = await on.connect()
            await stream.send_all(GREETED + b"PUB s 0\r\n\r\nPING\r\n")
            got = b""
            while got.count(b"PONG") < 2:
                got += await stream.receive_some()
            assert (b"Permissions Violation" in got) == (server is a)
            server.stop()


@pytest.mark.usefixtures("_plane")
async def test_a_server_that_goes_takes_its_clients_with_it_at_once() -> None:
    """And no others; they come back to another server."""
    a, b = FakeServer("a"), FakeServer("b")
    async with stage(a, b, upstream_randomize=True, seed=1) as on:
        clients: dict[str, trio.SocketStream] = {}
        while len(clients) < 2:
            name, stream = await on.connect()
            clients[name] = stream
        a.stop()
        assert await clients["a"].receive_some() == b""
        assert [await on.ask() for _ in range(4)] == ["b"] * 4
        await clients["b"].send_all(GREETED)
        assert await clients["b"].receive_some() == b"PONG\r\n"
        await clients["a"].aclose()
        await on.wait_for(Closed, cause=close_reasons.SERVER_CLOSED, upstream=f"127.0.0.1:{a.port}")


async def test_silence_and_a_black_hole_are_overtaken(monkeypatch: pytest.MonkeyPatch) -> None:
    """They cost a client a moment, and are tried later; said once it happens again."""
    monkeypatch.setattr(dial, "SLOW", 0.1)
    silent, good = FakeServer("silent"), FakeServer("good")
    silent.mood = "silent"
    with black_hole() as port:
        async with stage(f"127.0.0.1:{port}", silent, good) as on:
            assert [await on.ask() for _ in range(5)] == ["good"] * 5
            assert silent.accepted == 1
            assert on.notices() == []


@pytest.mark.parametrize("mood", MOODS)
async def test_a_hostile_server_is_passed_over(mood: str) -> None:
    """And tried later; alone it is an outage with a reason."""
    bad, good = FakeServer("bad"), FakeServer("good")
    bad.mood = mood
    limit = 500 * MILLISECOND if mood == "drips" else LIMIT * SECOND
    async with stage(bad, good, connect_timeout=int(limit)) as on:
        assert [await on.ask() for _ in range(3)] == ["good"] * 3
        assert bad.accepted <= 2  # the second one is for a ClientHello
        (text,) = on.notices()
        assert text.startswith("a server cannot be used: ")
        assert f"127.0.0.1:{bad.port}" in text
        good.stop()
        await on.connect(greeted=False)
        await on.wait_for(Notice)
        assert on.notices()[0].startswith("the upstream cannot be used: ")


async def test_a_silent_server_that_is_alone_is_a_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the reason of each: one connects, the other does not."""
    monkeypatch.setattr(dial, "SLOW", 0)
    silent = FakeServer("silent")
    silent.mood = "silent"
    with black_hole() as port:
        async with stage(silent, f"127.0.0.1:{port}", connect_timeout=500 * MILLISECOND) as on:
            assert await on.ask() == ""
            assert sorted(text.removeprefix("the upstream cannot be used: ") for text in on.notices()) == [
                f"127.0.0.1:{silent.port} accepts connections but sent no INFO in 500ms",
                f"cannot connect to 127.0.0.1:{port}: no answer in time",
            ]


async def test_a_client_is_held_until_one_of_the_servers_is_back() -> None:
    a, b = FakeServer("a"), FakeServer("b")
    async with stage(a, b, upstream_hold=60 * SECOND) as on, trio.open_nursery() as nursery:
        a.stop()
        b.stop()
        found: list[str] = []

        async def client() -> None:
            found.append(await on.ask())
            b.stop()

        nursery.start_soon(client)
        await on.wait_for(Notice)
        await nursery.start(b.run)
    assert found == ["b"]


async def test_a_client_that_leaves_is_held_no_longer() -> None:
    """It may have come back many times when a server is there again."""
    a = FakeServer("a")
    async with stage(a, upstream_hold=60 * SECOND) as on, trio.open_nursery() as nursery:
        a.stop()
        for _ in range(3):
            _, stream = await on.connect(greeted=False)
            await stream.aclose()
        _, speaking = await on.connect(greeted=False)
        await speaking.send_all(GREETED)
        await speaking.send_eof()  # it waits for the answer
        for number in (1, 2, 3):
            await on.wait_for(Closed, conn=number, cause=close_reasons.CLIENT_CLOSED)
        a.accepted = 0
        await nursery.start(a.run)
        got = b"".join([data async for data in speaking])
        assert got.endswith(b"PONG\r\n")
        assert a.accepted == 1
        a.stop()


async def test_many_held_clients_do_not_dial_without_a_pause(
    autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their attempts have a pace of their own together, and what one finds serves all."""
    dials = []
    back = trio.current_time() + 5
    ours, theirs = socket.socketpair()
    leg = Leg(ours)

    async def dial(
        self: Dialer, endpoint: Endpoint, within: float, client: ClientFacts, begun: BegunDial | None
    ) -> Dialled:
        dials.append(trio.current_time())
        await trio.sleep(0.001)
        if trio.current_time() < back:
            raise NoServer("gone")
        return Dialled(endpoint, leg, b"INFO {}\r\n")

    monkeypatch.setattr(Dialer, "dial", dial)
    settings = ProxySettings(upstream=(Server(Address("127.0.0.1", 4223)),), upstream_hold=60 * SECOND)
    upstreams = Upstreams(
        settings, TlsContexts(settings), lambda _: None, now_ns, 1, Shortage(lambda _: None, now_ns)
    )
    with closing(ours), closing(theirs):
        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(upstreams.dial, ClientFacts("client:1", Address()), leg)
    assert trio.current_time() < back + 0.1
    assert len(dials) < 2_000  # at twenty a second each they would be 10,000


@pytest.mark.usefixtures("_plane")
async def test_a_lame_duck_gets_no_new_connections_while_another_lives() -> None:
    """Whether it says so to an open connection or in its greeting."""
    a, b = FakeServer("a"), FakeServer("b")
    async with stage(a, b) as on:
        name, stream = await on.connect()
        assert name == "a"
        await stream.send_all(GREETED)
        assert await stream.receive_some() == b"PONG\r\n"
        await a.say(ldm=True)
        assert b'"ldm": true' in await stream.receive_some()
        assert [await on.ask() for _ in range(3)] == ["b"] * 3
        assert on.notices() == [f"the server 127.0.0.1:{a.port} is in lame duck mode: others are preferred"]
        b.stop()
        assert await on.ask() == "a"
    lame, good = FakeServer("lame"), FakeServer("good")
    lame.info = {"ldm": True}
    async with stage(lame, good) as on:
        assert [await on.ask() for _ in range(3)] == ["good"] * 3
        assert lame.accepted == 1


@pytest.mark.usefixtures("_plane")
async def test_a_full_server_is_left_to_those_it_has() -> None:
    """A client that it turned away comes back, and gets another."""
    full, good = FakeServer("full"), FakeServer("good")
    full.mood = "full"
    async with stage(full, good) as on:
        name, stream = await on.connect()
        assert name == "full"
        rest = b"".join([data async for data in stream])
        assert rest in (b"", b"-ERR 'maximum connections exceeded'\r\n")  # it may have come with the INFO
        assert [await on.ask() for _ in range(3)] == ["good"] * 3


async def test_a_port_that_is_not_for_clients_is_passed_over() -> None:
    route, good = FakeServer("route"), FakeServer("good")
    route.info = {"proto": 3}
    async with stage(route, good) as on:
        assert [await on.ask() for _ in range(2)] == ["good"] * 2
        (text,) = on.notices()
        assert f"127.0.0.1:{route.port}: the upstream is a route port" in text
        good.stop()
        assert await on.ask() == "route"  # the session tells this client why


class Names(trio.abc.HostnameResolver):
    """A resolver with the answers of the test: addresses, or None for an error."""

    def __init__(self, **answers: list[str] | None) -> None:
        self.answers = answers

    async def getaddrinfo(self, host, port, family=0, type=0, proto=0, flags=0):  # type: ignore[no-untyped-def]
        """Answer as `socket.getaddrinfo`."""
        found = self.answers[host.decode() if isinstance(host, bytes) else host]
        if found is None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]

    async def getnameinfo(self, sockaddr, flags):  # type: ignore[no-untyped-def]
        """Never asked for."""
        raise NotImplementedError


async def test_a_name_leads_to_several_addresses() -> None:
    """Dead ones are passed over, changes are followed, and a resolver that fails takes nothing away."""
    names = Names(nats=["127.0.0.2", "127.0.0.1"], other=None)
    trio.socket.set_custom_hostname_resolver(names)
    server = FakeServer("s")
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        async with stage(f"nats:{server.port}", "other:1") as on:
            assert await on.ask() == "s"
            await on.wait_for(Opened, upstream=f"127.0.0.1:{server.port}")
            assert [text.removeprefix("a server cannot be used: ") for text in on.notices()] == [
                "cannot connect to other:1: Name or service not known",
                f"cannot connect to nats:{server.port} (127.0.0.2): Connection refused",
            ]
            names.answers["nats"] = None
            assert await on.ask() == "s"
            names.answers["nats"] = ["127.0.0.2"]
            assert await on.ask() == ""
            assert len(on.notices()) == 2
            names.answers["nats"] = ["127.0.0.1"]
            assert await on.ask() == "s"
            assert on.notices() == ["the upstream is back"]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
async def test_a_name_that_leads_back_is_passed_over(host: str) -> None:
    """Each connection would make another one, without end."""
    names = Names(proxy=["127.0.0.1"])
    trio.socket.set_custom_hostname_resolver(names)
    with socket.create_server((host, 0)) as free:
        own = free.getsockname()[1]
    good = FakeServer("good")
    async with stage(f"proxy:{own}", good, listen=(Listener(Address(host, own)),)) as on:
        assert await on.ask() == "good"
        reason = f"proxy:{own} (127.0.0.1) is natsproxy's own address: name the server"
        assert on.notices() == [f"a server cannot be used: {reason}"]
        good.stop()
        assert await on.ask() == ""
        assert f"the upstream cannot be used: {reason}" in on.notices()
        assert on.proxy.accepted == 2
        names.answers["proxy"] = ["127.0.0.2"]  # another machine's, if the listener is for one address only
        assert await on.ask() == ""
        assert ("127.0.0.2) is natsproxy's own" in "".join(on.notices())) == (host == "0.0.0.0")


@pytest.mark.usefixtures("_plane")
@pytest.mark.parametrize("discover", [True, False])
async def test_servers_that_the_cluster_names(discover: bool) -> None:
    """They are used if the operator wants that; what is no address is left out; the last list counts."""
    a, b, c = FakeServer("a"), FakeServer("b"), FakeServer("c")
    async with trio.open_nursery() as nursery:
        for server in (b, c):
            await nursery.start(server.run)
        async with stage(a, upstream_discover=discover) as on:
            name, stream = await on.connect()
            assert name == "a"
            await stream.send_all(GREETED)
            await stream.receive_some()
            await a.say(connect_urls=["nonsense", f"127.0.0.1:{c.port}"])
            assert b"connect_urls" not in await stream.receive_some()
            await a.say(connect_urls=[f"127.0.0.1:{a.port}", "", f"127.0.0.1:{b.port}", "tls://x:1"])
            assert b"connect_urls" not in await stream.receive_some()
            a.stop()
            assert await on.ask() == ("b" if discover else "")
            assert c.accepted == 0
        nursery.cancel_scope.cancel()


async def test_a_named_server_has_a_certificate_for_the_name_that_led_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If its own name is an IP address, as for NATS clients; names are handed on."""
    trio.socket.set_custom_hostname_resolver(Names(cluster=["10.0.0.1"], other=["10.0.0.2"]))
    dialled: dict[str, Endpoint] = {}

    async def dial(self: Dialer, endpoint: Endpoint, within: float, client: ClientFacts) -> Dialled:
        dialled[str(endpoint.address)] = endpoint
        raise NoServer("no")

    monkeypatch.setattr(Dialer, "dial", dial)
    settings = ProxySettings(upstream=(Server(Address("cluster", 1), "tls"),), upstream_discover=True)
    upstreams = Upstreams(
        settings, TlsContexts(settings), lambda _: None, now_ns, 1, Shortage(lambda _: None, now_ns)
    )
    await upstreams.probe()
    upstreams.heard(dialled["10.0.0.1:1"], Info(connect_urls=("10.0.0.3:4", "cluster:1", "other:5")))
    await upstreams.probe()
    upstreams.heard(dialled["10.0.0.3:4"], Info(connect_urls=("10.0.0.4:4",)))
    await upstreams.probe()
    names = {address: endpoint.server.tls_name for address, endpoint in dialled.items()}
    assert names == {"10.0.0.1:1": "", "10.0.0.3:4": "cluster", "10.0.0.2:5": "", "10.0.0.4:4": "cluster"}
    assert {endpoint.server.scheme for endpoint in dialled.values()} == {"tls"}
