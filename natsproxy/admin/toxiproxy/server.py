"""The server of Toxiproxy's API, with the proxies that its clients make."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import trio

from natsproxy.admin.collection import ProxyCollection
from natsproxy.admin.http_server import HttpServer
from natsproxy.admin.toxiproxy.app import ToxiproxyApp
from natsproxy.admin.toxiproxy.go_json import ApiError
from natsproxy.admin.toxiproxy.proxies import Proxies
from natsproxy.config.settings import HttpListener, ProxySettings
from natsproxy.errors import ConfigError

_OPEN: Final = "Toxiproxy's API has no authentication, and other machines than this one can reach it"


class ToxiproxyServer:
    """Serves the API.

    base: settings of the proxies that the API does not know.  collection: gets those that run.  report: takes
    a level of the log and a sentence.  config: the proxies to begin with, as for /populate.
    """

    def __init__(
        self,
        listener: HttpListener,
        base: ProxySettings,
        collection: ProxyCollection,
        report: Callable[[str, str], None],
        *,
        config: bytes | None = None,
        metrics: bool = False,
    ) -> None:
        self._listener = listener
        self._base = base
        self._collection = collection
        self._report = report
        self._config = config
        self._metrics = metrics
        self.url = f"http://{listener.address}"

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled.

        Raises ConfigError for an address that cannot be used, and for a wrong `config`.
        """
        async with trio.open_nursery() as nursery:
            proxies = Proxies(self._base, nursery, self._collection)
            if self._config is not None:
                try:
                    await proxies.populate(self._config, [])
                except ApiError as error:
                    raise ConfigError(f"config: {error}") from None
            app = ToxiproxyApp(proxies, metrics=self._metrics)
            http = HttpServer(app, self._listener, partial(self._report, "error"))
            await nursery.start(http.serve)
            self.url = http.url
            if not self._listener.local:
                self._report("warning", _OPEN)
            task_status.started()
