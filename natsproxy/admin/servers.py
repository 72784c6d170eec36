"""The HTTP servers beside one proxy, as its settings say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from natsproxy.admin.api.app import OPEN_PATHS, admin_app
from natsproxy.admin.guard import Guard
from natsproxy.admin.http_server import HttpServer
from natsproxy.admin.managed import ManagedProxy
from natsproxy.admin.monitor.app import monitor_app
from natsproxy.admin.monitor.server import MonitoredServer
from natsproxy.config.settings import AdminSettings


def http_servers(
    settings: AdminSettings, managed: ManagedProxy, config: Mapping[str, Any] | None = None
) -> Iterator[tuple[str, HttpServer]]:
    """Yield the servers with their titles for the log.  Raises ConfigError for TLS that cannot be used.

    config: the settings of the process, as `natsproxy config --json` shows them.
    A bug in an answer is an event of the proxy, which goes on.
    """
    if settings.monitor is not None:
        monitored = MonitoredServer(managed, managed.statistics)
        monitored.http = HttpServer(monitor_app(monitored), settings.monitor, managed.report)
        yield "monitor", monitored.http
    if settings.admin is not None:
        api = admin_app({managed.name: managed}, config, settings.captures)
        app = Guard(api, settings.admin, settings.token, settings.hosts, OPEN_PATHS)
        yield "admin", HttpServer(app, settings.admin, managed.report)
