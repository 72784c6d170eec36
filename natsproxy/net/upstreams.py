"""The upstream: chooses a server for each connection, and reports outages to the operator.

The servers are tried in turn (`dial.py` makes one attempt at one of them), again and again for the time of
`upstream_hold`.

An outage is a warning when it begins, one more for each further reason, and one when it is over, with the
number of connections that were turned away.  Each attempt of each client would only repeat them.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from natsproxy.config.settings import ProxySettings
from natsproxy.events import Event, Notice
from natsproxy.net.dial import Dialer, Dialled, NoServer
from natsproxy.net.endpoints import Resolver
from natsproxy.session.greeting import refusal_of

_RETRY = 0.05  # seconds between attempts while a client is kept waiting


class Upstreams:
    """The servers of a proxy, and their outages.  clock: in nanoseconds, for events."""

    def __init__(
        self, settings: ProxySettings, emit: Callable[[Event], None], clock: Callable[[], int]
    ) -> None:
        self._settings = settings
        self._resolver = Resolver(settings.connect_timeout / 1e9)
        self._dialer = Dialer(settings)
        self._emit = emit
        self._clock = clock
        self._reasons: set[str] = set()  # of this outage, as reported; empty: there is none
        self._since = 0
        self._turned_away = 0

    async def dial(self) -> Dialled:
        """Return a connection to a server; try again for the time of `upstream_hold`.  Raises NoServer."""
        deadline = trio.current_time() + self._settings.upstream_hold / 1e9
        while True:
            try:
                dialled = await self._dial_any()
            except NoServer:
                if trio.current_time() >= deadline:
                    self._turned_away += 1
                    raise
                await trio.sleep(_RETRY)
                continue
            why = refusal_of(dialled.greeting)
            if why is None:
                self._up()
            else:  # the session turns the client away, with an -ERR that it understands
                self._down(f"{dialled.endpoint}: {why}")
                self._turned_away += 1
            return dialled

    async def _dial_any(self) -> Dialled:
        """Try each endpoint once.  Raises NoServer with the reason of the last."""
        endpoints, reasons = await self._resolver.look_up(self._settings.upstream)
        for endpoint in endpoints:
            try:
                return await self._dialer.dial(endpoint)
            except NoServer as failed:
                reasons.append(str(failed))
        for reason in reasons:
            self._down(reason)
        raise NoServer(reasons[-1])

    # -- outages

    def _down(self, reason: str) -> None:
        if not self._reasons:
            self._since = self._clock()
        if reason not in self._reasons:
            self._reasons.add(reason)
            self._emit(Notice(self._clock(), None, "warning", f"the upstream cannot be used: {reason}"))

    def _up(self) -> None:
        if self._reasons:
            facts: dict[str, object] = {
                "seconds": round((self._clock() - self._since) / 1e9, 3),
                "connections_turned_away": self._turned_away,
            }
            self._emit(Notice(self._clock(), None, "warning", "the upstream is back", facts))
            self._reasons.clear()
            self._turned_away = 0
