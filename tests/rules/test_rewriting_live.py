"""Rewriting with nats-py on one side and a second client on the server's own port on the other."""

from __future__ import annotations

import asyncio
from typing import Any

import nats
import pytest
from nats.errors import NoRespondersError

from tests.kit.clients import settle
from tests.kit.servers import NatsServer
from tests.rules.through import through

TENANT = """
[[rules]]
name = "tenant"
kind = "rewrite"
prefix = "tenant-a"
jetstream = true
"""
RENAMED = """
[[rules]]
name = "renamed"
kind = "rewrite"
from = "orders.*.*"
to = "shop.{{wildcard(2)}}.of.{{wildcard(1)}}"
"""


@pytest.mark.server
async def test_both_sides_see_the_mapping_of_what_the_other_did(nats_server: NatsServer) -> None:
    async def program(url: str) -> None:
        inside, outside = await nats.connect(url), await nats.connect(nats_server.url)
        seen = await outside.subscribe("shop.>")
        subscription = await inside.subscribe("orders.*.new")
        await settle(inside)
        await settle(outside)
        await inside.publish("orders.eu.new", b"1")
        message = await seen.next_msg(5)
        assert (message.subject, message.data) == ("shop.new.of.eu", b"1")
        assert (await subscription.next_msg(5)).subject == "orders.eu.new"
        await outside.publish("shop.new.of.us", b"2")
        message = await subscription.next_msg(5)
        assert (message.subject, message.data) == ("orders.us.new", b"2")

        async def answer(request: Any) -> None:
            await request.respond(request.subject.encode())

        await inside.subscribe("orders.svc.ask", queue="q", cb=answer)
        await settle(inside)
        assert (await outside.request("shop.ask.of.svc", b"", timeout=5)).data == b"orders.svc.ask"
        await inside.close()
        await outside.close()

    await through(nats_server.port, RENAMED, program)


@pytest.mark.server
async def test_a_subscription_that_is_covered_in_part_is_refused(nats_server: NatsServer) -> None:
    errors: list[str] = []

    async def program(url: str) -> None:
        noted = asyncio.Event()

        async def note(error: Exception) -> None:
            errors.append(str(error))
            noted.set()

        nc = await nats.connect(url, error_cb=note)
        await nc.subscribe("orders.>")
        await asyncio.wait_for(noted.wait(), 10)
        await nc.close()

    await through(nats_server.port, RENAMED, program)
    assert errors == ['nats: permissions violation for subscription to "orders.>"']


@pytest.mark.server
async def test_a_tenant_does_not_notice(nats_server: NatsServer) -> None:
    """Requests, 503s, queue groups, auto-unsubscribe and JetStream work under a prefix."""

    async def program(url: str) -> None:
        nc, outside = await nats.connect(url), await nats.connect(nats_server.url)
        with pytest.raises(NoRespondersError):
            await nc.request("nobody", b"", timeout=5)
        everything = await nc.subscribe(">")
        limited = await nc.subscribe("few.*")
        await limited.unsubscribe(limit=2)
        for number in range(4):
            await nc.publish("few.x", b"%d" % number)
        await settle(nc)
        assert [(await everything.next_msg(5)).subject for _ in range(4)] == ["few.x"] * 4
        assert [(await limited.next_msg(5)).data for _ in range(2)] == [b"0", b"1"]
        await everything.unsubscribe()
        await streams(nc)
        raw = await outside.jetstream().stream_info("TENANT")
        assert raw.config.subjects == ["tenant-a.events.>"]
        await nc.jetstream().delete_stream("TENANT")
        await nc.close()
        await outside.close()

    await through(nats_server.port, TENANT, program)


async def streams(nc: Any) -> None:
    js = nc.jetstream()
    info = await js.add_stream(name="TENANT", subjects=["events.>"])
    assert info.config.subjects == ["events.>"]
    for number in range(3):
        ack = await js.publish(f"events.{number}", b"body")
        assert ack.seq == number + 1
    pull = await js.pull_subscribe("events.>", "worker")
    messages = await pull.fetch(3, timeout=5)
    assert [message.subject for message in messages] == ["events.0", "events.1", "events.2"]
    for message in messages:
        await message.ack_sync(timeout=5)
    info = await js.consumer_info("TENANT", "worker")
    assert (info.num_ack_pending, info.config.filter_subject) == (0, "events.>")
    last = await js.get_last_msg("TENANT", "events.2")
    assert last.subject == "events.2"
    direct = await js.get_msg("TENANT", subject="events.1", direct=False)
    assert direct.subject == "events.1"
    received: asyncio.Queue[str] = asyncio.Queue()

    async def take(message: Any) -> None:
        await received.put(message.subject)

    await js.subscribe("events.*", cb=take, ordered_consumer=True)
    assert [await asyncio.wait_for(received.get(), 5) for _ in range(3)] == [
        "events.0",
        "events.1",
        "events.2",
    ]
    bucket = await js.create_key_value(bucket="settings")
    await bucket.put("colour", b"red")
    assert (await bucket.get("colour")).value == b"red"
    assert await bucket.keys() == ["colour"]
    await js.delete_key_value("settings")
