"""Faults that the official clients fake in their own tests, as rules before a real server, with nats-py."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.errors import TimeoutError as NatsTimeout
from nats.js.api import Header

from natsproxy.events import Event, Firing
from tests.kit.clients import settle
from tests.kit.servers import NatsServer
from tests.rules.through import Program, through

pytestmark = pytest.mark.server
FILES = Path(__file__).parent / "files"


async def under(server: NatsServer, file: str, program: Program) -> list[Firing]:
    """Run a program under the rules of a file; return the firings."""
    events: list[Event] = await through(server.port, (FILES / f"{file}.toml").read_text(), program)
    return [event for event in events if isinstance(event, Firing)]


async def attempt(url: str) -> list[bytes]:
    """Greet as a client does; return the operations that came back before the end."""
    host, port = url.removeprefix("nats://").split(":")
    received = b""
    try:
        reader, writer = await asyncio.open_connection(host, int(port))
    except ConnectionResetError:
        return [b"RST"]
    try:
        received += await asyncio.wait_for(reader.readline(), 5)
        writer.write(b'CONNECT {"verbose":false}\r\nPING\r\n')
        received += await asyncio.wait_for(reader.read(), 5)
    except ConnectionError:
        received += b"RST\r\n"
    writer.close()
    return [line.split(b" ")[0] for line in received.splitlines()]


@pytest.mark.parametrize(
    ("file", "received"),
    [
        ("refuse", [b"RST"]),
        ("close-before-info", []),
        ("close-after-info", [b"INFO"]),
        ("close-after-connect", [b"INFO"]),
        ("close-after-ping", [b"INFO"]),
        ("reset-at-ping", [b"INFO", b"RST"]),
    ],
)
async def test_a_connection_ends_early_and_nats_py_tries_again(
    nats_server: NatsServer, file: str, received: list[bytes]
) -> None:
    async def program(url: str) -> None:
        assert await attempt(url) == received
        nc = await nats.connect(url, reconnect_time_wait=0.01, connect_timeout=2)
        try:
            echo = await nc.subscribe("echo")
            await nc.publish("echo", b"x")
            assert (await echo.next_msg(5)).data == b"x"
        finally:
            await nc.close()

    assert [firing.m for firing in await under(nats_server, file, program)] == [1, 1]


async def test_an_info_that_is_too_late_is_given_up(nats_server: NatsServer) -> None:
    async def program(url: str) -> None:
        nc = await nats.connect(url, reconnect_time_wait=0.01, connect_timeout=0.3)
        try:
            await settle(nc)
        finally:
            await nc.close()

    (firing,) = await under(nats_server, "late-info", program)
    assert (firing.action, firing.delay) == ("hold", 2_000_000_000)


async def test_nats_py_notices_that_heartbeats_are_missing(nats_server: NatsServer) -> None:
    """An ordered consumer that hears no heartbeat is made anew."""

    async def program(url: str) -> None:
        nc = await nats.connect(url)
        js = nc.jetstream()
        await js.add_stream(name="BEATS", subjects=["beats.>"])
        try:
            made = await nc.subscribe("$JS.EVENT.ADVISORY.CONSUMER.CREATED.BEATS.*")
            await js.publish("beats.1", b"x")
            subscription = await js.subscribe("beats.>", ordered_consumer=True, idle_heartbeat=0.2)
            assert (await subscription.next_msg(5)).data == b"x"
            first, second = await made.next_msg(5), await made.next_msg(5)
            assert first.data != second.data
            await subscription.unsubscribe()
        finally:
            await js.delete_stream("BEATS")
            await nc.close()

    firings = await under(nats_server, "drop-heartbeats", program)
    assert firings
    assert {firing.direction for firing in firings} == {"s2c"}


async def test_publish_acks_are_swallowed(nats_server: NatsServer) -> None:
    async def program(url: str) -> None:
        nc = await nats.connect(url)
        js = nc.jetstream()
        manager = await nats.connect(nats_server.url)
        await manager.jetstream().add_stream(name="ACKS", subjects=["acks.>"])
        try:
            for _ in range(2):
                with pytest.raises(NatsTimeout):
                    await js.publish("acks.1", b"", timeout=0.3)
            assert (await js.publish("acks.1", b"", timeout=5)).seq == 3
        finally:
            await manager.jetstream().delete_stream("ACKS")
            await manager.close()
            await nc.close()

    firings = await under(nats_server, "swallow-publish-acks", program)
    assert [(firing.m, firing.direction) for firing in firings] == [(1, "s2c"), (2, "s2c")]
    assert all(firing.ordinal is not None for firing in firings)


async def test_a_publish_ack_comes_late(nats_server: NatsServer) -> None:
    """The publisher gives up, sends it again under the same id, and learns that it was a duplicate."""

    async def program(url: str) -> None:
        nc = await nats.connect(url)
        js = nc.jetstream()
        manager = await nats.connect(nats_server.url)
        await manager.jetstream().add_stream(name="LATE", subjects=["late.>"])
        marked = {Header.MSG_ID.value: "once"}
        try:
            with pytest.raises(NatsTimeout):
                await js.publish("late.1", b"", timeout=0.3, headers=marked)
            ack = await js.publish("late.1", b"", timeout=5, headers=marked)
            assert (ack.seq, ack.duplicate) == (1, True)
        finally:
            await manager.jetstream().delete_stream("LATE")
            await manager.close()
            await nc.close()

    (firing,) = await under(nats_server, "late-publish-ack", program)
    assert firing.delay == 600_000_000


async def test_a_pull_request_gets_the_status_of_a_deleted_consumer(nats_server: NatsServer) -> None:
    """nats-py takes a 409 for a passing trouble: the fetch times out, the next one gets the message."""

    async def program(url: str) -> None:
        nc = await nats.connect(url)
        js = nc.jetstream()
        await js.add_stream(name="PULLS", subjects=["pulls.>"])
        try:
            await js.publish("pulls.1", b"x")
            pull = await js.pull_subscribe("pulls.>", "worker")
            with pytest.raises(NatsTimeout):
                await pull.fetch(1, timeout=0.5)
            (message,) = await pull.fetch(1, timeout=5)
            assert message.data == b"x"
        finally:
            await js.delete_stream("PULLS")
            await nc.close()

    (firing,) = await under(nats_server, "pull-conflict", program)
    assert firing.subject == "$JS.API.CONSUMER.MSG.NEXT.PULLS.worker"


async def test_nats_py_takes_the_announcement_of_lame_duck_mode(nats_server: NatsServer) -> None:
    async def program(url: str) -> None:
        warned = asyncio.Event()

        async def lame_duck() -> None:
            warned.set()

        options: dict[str, Any] = {"lame_duck_mode_cb": lame_duck}
        nc = await nats.connect(url, **options)
        try:
            await asyncio.wait_for(warned.wait(), 5)
            await settle(nc)
        finally:
            await nc.close()

    (firing,) = await under(nats_server, "lame-duck", program)
    assert (firing.kind, firing.ordinal) == ("announce", None)
