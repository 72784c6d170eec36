"""Logins of browsers: a link that is good once makes a session, which a cookie names.

A page cannot send the token with its streams, and should not keep it.  So who has the token asks the API for
a link; the browser that opens it within a minute gets the name of a session, which the guard takes instead.
Sessions live in memory: they end with the process, or after half a day without use.
"""

from __future__ import annotations

import secrets
from typing import Final

import trio
from starlette.requests import cookie_parser

from natsproxy.addresses import split_host_port

LINK: Final = 60.0
"""Seconds in which a link is good."""
IDLE: Final = 12 * 3600.0
"""Seconds without use after which a session ends."""
_MOST: Final = 100  # links, and sessions


class Sessions:
    """The links that nobody has used yet, and the sessions, each with the time of its end."""

    def __init__(self) -> None:
        self._links: dict[str, float] = {}
        self._sessions: dict[str, float] = {}

    def link(self) -> str:
        """Return the code of a new link."""
        return _add(self._links, LINK)

    def enter(self, code: str) -> str | None:
        """Return the name of a new session for the code of a link, None for no such link; it is used up."""
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
        self._sessions[name] = trio.current_time() + IDLE  # the youngest again
        return True


def cookie_name(host: str) -> str:
    """Return the name of the cookie.  host: the Host header.

    Browsers share cookies between the ports of a host: two proxies must not take each other's.
    """
    port = split_host_port(host)[1]
    return f"natsproxy-{port or 0}"


def _named(cookies: str, name: str) -> str:
    return cookie_parser(cookies).get(name, "")  # others on this host may write theirs as they like


def _add(table: dict[str, float], lasts: float) -> str:
    code = secrets.token_urlsafe(32)
    table[code] = trio.current_time() + lasts
    while len(table) > _MOST:
        del table[next(iter(table))]
    return code
