"""The counters of the traffic by HTTP: totals that outlive connections, and connections in an order."""

from __future__ import annotations

from typing import Any

from natsproxy.admin.api.app import SHAPES
from natsproxy.admin.api.schema import check
from natsproxy.testing import NatsServer
from tests.admin.kit import Api, client_of, running

DROP = {"name": "lose", "kind": "drop", "op": "PUB", "subject": "lost"}


async def traffic(api: Api, query: str = "") -> dict[str, Any]:
    """Return the answer, checked."""
    answer = (await api.ask("GET", f"traffic?{query}")).json
    check(answer, SHAPES["Traffic"], SHAPES)
    return answer  # type: ignore[no-any-return]


async def test_counters_of_all_and_of_each(nats_server: NatsServer) -> None:
    async with running(nats_server) as api, client_of(api, "quiet"):
        assert (await api.ask("PUT", "rules/lose", {"rule": DROP})).status == 201
        before = await traffic(api)
        assert (before["total"], before["in_msgs"], before["subscriptions"]) == (1, 0, 0)
        async with client_of(api, "busy") as busy:
            await busy.send(b"SUB a.> 1\r\nSUB b q 2\r\nPUB a.1 2\r\nhi\r\nPUB a.2 2\r\nhi\r\n")
            await busy.send(b"PUB lost 2\r\nno\r\n")
            await busy.ping()
            during = await traffic(api, "sort=msgs_from&subjects=1")
            first, second = during["connections"]
            assert [first["name"], second["name"]] == ["busy", "quiet"]
            assert (first["in_msgs"], first["out_msgs"], first["subscriptions"]) == (3, 2, 2)
            assert (first["subjects"], second["subjects"]) == (["a.>"], [])
            assert first["since_ns"] <= first["last_ns"] <= during["time_ns"]
            assert during["firings"] - before["firings"] == 1
            listed = (await traffic(api, "sort=subs&limit=1"))["connections"]
            assert [one["name"] for one in listed] == ["busy"]
            assert (await traffic(api, "limit=0"))["connections"] == []
            assert (await api.ask("DELETE", "connections/2")).status == 204
            assert await busy.line() == b""
        after = await traffic(api)
        assert (after["total"], after["in_msgs"], after["out_msgs"]) == (1, 3, 2)
        assert after["clock_ns"] > during["clock_ns"] > before["clock_ns"]
        assert after["started_ns"] == before["started_ns"]
        assert (await api.ask("GET", "traffic?sort=nothing")).status == 400
