"""The admin API as a whole: its document, its streams, its refusals, requests that mean harm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio

from natsproxy.admin.api.app import OPEN_PATHS, SHAPES, operations_of
from natsproxy.admin.api.operation import MOST_BODY
from natsproxy.admin.api.schema import check
from natsproxy.admin.page.sessions import Sessions
from natsproxy.testing import NatsServer
from tests.admin.kit import TOKEN, client_of, running

LOUD = {"name": "late", "kind": "latency", "delay": "1us", "subject": "orders.>"}


async def test_the_document_has_every_route_and_no_other(nats_server: NatsServer) -> None:
    async with running(nats_server) as api:
        document = (await api.ask("GET", "/v1/openapi.json")).json
        described = {(method.upper(), path) for path, item in document["paths"].items() for method in item}
        rows = operations_of({}, {}, None, Sessions())
        assert described == {(row.method, row.path) for row in rows}
        assert set(document["components"]["schemas"]) == set(SHAPES)
        assert {row.path for row in rows if row.open} == set(OPEN_PATHS)
        names = [row.name for row in rows]
        assert len(set(names)) == len(names)
        for method, path in described:  # and the server knows them all
            answer = await api.ask(method, path.replace("{proxy}", "none"))
            assert answer.status != 405
            assert (answer.status, answer.body) != (404, b'{"error":"not found"}')
        assert (await api.ask("GET", "/v1/nowhere")).json == {"error": "not found"}
        assert (await api.ask("POST", "/v1/health")).status == 405


async def test_proxies_health_and_settings(nats_server: NatsServer) -> None:
    async with running(nats_server) as api, client_of(api):
        (one,) = (await api.ask("GET", "/v1/proxies")).json["proxies"]
        check(one, SHAPES["Proxy"], SHAPES)
        assert (one["name"], one["ready"], one["connections"], one["seed"]) == ("main", True, 1, 7)
        assert (await api.ask("GET", "/v1/health", token=None)).json == {"ready": True, "reason": None}
        assert (await api.ask("GET", "/v1/live", token=None)).json["version"]
        assert (await api.ask("GET", "/v1/config")).json == {"seed": 7}
        assert (await api.ask("POST", "drain", {"within": "10s"})).status == 202
        await api.proxy.done.wait()
        assert (await api.ask("GET", "/v1/health")).status == 503


async def events_of(stream: trio.SocketStream, count: int, name: str) -> list[dict[str, object]]:
    """Return the data of the first events of a name."""
    received = b""
    with trio.fail_after(20):
        async for piece in stream:
            received += piece
            found = [
                part.split(b"data: ")[1]
                for part in received.split(b"\n\n")
                if f"event: {name}\n".encode() in part
            ]
            if len(found) >= count:
                return [json.loads(one) for one in found[:count]]
    raise AssertionError("the stream ended")


async def test_firings_are_listed_and_streamed(nats_server: NatsServer) -> None:
    async with running(nats_server) as api, client_of(api) as client:
        await api.ask("PUT", "rules/lose", {"rule": {"name": "lose", "kind": "drop", "subject": "orders.>"}})
        stream = await api.open("GET", "firings/stream?rule=lose")
        async with stream:
            assert b": natsproxy" in await first(stream, b": natsproxy")
            await client.send(b"PUB orders.1 2\r\nhi\r\n")
            await client.ping()
            (one,) = await events_of(stream, 1, "firing")
        assert (one["rule"], one["subject"], one["action"], one["conn"]) == ("lose", "orders.1", "drop", 1)
        assert str(one["client"]).startswith("127.0.0.1:")
        listed = (await api.ask("GET", "firings?conn=1")).json
        assert listed["firings"] == [one]
        assert (await api.ask("GET", "firings?conn=2")).json["firings"] == []
        again = await api.open("GET", "firings/stream", headers={"Last-Event-ID": "0"})
        async with again:
            assert await events_of(again, 1, "firing") == [one]


async def first(stream: trio.SocketStream, wanted: bytes) -> bytes:
    received = b""
    while wanted not in received:
        piece = await stream.receive_some()
        assert piece
        received += piece
    return received


async def test_a_stream_that_nobody_reads_loses_events_and_says_so(nats_server: NatsServer) -> None:
    async with running(nats_server) as api, client_of(api) as client:
        await api.ask("PUT", "rules/late", {"rule": {"name": "late", "kind": "drop", "subject": "orders.>"}})
        for _ in range(250):  # one read each, and one event for each read
            await client.send(b"PUB orders.1 2\r\nhi\r\n")
            await client.ping()
        stream = await api.open("GET", "firings/stream", headers={"Last-Event-ID": "0"})
        async with stream:
            (lost,) = await events_of(stream, 1, "lost")
        assert lost == {"events": api.managed.firings.total - 200}


# -- harm


@pytest.mark.parametrize(
    ("headers", "token", "status"),
    [
        ({}, None, 401),
        ({}, "wrong", 401),
        ({"Authorization": "Basic YTpi"}, None, 401),
        ({"Host": "evil.example"}, "right", 421),
        ({"Origin": "http://evil.example"}, "right", 403),
    ],
)
async def test_strangers_get_nothing(
    nats_server: NatsServer, headers: dict[str, str], token: str | None, status: int
) -> None:
    async with running(nats_server) as api:
        token = TOKEN if token == "right" else token
        for path in ("rules", "/v1/openapi.json", "/v1/nowhere", "firings/stream"):
            answer = await api.ask("GET", path, headers=headers, token=token)
            assert answer.status == status
            assert set(answer.json) == {"error"}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"\xff\xfe\x00", 400),
        (b'{"rules": "\xc3\x28"}', 400),
        (b'{"rules": [{"rule": {"name": "\\ud800", "kind": "drop"}}]}', 400),
        (b'{"rules": [NaN]}', 400),
        (b'{"rules": [], "rules": []}', 400),
        (b'{"rules": ' + b"9" * 5000 + b"}", 400),
        (b"[" * 100_000, 400),
        (b'{"rules": [' + b'{"rule":' * 20_000, 400),
        (b'{"rules": [' + b"1," * 100_000 + b"1]}", 400),
        (b" " * (MOST_BODY + 1), 413),
        (b" " * (1 << 21), 413),
        (json.dumps({"rules": [{"rule": {**LOUD, "name": f"r{n}"}} for n in range(1001)]}).encode(), 400),
        (json.dumps({"rules": [{"rule": {**LOUD, "name": f"r{n}"}} for n in range(1000)]}).encode(), 200),
    ],
    ids=range(15),
)
async def test_bodies_that_mean_harm(nats_server: NatsServer, body: bytes, status: int) -> None:
    async with running(nats_server) as api:
        answer = await api.ask("PUT", "rules", body, {"If-Match": "*"})
        assert answer.status == status, answer.body[:200]
        assert (await api.ask("GET", "rules")).status == 200


async def test_a_body_that_is_too_large_is_refused_before_it_comes(nats_server: NatsServer) -> None:
    announced = {"Content-Length": str(MOST_BODY + 1), "Expect": "100-continue", "If-Match": "*"}
    async with running(nats_server) as api:
        with trio.fail_after(10):
            answer = await api.ask("PUT", "rules", None, announced)
        assert answer.status == 413
        assert answer.json["error"] == f"the body has more than {MOST_BODY} bytes"


async def test_paths_that_mean_harm(nats_server: NatsServer) -> None:
    async with running(nats_server) as api:
        for path in (
            "%00",
            "%ff%fe",
            "..%2f..%2fetc%2fpasswd",
            "a" * 8000,
            "%F0%9F%92%A9",
            "x\ty".replace("\t", "%09"),
        ):
            assert (await api.ask("GET", f"rules/{path}")).status == 404
            assert (await api.ask("GET", f"connections/{path}")).status == 404
            assert (await api.ask("GET", f"/v1/proxies/{path}")).status == 404
            assert (await api.ask("GET", f"connections?name={path}")).status in (200, 400)
            assert (await api.ask("GET", f"connections?limit={path}")).status == 400


async def test_many_at_once_and_slow_ones(nats_server: NatsServer) -> None:
    """Requests that stand half sent take no place from whole ones, and traffic goes on."""
    async with running(nats_server) as api, client_of(api) as client:
        slow = [await api.open("PUT", "rules", headers={"Content-Length": "100"}) for _ in range(20)]
        streams = [await api.open("GET", "firings/stream") for _ in range(20)]
        statuses: list[int] = []

        async def ask(number: int) -> None:
            path = ("rules", "connections", "firings", "capture", "/v1/openapi.json")[number % 5]
            statuses.append((await api.ask("GET", path)).status)

        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(ask, number)
            for _ in range(20):
                assert await client.ping() == []
        assert statuses == [200] * 100
        for stream in slow + streams:
            await stream.aclose()


async def test_the_token_is_in_no_log_and_no_answer(nats_server: NatsServer, tmp_path: Path) -> None:
    events: list[object] = []
    async with running(nats_server, tmp_path) as api:
        api.proxy.subscribe(events.append)
        await api.ask("PUT", "rules/lose", {"rule": {"name": "lose", "kind": "drop"}})
        answers = [await api.ask("GET", path) for path in ("/v1/config", "/v1/openapi.json", "/v1/proxies")]
        assert events
        assert "a-token-of" not in str(events) + str(answers)
