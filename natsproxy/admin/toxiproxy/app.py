"""The routes of Toxiproxy's API: an ASGI application.

Status codes, bodies and headers are Toxiproxy's own, down to errors that are JSON under `text/plain`.  The
guard before it adds headers, and refuses requests that no client of Toxiproxy sends.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Any, Final
from uuid import uuid4

import trio
from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily
from starlette.requests import Request
from starlette.responses import Response

from natsproxy.admin.toxiproxy.go_json import ToxiproxyError
from natsproxy.admin.toxiproxy.proxies import Proxies, ToxicProxy

VERSION: Final = "2.12.0"
"""The version of Toxiproxy that is emulated."""
_LIMIT: Final = 25  # seconds for an answer
_BROWSER: Final = "Mozilla/"
_JSON: Final = "application/json"


class ToxiproxyApp:
    """The application.  metrics: serve /metrics."""

    def __init__(self, proxies: Proxies, *, metrics: bool = False) -> None:
        self._proxies = proxies
        self._metrics = metrics

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Answer a request."""
        request = Request(scope, receive)
        response = await self._answer(request)
        response.headers["X-Toxiproxy-Request-Id"] = uuid4().hex[:20]
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        path, known = request.scope["path"], False  # `url` would parse a ? in a name as a query
        for methods, pattern, handle in _ROUTES:
            found = pattern.fullmatch(path)
            if found is None or (handle is _show_metrics and not self._metrics):
                continue
            known = True
            if request.method not in methods and methods:
                continue
            if request.headers.get("User-Agent", "").startswith(_BROWSER):
                return _plain(403, "User agent not allowed")  # a page of another site could send it
            body = await request.body()
            try:
                with trio.fail_after(_LIMIT):
                    return await handle(self._proxies, body, *found.groups())
            except trio.TooSlowError:
                return Response(status_code=503)
            except ToxiproxyError as error:
                return _plain(error.status, _dumps({"error": str(error), "status": error.status}))
        return Response(status_code=405) if known else _plain(404, "404 page not found")


def _plain(status: int, text: str) -> Response:
    return Response(f"{text}\n", status, media_type="text/plain; charset=utf-8")


def _dumps(value: object) -> str:
    # Half a surrogate pair, which JSON can hold and UTF-8 cannot, becomes a question mark.
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "replace").decode()


def _json(value: object, status: int = 200) -> Response:
    return Response(_dumps(value), status, media_type=_JSON)


async def _index(proxies: Proxies, body: bytes) -> Response:
    return _json({proxy.name: proxy.as_json() for proxy in proxies.all()})


async def _create(proxies: Proxies, body: bytes) -> Response:
    return _json((await proxies.create(body)).as_json(), 201)


async def _populate(proxies: Proxies, body: bytes) -> Response:
    made: list[ToxicProxy] = []
    answer: dict[str, Any] = {}
    try:
        await proxies.populate(body, made)
    except ToxiproxyError as error:
        answer = {"error": str(error), "status": error.status}
    shown = [proxy.as_json() for proxy in made]
    return _json({**answer, "proxies": shown}, answer.get("status", 201))


async def _show(proxies: Proxies, body: bytes, name: str) -> Response:
    return _json(proxies.get(name).as_json())


async def _change(proxies: Proxies, body: bytes, name: str) -> Response:
    return _json((await proxies.change(name, body)).as_json())


async def _delete(proxies: Proxies, body: bytes, name: str) -> Response:
    await proxies.delete(name)
    return Response(status_code=204)


async def _toxics(proxies: Proxies, body: bytes, name: str) -> Response:
    return _json([toxic.as_json() for toxic in proxies.get(name).toxics.all()])


async def _add_toxic(proxies: Proxies, body: bytes, name: str) -> Response:
    proxy = proxies.get(name)
    added = proxy.toxics.add(body)
    await proxy.rules_in_force()
    return _json(added.as_json())


async def _show_toxic(proxies: Proxies, body: bytes, name: str, toxic: str) -> Response:
    return _json(proxies.get(name).toxics.get(toxic).as_json())


async def _change_toxic(proxies: Proxies, body: bytes, name: str, toxic: str) -> Response:
    proxy = proxies.get(name)
    changed = proxy.toxics.change(toxic, body)
    await proxy.rules_in_force()
    return _json(changed.as_json())


async def _delete_toxic(proxies: Proxies, body: bytes, name: str, toxic: str) -> Response:
    proxy = proxies.get(name)
    proxy.toxics.remove(toxic)
    await proxy.rules_in_force()
    return Response(status_code=204)


async def _reset(proxies: Proxies, body: bytes) -> Response:
    await proxies.reset()
    return Response(status_code=204)


async def _version(proxies: Proxies, body: bytes) -> Response:
    text = f'{{"version": "{VERSION}"}}\n'
    return Response(text, media_type=f"{_JSON};charset=utf-8")


async def _show_metrics(proxies: Proxies, body: bytes) -> Response:
    text = generate_latest(_Metrics(proxies))
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


class _Metrics:
    """The metrics of Toxiproxy; unlike there, they are updated while a connection is open."""

    def __init__(self, proxies: Proxies) -> None:
        self._proxies = proxies

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Yield the two counters of bytes."""
        labels = ["direction", "proxy", "listener", "upstream"]
        name, text = "toxiproxy_proxy_{}_bytes_total", "The total number of bytes {} by the proxy."
        for word in ("received", "sent"):
            family = CounterMetricFamily(name.format(word), text.format(word), labels=labels)
            for proxy in self._proxies.all():
                for direction, traffic in zip(("upstream", "downstream"), proxy.toxics.traffic, strict=True):
                    values = [direction, proxy.name, proxy.listen, proxy.upstream]
                    family.add_metric(values, getattr(traffic, word))
            yield family


Handler = Callable[..., Awaitable[Response]]
_PROXY: Final = "/proxies/([^/]+)"
_TOXIC: Final = f"{_PROXY}/toxics/([^/]+)"
_ROUTES: Final[list[tuple[tuple[str, ...], re.Pattern[str], Handler]]] = [
    (methods, re.compile(path), handle)
    for methods, path, handle in (
        (("POST",), "/reset", _reset),
        (("GET",), "/proxies", _index),
        (("POST",), "/proxies", _create),
        (("POST",), "/populate", _populate),
        (("GET",), _PROXY, _show),
        (("POST", "PATCH"), _PROXY, _change),
        (("DELETE",), _PROXY, _delete),
        (("GET",), f"{_PROXY}/toxics", _toxics),
        (("POST",), f"{_PROXY}/toxics", _add_toxic),
        (("GET",), _TOXIC, _show_toxic),
        (("POST", "PATCH"), _TOXIC, _change_toxic),
        (("DELETE",), _TOXIC, _delete_toxic),
        (("GET",), "/version", _version),
        (("GET",), "/metrics", _show_metrics),
    )
]
"""Methods, path and handler of each route; the groups of the path are the names in it."""
