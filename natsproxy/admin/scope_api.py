"""The API of a playback with scopes: an ASGI application with one path, `/v1/scope`.

| request | does |
| --- | --- |
| GET | tells the present scope |
| PUT, with a name as text or `{"scope": NAME}` | ends the present scope, and begins that one |
| DELETE, `?keep=false` discards what was recorded | ends the present scope |

Answers are JSON; `ended` is the verdict on the scope that has ended, null without one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, MutableMapping
from typing import Any, Final, Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from natsproxy.admin.guard import Guard
from natsproxy.admin.http_server import HttpServer
from natsproxy.config.admin import Caller, token_hash
from natsproxy.config.endpoints import HttpListener
from natsproxy.errors import NatsproxyError

PATH: Final = "/v1/scope"
_METHODS: Final = {"Allow": "GET, HEAD, PUT, DELETE"}
_MOST_BODY: Final = 64 << 10  # bytes


class ScopeChoice(Protocol):
    """That which the API chooses from; errors are NatsproxyErrors."""

    @property
    def state(self) -> dict[str, Any]:
        """The present scope."""
        ...

    async def choose(self, name: str) -> None:
        """Begin a scope."""
        ...

    async def end(self, *, keep: bool = True) -> Any:
        """End the present scope; return a verdict that has `described`, or None."""
        ...


class ScopeApp:
    """The application."""

    def __init__(self, scopes: ScopeChoice) -> None:
        self._scopes = scopes

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Answer a request."""
        await (await self._answer(Request(scope, receive)))(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        if request.scope["path"] != PATH:
            return JSONResponse({"error": f"there is only {PATH}"}, 404)
        if request.method in ("GET", "HEAD"):
            return JSONResponse(self._scopes.state)
        if request.method == "DELETE":
            keep = request.query_params.get("keep", "true")
            if keep not in ("true", "false"):
                return JSONResponse({"error": f"keep is true or false, not {keep[:20]!r}"}, 400)
            return JSONResponse({"ended": await self._end(keep=keep == "true")})
        if request.method != "PUT":
            return JSONResponse({"error": f"there is no {request.method} of {PATH}"}, 405, _METHODS)
        try:
            name = _name(await request.body())
        except ValueError as error:
            return JSONResponse({"error": str(error)}, 400)
        # An unusable name ends the present scope, too: its test is over.
        ended = await self._end()
        try:
            await self._scopes.choose(name)
        except NatsproxyError as error:
            return JSONResponse({"error": str(error), "ended": ended}, 404)
        return JSONResponse({**self._scopes.state, "ended": ended})

    async def _end(self, *, keep: bool = True) -> dict[str, Any] | None:
        verdict = await self._scopes.end(keep=keep)
        found: dict[str, Any] | None = None if verdict is None else verdict.described()
        return found


def _name(body: bytes) -> str:
    """Return the name in a body.  Raises ValueError."""
    text = body.decode()
    if not text.lstrip().startswith("{"):
        return text.strip()
    found = json.loads(text)
    if list(found) != ["scope"] or not isinstance(found["scope"], str):
        raise ValueError('the body is a name, or {"scope": NAME}')
    name: str = found["scope"]
    return name


def scope_server(
    scopes: ScopeChoice,
    listener: HttpListener,
    report: Callable[[str], None],
    *,
    token: str = "",
    hosts: Iterable[str] = (),
) -> HttpServer:
    """Return the server of the API.  token: that requests must bring, "" for none."""
    callers = {token_hash(token): Caller()} if token else {}
    guard = Guard(ScopeApp(scopes), listener, callers, hosts, private=not listener.local)
    return HttpServer(guard, listener, report, most_body=_MOST_BODY, holds=guard.holds)
