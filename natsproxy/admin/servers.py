"""The HTTP servers beside one proxy, as its settings say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import trio

from natsproxy.admin.api.app import OPEN_PATHS, admin_app
from natsproxy.admin.guard import Guard
from natsproxy.admin.http_server import App, HttpServer
from natsproxy.admin.managed import ManagedProxy, ProxyCollection
from natsproxy.admin.monitor.app import monitor_app
from natsproxy.admin.monitor.server import MonitoredServer
from natsproxy.admin.page.app import PageApp
from natsproxy.admin.page.sessions import Sessions
from natsproxy.admin.statistics import Statistics
from natsproxy.admin.toxiproxy.server import ToxiproxyServer
from natsproxy.config.admin import AdminSettings
from natsproxy.config.endpoints import HttpListener


def http_servers(
    settings: AdminSettings,
    managed: ManagedProxy,
    config: Mapping[str, Any] | None = None,
    lost_lines: Callable[[], int] = lambda: 0,
    starts: Callable[[ManagedProxy], None] = lambda _: None,
) -> dict[str, HttpServer]:
    """Return the servers by their titles for the log.  Raises ConfigError for TLS that cannot be used.

    config: the settings of the process, as `natsproxy config --json` shows them.  lost_lines: returns the
    number of log lines that were dropped.  starts: called with each further proxy that clients of Toxiproxy's
    API start.  A bug in an answer is logged as an event of the proxy, which goes on.
    """
    servers: dict[str, HttpServer] = {}
    proxies = ProxyCollection()
    proxies.add(managed)
    proxies.watch(starts)
    if settings.monitor is not None:
        app = monitor_app(MonitoredServer(managed, managed.statistics, servers, lost_lines))
        servers["monitor"] = MonitorServer(app, settings.monitor, managed.report, managed.statistics)
    if settings.admin is not None:
        proxies.watch(_count_firings)
        sessions = Sessions()
        page = PageApp(admin_app(proxies, config, settings.admin_captures, sessions), sessions)
        open_paths = page.paths.union(OPEN_PATHS)
        guard = Guard(page, settings.admin, settings.callers, settings.admin_host, open_paths, sessions)
        servers["admin"] = HttpServer(guard, settings.admin, managed.report, holds=guard.holds)
    if settings.toxiproxy is not None:
        base = replace(managed.proxy.settings, seed=managed.proxy.seed)
        servers["toxiproxy"] = ToxiproxyServer(
            settings.toxiproxy, base, proxies, managed.report, main=managed, hosts=settings.admin_host
        )
    return servers


def _count_firings(managed: ManagedProxy) -> None:
    """Start counting the firings of a further proxy."""
    _ = managed.firings


class MonitorServer(HttpServer):
    """The server of the monitoring port; it measures the loop, too."""

    def __init__(
        self, app: App, listener: HttpListener, report: Callable[[str], None], statistics: Statistics
    ) -> None:
        super().__init__(app, listener, report)
        self._statistics = statistics

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen and answer until cancelled.  Raises ConfigError for an address that cannot be used."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._statistics.watch_loop)
            await super().serve(task_status=task_status)
