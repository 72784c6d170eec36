"""Toxics of NATS through the API, before a real server."""

from __future__ import annotations

import asyncio
import tomllib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import nats.errors
import pytest
from nats.aio.client import Client

from natsproxy.rules.kinds import KINDS
from tests.admin.toxiproxy.kit import Toxi
from tests.kit.servers import NatsServer

pytestmark = pytest.mark.server
HOUR = 3_600_000  # ms
PATH = "/proxies/nats/toxics"


@pytest.fixture(scope="module")
def shared() -> Iterator[Toxi]:
    with Toxi() as server:
        yield server


@pytest.fixture
def toxi(shared: Toxi, nats_server: NatsServer) -> Iterator[Toxi]:
    shared.make(nats_server.url)
    yield shared
    shared.call("DELETE", "/proxies/nats")


class Seen:
    """A client with a subscription, and the errors that it was told."""

    def __init__(self) -> None:
        self.client = Client()
        self.errors: list[str] = []

    async def error(self, error: Exception) -> None:
        self.errors.append(str(error))

    async def begin(self, listen: str) -> None:
        await self.client.connect(f"nats://{listen}", error_cb=self.error, allow_reconnect=False)
        self.orders = await self.client.subscribe("orders.>")
        self.mark = await self.client.subscribe("mark")

    async def after(self, *payloads: bytes, subject: str = "orders.new") -> list[bytes]:
        """Publish; return what comes before a mark that is published behind it."""
        for payload in payloads:
            await self.client.publish(subject, payload)
        await self.client.publish("mark", b"")
        await self.mark.next_msg(20)
        return [(await self.orders.next_msg()).data for _ in range(self.orders.pending_msgs)]


def run(toxi: Toxi, act: Callable[[Seen], Awaitable[None]]) -> list[str]:
    """Let a client act; return the errors that it was told."""

    async def main() -> list[str]:
        seen = Seen()
        await seen.begin(toxi.call("GET", "/proxies/nats").json["listen"])
        await act(seen)
        await seen.client.close()
        return seen.errors

    return asyncio.run(asyncio.wait_for(main(), 30))


def add(toxi: Toxi, kind: str, **more: Any) -> dict[str, Any]:
    answer = toxi.call("POST", PATH, {"name": "fault", "type": kind, **more})
    assert answer.status == 200, answer
    toxic: dict[str, Any] = answer.json
    return toxic


def test_drop(toxi: Toxi) -> None:
    async def act(seen: Seen) -> None:
        attributes = {"subject": "orders.>", "every": 2, "OP": "PUB"}
        toxic = add(toxi, "nats_drop", stream="upstream", attributes=attributes)
        assert toxic["attributes"] == {"subject": "orders.>", "every": 2, "op": "PUB"}
        assert toxi.call("GET", f"{PATH}/fault").json == toxic
        assert await seen.after(b"1", b"2", b"3", b"4") == [b"1", b"3"]
        changed = toxi.call("POST", f"{PATH}/fault", {"attributes": {"every": None, "first": 1}}).json
        assert changed["attributes"] == {"subject": "orders.>", "op": "PUB", "first": 1}
        assert await seen.after(b"5", b"6") == [b"6"]
        toxi.call("DELETE", f"{PATH}/fault")
        assert await seen.after(b"7") == [b"7"]

    run(toxi, act)


@pytest.mark.parametrize("delay", [HOUR, "1h"])
def test_latency_of_some_messages(toxi: Toxi, delay: object) -> None:
    async def act(seen: Seen) -> None:
        add(toxi, "nats_latency", attributes={"subject": "orders.slow", "delay": delay, "overtake": True})
        assert await seen.after(b"slow", subject="orders.slow") == []
        assert await seen.after(b"quick") == [b"quick"]

    run(toxi, act)


def test_a_denial_is_the_servers_own(toxi: Toxi) -> None:
    async def act(seen: Seen) -> None:
        add(toxi, "nats_deny", attributes={"subject": "orders.secret"})
        assert await seen.after(b"x", subject="orders.secret") == []

    (error,) = run(toxi, act)
    assert 'permissions violation for publish to "orders.secret"' in error.lower()


def test_a_lost_publish_ack(toxi: Toxi) -> None:
    """By its role, which says the direction too: the request need not."""

    async def act(seen: Seen) -> None:
        stream = seen.client.jetstream(timeout=0.2)
        await stream.add_stream(name="TOXIC", subjects=["toxic.>"])
        try:
            toxic = add(toxi, "nats_drop", attributes={"role": "publish-ack", "first": 1})
            assert toxic["stream"] == "downstream"
            with pytest.raises(nats.errors.TimeoutError):
                await stream.publish("toxic.a", b"lost ack")
            assert (await stream.publish("toxic.a", b"acked", timeout=10)).seq == 2
        finally:
            await stream.delete_stream("TOXIC")

    run(toxi, act)


