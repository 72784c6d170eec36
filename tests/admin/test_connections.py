"""Connections by HTTP: the list, one with its state, its end, suspension and pause."""

from __future__ import annotations

import pytest
import trio

from natsproxy.events import Closed
from natsproxy.testing import NatsServer
from tests.admin.kit import client_of, running


async def test_connections_are_listed_and_shown(nats_server: NatsServer) -> None:
    async with running(nats_server) as api, client_of(api, "svc-a") as a, client_of(api, "svc-b"):
        listed = (await api.ask("GET", "connections")).json
        assert [one["name"] for one in listed["connections"]] == ["svc-a", "svc-b"]
        assert (await api.ask("GET", "connections?name=*-b")).json["total"] == 1
        assert (await api.ask("GET", "connections?limit=1&offset=1")).json["connections"][0][
            "name"
        ] == "svc-b"
        await a.send(b"SUB a.> w 1\r\nSUB b 2\r\nPUB a.1 2\r\nhi\r\n")
        await a.ping()
        one = (await api.ask("GET", "connections/1?offset=1")).json
        assert one["connect"]["name"] == "svc-a"
        assert "hush-hush" not in str(one)
        assert [sub["subject"] for sub in one["subs"]] == ["b"]
        assert one["subscriptions"] == 2
        counts = one["counts"]
        assert counts["c2s_frames"] == counts["c2s_frames_out"] == 6  # CONNECT, 2 SUB, PUB, 2 PING
        assert (one["lang"], one["phase"]) == ("go", "ready")
        assert (await api.ask("GET", "connections/3")).status == 404
        assert (await api.ask("GET", "connections/" + "9" * 5000)).status == 404


async def test_a_connection_is_closed_with_a_cause(nats_server: NatsServer) -> None:
    async with running(nats_server) as api, client_of(api) as first, client_of(api) as second:
        ends: list[Closed] = []
        api.proxy.subscribe(lambda event: ends.append(event) if isinstance(event, Closed) else None)
        path = "connections/1?error=Authorization%20Violation&reason=misbehaved"
        assert (await api.ask("DELETE", path)).status == 204
        assert [await first.line(), await first.line()] == [b"-ERR 'Authorization Violation'", b""]
        assert (await api.ask("DELETE", "connections/2")).status == 204
        assert await second.line() == b""
        with trio.fail_after(10):
            await api.proxy.drain(10)
        assert [(end.conn, end.cause, end.detail) for end in sorted(ends, key=lambda end: end.conn)] == [
            (1, "killed", "misbehaved"),
            (2, "killed", "an operator closed it"),
        ]


@pytest.mark.parametrize("plane", ["native", "python"])
async def test_a_paused_connection_is_read_later(
    nats_server: NatsServer, plane: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NATSPROXY_PLANE", plane)
    async with running(nats_server) as api, client_of(api) as client, client_of(api) as other:
        await other.send(b"SUB a 1\r\n")
        await other.ping()
        assert (await api.ask("PATCH", "connections/1", {"paused": True})).json["paused"] is True
        await client.send(b"PUB a 2\r\nhi\r\nPING\r\n")
        await other.ping()
        assert (await api.ask("GET", "connections/1")).json["counts"]["c2s_frames"] == 2
        assert (await api.ask("PATCH", "connections/1", {"paused": False})).json["paused"] is False
        assert [await other.line(), await other.line()] == [b"MSG a 1 2", b"hi"]
        assert await client.line() == b"PONG"
        # A pause for a time ends by itself.
        await api.ask("PATCH", "connections/1", {"paused": "300ms"})
        assert await client.ping() == []
        assert (await api.ask("GET", "connections/1")).json["paused"] is False


async def test_a_suspended_connection_loses_messages(nats_server: NatsServer) -> None:
    async with running(nats_server) as api, client_of(api) as client:
        await client.send(b"SUB a 1\r\n")
        assert (await api.ask("PATCH", "connections/1", {"suspended": True})).json["suspended"] is True
        await client.send(b"PUB a 2\r\nhi\r\n")
        assert await client.ping() == []
        assert (await api.ask("PATCH", "connections/1", {"suspended": False})).json["suspended"] is False
        await client.send(b"PUB a 2\r\nhi\r\n")
        assert await client.ping() == [b"MSG a 1 2", b"hi"]


async def test_whatever_a_connect_holds_can_be_shown(nats_server: NatsServer) -> None:
    async with running(nats_server) as api, client_of(api) as client:
        odd = rb'"name": "a\ud800", "x\udfff": ["\ud83d", 1e999, -1e999, 1.5], "headers": true'
        await client.send(b'CONNECT {"verbose": false, ' + odd + b"}\r\n")
        await client.ping()
        answer = await api.ask("GET", "connections/1")
        assert (answer.status, answer.json["name"]) == (200, "a\ufffd")
        assert answer.json["connect"]["x?"] == ["?", "1e999", "-1e999", 1.5]
