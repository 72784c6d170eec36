"""Logins of browsers: a one-time link starts a session, identified by a cookie.

A page cannot send the token with its event streams, and should not store it.  So a holder of the token asks
the API for a link; the browser that opens it within a minute gets a session cookie, which the guard accepts
instead.  Sessions live in memory: they end with the process, or after half a day without use.
"""

from __future__ import annotations

import secrets
from typing import Final

import trio
from starlette.requests import cookie_parser

from natsproxy.addresses import split_host_port

LINK: Final = 60.0
"""Seconds for which a link is valid."""
IDLE: Final = 12 * 3600.0
"""Seconds without use after which a session ends."""
_MOST: Final = 100  # links, and sessions


class Sessions:
    """The unused links and the sessions, each with its expiry time."""

    def __init__(self) -> None:
        self._links: dict[str, float] = {}
        self._sessions: dict[str, float] = {}

    def link(self) -> str:
        """Return the code of a new link."""
        return _add(self._links, LINK)

    def enter(self, code: str) -> str | None:
        """Use up a link; return the name of its new session, None for an unknown code."""
        ends = self._links.pop(code, None)
        if ends is None or ends < trio.current_time():
            return None
        return _add(self._sessions, IDLE)

    def knows(self, cookies: str, host: str) -> bool:
        """Tell whether a Cookie header names a session.  host: the Host header beside it."""
        name = _named(cookies, cookie_name(host))
        ends = self._sessions.pop(name, None)
        if ends is None or ends < trio.current_time():
            return False
        self._sessions[name] = trio.current_time() + IDLE  # now the youngest
        return True


def cookie_name(host: str) -> str:
    """Return the name of the cookie.  host: the Host header.

    Browsers share cookies between the ports of a host: two proxies must not overwrite each other's.
    """
    port = split_host_port(host)[1]
    return f"natsproxy-{port or 0}"


def _named(cookies: str, name: str) -> str:
    return cookie_parser(cookies).get(name, "")  # other applications on this host may set malformed ones


def _add(table: dict[str, float], lasts: float) -> str:
    code = secrets.token_urlsafe(32)
    table[code] = trio.current_time() + lasts
    while len(table) > _MOST:
        del table[next(iter(table))]
    return code
