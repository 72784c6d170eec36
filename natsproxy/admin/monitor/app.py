"""The application of the monitoring port: its routes.

Answers have nats-server's shapes, so that tools for a server show the proxy.  As there, pages of any origin
may read them.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from natsproxy.admin.http_server import App
from natsproxy.admin.monitor.connz import asked, connz
from natsproxy.admin.monitor.empty import ENDPOINTS
from natsproxy.admin.monitor.go_values import BadParameter, Query, query, written
from natsproxy.admin.monitor.healthz import healthz
from natsproxy.admin.monitor.metrics import media_type, metrics
from natsproxy.admin.monitor.server import MonitoredServer
from natsproxy.admin.monitor.subsz import asked as subsz_asked
from natsproxy.admin.monitor.subsz import subsz
from natsproxy.admin.monitor.varz import varz
from natsproxy.admin.streamed import Streamed

_ANY_PAGE: Final = {"Access-Control-Allow-Origin": "*"}
_NOSNIFF: Final = {"X-Content-Type-Options": "nosniff"}
_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS")  # the server takes any

Answer = Callable[[MonitoredServer, Query], Awaitable[Response]]


def monitor_app(server: MonitoredServer) -> App:
    """Return the application of the monitoring port."""

    async def answered(path: str, answer: Answer, request: Request) -> Response:
        server.requests[path] += 1
        try:
            return await answer(server, query(request.scope["query_string"]))
        except BadParameter as error:
            return PlainTextResponse(written(str(error)), 400)

    async def metered(request: Request) -> Response:
        server.requests["/metrics"] += 1
        accept = request.headers.get("accept", "")
        return Streamed(metrics(server, accept), media_type(accept))

    routes = [
        Route(path, partial(answered, path, answer), methods=_METHODS) for path, answer in ANSWERS.items()
    ]
    app = Starlette(routes=[*routes, Route("/metrics", metered)], exception_handlers={404: _not_found})
    app.router.redirect_slashes = False
    return app


def _json(answer: Mapping[str, Any], status: int = 200) -> Response:
    text = json.dumps(answer, indent=2)
    return Response(text, status, _ANY_PAGE, "application/json")


async def _varz(server: MonitoredServer, _: Query) -> Response:
    return _json(await varz(server))


async def _connz(server: MonitoredServer, query: Query) -> Response:
    return Streamed(connz(server, asked(query)), "application/json", _ANY_PAGE)


async def _subsz(server: MonitoredServer, query: Query) -> Response:
    return Streamed(subsz(server, subsz_asked(query)), "application/json", _ANY_PAGE)


async def _healthz(server: MonitoredServer, query: Query) -> Response:
    answer, status = healthz(server, query)
    return Response(json.dumps(answer), status, _ANY_PAGE, "application/json")


def _of(made: Callable[[MonitoredServer, Query], Mapping[str, Any]]) -> Answer:
    """Return a handler that answers with an object built at once."""

    async def answer(server: MonitoredServer, query: Query) -> Response:
        return _json(made(server, query))

    return answer


ANSWERS: Final[dict[str, Answer]] = {
    "/varz": _varz,
    "/connz": _connz,
    "/subsz": _subsz,
    "/subscriptionsz": _subsz,
    "/healthz": _healthz,
    **{path: _of(endpoint.made) for path, endpoint in ENDPOINTS.items()},
}
"""The routes."""


async def _not_found(_: Request, __: Exception) -> Response:
    return PlainTextResponse("404 page not found\n", 404, _NOSNIFF)
