"""Spans of real traffic that is easily joined wrongly."""

from __future__ import annotations

import asyncio
from pathlib import Path

import nats
import pytest

from natsproxy.testing import NatsServer, TestProxy
from tests.traces.kit import shown, spans

ACCOUNTS = """
accounts {
  A { jetstream: enabled, users: [{ user: a, password: a }] }
  B { jetstream: enabled, users: [{ user: b, password: b }] }
}
"""
DELAYED = [
    {"name": "traces", "kind": "trace"},
    {"name": "slow", "kind": "latency", "delay": "50ms", "direction": "c2s", "subject": "burst.>"},
]


async def same_names(url: str) -> None:
    """Store a message in streams of one name of two accounts; get that of the second one."""
    first, second = [
        await nats.connect(url, user=user, password=user, name=f"client {user}") for user in ("a", "b")
    ]
    for client in (first, second):
        await client.jetstream().add_stream(name="S", subjects=["s"])
    await first.jetstream().publish("s", b"one")
    await second.publish("s", b"two")  # its sequence is known to nobody
    pull = await second.jetstream().pull_subscribe("s", durable="c")
    (msg,) = await pull.fetch(1, timeout=5)
    await msg.ack_sync()
    for client in (first, second):
        await client.close()


@pytest.mark.server
def test_streams_of_one_name_in_two_accounts(tmp_path: Path) -> None:
    path = tmp_path / "x.ncap"
    with NatsServer(ACCOUNTS, jetstream=True) as server, TestProxy(server.url, record=path) as proxy:
        asyncio.run(same_names(proxy.url))
    (process,) = [span for span in spans(path) if span.operation == "process"]
    assert (process.conn.connect.name, process.parent) == ("client b", None)


async def burst(url: str) -> None:
    """Publish three messages at once."""
    client = await nats.connect(url, name="busy")
    sub = await client.subscribe("burst.>")
    for word in ("one", "two", "three"):
        await client.publish(f"burst.{word}", b"")
    for _ in range(3):
        await sub.next_msg(timeout=5)
    await client.close()


@pytest.mark.server
def test_publishes_that_are_changed_and_go_on_later(nats_server: NatsServer, tmp_path: Path) -> None:
    """They were not dropped, though the next one arrived before."""
    path = tmp_path / "x.ncap"
    with TestProxy(nats_server.url, record=path, rules=DELAYED) as proxy:
        asyncio.run(burst(proxy.url))
    found = spans(path)
    sent = [span for span in found if span.operation == "publish"]
    assert [span.error for span in sent] == [None] * 3, shown(found)
    assert all(span.end - span.start >= 50_000_000 for span in sent)
    got = {span.subject: span.parent for span in found if span.operation == "receive"}
    assert got == {span.subject: span.context for span in sent}
