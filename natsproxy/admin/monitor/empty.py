"""The endpoints for features that a proxy lacks (routes, gateways, leaf nodes, JetStream), as a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from natsproxy.admin.monitor.go_values import BadParameter, boolean, integer
from natsproxy.admin.monitor.server import MonitoredServer

_FACTS: Final[Mapping[str, Callable[[MonitoredServer], str]]] = {
    "server_id": lambda server: server.id,
    "server_name": lambda server: server.name,
    "now": lambda server: server.now(),
}


class Empty(NamedTuple):
    """An endpoint.

    answer: its fields in nats-server's order; None where the value comes from `_FACTS`.  flags, numbers: its
    parameters.  word: a further value of its flag.  refused: the error for flags that are set.
    """

    answer: Mapping[str, Any]
    flags: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    word: str | None = None
    refused: Mapping[str, str] = {}

    def made(self, server: MonitoredServer, query: Mapping[str, str]) -> dict[str, Any]:
        """Return the answer.  Raises BadParameter."""
        given = {name: query.get(name, "") for name in (*self.flags, *self.numbers)}
        on = [name for name in self.flags if given[name].lower() != self.word and boolean(given[name], name)]
        for name in self.numbers:
            integer(given[name], name)
        for name in on:
            if name in self.refused:
                raise BadParameter(self.refused[name])
        return {name: _FACTS[name](server) if value is None else value for name, value in self.answer.items()}


ENDPOINTS: Final = {
    "/routez": Empty(
        {"server_id": None, "server_name": None, "now": None, "num_routes": 0, "routes": []},
        flags=("subs",),
        word="detail",
    ),
    "/gatewayz": Empty(
        {"server_id": None, "now": None, "outbound_gateways": {}, "inbound_gateways": {}}, flags=("accs",)
    ),
    "/leafz": Empty({"server_id": None, "now": None, "leafnodes": 0, "leafs": []}, flags=("subs",)),
    "/jsz": Empty(
        {
            "memory": 0,
            "storage": 0,
            "reserved_memory": 0,
            "reserved_storage": 0,
            "accounts": 0,
            "ha_assets": 0,
            "api": {"level": 0, "total": 0, "errors": 0},
            "server_id": None,
            "now": None,
            "disabled": True,
            "config": {"max_memory": 0, "max_storage": 0},
            "streams": 0,
            "consumers": 0,
            "messages": 0,
            "bytes": 0,
            "total": 0,
        },
        flags=(
            "accounts",
            "streams",
            "consumers",
            "direct-consumers",
            "config",
            "leader-only",
            "raft",
            "stream-leader-only",
        ),
        numbers=("offset", "limit"),
        refused={"leader-only": "filtered response: not leader"},
    ),
}
