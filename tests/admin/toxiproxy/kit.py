"""A server of Toxiproxy's API in a thread, and requests to it."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple

import trio

from natsproxy.addresses import Address
from natsproxy.admin.managed import ManagedProxy, ProxyCollection
from natsproxy.admin.toxiproxy.server import ToxiproxyServer
from natsproxy.config.endpoints import HttpListener
from natsproxy.config.settings import ProxySettings
from natsproxy.events import Closed, Event
from natsproxy.testing.thread import TrioThread


class Answer(NamedTuple):
    """An answer to a request."""

    status: int
    headers: dict[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def error(self) -> tuple[int, str]:
        """The status of an error, and its text in the body."""
        assert self.headers["content-type"] == "text/plain; charset=utf-8"
        assert self.headers["x-content-type-options"] == "nosniff"
        assert self.text.endswith("}\n")
        assert self.json["status"] == self.status
        return self.status, self.json["error"]


class Toxi:
    """A running server, `with`.  closed: the ends of connections so far."""

    def __init__(self, **more: Any) -> None:
        self._more = more
        self._server: ToxiproxyServer = None  # type: ignore[assignment]
        self._thread = TrioThread(self._serve, "toxiproxy")
        self.collection = ProxyCollection()
        self.closed: list[Closed] = []
        self.reports: list[tuple[str, str]] = []

    async def _serve(self, started: Callable[[], None], stop: trio.Event) -> None:
        self.collection.watch(self._watch)
        self._server = ToxiproxyServer(
            self._more.pop("listener", HttpListener(Address("127.0.0.1", 0))),
            ProxySettings(seed=7),
            self.collection,
            self._report,
            **self._more,
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(self._server.serve)
            started()
            await stop.wait()
            nursery.cancel_scope.cancel()

    def _report(self, text: str, *, level: str) -> None:
        self.reports.append((level, text))

    def _watch(self, managed: ManagedProxy) -> None:
        managed.proxy.subscribe(self._on_event)

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Closed):
            self.closed.append(event)

    def __enter__(self) -> Toxi:
        self._thread.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.stop()

    @property
    def port(self) -> int:
        return int(self._server.url.rpartition(":")[2])

    @property
    def url(self) -> str:
        return self._server.url

    def call(self, method: str, path: str, body: object = None, **headers: str) -> Answer:
        """Make a request.  body: JSON, or text as it is."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            data = body if isinstance(body, str | None) else json.dumps(body)
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, data.encode() if data else None, named)
            answer = connection.getresponse()
            fields = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, fields, answer.read().decode())
        finally:
            connection.close()

    def make(self, upstream: str = "127.0.0.1:1", name: str = "nats", **more: Any) -> dict[str, Any]:
        """Make a proxy on a free port of the loopback, and return it."""
        body = {"name": name, "upstream": upstream, "listen": "127.0.0.1:0", **more}
        answer = self.call("POST", "/proxies", body)
        assert answer.status == 201, answer
        proxy: dict[str, Any] = answer.json
        return proxy

    def toxic(self, kind: str, stream: str = "downstream", **attributes: Any) -> str:
        """Add a toxic to the proxy `nats`, and return its path."""
        body = {"type": kind, "stream": stream, "attributes": attributes}
        answer = self.call("POST", "/proxies/nats/toxics", body)
        assert answer.status == 200, answer
        return f"/proxies/nats/toxics/{answer.json['name']}"
