"""The page of a sweep that runs, over HTTP: its report as the folder has it, which loads itself again.

It serves this machine only: subjects, payloads and program output are in it, and nobody needs a token.
The admin API's guard refuses pages of other sites.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, MutableMapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import trio
from starlette.responses import Response

from natsproxy.admin.guard import Guard
from natsproxy.admin.http_server import HttpServer
from natsproxy.config.endpoints import HttpListener
from natsproxy.errors import ConfigError
from natsproxy.sweep.folder import PAGE, REPORT

_FILES: Final = {"/": (PAGE, "text/html"), "/report.json": (REPORT, "application/json")}
_NOT_YET: Final = {
    "/": '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="1">'
    "<title>natsproxy sweep</title><p>running without a fault",
    "/report.json": json.dumps({"running": True, "trials": None}),
}
"""The answers before the clean runs have ended: there is no report of them yet."""
_HEADERS: Final = {"Cache-Control": "no-store", "Content-Security-Policy": "frame-ancestors 'none'"}


class LivePage:
    """An ASGI application that has the reports of a folder at `/` and `/report.json`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Answer a request."""
        await (await self._answer(scope["method"], scope["path"]))(scope, receive, send)

    async def _answer(self, method: str, path: str) -> Response:
        if path not in _FILES:
            return Response("there are / and /report.json\n", 404, media_type="text/plain")
        if method not in ("GET", "HEAD"):
            return Response("only GET\n", 405, {"Allow": "GET, HEAD"}, "text/plain")
        name, media = _FILES[path]
        try:
            body = await trio.Path(self._folder / name).read_bytes()
        except FileNotFoundError:
            body = _NOT_YET[path].encode()
        return Response(body if method == "GET" else b"", 200, _HEADERS, media)


@asynccontextmanager
async def live_page(
    folder: Path, listener: HttpListener, report: Callable[[str], None]
) -> AsyncIterator[str]:
    """Serve the page of the sweep in a folder for the length of the block; yield its URL.

    report: takes a sentence about a bug.  Raises ConfigError for an address that others reach, or that cannot
    be used.
    """
    if not listener.local:
        raise ConfigError(f"the page of a sweep serves this machine only: give 127.0.0.1, not {listener}")
    server = HttpServer(Guard(LivePage(folder), listener, open_paths=("/",)), listener, report)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve)
        yield server.url
        nursery.cancel_scope.cancel()
