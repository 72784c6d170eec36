"""The application that serves the page beside the API: its files, and login by a link.

The files contain no secrets and need no token; all data comes from the API, which does.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, MutableMapping
from importlib.resources import files
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from natsproxy.admin.http_server import App
from natsproxy.admin.page.sessions import Sessions, cookie_name
from natsproxy.wire.ops import KEEP_ALIVES, MESSAGE_OPS, OPS, Op

LOGIN: Final = "/login"
"""The path of a link; its query is the code."""
_HOME: Final = "index.html"
_MEDIA: Final = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",  # revalidated each time, and mostly unchanged
}


class PageApp:
    """The page and, for every other path, the API.

    paths: those of the page, which need no token.
    """

    def __init__(self, api: App, sessions: Sessions) -> None:
        self._api = api
        self._sessions = sessions
        self._files = _files()
        self.paths = frozenset({LOGIN, *self._files})

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Answer a request."""
        path, method = scope["path"], scope["method"]
        app: App = self._api
        if method in ("GET", "HEAD"):
            if path in self._files:
                app = self._file(Request(scope), *self._files[path])
            elif path == LOGIN:
                # HEAD does not use up a link: programs that preview links send it.
                app = self._enter(Request(scope)) if method == "GET" else Response()
        await app(scope, receive, send)

    def _file(self, request: Request, body: bytes, media: str, tag: str) -> Response:
        headers = {**_HEADERS, "ETag": tag}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(body, headers=headers, media_type=media)

    def _enter(self, request: Request) -> Response:
        """Begin a session for a valid link."""
        host = request.headers.get("host", "")
        session = self._sessions.enter(request.url.query)
        if session is None:  # the page reports it, unless the browser is logged in already
            return RedirectResponse("/#stale-link", 303, _HEADERS)
        answer = RedirectResponse("/", 303, {**_HEADERS, "Cache-Control": "no-store"})
        secure = request.url.scheme == "https"
        answer.set_cookie(cookie_name(host), session, httponly=True, samesite="strict", secure=secure)
        return answer


def _files() -> dict[str, tuple[bytes, str, str]]:
    """Return the files of the page by their paths: content, media type, tag."""
    bodies = {entry.name: entry.read_bytes() for entry in files(__package__).joinpath("static").iterdir()}
    bodies["ops.js"] = operations()
    found = {}
    for name, body in bodies.items():
        media = _MEDIA.get(name.rpartition(".")[2])
        if media is not None:
            path = "/" if name == _HOME else f"/page/{name}"
            found[path] = (body, media, f'"{hashlib.sha256(body).hexdigest()[:32]}"')
    return found


def operations() -> bytes:
    """Return the module `ops.js`: the operations by their names on the wire, from their table."""
    publishes = [spec.op for spec in OPS if spec.op in MESSAGE_OPS and spec.from_client]
    deliveries = [spec.op for spec in OPS if spec.op in MESSAGE_OPS and spec.from_server]
    groups: dict[str, Iterable[Op]] = {
        "OPS": Op,
        "KEEP_ALIVES": sorted(KEEP_ALIVES),
        "PUBLISHES": publishes,
        "DELIVERIES": deliveries,
    }
    lines = (
        f"export const {name} = {json.dumps([op.label for op in ops])};\n" for name, ops in groups.items()
    )
    return "".join(lines).encode()
