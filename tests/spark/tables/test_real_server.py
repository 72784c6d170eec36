"""A conversation through a real server and a proxy with rules: its tables tell the same."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nats
import pytest
from nats.errors import NoRespondersError
from nats.js.api import AckPolicy, ConsumerConfig

from natsproxy.testing import TestProxy
from tests.kit.clients import settle
from tests.kit.servers import NatsServer
from tests.spark.conftest import load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.server,
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
DELAY_MS = 20
RULES: list[dict[str, Any]] = [
    {"name": "slow", "kind": "latency", "op": "PUB", "subject": ["slow.>"], "delay": f"{DELAY_MS}ms"},
    {"name": "no-secrets", "kind": "deny", "subject": ["secret.>"]},
    {"name": "lost", "kind": "drop", "subject": ["telemetry"], "direction": "c2s"},
]
CONFIG = """
no_auth_user: anybody
accounts: {
  ONE: {
    jetstream: enabled
    users: [
      { user: anybody, password: x }
      { user: stranger, password: x, permissions: { subscribe: { deny: "events.>" } } }
    ]
  }
}
"""
SLOW, FAST, NOBODY, SECRET, LOST, EVENTS, STORED, REFUSED, BULK = 10, 12, 3, 4, 5, 7, 6, 2, 5


async def conversation(url: str) -> None:
    """Hold the conversation; every awaited event has happened."""
    refused = asyncio.Event()
    errors: list[Exception] = []

    async def note(error: Exception) -> None:
        errors.append(error)
        if len(errors) == SECRET:
            refused.set()

    async def answer(message: Any) -> None:
        await message.respond(b"42")

    service = await nats.connect(url, name="service")
    client = await nats.connect(url, name="client", error_cb=note)
    try:
        for subject in ("slow.*", "fast.*"):
            await service.subscribe(subject, cb=answer)
        subscribed = [await one.subscribe("events.>") for one in (service, client)]
        await settle(service, client)
        for kind, count in (("slow", SLOW), ("fast", FAST)):
            for number in range(count):
                await client.request(f"{kind}.{number}", b"?", timeout=10)
        for _ in range(NOBODY):
            with contextlib.suppress(NoRespondersError):
                await client.request("nobody", b"?", timeout=10)
        for number in range(SECRET):
            await client.publish(f"secret.{number}", b"x")
        await asyncio.wait_for(refused.wait(), 10)
        for _ in range(LOST):
            await client.publish("telemetry", b"x")
        for number in range(EVENTS):
            await client.publish("events.x", b"%d" % number)
        for each in subscribed:
            for _ in range(EVENTS):
                await each.next_msg(10)
        await store(client)
    finally:
        await client.close()
        await service.close()


async def store(client: Any) -> None:
    """Publish to a stream, refuse the first deliveries once, take all."""
    js = client.jetstream()
    await js.add_stream(name="TRUTH", subjects=["truth.>"])
    for number in range(STORED):
        await js.publish(f"truth.{number}", b"x")
    pull = await js.pull_subscribe("truth.>", "reader")
    for message in await pull.fetch(STORED, timeout=10):
        await (message.nak() if message.metadata.sequence.stream <= REFUSED else message.ack_sync())
    for _ in range(REFUSED):
        (message,) = await pull.fetch(1, timeout=10)
        await message.ack_sync()
    await js.add_stream(name="BULK", subjects=["bulk"])
    for number in range(BULK):
        await js.publish("bulk", b"%d" % number)
    config = ConsumerConfig(ack_policy=AckPolicy.ALL, durable_name="bulk")
    bulk = await js.subscribe("bulk", config=config, manual_ack=True)
    messages = [await bulk.next_msg(10) for _ in range(BULK)]
    await messages[BULK - 2].ack_sync()
    bucket = await js.create_key_value(bucket="truth")
    await bucket.put("key", b"x")
    watcher = await bucket.watchall()
    assert await watcher.updates(timeout=10)
    await watcher.stop()


async def forbidden(url: str) -> None:
    """Subscribe to a subject that the server denies; the refusal has come."""
    refused = asyncio.Event()

    async def note(error: Exception) -> None:
        refused.set()

    client = await nats.connect(url, name="stranger", user="stranger", password="x", error_cb=note)
    try:
        await client.subscribe("events.>")
        await asyncio.wait_for(refused.wait(), 10)
    finally:
        await client.close()


@pytest.fixture(scope="module")
def tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """The tables of a recording of the conversation."""
    from natsproxy.spark.tables import derive, exchanges

    path = tmp_path_factory.mktemp("truth") / "truth.ncap"
    with (
        NatsServer(CONFIG, jetstream=True) as server,
        TestProxy(server.url, record=path, rules=RULES) as proxy,
    ):
        asyncio.run(conversation(proxy.url))
        asyncio.run(forbidden(proxy.url))
    frames, items = load(spark, [Path(path)])
    assert frames.where("op = '_corrupt'").count() == 0
    made = exchanges(frames)
    paired = spark.createDataFrame(made.toArrow(), made.schema)
    names = ("requests", "pub_acks", "js_acks", "js_api", "fanout", "errors", "faults", "subscriptions")
    return {name: derive(name, frames, items, paired).toArrow().to_pylist() for name in names}


def test_requests_and_their_injected_delays(tables: dict[str, list[dict[str, Any]]]) -> None:
    """Each request once, the injected latency in its own, firings with the reply that followed."""
    found = Counter((row["subject"].split(".")[0], row["outcome"]) for row in tables["requests"])
    asked = {key: count for key, count in found.items() if key[0] in ("slow", "fast", "nobody")}
    assert asked == {
        ("slow", "replied"): SLOW,
        ("fast", "replied"): FAST,
        ("nobody", "no responders"): NOBODY,
    }
    slow = [row["latency_ns"] for row in tables["requests"] if row["subject"].startswith("slow.")]
    assert min(slow) >= DELAY_MS * 1_000_000
    held = [row for row in tables["faults"] if row["rule"] == "slow"]
    assert len(held) == SLOW
    assert min(row["delay_ns"] for row in held) >= DELAY_MS * 1_000_000
    # A frame may have arrived a moment before its rule looked at it (in two reads, behind others), and is
    # held from its arrival on.
    replied = sorted(row["reply_ns"] for row in held)
    assert all(0 < reply <= took for reply, took in zip(replied, sorted(slow), strict=True))


def test_refused_and_lost_messages(tables: dict[str, list[dict[str, Any]]]) -> None:
    """The denied subjects, refused by the proxy; the dropped messages never reached the server."""
    refused = {(row["subject"], row["from_proxy"]) for row in tables["errors"]}
    assert refused == {(f"secret.{number}", True) for number in range(SECRET)} | {("events.>", False)}
    fired = Counter(row["rule"] for row in tables["faults"])
    assert (fired["no-secrets"], fired["lost"]) == (SECRET, LOST)
    denied = [row["error"] for row in tables["faults"] if row["rule"] == "no-secrets"]
    assert all("Permissions Violation for Publish" in error for error in denied)
    reached = Counter(row["subject"].split(".")[0] for row in tables["fanout"])
    assert (reached["telemetry"], reached["secret"]) == (0, 0)


def test_copies_of_messages(tables: dict[str, list[dict[str, Any]]]) -> None:
    """Both got each event."""
    copies = [row["deliveries"] for row in tables["fanout"] if row["subject"] == "events.x"]
    assert copies == [2] * EVENTS
    held = [row for row in tables["subscriptions"] if row["subject"] == "events.>"]
    assert sorted((row["delivered"], row["ended"]) for row in held) == [
        (0, "refused"),
        (EVENTS, "close"),
        (EVENTS, "close"),
    ]


def test_stored_and_redelivered(tables: dict[str, list[dict[str, Any]]]) -> None:
    """Every publish was acknowledged, every refused delivery came again."""
    assert [row["outcome"] for row in tables["pub_acks"] if row["stream"] == "TRUTH"] == ["ack"] * STORED
    mine = [row for row in tables["js_acks"] if row["stream"] == "TRUTH"]
    answers = Counter((row["answer"], row["redelivered"]) for row in mine)
    assert answers == {("nak", False): REFUSED, ("ack", False): STORED - REFUSED, ("ack", True): REFUSED}
    watched = [row for row in tables["js_acks"] if row["stream"] == "KV_truth"]
    assert [(row["ack_policy"], row["answer"]) for row in watched] == [("none", "not asked")]
    assert {row["ack_policy"] for row in mine} == {"explicit"}
    bulk = [
        (row["stream_seq"], row["ack_policy"], row["answer"])
        for row in tables["js_acks"]
        if row["stream"] == "BULK"
    ]
    assert sorted(bulk) == [(seq, "all", "ack" if seq < BULK else "none") for seq in range(1, BULK + 1)]
    unheard = {row["subject"] for row in tables["fanout"] if not row["deliveries"] and not row["stored"]}
    assert {subject.split(".")[0] for subject in unheard}.isdisjoint({"truth", "bulk", "$KV", "$JS"})
    again = {row["stream_seq"] for row in mine if row["redelivered"]}
    assert again == set(range(1, REFUSED + 1))
    assert {"STREAM.CREATE", "CONSUMER.MSG.NEXT"} <= {row["verb"] for row in tables["js_api"]}
