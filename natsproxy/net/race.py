"""The race for a server: the dials on behalf of one connection.

Endpoints are dialled in their order.  The next dial begins as soon as one has failed, or is slow: a black
hole costs the client a quarter of a second instead of a time-out.  The first server that greets wins, and
the other dials end.

A server that greets and should not be used is kept for the case that no other greets: one in lame duck mode
still serves, and one that cannot be proxied lets the session tell the client why.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import trio

from natsproxy.net.dial import Dialled, NoServer
from natsproxy.net.endpoints import Endpoint
from natsproxy.net.shortage import OwnShortage
from natsproxy.session.greeting import info_of, refusal

SLOW: Final = 0.25
"""The seconds after which a dial no longer holds up the next one."""
_GOOD, _LAME, _REFUSED = range(3)


class Race:
    """One race.

    failures: why endpoints cannot be used.  slow: those that others overtook.  lame: those that greeted in
    lame duck mode.
    shortage: why we could not dial at all, None where we could.
    refused: True if the server that `run` returned cannot be proxied.
    """

    def __init__(self, dial: Callable[[Endpoint], Awaitable[Dialled]]) -> None:
        self.failures: dict[Endpoint, str] = {}
        self.slow: list[Endpoint] = []
        self.lame: list[Endpoint] = []
        self.refused = False
        self.shortage: str | None = None
        self._dial = dial
        self._greeted: dict[int, Dialled] = {}  # the first one of each kind
        self._over = trio.Event()  # the wait for the last dial is over

    async def run(self, endpoints: Sequence[Endpoint]) -> Dialled | None:
        """Return the best server that greets; None where none does."""
        best = None
        try:
            async with trio.open_nursery() as nursery:
                for endpoint in endpoints:
                    self._over = over = trio.Event()
                    nursery.start_soon(self._run_one, endpoint, over, nursery)
                    with trio.move_on_after(SLOW):
                        await over.wait()
                    if _GOOD in self._greeted:
                        break
                    if not over.is_set():
                        self.slow.append(endpoint)
                if _LAME in self._greeted:  # the slow ones had their time
                    nursery.cancel_scope.cancel()
            # A leg that is returned goes on the plane, which closes once everything is cancelled.
            await trio.lowlevel.checkpoint_if_cancelled()
            best = self._greeted[min(self._greeted)] if self._greeted else None
        finally:  # a cancellation, too, leaves no socket behind
            for one in self._greeted.values():
                if one is not best:
                    one.leg.close()
        ended = {*self.failures, *(one.endpoint for one in self._greeted.values())}
        self.slow = [endpoint for endpoint in self.slow if endpoint not in ended]
        self.refused = best is not None and best.endpoint in self.failures
        return best

    async def _run_one(self, endpoint: Endpoint, over: trio.Event, nursery: trio.Nursery) -> None:
        try:
            self._take(await self._dial(endpoint))
        except NoServer as error:
            self.failures[endpoint] = str(error)
        except OwnShortage as error:
            self.shortage = str(error)
        over.set()
        if _GOOD in self._greeted:
            self._over.set()
            if len(nursery.child_tasks) > 1:  # only then: a cancellation is expensive
                nursery.cancel_scope.cancel()

    def _take(self, dialled: Dialled) -> None:
        info, endpoint = info_of(dialled.greeting), dialled.endpoint
        why = refusal(info) if info is not None else "it is no NATS server: its first line is no INFO"
        kind = _GOOD
        if info is None or why is not None:
            self.failures[endpoint] = f"{endpoint}: {why}"
            kind = _REFUSED
        elif info.ldm:
            self.lame.append(endpoint)
            kind = _LAME
        if self._greeted.setdefault(kind, dialled) is not dialled:
            dialled.leg.close()
