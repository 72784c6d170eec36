"""/healthz: whether clients are served, with nats-server's parameters and answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from natsproxy.admin.monitor.go_values import boolean
from natsproxy.admin.monitor.server import MonitoredServer

_FLAGS: Final = ("js-enabled", "js-enabled-only", "js-server-only", "details", "js-meta-only")
_NEEDS: Final = (("consumer", "stream"), ("stream", "account"))


def healthz(server: MonitoredServer, query: Mapping[str, str]) -> tuple[dict[str, Any], int]:
    """Return the answer and its status.  Raises BadParameter."""
    flags = {name: boolean(query.get(name, ""), name) for name in _FLAGS}
    for name, needed in _NEEDS:
        if query.get(name) and not query.get(needed):
            text = f'"{needed}" must not be empty when checking {name} health'
            return _failed("error", "BAD_REQUEST", text, detailed=flags["details"]), 400
    unready = server.proxy.unready
    if unready is None:
        return {"status": "ok"}, 200
    return _failed("unavailable", "CONNECTION", unready, detailed=flags["details"]), 503


def _failed(status: str, kind: str, text: str, *, detailed: bool) -> dict[str, Any]:
    if detailed:
        return {"status": status, "errors": [{"type": kind, "error": text}]}
    return {"status": status, "error": text}
