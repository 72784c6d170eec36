"""The application of the admin API: its routes, made from the tables of its modules."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from natsproxy.admin.api import captures, connections, firings, frames, page, proxies, rules, traffic
from natsproxy.admin.api.openapi import document, starlette_path
from natsproxy.admin.api.operation import ApiRequest, Operation, perform, refused
from natsproxy.admin.api.schema import Schema, any_object
from natsproxy.admin.http_server import App
from natsproxy.admin.managed import ManagedProxy
from natsproxy.admin.page.sessions import Sessions

OPEN_PATHS: Final = ("/v1/health", "/v1/live")
"""The paths that need no token, for probes."""
SHAPES: Final[Mapping[str, Schema]] = {
    **proxies.SHAPES,
    **connections.SHAPES,
    **rules.SHAPES,
    **firings.SHAPES,
    **frames.SHAPES,
    **captures.SHAPES,
    **traffic.SHAPES,
    **page.SHAPES,
}


def operations_of(
    managed: Mapping[str, ManagedProxy], config: Mapping[str, Any], folder: Path | None, sessions: Sessions
) -> tuple[Operation, ...]:
    """Return all operations of the API, the document included."""
    made = (
        *proxies.operations(managed, config),
        *connections.OPERATIONS,
        *rules.OPERATIONS,
        *firings.OPERATIONS,
        *frames.OPERATIONS,
        *captures.operations(folder),
        *traffic.OPERATIONS,
        *page.operations(sessions),
    )

    async def described(_: ApiRequest) -> Response:
        return JSONResponse(text)

    own = Operation(
        "GET", "/v1/openapi.json", "getDocument", "This document.", described, any_object("OpenAPI 3.1.")
    )
    text = document((*made, own), SHAPES)
    return (*made, own)


def admin_app(
    managed: Mapping[str, ManagedProxy],
    config: Mapping[str, Any] | None = None,
    folder: Path | None = None,
    sessions: Sessions | None = None,
) -> App:
    """Return the application of the admin API.

    managed: the proxies by their names.  config: the settings of the process, as they are shown.
    folder: for captures started by the API, None for none.  sessions: where its links create logins.
    """
    for one in managed.values():
        _ = one.firings, one.statistics  # created now, so that they count from the start of the proxy
    by_path: dict[str, dict[str, Operation]] = {}
    for operation in operations_of(managed, config or {}, folder, sessions or Sessions()):
        by_path.setdefault(operation.path, {})[operation.method] = operation
    # Longer paths first: the last part of a path may contain slashes.
    routes = [_route(path, by_path[path], managed) for path in sorted(by_path, key=len, reverse=True)]
    return Starlette(routes=routes, exception_handlers={HTTPException: refused})


def _route(path: str, methods: Mapping[str, Operation], managed: Mapping[str, ManagedProxy]) -> Route:
    async def answer(request: Request) -> Response:
        operation = methods["GET" if request.method == "HEAD" else request.method]
        return await perform(operation, request, managed, SHAPES)

    return Route(starlette_path(path), answer, methods=list(methods))
