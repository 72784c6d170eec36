"""The end of a relay's legs: both peers get a while to take the bytes before it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import trio

from natsproxy.net.leg import AnyLeg, LegLost

LINGER: Final = 1.0
"""Seconds that a peer has to take the bytes before the end."""


async def linger(legs: Sequence[AnyLeg]) -> None:
    """Half-close legs in good order, and wait for their peers to do the same."""
    with trio.move_on_after(LINGER):
        async with trio.open_nursery() as nursery:
            for leg in legs:
                nursery.start_soon(_close_in_order, leg)


async def _close_in_order(leg: AnyLeg) -> None:
    """Flush, half-close, then read to the end: unread bytes would turn our close into an RST."""
    with suppress(LegLost):
        await leg.flush()
        leg.finish()
        while await leg.receive():
            await trio.lowlevel.checkpoint()  # a peer that never stops sending must not keep the loop
