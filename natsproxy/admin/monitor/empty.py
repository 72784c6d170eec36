"""The endpoints for what a proxy has nothing of: well-formed answers without content."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from natsproxy.admin.monitor.go_values import BadParameter, boolean, integer
from natsproxy.admin.monitor.server import MonitoredServer

_JSZ_FLAGS: Final = (
    "accounts",
    "streams",
    "consumers",
    "direct-consumers",
    "config",
    "leader-only",
    "raft",
    "stream-leader-only",
)
_JSZ_NUMBERS: Final = ("offset", "limit")


def routez(server: MonitoredServer, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the answer.  Raises BadParameter."""
    if query.get("subs", "").lower() != "detail":
        boolean(query.get("subs", ""), "subs")
    now = server.now()
    return {"server_id": server.id, "server_name": server.name, "now": now, "num_routes": 0, "routes": []}


def gatewayz(server: MonitoredServer, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the answer.  Raises BadParameter."""
    boolean(query.get("accs", ""), "accs")
    return {"server_id": server.id, "now": server.now(), "outbound_gateways": {}, "inbound_gateways": {}}


def leafz(server: MonitoredServer, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the answer.  Raises BadParameter."""
    boolean(query.get("subs", ""), "subs")
    return {"server_id": server.id, "now": server.now(), "leafnodes": 0, "leafs": []}


def jsz(server: MonitoredServer, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the answer of a server without JetStream.  Raises BadParameter."""
    flags = {name: boolean(query.get(name, ""), name) for name in _JSZ_FLAGS}
    for name in _JSZ_NUMBERS:
        integer(query.get(name, ""), name)
    if flags["leader-only"]:
        raise BadParameter("filtered response: not leader")
    return {
        **dict.fromkeys(
            ("memory", "storage", "reserved_memory", "reserved_storage", "accounts", "ha_assets"), 0
        ),
        "api": {"level": 0, "total": 0, "errors": 0},
        "server_id": server.id,
        "now": server.now(),
        "disabled": True,
        "config": {"max_memory": 0, "max_storage": 0},
        **dict.fromkeys(("streams", "consumers", "messages", "bytes", "total"), 0),
    }