def test_a_toxic_goes_the_only_way_that_it_can(toxi: Toxi) -> None:
    toxic = toxi.call("POST", PATH, {"type": "nats_drop", "attributes": {"op": "PUB"}}).json
    assert (toxic["name"], toxic["stream"]) == ("nats_drop_upstream", "upstream")
    assert toxi.call("DELETE", f"{PATH}/nats_drop_upstream").status == 204
    assert toxi.call("POST", PATH, {"type": "nats_drop"}).json["name"] == "nats_drop_downstream"
    assert toxi.call("POST", PATH, {"type": "nats_drop", "attributes": {"op": "PUB"}}).status == 200
    code, text = toxi.call(
        "POST", PATH, {"name": "x", "type": "nats_drop", "stream": "downstream", "attributes": {"op": "PUB"}}
    ).error
    assert code == 400
    assert "op never goes s2c" in text


def test_toxicity_is_a_share_of_the_messages(toxi: Toxi) -> None:
    async def act(seen: Seen) -> None:
        add(toxi, "nats_drop", toxicity=0.5, attributes={"subject": "orders.>"})
        assert 50 < len(await seen.after(*([b"x"] * 200))) < 150
        toxi.call("POST", f"{PATH}/fault", {"toxicity": 0})
        assert len(await seen.after(*([b"x"] * 20))) == 20

    run(toxi, act)


def test_packet_loss_loses_whole_messages(toxi: Toxi) -> None:
    async def act(seen: Seen) -> None:
        toxic = add(toxi, "packet_loss", attributes={"loss_rate": 1, "subject": "orders.>"})
        assert toxic["attributes"] == {"loss_rate": 1, "correlation": 0, "subject": "orders.>"}
        assert await seen.after(b"x") == []
        toxi.call("POST", f"{PATH}/fault", {"attributes": {"loss_rate": 0}})
        assert await seen.after(b"y") == [b"y"]

    run(toxi, act)


def test_rules_outlast_a_disabled_proxy(toxi: Toxi) -> None:
    add(toxi, "nats_drop", attributes={"subject": "orders.>"})
    for enabled in (False, True):
        toxi.call("POST", "/proxies/nats", {"enabled": enabled})

    async def act(seen: Seen) -> None:
        assert await seen.after(b"x") == []
        answer = toxi.call("POST", "/reset")
        assert answer.status == 204, toxi.reports
        assert await seen.after(b"y") == [b"y"]

    run(toxi, act)


@pytest.mark.parametrize(
    ("kind", "attributes", "error"),
    [
        ("nats_drop", {"subjects": "a"}, "there is no key 'subjects'; did you mean 'subject'?"),
        ("nats_latency", {}, "it needs 'delay'"),
        ("nats_latency", {"delay": "soon"}, "delay"),
        ("nats_drop", {"direction": "c2s"}, "direction is not an attribute"),
        ("nats_latency", {"delay": 5, "between": [1, "x"]}, "between"),
        ("packet_loss", {"correlation": 0.5}, "correlation is not supported"),
        ("packet_loss", {"loss_rate": 2}, "probability must be a number from 0 to 1"),
    ],
)
def test_mistakes_are_said(toxi: Toxi, kind: str, attributes: dict[str, Any], error: str) -> None:
    code, text = toxi.call("POST", PATH, {"type": kind, "attributes": attributes}).error
    assert code == 400
    assert text.startswith("bad request body: ")
    assert error in text
    assert toxi.call("GET", PATH).json == []


def test_a_change_that_is_wrong_changes_nothing(toxi: Toxi) -> None:
    toxic = add(toxi, "nats_latency", attributes={"delay": 100, "between": [1000, 2000]})
    assert toxi.call("POST", f"{PATH}/fault", {"attributes": {"delay": -5}}).status == 400
    assert toxi.call("GET", f"{PATH}/fault").json == toxic


def test_each_kind_is_a_type(toxi: Toxi) -> None:
    """With the attributes of its own example, where the toxic can have them."""

    for kind in KINDS.values():
        (table, *_) = tomllib.loads(kind.example)["rules"]
        given = {key: value for key, value in table.items() if key not in ("name", "kind", "direction")}
        stream = {"s2c": "downstream", "c2s": "upstream"}.get(table.get("direction", ""))
        body = {"name": kind.name, "type": f"nats_{kind.name}", "attributes": given}
        answer = toxi.call("POST", PATH, body | ({"stream": stream} if stream else {}))
        assert answer.status == 200, (kind.name, answer.text)
        assert toxi.call("DELETE", f"{PATH}/{kind.name}").status == 204


@pytest.mark.parametrize("stream", ["upstream", "downstream", None])
@pytest.mark.parametrize(
    ("kind", "attributes"),
    [("nats_answer", {"subject": "a", "status_code": 503}), ("nats_deny", {"subject": "a"})],
)
def test_a_kind_with_one_way_takes_either_stream(
    toxi: Toxi, kind: str, attributes: dict[str, Any], stream: str | None
) -> None:
    """A request goes upstream and its answer downstream: both words are about it."""
    body = {"type": kind, "attributes": attributes} | ({"stream": stream} if stream else {})
    answer = toxi.call("POST", PATH, body)
    assert (answer.status, answer.json["stream"]) == (200, stream or "downstream")
