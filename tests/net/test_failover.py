"""Failover with real servers and clients: servers come and go, and clients see no disconnect."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import nats
import pytest
import trio
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import NoRespondersError

from natsproxy.session.values import SessionSettings
from tests.kit.cluster import cluster
from tests.kit.process import ProxyProcess
from tests.kit.servers import NatsServer
from tests.kit.stage import HELLO, INFO, receive, stage
from tests.net.test_planes import plane_first

pytestmark = pytest.mark.server
HOLD = ("--failover", "hold")
LIMIT = 60.0


@pytest.fixture(params=plane_first("native"), autouse=True)
def _plane(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "threads":
        monkeypatch.setenv("NATSPROXY_PLANE_THREADS", "2")
    else:
        monkeypatch.setenv("NATSPROXY_PLANE", request.param)


class Seen:
    """What clients have been told of their connections."""

    def __init__(self) -> None:
        self.disconnects = 0
        self.disconnected = asyncio.Event()
        self.errors: list[str] = []

    @asynccontextmanager
    async def client(self, proxy: ProxyProcess, **options: Any) -> AsyncIterator[Client]:
        """Connect a client, which is to notice nothing."""

        async def disconnected() -> None:
            self.disconnects += not leaving
            self.disconnected.set()

        async def failed(error: Exception) -> None:
            self.errors.append(repr(error))

        leaving = False
        options = {"reconnect_time_wait": 0.05, "max_reconnect_attempts": 100, **options}
        client = await nats.connect(
            f"nats://127.0.0.1:{proxy.port}", disconnected_cb=disconnected, error_cb=failed, **options
        )
        try:
            yield client
        finally:
            leaving = True  # it calls back then, too
            await client.close()

    def nothing(self) -> None:
        """Assert that no client has noticed anything."""
        assert (self.disconnects, self.errors) == (0, [])


def failed_over(proxy: ProxyProcess, count: int) -> dict[str, Any]:
    """Wait for so many failovers in the log; return the last of their lines."""
    return proxy.wait_for(lambda line: line["event"] == "failed over", count)


def run(main: Callable[[], Any]) -> None:
    asyncio.run(asyncio.wait_for(main(), LIMIT))


async def stop(server: NatsServer, *clients: Client) -> None:
    """Stop a server; return once the proxy knows it for each of the clients, since it alone answers them."""
    server.stop()
    for client in clients:
        await client.flush(timeout=30)


async def agree(message: Msg) -> None:
    """Answer a request."""
    await message.respond(b"yes")


def test_a_server_that_restarts_is_not_noticed() -> None:
    async def main() -> None:
        with NatsServer() as server, ProxyProcess(server.url, *HOLD) as proxy:
            async with seen.client(proxy) as one, seen.client(proxy) as two:
                got, came = list[bytes](), asyncio.Event()

                async def note(message: Msg) -> None:
                    got.append(message.data)
                    came.set()

                await one.subscribe("a", cb=note)
                limited = await one.subscribe("b", max_msgs=3)
                await one.subscribe("svc", cb=agree)
                await one.flush()
                await two.publish("a", b"before")
                await two.publish("b", b"1")
                assert (await two.request("svc", b"?")).data == b"yes"
                await came.wait()
                await stop(server, one, two)
                for number in range(1000):
                    await two.publish("a", b"%d" % number)
                await two.publish("b", b"2")
                await two.publish("b", b"3")
                await two.publish("b", b"4")
                await two.flush()  # answered meanwhile
                answer = asyncio.create_task(two.request("svc", b"?", timeout=30))
                await asyncio.sleep(0.3)
                assert not answer.done()
                server.start()
                assert (await answer).data == b"yes"
                await two.flush()
                await one.flush()
                assert got == [b"before", *(b"%d" % number for number in range(1000))]
                assert [(await limited.next_msg()).data for _ in range(3)] == [b"1", b"2", b"3"]
                line = failed_over(proxy, 2)
                assert line["seconds"] >= 0.3
                told = [each for each in proxy.lines() if each["event"] == "failed over"]
                assert max(each["waited_bytes"] for each in told) > 1000 * len(b"PUB a 1\r\n1\r\n")
                assert sum(each["subscriptions"] for each in told) == 4  # and the inbox of requests

    seen = Seen()
    run(main)
    seen.nothing()


def test_without_the_setting_clients_are_disconnected() -> None:
    async def main() -> None:
        with NatsServer() as server, ProxyProcess(server.url) as proxy:
            async with seen.client(proxy):
                server.stop()
                server.start()
                await seen.disconnected.wait()

    seen = Seen()
    run(main)


def test_requests_under_way_fail_at_once_and_the_next_are_served() -> None:
    async def main() -> None:
        with NatsServer() as server, ProxyProcess(server.url, *HOLD) as proxy:
            async with seen.client(proxy) as one, seen.client(proxy) as two:
                came = asyncio.Event()

                async def think(message: Msg) -> None:
                    came.set()
                    if message.data == b"slow":
                        return
                    await message.respond(b"yes")

                await one.subscribe("svc", cb=think)
                await one.flush()
                asked = asyncio.create_task(two.request("svc", b"slow", timeout=30))
                await came.wait()
                server.stop()
                with pytest.raises(NoRespondersError):
                    await asked
                server.start()
                assert (await two.request("svc", b"?", timeout=30)).data == b"yes"
                failed_over(proxy, 2)
                assert 1 in [line.get("refused_requests") for line in proxy.lines()]

    seen = Seen()
    run(main)
    seen.nothing()


def test_a_server_that_stays_away_ends_the_connection_in_time() -> None:
    async def main() -> None:
        with NatsServer() as server, ProxyProcess(server.url, *HOLD, "--failover-hold", "500ms") as proxy:
            async with seen.client(proxy):
                server.stop()
                await seen.disconnected.wait()
                line = proxy.wait_for(lambda line: line["event"] == "closed")
                assert line["cause"] == "upstream-down"

    seen = Seen()
    run(main)


@pytest.mark.long
@pytest.mark.parametrize("how", ["stop", "kill", "lame_duck"])
def test_a_rolling_restart_of_a_cluster_is_not_noticed(how: str) -> None:
    """Each message is published once it is known that the one before has come, or is counted as lost."""

    async def main() -> None:
        with cluster() as servers, ProxyProcess(servers.urls[0], *_others(servers.urls), *HOLD) as proxy:
            async with AsyncExitStack() as stack:
                clients = [await stack.enter_async_context(seen.client(proxy)) for _ in range(6)]
                for client in clients:
                    await client.subscribe("svc", "workers", agree)
                    await client.flush()
                asking = [asyncio.create_task(_ask(client, counts, over)) for client in clients]
                for number in range(3):
                    getattr(servers, how)(number)
                    await asyncio.sleep(2 if how == "lame_duck" else 0.5)
                    servers.stop(number)
                    await asyncio.sleep(0.5)
                    servers.start(number)
                    await asyncio.to_thread(servers.wait_whole)
                over.set()
                await asyncio.gather(*asking)
                failed_over(proxy, 6)

    seen, counts, over = Seen(), [0, 0], asyncio.Event()
    run(main)
    seen.nothing()
    answered, refused = counts
    assert answered > 100
    assert refused <= 3 * 6 * 2


def _others(urls: list[str]) -> list[str]:
    return [word for url in urls[1:] for word in ("--upstream", url)]


async def _ask(client: Client, counts: list[int], over: asyncio.Event) -> None:
    while not over.is_set():
        try:
            await client.request("svc", b"?", timeout=20)
            counts[0] += 1
        except NoRespondersError:  # it was under way, or so was the one who would have answered
            counts[1] += 1
        await asyncio.sleep(0.005)


async def send_thirds(server: trio.SocketStream, message: bytes) -> None:
    third = len(message) // 3
    for at in range(0, len(message), third):
        await server.send_all(message[at : at + third])


@pytest.mark.parametrize("size", [20, 20_000, 900_000])
async def test_a_server_that_is_lost_inside_a_message_is_replaced(size: int) -> None:
    """Its client has no part of the message, or it could not go on."""
    message = b"MSG a 1 %d\r\n" % size + b"x" * size + b"\r\n"
    async with stage(session=SessionSettings(failover="hold")) as made:
        client, server = await made.connect()
        async with client:
            for cut in (len(message) // 2, len(message) - 1):
                async with server, trio.open_nursery() as sending:
                    sending.start_soon(server.send_all, message + message[:cut])
                    assert await receive(client, len(message)) == message
                server = await made.listener.accept()
                await server.send_all(INFO)
                assert await receive(server, len(HELLO)) == HELLO
                await server.send_all(b"PONG\r\n")
                assert b"INFO" in await client.receive_some()
            async with server, trio.open_nursery() as sending:
                sending.start_soon(send_thirds, server, message)
                assert await receive(client, len(message)) == message


def test_memory_is_bounded_while_a_client_publishes_without_a_server() -> None:
    async def main() -> None:
        with NatsServer() as server, ProxyProcess(server.url, *HOLD, "--queue", "4MiB") as proxy:
            async with seen.client(proxy, pending_size=1 << 30, flusher_queue_size=1 << 16) as client:
                await client.flush()
                before = proxy.memory()
                server.stop()
                body = b"x" * 8192
                for _ in range(8192):  # 64 MiB
                    await client.publish("a", body)
                await asyncio.sleep(1)
                assert proxy.memory() - before < 32 << 20
                server.start()
                await client.flush(timeout=30)
                line = failed_over(proxy, 1)
                waited = line["waited_bytes"] + 8300  # the last message may not have been whole
                assert 4 << 20 < waited < 6 << 20

    seen = Seen()
    run(main)
    seen.nothing()
