"""The statistics of a proxy: counts of its events, and the sum of the traffic of its connections.

A connection counts its own traffic; the counts of those that have ended are added up here.  The sum over the
open ones is computed on request, a slice at a time, so that thousands of them do not block the loop.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable
from contextlib import aclosing
from typing import Final

import trio

from natsproxy import close_reasons
from natsproxy.admin.connection_facts import ConnectionFacts, facts_at_end
from natsproxy.admin.slices import sliced
from natsproxy.errors import place_of
from natsproxy.events import SHADOWED, Closed, Event, FailedOver, Firing, Notice, RecordingResumed
from natsproxy.net.clock import now_ns
from natsproxy.net.proxy import Proxy
from natsproxy.session.values import Traffic
from natsproxy.units import MICROSECOND, MILLISECOND, SECOND

_UNITS: Final = (
    10 * MICROSECOND,
    100 * MICROSECOND,
    MILLISECOND,
    10 * MILLISECOND,
    100 * MILLISECOND,
    SECOND,
    10 * SECOND,
)
BOUNDS: Final = tuple(number * unit for unit in _UNITS for number in (1, 2, 5))
"""The upper bounds of the buckets, in ns."""


class Durations:
    """A histogram of durations.

    counts: by bucket, those above the last bound at the end.  total: the sum of the durations.
    """

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.total = 0

    def observe(self, ns: int, times: int = 1) -> None:
        """Count a duration."""
        self.counts[bisect_left(BOUNDS, ns)] += times
        self.total += ns * times


_KEPT: Final = 10_000  # connections that have ended: nats-server's default
_LOOK: Final = 0.1  # seconds
_MOST_FIRINGS: Final = 1_000  # pairs of a rule and an action: bounded, since rules come and go
_OTHERS: Final = ("(others)", "")
_MOST_FIRED_BY: Final = 1_000  # of these with a user: bounded, since users come and go


class Statistics:
    """The statistics of one proxy, from now on.

    started: the time of the start on the wall clock (ns).  causes: ended connections by the cause.  firings:
    by rule and action.  fired_by: the same by user and account, too, where these are verified.  delays: that
    rules added to frames.  gaps: of captures.  gap_frames: missing in them.
    failovers: of clients, from the loss of a server until they go on with another one.  failover_refused: the
    requests that were answered by 503 meanwhile.
    steps: those of `Connections.observe`.  lateness: of a task that is due every 100 ms.
    closed: the last connections that have ended, oldest first.  report: takes a message about a bug here.
    """

    def __init__(self, proxy: Proxy, report: Callable[[str], None]) -> None:
        self.proxy = proxy
        self._report = report
        self.started = time.time_ns()
        self.causes: Counter[str] = Counter(dict.fromkeys(close_reasons.ALL, 0))
        self.firings: Counter[tuple[str, str]] = Counter()
        self.fired_by: Counter[tuple[str, str, str, str]] = Counter()
        self.delays = Durations()
        self.gaps = self.gap_frames = self.failover_refused = 0
        self.failovers = Durations()
        self.closed: deque[ConnectionFacts] = deque(maxlen=_KEPT)
        self._ended = Traffic()
        self.steps = Durations()
        self.lateness = Durations()
        proxy.subscribe(self._take)
        proxy.connections.observe = self.steps.observe

    def _take(self, event: Event) -> None:
        try:
            self._count(event)
        except Exception as error:  # a bug here must not end what emitted the event
            if not isinstance(event, Notice):
                self._report(f"an event was not counted, please report it: {place_of(error)}")

    def _count(self, event: Event) -> None:
        if isinstance(event, Closed):
            self.causes[event.cause] += 1
            relay = self.proxy.relays.get(event.conn)
            if relay is not None:
                self._ended.add(relay.session.traffic())  # it has caught up
                self.closed.append(facts_at_end(relay, event, self.epoch()))
        elif isinstance(event, Firing):
            pair = (event.rule, event.action)
            known = pair in self.firings or len(self.firings) < _MOST_FIRINGS
            self.firings[pair if known else _OTHERS] += event.count
            whose = (*pair, *event.who.labels)
            known = whose in self.fired_by or len(self.fired_by) < _MOST_FIRED_BY
            self.fired_by[whose if known else (*_OTHERS, "", "")] += event.count
            if event.delay:
                self.delays.observe(event.delay, event.count)
        elif isinstance(event, RecordingResumed):
            self.gaps += 1
            self.gap_frames += event.frames
        elif isinstance(event, FailedOver):
            self.failovers.observe(event.lasted)
            self.failover_refused += event.refused

    def would_fire(self, rule: str) -> int:
        """Return how often a rule of that name would have acted, had it not been in shadow."""
        return sum(self.firings[rule, action] for action in SHADOWED)

    @staticmethod
    def epoch() -> int:
        """Return the time on the wall clock (ns since 1970) at which the proxy's clock began."""
        return time.time_ns() - now_ns()

    async def watch_loop(self) -> None:
        """Measure how late the loop runs a task that is due, until cancelled."""
        while True:
            due = trio.current_time() + _LOOK
            await trio.sleep_until(due)
            self.lateness.observe(max(0, int((trio.current_time() - due) * SECOND)))

    async def traffic(self) -> tuple[Traffic, int]:
        """Return the traffic of all connections, ended or not, and the number of live subscriptions."""
        total, subscriptions = self._ended.copy(), 0
        # One moment for both: a connection that ends meanwhile is in the list, and not in what has ended.
        async with aclosing(sliced(list(self.proxy.relays.values()))) as relays:
            async for relay in relays:
                relay.catch_up()
                total.add(relay.session.traffic())
                subscriptions += len(relay.session.subs)
        return total, subscriptions
