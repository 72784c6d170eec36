"""Programs before a real server: with one fault a check finds something, without it none does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import TimeoutError as NatsTimeout
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from natsproxy.check.checker import check_captures
from natsproxy.check.history import Patience
from natsproxy.check.statement import Statement
from natsproxy.testing import TestProxy
from natsproxy.units import MILLISECOND
from tests.kit.servers import NatsServer

pytestmark = pytest.mark.server
SHORT = Patience(*[200 * MILLISECOND] * len(Patience._fields))
Program = Callable[[Client], Awaitable[None]]


async def asks_once(nc: Client) -> None:
    async def answer(msg: Msg) -> None:
        await msg.respond(b"42")

    await nc.subscribe("quotes", cb=answer)
    try:
        await nc.request("quotes", b"acme", timeout=0.4)
    except NatsTimeout:
        return


async def publishes_until_acked(nc: Client) -> None:
    js = nc.jetstream()
    await js.add_stream(name="S", subjects=["s.*"])
    for _ in range(2):
        try:
            await js.publish("s.1", b"one", timeout=0.3)
            return
        except NatsTimeout:
            continue


async def publishes_with_an_id(nc: Client) -> None:
    js = nc.jetstream()
    await js.add_stream(name="S", subjects=["s.*"])
    for _ in range(2):
        try:
            await js.publish("s.1", b"one", timeout=0.3, headers={"Nats-Msg-Id": "1"})
            return
        except NatsTimeout:
            continue


async def listens(nc: Client) -> None:
    js = nc.jetstream()
    await js.add_stream(name="S", subjects=["s.*"])
    await nc.subscribe("s.*")
    await nc.flush()
    await js.publish("s.1", b"one")
    await js.publish("s.1", b"two")
    await nc.flush()
    await asyncio.sleep(0.3)


async def reads_in_order(nc: Client) -> None:
    """A consumer configured as an ordered one, whose client looks at no sequence."""
    js = nc.jetstream()
    await js.add_stream(name="S", subjects=["s.*"])
    await nc.subscribe("_INBOX.ordered")
    config = ConsumerConfig(
        deliver_subject="_INBOX.ordered",
        ack_policy=AckPolicy.NONE,
        mem_storage=True,
        num_replicas=1,
        deliver_policy=DeliverPolicy.ALL,
    )
    await js.add_consumer("S", config)
    for n in range(4):
        await js.publish("s.1", str(n).encode())
    await asyncio.sleep(0.4)


async def acks(nc: Client, forgotten: bytes = b"") -> None:
    js = nc.jetstream()
    await js.add_stream(name="S", subjects=["s.*"])
    for n in range(3):
        await js.publish("s.1", str(n).encode())
    sub = await js.pull_subscribe("s.*", durable="worker", config=ConsumerConfig(ack_wait=0.2))
    for _ in range(3):
        (msg,) = await sub.fetch(1, timeout=2)
        if msg.data != forgotten:
            await msg.ack()
    await nc.flush()


async def forgets_an_ack(nc: Client) -> None:
    await acks(nc, b"0")


async def reads_with_the_library(nc: Client) -> None:
    js = nc.jetstream()
    await js.add_stream(name="S", subjects=["s.*"])
    for n in range(6):
        await js.publish("s.1", str(n).encode())
    sub = await js.subscribe("s.*", ordered_consumer=True, idle_heartbeat=0.3)
    assert [(await sub.next_msg(timeout=5)).data for _ in range(6)] == [b"%d" % n for n in range(6)]
    await asyncio.sleep(0.4)


async def pulls(nc: Client) -> None:
    js = nc.jetstream()
    await js.add_stream(name="S", subjects=["s.*"])
    sub = await js.pull_subscribe("s.*", durable="worker")
    for _ in range(2):
        try:
            await sub.fetch(1, timeout=0.3)
        except NatsTimeout:
            continue
    await asyncio.sleep(0.6)


async def shares(nc: Client) -> None:
    await nc.subscribe("x", queue="g")
    await nc.subscribe("x", queue="g")
    await nc.flush()
    await nc.publish("x", b"1")
    await nc.flush()
    await nc.flush()


async def takes_one(nc: Client) -> None:
    sub = await nc.subscribe("x")
    await sub.unsubscribe(limit=1)
    await nc.publish("x", b"1")
    await nc.flush()
    await nc.flush()


async def hears_itself(nc: Client) -> None:
    js = nc.jetstream()
    await js.add_stream(name="S", subjects=["s.*"])
    sub = await js.pull_subscribe("s.*", durable="worker")
    await js.publish("s.1", b"one")
    (msg,) = await sub.fetch(1, timeout=2)
    await msg.ack()
    await nc.flush()


async def pings(nc: Client) -> None:
    try:
        await nc.flush(timeout=1)
    except NatsTimeout:
        return


def s2c(kind: str, **more: Any) -> list[dict[str, Any]]:
    return [{"name": "fault", "kind": kind, "direction": "s2c", **more}]


CASES: dict[str, tuple[Program, list[dict[str, Any]], set[str]]] = {
    "an answer": (asks_once, s2c("drop", subject="_INBOX.>", limit=1), {"request_without_answer"}),
    "an ack": (publishes_until_acked, s2c("drop", role="publish-ack", limit=1), {"stored_twice"}),
    "an ack with an id": (publishes_with_an_id, s2c("drop", role="publish-ack", limit=1), set()),
    "a publish": (
        publishes_until_acked,
        [{**s2c("drop", subject="s.1", limit=1)[0], "direction": "c2s"}],
        set(),
    ),
    "a message": (listens, s2c("drop", subject="s.1", limit=1), {"acked_publish_not_delivered"}),
    "an ordered message": (
        reads_in_order,
        s2c("drop", subject="s.1", after=1, limit=1),
        {"ordered_consumer_gap", "acked_publish_not_delivered"},
    ),
    "an ordered message, twice": (
        reads_in_order,
        s2c("duplicate", subject="s.1", after=1, limit=1),
        {"ordered_consumer_repetition"},
    ),
    "a message to an ordered client": (
        reads_with_the_library,
        s2c("drop", subject="s.1", after=2, limit=1),
        set(),
    ),
    "a message to an ordered client, twice": (
        reads_with_the_library,
        s2c("duplicate", subject="s.1", after=2, limit=1),
        set(),
    ),
    "a pull": (
        pulls,
        [{**s2c("drop", subject="$JS.API.CONSUMER.MSG.NEXT.>", limit=1)[0], "direction": "c2s"}],
        {"pull_without_end"},
    ),
    "a copy": (shares, s2c("duplicate", subject="x"), {"delivered_twice_in_group"}),
    "a copy after the count": (takes_one, s2c("duplicate", subject="x"), {"message_after_unsub"}),
    "a payload": (hears_itself, s2c("corrupt", subject="s.1"), {"payload_changed"}),
    "a PONG": (pings, s2c("drop", op="PONG", after=1, limit=1), {"ping_without_pong"}),
}


def recorded(
    program: Program, server: NatsServer, path: Path, rules: list[dict[str, Any]]
) -> list[Statement]:
    """Run a program on a recording proxy; return the statements."""

    async def run(url: str) -> None:
        nc = await nats.connect(url, name="program")
        await program(nc)
        await nc.close()

    with TestProxy(server.url, record=path, rules=rules) as proxy:
        asyncio.run(run(proxy.url))
        assert proxy._proxy is not None
        # Ending the proxy first would end the connection: then the client has not left.
        proxy._thread.wait(10, proxy._proxy.connections.wait_closed)
        if rules:
            assert proxy.firings
    return check_captures([path], patience=SHORT)


@pytest.mark.parametrize(("program", "rules", "expected"), CASES.values(), ids=CASES)
def test_a_lost_or_repeated_frame_is_found(
    program: Program, rules: list[dict[str, Any]], expected: set[str], tmp_path: Path
) -> None:
    with NatsServer(jetstream=True) as server:
        found = recorded(program, server, tmp_path / "fault.ncap", rules)
    assert {one.check for one in found if one.found} == expected, found
    assert all(one.rules == ("fault",) for one in found if one.found), found


@pytest.mark.parametrize("program", dict.fromkeys(program for program, _, _ in CASES.values()))
def test_a_program_without_a_fault_is_sound(program: Program, tmp_path: Path) -> None:
    with NatsServer(jetstream=True) as server:
        found = recorded(program, server, tmp_path / "sound.ncap", [])
    assert found == []


def test_a_forgotten_ack_is_found(tmp_path: Path) -> None:
    with NatsServer(jetstream=True) as server:
        (found,) = recorded(forgets_an_ack, server, tmp_path / "forgot.ncap", [])
        assert found.check == "delivery_never_acked"
        assert "message 1 of S/worker" in found.sentence


def test_a_program_that_acks_all_is_sound(tmp_path: Path) -> None:
    with NatsServer(jetstream=True) as server:
        assert recorded(acks, server, tmp_path / "sound.ncap", []) == []


def test_a_payload_that_changed_between_two_recorders_is_found(tmp_path: Path) -> None:
    """The publisher's proxy records it whole; one that is nearer to the subscriber changes it."""

    async def run(near: str, far: str) -> None:
        publisher = await nats.connect(near, name="publisher")
        subscriber = await nats.connect(far, name="subscriber")
        js = publisher.jetstream()
        await js.add_stream(name="S", subjects=["s.*"])
        await js.publish("s.1", b"one")
        sub = await subscriber.jetstream().pull_subscribe("s.*", durable="worker")
        await (await sub.fetch(1, timeout=2))[0].ack()
        for nc in (publisher, subscriber):
            await nc.flush()
            await nc.close()

    paths = [tmp_path / "near.ncap", tmp_path / "far.ncap"]
    rules = s2c("corrupt", subject="s.1")
    with (
        NatsServer(jetstream=True) as server,
        TestProxy(server.url, record=paths[0]) as near,
        TestProxy(server.url, record=paths[1], rules=rules) as far,
    ):
        asyncio.run(run(near.url, far.url))
    for order in (paths, paths[::-1]):
        found = [one for one in check_captures(order) if one.found]
        assert [one.check for one in found] == ["payload_changed"]
        assert found[0].sentence.endswith("a message on s.1 was changed between two recorders")
        assert {frame.capture for frame in found[0].frames} == set(map(str, paths))
    assert [one for path in paths for one in check_captures([path]) if one.found] == []
