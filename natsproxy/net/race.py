"""The race for a server: the dials on behalf of one connection.

Endpoints are dialled in their order.  The next dial begins as soon as one has failed, or is slow: a black
hole costs the client a quarter of a second instead of a time-out.  The first server that greets wins, and
the other dials end.

Nearly always the first one greets at once.  So it is dialled alone where it did not let the last client wait,
or is the only one: tasks for a race would take a twentieth of the time of a whole connection.

A server that greets and should not be used is kept for the case that no other greets: one in lame duck mode
still serves, and one that cannot be proxied lets the session tell the client why.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from math import inf
from typing import Final

import trio

from natsproxy.bounded import BoundedDict
from natsproxy.net.dial import Dialled, NoServer
from natsproxy.net.endpoints import Endpoint
from natsproxy.net.shortage import OwnShortage
from natsproxy.session.login import info_of, why_unusable

SLOW: Final = 0.25
"""The seconds after which a dial no longer holds up the next one."""
_GOOD, _LAME, _REFUSED = range(3)


class Race:
    """One race.

    failures: why endpoints cannot be used.  slow: those that others overtook.  lame: those that greeted in
    lame duck mode.
    shortage: why we could not dial at all, None where we could.
    refused: True if the server that `run` returned cannot be proxied.
    dial: see `Dialer.dial`.  quick: the endpoints that were not slow the last time, for the next race too.
    """

    def __init__(
        self,
        dial: Callable[[Endpoint, float], Awaitable[Dialled | None]],
        quick: BoundedDict[Endpoint, None],
    ) -> None:
        self.failures: dict[Endpoint, str] = {}
        self.slow: list[Endpoint] = []
        self.lame: list[Endpoint] = []
        self.refused = False
        self.shortage: str | None = None
        self._dial = dial
        self._quick = quick
        self._greeted: dict[int, Dialled] = {}  # the first one of each kind
        self._over = trio.Event()  # the wait for the last dial is over

    async def run(self, endpoints: Sequence[Endpoint]) -> Dialled | None:
        """Return the best server that greets; None where none does."""
        best = None
        try:
            if left := await self._run_alone(endpoints):
                await self._run_all(left)
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

    async def _run_alone(self, endpoints: Sequence[Endpoint]) -> Sequence[Endpoint]:
        """Dial the first endpoint if it should be quick; return those that are to be dialled after that."""
        first, others = endpoints[0] if endpoints else None, endpoints[1:]
        if first is None or (others and first not in self._quick):
            return endpoints
        if not await self._try(first, SLOW if others else inf):
            self._is_slow(first)
            return [*others, first]  # it is dialled anew: it may be the only one that serves
        return () if _GOOD in self._greeted else others

    async def _run_all(self, endpoints: Sequence[Endpoint]) -> None:
        """Dial endpoints, each in a task of its own, until one is good."""
        async with trio.open_nursery() as nursery:
            for endpoint in endpoints:
                self._over = over = trio.Event()
                nursery.start_soon(self._run_one, endpoint, over, nursery)
                with trio.move_on_after(SLOW):
                    await over.wait()
                if _GOOD in self._greeted:
                    break
                if not over.is_set():
                    self._is_slow(endpoint)
            if _LAME in self._greeted:  # the slow ones had their time
                nursery.cancel_scope.cancel()

    def _is_slow(self, endpoint: Endpoint) -> None:
        self._quick.pop(endpoint, None)
        if endpoint not in self.slow:
            self.slow.append(endpoint)

    async def _try(self, endpoint: Endpoint, within: float = inf) -> bool:
        """Dial an endpoint; return whether it was done within these seconds."""
        try:
            dialled = await self._dial(endpoint, within)
        except NoServer as error:
            self.failures[endpoint] = str(error)
        except OwnShortage as error:
            self.shortage = str(error)
        else:
            if dialled is None:
                return False
            self._take(dialled)
        return True

    async def _run_one(self, endpoint: Endpoint, over: trio.Event, nursery: trio.Nursery) -> None:
        begun = trio.current_time()
        await self._try(endpoint)
        if trio.current_time() - begun < SLOW:
            self._quick[endpoint] = None
        over.set()
        if _GOOD in self._greeted:
            self._over.set()
            if len(nursery.child_tasks) > 1:  # only then: a cancellation is expensive
                nursery.cancel_scope.cancel()

    def _take(self, dialled: Dialled) -> None:
        info, endpoint = info_of(dialled.greeting), dialled.endpoint
        why = why_unusable(info) if info is not None else "it is no NATS server: its first line is no INFO"
        kind = _GOOD
        if info is None or why is not None:
            self.failures[endpoint] = f"{endpoint}: {why}"
            kind = _REFUSED
        elif info.ldm:
            self.lame.append(endpoint)
            kind = _LAME
        if self._greeted.setdefault(kind, dialled) is not dialled:
            dialled.leg.close()
