"""The latest firings of a proxy's rules."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Final, NamedTuple

import trio

from natsproxy.events import Event, Firing
from natsproxy.net.proxy import Proxy

KEPT: Final = 1000
"""The firings that are kept."""


class Fired(NamedTuple):
    """A firing with its number, from 1."""

    number: int
    firing: Firing


class FiringLog:
    """A ring of firings.  total: the events so far, the number of the latest one."""

    def __init__(self, proxy: Proxy) -> None:
        self.total = 0
        self._ring: deque[Fired] = deque(maxlen=KEPT)
        self._news = trio.Event()
        self._awaited = False
        proxy.subscribe(self._take)

    def _take(self, event: Event) -> None:
        if not isinstance(event, Firing):
            return
        self.total += 1
        kept = replace(event, also=()) if event.also else event  # up to 65,536 frames of one read
        self._ring.append(Fired(self.total, kept))
        if self._awaited:
            self._awaited = False
            self._news.set()

    def after(self, number: int) -> list[Fired]:
        """Return the firings after a number, as far as they are kept, oldest first."""
        wanted = min(self.total - number, len(self._ring))
        return [self._ring[index] for index in range(len(self._ring) - wanted, len(self._ring))]

    async def wait(self) -> None:
        """Wait for the next firing."""
        if not self._awaited:
            self._awaited, self._news = True, trio.Event()
        await self._news.wait()
