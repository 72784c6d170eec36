"""Failover before a cluster with JetStream: pull consumers of a replicated stream in a rolling restart."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from nats.aio.client import Client
from nats.errors import Error
from nats.js.api import ConsumerConfig

from tests.kit.cluster import Cluster, cluster
from tests.kit.node import started_node
from tests.kit.process import ProxyProcess
from tests.net.test_failover import HOLD, Seen

pytestmark = [pytest.mark.server, pytest.mark.long]
PROGRAM = Path(__file__).parent / "programs" / "pulling.js"
LIMIT = 300.0
ACK_WAIT = 3.0
BATCH = 20
CONSUMERS = ("python", "javascript")

Deliveries = list[tuple[int, int]]
"""The number in the stream of each message that came, and how often the server says it was delivered."""


async def publish(client: Client, over: asyncio.Event) -> int:
    """Publish until it is over, each message until it is acked; return how many."""
    number, acked = 0, True
    while not ((acked and over.is_set()) or client.is_closed):
        headers = {"Nats-Msg-Id": str(number)}
        try:
            await client.jetstream().publish("s.a", b"%d" % number, timeout=2, headers=headers)
        except Error:  # it was under way, and may be stored, or the stream has no leader
            acked = False
            await asyncio.sleep(0.05)
        else:
            number, acked = number + 1, True
            await asyncio.sleep(0.005)
    return number


async def pull(client: Client, over: asyncio.Event, came: Deliveries) -> None:
    """Fetch and ack until it is over."""
    pulled = await client.jetstream().pull_subscribe_bind("python", "S")
    while not (over.is_set() or client.is_closed):
        try:
            messages = await pulled.fetch(BATCH, timeout=2)
        except Error:  # none came in time, or the consumer has no leader
            continue
        for message in messages:
            came.append((message.metadata.sequence.stream, message.metadata.num_delivered))
            await message.ack()


async def made(client: Client) -> None:
    """Make the stream and its consumers, once the cluster has a leader."""
    while True:
        jetstream = client.jetstream()
        try:
            await jetstream.add_stream(name="S", subjects=["s.>"], num_replicas=3)
            for name in CONSUMERS:
                await jetstream.add_consumer("S", ConsumerConfig(durable_name=name, ack_wait=ACK_WAIT))
        except Error:
            await asyncio.sleep(0.2)
        else:
            return


async def ready(client: Client) -> None:
    """Wait until stream and consumers have leaders and all their replicas."""
    jetstream = client.jetstream(timeout=2)
    while True:
        try:
            clusters = [(await jetstream.stream_info("S")).cluster]
            clusters += [(await jetstream.consumer_info("S", name)).cluster for name in CONSUMERS]
        except Error:
            clusters = [None]
        if all(one and one.leader and all(each.current for each in one.replicas or ()) for one in clusters):
            return
        await asyncio.sleep(0.2)


async def drained(client: Client, name: str) -> None:
    """Wait until a consumer has delivered all messages, and all are acked."""
    info = None
    while info is None or info.num_pending or info.num_ack_pending:
        await asyncio.sleep(0.2)
        try:
            info = await client.jetstream().consumer_info("S", name, timeout=2)
        except Error:  # it has no leader
            info = None


async def restart(servers: Cluster, number: int, how: str) -> None:
    getattr(servers, how)(number)
    await asyncio.sleep(3 if how == "lame_duck" else 1)
    servers.stop(number)
    servers.start(number)
    await asyncio.to_thread(servers.wait_whole)


@pytest.mark.parametrize("how", ["kill", "lame_duck"])
def test_pull_consumers_get_all_messages_over_a_rolling_restart(how: str) -> None:
    async def main() -> None:
        with cluster(jetstream=True) as servers:
            others = [word for url in servers.urls[1:] for word in ("--upstream", url)]
            with ProxyProcess(servers.urls[0], *others, *HOLD) as proxy:
                async with seen.client(proxy) as one, seen.client(proxy) as two:
                    await run(servers, proxy, one, two)

    async def run(servers: Cluster, proxy: ProxyProcess, one: Client, two: Client) -> None:
        over, done = asyncio.Event(), asyncio.Event()
        await made(one)
        with started_node(PROGRAM, f"nats://127.0.0.1:{proxy.port}", "S", "javascript") as node:
            publishing = asyncio.create_task(publish(one, over))
            pulling = asyncio.create_task(pull(two, done, came))
            for number in range(3):
                await ready(one)
                await restart(servers, number, how)
            over.set()
            last = await publishing
            for name in CONSUMERS:
                await drained(one, name)
            done.set()
            await pulling
            assert node.stdin is not None
            out, _ = await asyncio.to_thread(node.communicate, timeout=30)
            assert node.returncode == 0
        lines = [line.split() for line in out.splitlines()]
        for deliveries in (came, [(int(seq), int(times)) for seq, times in lines]):
            counts = Counter(seq for seq, _ in deliveries)
            again = sum(counts.values()) - len(counts)
            assert set(counts) == set(range(1, last + 1))
            assert last > 100
            assert again <= 3 * 2 * BATCH  # by their ack wait, and by what the next leader does not know yet
        failed = [line for line in proxy.lines() if line["event"] == "failed over"]
        assert len(failed) >= 3

    seen, came = Seen(), Deliveries()
    asyncio.run(asyncio.wait_for(main(), LIMIT))
    seen.nothing()
