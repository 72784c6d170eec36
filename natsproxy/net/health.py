"""The health of endpoints: their order for the next connection, and reports to the operator.

Theory
1. An endpoint that failed comes after those that did not, for a time that doubles with each failure.  It is
   never left out: if all fail, all are tried.
2. An endpoint that accepts no more clients, in lame duck mode or full, comes after all others for a fixed
   time.  It would still greet, so only time brings it back.
3. A greeting before TLS proves nothing about TLS: such an endpoint is healthy once it has sent anything after
   the handshake, and has failed if it ended the connection instead.
4. Where servers are probed at intervals, one that does not answer comes last until it does.
5. The outage of one endpoint, while others serve, is one notice when it begins and one when it is over.
6. The outage of all is a warning when it begins, one more for each further reason, up to a bound, and one
   when it is over, with the number of connections that were turned away.  Warnings for each attempt of each
   client would only repeat these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from natsproxy.events import Event, Notice
from natsproxy.net.endpoints import Endpoint
from natsproxy.units import SECOND

FIRST_WAIT: Final = SECOND
LONGEST_WAIT: Final = 30 * SECOND
ASIDE: Final = 30 * SECOND
MOST_REASONS: Final = 100
"""The reasons of one outage that are reported."""


@dataclass(slots=True)
class _Failure:
    """Consecutive failures of an endpoint: the time of the first, their number, and until when it comes last.

    level: of the notice that reported them, "" for none yet.
    """

    since: int
    count: int = 0
    until: int = 0
    level: str = ""


class Health:
    """The health of the endpoints of a proxy.

    clock: in nanoseconds.  random: shuffles the endpoints; None keeps their order.
    """

    def __init__(
        self, emit: Callable[[Event], None], clock: Callable[[], int], random: Random | None
    ) -> None:
        self._emit = emit
        self._clock = clock
        self._random = random
        self._failures: dict[Endpoint, _Failure] = {}
        self._aside: dict[Endpoint, int] = {}  # until when
        self._unresolved: set[str] = set()  # reasons of names without an endpoint, as reported
        self._reasons: set[str] = set()  # of the outage of all, as reported; empty: there is none
        self._since = 0
        self._turned_away = 0

    def in_order(self, endpoints: Sequence[Endpoint]) -> list[Endpoint]:
        """Return endpoints in the order in which a new connection tries them."""
        now = self._clock()
        self._forget(endpoints, now)
        if len(endpoints) < 2:
            return list(endpoints)
        if self._random is not None:
            endpoints = self._random.sample(endpoints, len(endpoints))
        return sorted(endpoints, key=lambda endpoint: self._rank(endpoint, now))

    def _rank(self, endpoint: Endpoint, now: int) -> tuple[int, int]:
        failure = self._failures.get(endpoint)
        behind_until = failure.until if failure is not None and failure.until > now else 0
        return self._aside.get(endpoint, 0), behind_until

    def _forget(self, endpoints: Sequence[Endpoint], now: int) -> None:
        """Forget what is over, and the endpoints that no name leads to any more."""
        if self._aside:
            self._aside = {one: until for one, until in self._aside.items() if until > now}
        if len(self._failures) > len(endpoints):
            self._failures = {one: self._failures[one] for one in endpoints if one in self._failures}

    # -- one endpoint

    def failed(self, endpoint: Endpoint, *, asked: bool = False) -> None:
        """Put an endpoint behind those that did not fail.  asked: by a probe, and the next one comes soon."""
        now = self._clock()
        failure = self._failures.setdefault(endpoint, _Failure(now))
        wait = LONGEST_WAIT if asked else min(FIRST_WAIT << min(failure.count, 10), LONGEST_WAIT)
        failure.until = max(failure.until, now + wait)
        failure.count += 1

    def answered(self, endpoint: Endpoint) -> None:
        """Note that an endpoint serves."""
        failure = self._failures.pop(endpoint, None)
        if failure is not None and failure.level:
            seconds = round((self._clock() - failure.since) / SECOND, 3)
            self._notice(failure.level, f"the server {endpoint} is back", seconds=seconds)

    def fails(self, endpoint: Endpoint) -> bool:
        """Tell whether an endpoint has failed, and has not served since."""
        return endpoint in self._failures

    def takes_no_more(self, endpoint: Endpoint, reason: str) -> None:
        """Put an endpoint behind all others.  reason: a clause that begins with a verb."""
        if endpoint not in self._aside:
            self._notice("info", f"the server {endpoint} {reason}: others are preferred")
        self._aside[endpoint] = self._clock() + ASIDE

    def report(self, endpoint: Endpoint, reason: str, level: str, *, from_count: int = 1) -> None:
        """Report once, while others serve, that an endpoint has failed so many times in a row."""
        failure = self._failures.get(endpoint)
        if failure is not None and not failure.level and failure.count >= from_count:
            failure.level = level
            self._notice(level, f"a server cannot be used: {reason}")

    def unresolved(self, reasons: Sequence[str]) -> None:
        """Report, while others serve, names that lead to no endpoint; each once."""
        for reason in reasons:
            if reason not in self._unresolved:
                self._notice("warning", f"a server cannot be used: {reason}")
        self._unresolved = set(reasons)

    # -- all of them

    def down(self, reasons: Iterable[str], *, turned_away: bool) -> None:
        """Report that no server can be used.  turned_away: the client that asked is turned away."""
        if not self._reasons:
            self._since = self._clock()
        for reason in reasons:
            if reason not in self._reasons and len(self._reasons) < MOST_REASONS:
                self._reasons.add(reason)
                self._notice("warning", f"the upstream cannot be used: {reason}")
        self._turned_away += turned_away

    def up(self) -> None:
        """Report that a server can be used again."""
        if self._reasons:
            seconds = round((self._clock() - self._since) / SECOND, 3)
            away = self._turned_away
            self._notice("warning", "the upstream is back", seconds=seconds, connections_turned_away=away)
            self._reasons.clear()
            self._turned_away = 0

    def _notice(self, level: str, text: str, **facts: object) -> None:
        self._emit(Notice(self._clock(), None, level, text, facts))
