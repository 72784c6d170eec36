"""The guard of the admin API and of Toxiproxy's: it checks the token, and refuses pages of other sites.

A browser on the same machine can reach loopback, so any page that it shows could try: by DNS rebinding
(caught by `Host`), or by cross-site forms and scripts (caught by `Origin` and `Sec-Fetch-Site`).  Clients of
Toxiproxy reach a server on another machine by a name of their network: such a name, or an address, belongs to
no public site.  Browsers send a session cookie instead of the token, also for a page on another port of the
same host, so the two headers are checked for reads, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, MutableMapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urlsplit

from starlette.responses import JSONResponse

from natsproxy.addresses import is_ip
from natsproxy.admin.http_server import App
from natsproxy.admin.page.sessions import Sessions
from natsproxy.config.admin import Caller, token_hash
from natsproxy.config.endpoints import HttpListener

CALLER: Final = "natsproxy.caller"
"""The key of the `Caller` in the scope of a request."""
_LOCAL: Final = ("localhost", "127.0.0.1", "::1")
_PRIVATE: Final = (".internal", ".local", ".localhost")
"""Suffixes of names outside public DNS, which another site cannot rebind."""
_OWN: Final = ("", "none", "same-origin")
"""The accepted values of Sec-Fetch-Site: absent (not a browser), typed by a person, our own page."""
_HOST: Final = re.compile(r"(\[[^\[\]]*\]|[^:\[\]]*)(?::[0-9]*)?")
_OTHER_SITES: Final = "pages of other sites may not use the admin API"
_HEADERS: Final = [
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
]
"""Headers of every answer: it is never to be rendered, since peers of the proxy chose its content."""


class Guard:
    """An ASGI wrapper that checks the token, and refuses requests of other sites.

    callers: by the SHA-256 of their tokens, empty where no token is needed.  hosts: further names under which
    clients reach the listener.  private: so are all IP addresses, and all names that are in no public DNS.
    open_paths: those that need no token.  sessions: of browsers, which need none either.
    """

    def __init__(
        self,
        app: App,
        listener: HttpListener,
        callers: Mapping[bytes, Caller] = MappingProxyType({}),
        hosts: Iterable[str] = (),
        open_paths: Iterable[str] = (),
        sessions: Sessions | None = None,
        *,
        private: bool = False,
    ) -> None:
        self._app = app
        self._callers = callers
        self._open = frozenset(open_paths)
        self._sessions = sessions
        self._private = private
        self._unix = isinstance(listener.address, Path)
        own = () if isinstance(listener.address, Path) else (listener.address.host,)
        self._hosts = frozenset(host.lower() for host in (*_LOCAL, *own, *hosts))

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Answer a request, or refuse it."""

        async def with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_HEADERS]
            await send(message)

        refusal = self._refusal(scope)
        if refusal is None:
            await self._app(scope, receive, with_headers)
            return
        status, text = refusal
        headers = {"Connection": "close"}  # a body may follow, and unauthorized clients get no time for it
        if status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        await JSONResponse({"error": text}, status, headers)(scope, receive, with_headers)

    def holds(self, scope: MutableMapping[str, Any]) -> bool:
        """Tell whether a request protects its connection from eviction: an accepted one with the token."""
        return scope["path"] not in self._open and self._refusal(scope) is None

    def _refusal(self, scope: MutableMapping[str, Any]) -> tuple[int, str] | None:
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        if not self._unix:
            host = headers.get(b"host", "").lower()
            named = _HOST.fullmatch(host)
            if named is None or not self._is_name(named[1].strip("[]")):
                return 421, f"this is not {host[:80] or 'nobody'}: name the host with --admin-host"
            origin = headers.get(b"origin")
            if origin is not None and not self._ours(origin, headers[b"host"], scope["scheme"]):
                return 403, _OTHER_SITES
        is_open = scope["path"] in self._open
        # Requests for images and scripts have no Origin; a link to the page is allowed.
        if not is_open and headers.get(b"sec-fetch-site", "") not in _OWN:
            return 403, _OTHER_SITES
        if not is_open:
            caller = self._caller(headers)
            if caller is None:
                return 401, "the token is missing or wrong: Authorization: Bearer TOKEN"
            scope[CALLER] = caller
        return None

    def _is_name(self, host: str) -> bool:
        if host in self._hosts:
            return True
        if not (self._private and host):
            return False
        return is_ip(host) or "." not in host or host.endswith(_PRIVATE)

    @staticmethod
    def _ours(origin: str, host: str, scheme: str) -> bool:
        try:
            parts = urlsplit(origin)
        except ValueError:
            return False
        return (parts.scheme, parts.netloc.lower()) == (scheme, host.lower())

    def _caller(self, headers: dict[bytes, str]) -> Caller | None:
        """Return who asks, None for somebody unknown."""
        if not self._callers:
            return Caller()
        cookies = headers.get(b"cookie")
        if cookies and self._sessions:
            caller = self._sessions.caller(cookies, headers.get(b"host", ""))
            if caller is not None:
                return caller
        scheme, _, given = headers.get(b"authorization", "").partition(" ")
        # A hash is looked up: how long that takes tells nothing of a token.
        return self._callers.get(token_hash(given.strip())) if scheme.lower() == "bearer" else None
