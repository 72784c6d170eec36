"""The application of the monitoring port: its routes.

Answers have nats-server's shapes, so that tools for a server show the proxy.  Any page may read them, as it
may there.
"""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from natsproxy.admin.http_server import App
from natsproxy.admin.managed import ManagedProxy

_ANY_PAGE = {"Access-Control-Allow-Origin": "*"}


def monitor_app(managed: ManagedProxy) -> App:
    """Return the application of the monitoring port."""

    async def healthz(_: Request) -> Response:
        unready = managed.proxy.unready
        if unready is None:
            return JSONResponse({"status": "ok"}, headers=_ANY_PAGE)
        answer = {"status": "unavailable", "status_code": 503, "error": unready}
        return JSONResponse(answer, 503, _ANY_PAGE)

    return Starlette(routes=[Route("/healthz", healthz)])
