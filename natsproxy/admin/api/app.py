"""The application of the admin API: its routes."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from natsproxy.admin.http_server import App
from natsproxy.admin.managed import ManagedProxy

OPEN_PATHS = ("/v1/health",)
"""The paths that need no token: for probes."""


def admin_app(managed: ManagedProxy) -> App:
    """Return the application of the admin API."""

    async def health(_: Request) -> Response:
        unready = managed.proxy.unready
        return JSONResponse({"ready": unready is None, "reason": unready}, 200 if unready is None else 503)

    return Starlette(routes=[Route("/v1/health", health)])
