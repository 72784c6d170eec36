"""The server of Toxiproxy's API, with the proxies that its clients create."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final, Protocol

import trio

from natsproxy.admin.guard import Guard
from natsproxy.admin.http_server import HttpServer
from natsproxy.admin.managed import ManagedProxy, ProxyCollection
from natsproxy.admin.toxiproxy.app import ToxiproxyApp
from natsproxy.admin.toxiproxy.go_json import ToxiproxyError
from natsproxy.admin.toxiproxy.proxies import MainProxy, Proxies
from natsproxy.config.endpoints import HttpListener
from natsproxy.config.settings import ProxySettings
from natsproxy.errors import ConfigError

_OPEN: Final = "Toxiproxy's API has no authentication, and other machines than this one can reach it"


class ReportError(Protocol):
    """A function that takes a log message and its level."""

    def __call__(self, text: str, *, level: str) -> None:
        """Log a message."""
        ...


class ToxiproxyServer(HttpServer):
    """Serves the API.

    base: settings of the proxies that the API does not have.  collection: receives those that run.  report:
    takes a log message and its level.  config: the initial proxies, as for /populate.
    main: a proxy that always exists; the API changes its toxics only.  hosts: further names under
    which clients reach the API.
    """

    def __init__(
        self,
        listener: HttpListener,
        base: ProxySettings,
        collection: ProxyCollection,
        report: ReportError,
        *,
        main: ManagedProxy | None = None,
        config: bytes | None = None,
        metrics: bool = False,
        hosts: Iterable[str] = (),
    ) -> None:
        self._proxies = Proxies(base, collection, None if main is None else MainProxy(main))
        app = ToxiproxyApp(self._proxies, metrics=metrics)
        guard = Guard(app, listener, hosts=hosts, private=not listener.local)
        super().__init__(guard, listener, partial(report, level="error"), holds=guard.holds)
        self._say = report
        self._config = config
        self._local = listener.local

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled.

        Raises ConfigError for an address that cannot be used, and for a wrong `config`.
        """
        async with trio.open_nursery() as nursery:
            self._proxies.nursery = nursery
            if self._config is not None:
                try:
                    await self._proxies.populate(self._config, [])
                except ToxiproxyError as error:
                    raise ConfigError(f"config: {error}") from None
            if not self._local:
                self._say(_OPEN, level="warning")
            await super().serve(task_status=task_status)
