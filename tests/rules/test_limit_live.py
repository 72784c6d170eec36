"""Limits through a running proxy, with nats-py and a real server."""

from __future__ import annotations

import asyncio

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from natsproxy.events import Firing
from tests.kit.clients import settle
from tests.kit.servers import NatsServer
from tests.rules.through import through

pytestmark = pytest.mark.server
HEAD = '[[rules]]\nname = "few"\nkind = "limit"\nsubject = "a.>"\n'


async def subscribed(url: str, name: str) -> tuple[Client, list[bytes]]:
    """Return a client that collects what comes on all subjects of these tests."""
    nc, came = await nats.connect(url, name=name), list[bytes]()

    async def take(message: Msg) -> None:
        came.append(message.data)

    await nc.subscribe("*.x", cb=take)
    await nc.flush()
    return nc, came


async def test_a_client_waits_and_has_its_order(nats_server: NatsServer) -> None:
    async def program(url: str) -> None:
        listener, came = await subscribed(url, "listener")
        limited = await nats.connect(url, name="limited")
        before = asyncio.get_running_loop().time()
        for number in range(30):
            await limited.publish("a.x" if number % 3 else "b.x", b"%d" % number)
        await settle(limited)
        # Ten of "a.x" at once, ten at 20/s; the PONG says that the server has them all.
        assert asyncio.get_running_loop().time() - before >= 0.45
        await listener.flush()
        assert came == [b"%d" % number for number in range(30)]
        for nc in (listener, limited):
            await nc.close()

    events = await through(nats_server.port, HEAD + 'messages = "20/s"\nburst = 10\n', program)
    assert {one.action for one in events if isinstance(one, Firing)} == {"wait"}


async def test_a_neighbour_does_not_wait(nats_server: NatsServer) -> None:
    """Of a client that waits for an hour, the PING too."""

    async def program(url: str) -> None:
        listener, came = await subscribed(url, "listener")
        limited, neighbour = await nats.connect(url), await nats.connect(url)
        for _ in range(1000):
            await limited.publish("a.x", b"limited")
        flushed = asyncio.ensure_future(settle(limited))
        for _ in range(20):
            await neighbour.publish("b.x", b"neighbour")
            await neighbour.flush(10)
        await listener.flush(10)
        assert came.count(b"neighbour") == 20
        assert came.count(b"limited") <= 1
        assert not flushed.done()
        flushed.cancel()
        for nc in (listener, neighbour, limited):
            await nc.close()

    await through(nats_server.port, HEAD + 'messages = "1/h"\n', program, drain=0)


async def test_a_consumer_acks_while_its_publishes_wait(nats_server: NatsServer) -> None:
    async def program(url: str) -> None:
        nc = await nats.connect(url)
        js = nc.jetstream()
        await js.add_stream(name="LIMITED", subjects=["limited.>"])
        for number in range(5):
            await js.publish(f"limited.{number}", b"")
        pull = await js.pull_subscribe("limited.>", "C")
        messages = await pull.fetch(5)
        for _ in range(100):
            await nc.publish("a.x", b"")
        for message in messages:
            await message.ack()
        direct = await nats.connect(nats_server.url)
        while (await direct.jetstream().consumer_info("LIMITED", "C")).num_ack_pending:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await direct.jetstream().delete_stream("LIMITED")
        await direct.close()
        await nc.close()

    events = await through(nats_server.port, HEAD + 'messages = "5/min"\n', program, drain=0)
    assert any(isinstance(one, Firing) for one in events)


@pytest.mark.parametrize("per", ["client", "address"])
async def test_a_client_that_comes_back_goes_on_where_it_was(nats_server: NatsServer, per: str) -> None:
    async def program(url: str) -> None:
        listener, came = await subscribed(nats_server.url, "listener")
        for _ in range(3):
            nc = await nats.connect(url, name="app")
            for _ in range(4):
                await nc.publish("a.x", b"")
            await settle(nc)
            await nc.close()
        await listener.flush()
        assert len(came) == 6
        await listener.close()

    await through(
        nats_server.port, HEAD + f'messages = "6/h"\nburst = 6\nper = "{per}"\naction = "drop"\n', program
    )


async def test_a_denial_is_the_servers_and_a_request_gets_429(nats_server: NatsServer) -> None:
    errors: list[str] = []

    async def note(error: Exception) -> None:
        errors.append(str(error))

    async def program(url: str) -> None:
        nc = await nats.connect(url, error_cb=note)
        for _ in range(2):
            await nc.publish("a.x", b"")
        await nc.flush()
        answer = await nc.request("a.q", b"", timeout=5)
        assert answer.headers is not None
        assert answer.headers["Status"] == "429"
        assert answer.headers["Description"] == "Too Many Requests"
        await nc.close()

    limits = [
        HEAD + 'messages = "1/h"\nunless = "a.q"\naction = "deny"\n',
        HEAD.replace("few", "ask").replace("a.>", "a.*") + 'messages = "1/h"\naction = "reply"\n',
    ]
    await through(nats_server.port, "".join(limits), program)
    assert errors == ['nats: permissions violation for publish to "a.x"']


async def test_in_shadow_all_passes_and_is_told(nats_server: NatsServer) -> None:
    async def program(url: str) -> None:
        listener, came = await subscribed(url, "listener")
        for _ in range(10):
            await listener.publish("a.x", b"")
        await settle(listener)
        assert len(came) == 10
        await listener.close()

    events = await through(nats_server.port, HEAD + 'messages = "4/h"\nburst = 4\nmode = "shadow"\n', program)
    told = [one.action for one in events if isinstance(one, Firing)]
    assert told == ["would limit"] * 6


async def hears(url: str, said: bytes, lines: int) -> list[bytes]:
    """Return the lines that a client of the name "app" gets after INFO; nats-py gives up at such errors."""
    host, _, port = url.removeprefix("nats://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    await reader.readline()
    writer.write(b'CONNECT {"verbose":false,"name":"app"}\r\n' + said)
    heard = [await reader.readline() for _ in range(lines)]
    writer.close()
    await writer.wait_closed()
    return heard


async def test_connections_and_subscriptions_end_at_their_limits(nats_server: NatsServer) -> None:
    async def program(url: str) -> None:
        first = await nats.connect(url, name="app")
        assert await hears(url, b"PING\r\n", 1) == [b"-ERR 'maximum connections exceeded'\r\n"]
        await first.subscribe("a.x")
        await first.publish("a.x", b"")
        await settle(first)
        assert first.stats["in_msgs"] == 1
        await first.close()
        while (await hears(url, b"PING\r\n", 1))[0].startswith(b"-ERR"):
            pass  # its end takes a moment to arrive
        subs = b"".join(b"SUB a.x %d\r\n" % sid for sid in range(3))
        while len(heard := await hears(url, b"PING\r\n" + subs + b"PING\r\n", 3)) and not heard[1]:
            pass  # and so does that of the last one here
        pongs, refused = (b"PONG\r\n",) * 2, b"-ERR 'maximum subscriptions exceeded'\r\n"
        assert [line for line in heard if not line.startswith(b"INFO")] in (
            [pongs[0], refused, pongs[1]],
            [pongs[0], refused],
        )

    head = '[[rules]]\nname = "{}"\nkind = "limit"\n{} = {}\nper = "client"\n'
    await through(
        nats_server.port,
        head.format("one", "connections", 1) + head.format("two", "subscriptions", 2),
        program,
    )
