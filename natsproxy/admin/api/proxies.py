"""Endpoints for proxies and the process: list, readiness, settings, drain."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from natsproxy import __version__
from natsproxy.admin.api import times
from natsproxy.admin.api.operation import ApiRequest, Operation, Reply
from natsproxy.admin.api.schema import any_object, fields, flag, items, shape, text, whole
from natsproxy.admin.managed import ManagedProxy

SHAPES: Final = {
    "Error": fields({"error": text("A sentence about it.")}),
    "Health": fields(
        {"ready": flag("Clients are served."), "reason": text("Why not; null if they are.", null=True)}
    ),
    "Process": fields(
        {
            "version": text("Of natsproxy."),
            "started": text("Start of the proxy."),
            "started_ns": whole("The same, as Unix time."),
        }
    ),
    "Proxy": fields(
        {
            "name": text("Its name."),
            "listen": items(text("An address for clients.")),
            "upstream": items(text("A server.")),
            "ready": flag("Clients are served."),
            "reason": text("Why not; null if they are.", null=True),
            "seed": whole("Of all its random choices.", least=None),
            "connections": whole("Open connections."),
            "accepted": whole("Connections so far."),
            "rules": whole("Rules, disabled ones too."),
            "rules_enabled": whole("Rules in force."),
            "capture": text("The file that is being recorded to; null for none.", null=True),
        }
    ),
    "Proxies": fields({"proxies": items(shape("Proxy"))}),
    "Config": any_object("Each setting by its name, with `value` and `source`."),
}


def _to_json(managed: ManagedProxy) -> dict[str, Any]:
    proxy = managed.proxy
    entries = proxy.rules.entries.values()
    return {
        "name": managed.name,
        "listen": [str(address) for address in proxy.listen],
        "upstream": [str(server) for server in proxy.settings.upstream],
        "ready": proxy.unready is None,
        "reason": proxy.unready,
        "seed": proxy.seed,
        "connections": len(proxy.relays),
        "accepted": proxy.accepted,
        "rules": len(entries),
        "rules_enabled": sum(entry.enabled for entry in entries),
        "capture": str(proxy.recorder.file) if proxy.recorder is not None else None,
    }


async def _health(call: ApiRequest) -> Reply:
    unready = call.proxy.proxy.unready
    return Reply({"ready": unready is None, "reason": unready}, 200 if unready is None else 503)


async def _get(call: ApiRequest) -> dict[str, Any]:
    return _to_json(call.proxy)


async def _drain(call: ApiRequest) -> Reply:
    proxy = call.proxy.proxy
    within = None if call.body.get("within") is None else times.seconds(call.body["within"], "within")
    call.tell("draining", connections=len(proxy.relays))
    proxy.start_drain(within)
    return Reply(_to_json(call.proxy), 202)


def operations(proxies: Mapping[str, ManagedProxy], config: Mapping[str, Any]) -> tuple[Operation, ...]:
    """Return the operations.  config: the settings of the process, as they are shown."""
    started = time.time_ns()

    async def live(_: ApiRequest) -> dict[str, Any]:
        return {"version": __version__, "started": times.iso_of(started), "started_ns": started}

    async def listed(_: ApiRequest) -> dict[str, Any]:
        return {"proxies": [_to_json(managed) for managed in proxies.values()]}

    async def settings(_: ApiRequest) -> Mapping[str, Any]:
        return config

    path = "/v1/proxies/{proxy}"
    within = {**text('The longest time: "30s"; without it, the setting drain.', most=32)}
    return (
        Operation(
            "GET",
            "/v1/health",
            "getHealth",
            "Whether clients of the first proxy are served: 200 or 503.",
            _health,
            shape("Health"),
            more=(503,),
            open=True,
        ),
        Operation(
            "GET", "/v1/live", "getProcess", "The process: it answers.", live, shape("Process"), open=True
        ),
        Operation(
            "GET", "/v1/config", "getConfig", "The settings of the process.", settings, shape("Config")
        ),
        Operation("GET", "/v1/proxies", "listProxies", "The proxies.", listed, shape("Proxies")),
        Operation("GET", path, "getProxy", "One proxy.", _get, shape("Proxy")),
        Operation(
            "POST",
            path + "/drain",
            "drainProxy",
            "Accept no more clients, and end connections once they are answered.  The process ends with it.",
            _drain,
            shape("Proxy"),
            body=fields({}, {"within": within}),
            body_needed=False,
            status=202,
        ),
    )
