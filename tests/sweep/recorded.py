"""Small programs that do the same in every run, and their recordings."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import nats
from nats.aio.msg import Msg
from nats.errors import NoRespondersError

from natsproxy.events import Firing
from natsproxy.testing.proxy import TestProxy
from tests.kit.servers import NatsServer

Program = Callable[[str], Awaitable[None]]


async def queue(url: str) -> None:
    """Publish three orders, and take them from a durable pull consumer until there are none."""
    nc = await nats.connect(url, name="worker")
    js = nc.jetstream()
    await js.add_stream(name="ORDERS", subjects=["orders.>"])
    for n in range(3):
        await js.publish(f"orders.{n}", b"an order")
    sub = await js.pull_subscribe("orders.>", durable="worker")
    for _ in range(3):
        (msg,) = await sub.fetch(1, timeout=5)
        await msg.ack_sync()
    await nc.request("$JS.API.CONSUMER.MSG.NEXT.ORDERS.worker", b'{"no_wait":true}', timeout=5)
    await nc.close()


async def service(url: str) -> None:
    """Ask a service of another connection, and one that is not there."""
    server = await nats.connect(url, name="server")

    async def tell(msg: Msg) -> None:
        await msg.respond(b"noon")

    await server.subscribe("time.now", cb=tell)
    await server.flush()
    client = await nats.connect(url)
    for _ in range(3):
        await client.request("time.now", b"?", timeout=5)
    await client.close()
    again = await nats.connect(url, name="server")
    try:
        await again.request("nobody.there", b"?", timeout=5)
    except NoRespondersError:
        await again.flush()
    await again.close()
    await server.close()


PROGRAMS: dict[str, Program] = {"queue": queue, "service": service}


def run(program: Program, capture: Path, rules: list[dict[str, Any]] | None = None) -> list[Firing]:
    """Record a program under rules, with a fresh server; return the firings of the rules."""
    with NatsServer(jetstream=True) as server, TestProxy(server.url, record=capture, rules=rules) as proxy:
        asyncio.run(asyncio.wait_for(program(proxy.url), 60))
        proxy.barrier()
        return proxy.firings
