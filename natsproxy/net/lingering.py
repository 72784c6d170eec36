"""The end of a relay's legs: both peers get a while to take the bytes before it, and its cause."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import trio

from natsproxy.net.leg import AnyLeg, LegLost, PlaneLeg
from natsproxy.session import close_reasons
from natsproxy.session.actions import End

LINGER: Final = 1.0
"""Seconds that a peer has to take the bytes before the end."""


async def linger(legs: Sequence[AnyLeg], *, shield: bool = False) -> None:
    """Half-close legs in good order, and wait for their peers to do the same.

    shield: wait though the task is cancelled.
    """
    waiting = [leg for leg in legs if not _closed(leg)]
    if not waiting:  # as where one side left, and the other was told
        return
    with trio.move_on_after(LINGER, shield=shield):
        async with trio.open_nursery() as nursery:
            for leg in waiting:
                nursery.start_soon(_close_in_order, leg)


def _closed(leg: AnyLeg) -> bool:
    """Half-close a leg without a backlog; tell whether its peer has done so, or is lost."""
    if leg.backlog:
        return False
    leg.finish()
    try:
        return leg.try_receive() == b""
    except LegLost:
        return True


async def _close_in_order(leg: AnyLeg) -> None:
    """Flush, half-close, then read to the end: unread bytes would turn our close into an RST.

    That may destroy bytes that the peer has yet to read.  A peer that has all of them, and our end, and goes
    on writing, is reset, as by one that is gone.
    """
    before: int | None = None  # bytes that it may have sent before it had our end
    with suppress(LegLost):
        await leg.flush()
        leg.finish()
        while data := await leg.receive():
            if before is not None:
                before -= len(data)
                if before < 0:
                    leg.reset()
                    return
            elif leg.delivered:
                before = leg.unread
            await trio.lowlevel.checkpoint()  # a peer that never stops sending must not keep the loop


def with_lost_cause(end: End, client: PlaneLeg, server: PlaneLeg, error: str) -> End:
    """Return an end with the cause that the sockets tell: to a session, a lost leg has only closed.

    error: the -ERR with which the server closes; it may reset as well, where bytes of the client are left.
    """
    if end.cause not in close_reasons.LOST or (error and end.cause == close_reasons.SERVER_CLOSED):
        return end
    leg = client if end.cause == close_reasons.CLIENT_CLOSED else server
    return end if leg.lost is None else End(close_reasons.LOST[end.cause][leg.broken], leg.lost)
