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
from natsproxy.config.admin import Caller

LINK: Final = 60.0
"""Seconds for which a link is valid."""
IDLE: Final = 12 * 3600.0
"""Seconds without use after which a session ends."""
_MOST: Final = 100  # links, and sessions


_Table = dict[str, tuple[float, Caller]]
"""Expiry time and caller, by a code."""


class Sessions:
    """The unused links and the sessions, each of a caller and with its expiry time."""

    def __init__(self) -> None:
        self._links: _Table = {}
        self._sessions: _Table = {}

    def link(self, caller: Caller) -> str:
        """Return the code of a new link, for a browser of this caller."""
        return _add(self._links, LINK, caller)

    def enter(self, code: str) -> str | None:
        """Use up a link; return the name of its new session, None for an unknown code."""
        caller = _taken(self._links, code)
        return None if caller is None else _add(self._sessions, IDLE, caller)

    def caller(self, cookies: str, host: str) -> Caller | None:
        """Return whose session a Cookie header names, None for none.  host: the Host header beside it."""
        name = _named(cookies, cookie_name(host))
        caller = _taken(self._sessions, name)
        if caller is not None:
            self._sessions[name] = trio.current_time() + IDLE, caller  # now the youngest
        return caller


def cookie_name(host: str) -> str:
    """Return the name of the cookie.  host: the Host header.

    Browsers share cookies between the ports of a host: two proxies must not overwrite each other's.
    """
    port = split_host_port(host)[1]
    return f"natsproxy-{port or 0}"


def _named(cookies: str, name: str) -> str:
    return cookie_parser(cookies).get(name, "")  # other applications on this host may set malformed ones


def _taken(table: _Table, code: str) -> Caller | None:
    """Take an entry out of a table; return whose it was, None if it is not there or has expired."""
    ends, caller = table.pop(code, (0.0, None))
    return caller if ends >= trio.current_time() else None


def _add(table: _Table, lasts: float, caller: Caller) -> str:
    code = secrets.token_urlsafe(32)
    table[code] = trio.current_time() + lasts, caller
    while len(table) > _MOST:
        del table[next(iter(table))]
    return code
