"""Connections that servers ended without an -ERR, reported together.

A server that stops ends all of its connections at once.  Those that end within a moment are one warning for
each server, though the end of each is an event too.  An -ERR concerns one client: that end is not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

import trio

from natsproxy.events import Event, Notice
from natsproxy.net.clock import now_ns
from natsproxy.net.endpoints import Endpoint
from natsproxy.net.leg import LINGER

MOMENT: Final = LINGER + 0.5
"""Seconds from the first end to the report: clients may linger after their server."""


class ServerEnds:
    """Counts the connections that servers ended.  served: the endpoints of open connections, by number."""

    def __init__(self, served: Mapping[int, Endpoint], emit: Callable[[Event], None]) -> None:
        self._served = served
        self._emit = emit
        self._ended: Counter[Endpoint] = Counter()
        self._first = trio.Event()

    def count(self, endpoint: Endpoint) -> None:
        """Count a connection that this server ended."""
        self._ended[endpoint] += 1
        self._first.set()

    async def run(self) -> None:
        """Report the ends of each moment, until cancelled."""
        try:
            while True:
                await self._first.wait()
                await trio.sleep(MOMENT)
                self._report()
        finally:
            self._report()

    def _report(self) -> None:
        ended, self._ended, self._first = self._ended, Counter(), trio.Event()
        served = Counter(self._served.values()) if ended else ended
        for endpoint, count in ended.items():
            which = "connections" if served[endpoint] else "all its connections"
            text = f"the server {endpoint} ended {which}"
            self._emit(Notice(now_ns(), None, "warning", text, {"connections": count}))
