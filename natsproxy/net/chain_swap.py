"""The swap of the rules of open connections: one connection after the other, in time slices.

Each connection goes on under its old rules until its turn, between two of its frames.  A change for a few
connections is made at once (`AT_ONCE`), so that it is in force when the call returns; `finished` waits for
the others.  A swap that begins meanwhile takes over those that are left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

import trio

from natsproxy.net.relay import Relay
from natsproxy.net.timeslice import Timeslice
from natsproxy.rules.interface import Chain
from natsproxy.wire.frames import NO_LIMIT

AT_ONCE: Final = 16
"""Connections that get their rules before `begin` returns, unless they have many subscriptions."""


class ChainSwap:
    """Swaps the rules of connections.  relays: those that are open, by number."""

    def __init__(self, relays: Mapping[int, Relay]) -> None:
        self._relays = relays
        self._chain: Chain | None = None
        self._left: deque[Relay] = deque()
        self._begun = trio.Event()
        self._finished = trio.Event()

    def begin(self, chain: Chain) -> None:
        """Put rules in force on all connections."""
        self._chain = chain
        self._left = deque(self._relays.values())
        timeslice = Timeslice(_no_limit)
        for _ in range(min(AT_ONCE, len(self._left))):
            relay = self._left.popleft()
            if not self._swapped(relay, timeslice):
                self._left.append(relay)
        if self._left:
            self._begun.set()

    async def finished(self) -> None:
        """Wait until the rules are in force on all connections."""
        while self._left:
            await self._finished.wait()

    async def run(self) -> None:
        """Go on with what is left, until cancelled."""
        timeslice = Timeslice(_no_limit)
        while True:
            await self._begun.wait()
            self._begun = trio.Event()
            timeslice.begin()
            while self._left:
                relay = self._left.popleft()
                if not self._swapped(relay, timeslice):
                    self._left.appendleft(relay)
                if timeslice.reached():
                    await trio.lowlevel.checkpoint()
                    timeslice.begin()
            finished, self._finished = self._finished, trio.Event()
            finished.set()

    def _swapped(self, relay: Relay, timeslice: Timeslice) -> bool:
        """Work at the swap of one connection; return whether it is done."""
        assert self._chain is not None
        # A connection that has failed, or ended, gets no rules any more.
        return relay.swap(self._chain, timeslice) is not False


def _no_limit() -> int:
    return NO_LIMIT
