"""The meter of requests in pure Python; see `request_meter.py`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Final, NamedTuple

from natsproxy.protocol.patternset import PatternSet
from natsproxy.protocol.template import template
from natsproxy.units import MICROSECOND, MILLISECOND, MINUTE, SECOND

ROOM: Final = 100
LONGEST: Final = 256
IDLE: Final = 10 * MINUTE
LOOK: Final = SECOND
"""The time (ns) between two searches for a series that makes room."""
BOUNDS: Final = (
    *(number * unit for unit in (100 * MICROSECOND, MILLISECOND) for number in (1, 2, 5)),
    *(number * unit for unit in (10 * MILLISECOND, 100 * MILLISECOND, SECOND) for number in (1, 2, 5)),
    10 * SECOND,
)
"""The upper bounds of the buckets, in ns."""
OTHER: Final = 0
"""The number of the series that many share."""
_TIME: Final = 48  # bits of a ticket for the time (us); above them the numbers of two series
_SERIES: Final = 7
_GIVEN: Final = 1 << (_TIME + 2 * _SERIES)  # no ticket is 0


class Bucket(NamedTuple):
    """A bucket of a histogram.

    requests: those in it.  conn, latency, at: the connection of the last one, its latency (ns) and the
    time of its answer (ns, by the proxy's clock).
    """

    requests: int = 0
    conn: int = 0
    latency: int = 0
    at: int = 0


class Series(NamedTuple):
    """The requests on a subject, or of a client.

    key: the template or pattern, or the account and the user with a NUL between; None for the others.
    requests: all that were made.  no_responders: those answered by the server's 503, which are in no bucket.
    total: the sum of the latencies (ns).  buckets: one for each of `BOUNDS`, and one above.
    """

    key: bytes | None
    requests: int
    no_responders: int
    total: int
    buckets: tuple[Bucket, ...]


class _Series:
    __slots__ = ("buckets", "key", "no_responders", "requests", "total", "used")

    def __init__(self, key: bytes | None) -> None:
        self.key = key
        self.requests = self.no_responders = self.total = self.used = 0
        self.buckets = [Bucket()] * (len(BOUNDS) + 1)

    def requested(self, now: int) -> None:
        self.requests += 1
        self.used = now

    def answered(self, latency: int, conn: int, now: int, *, no_responders: bool) -> None:
        self.used = now
        if no_responders:
            self.no_responders += 1
            return
        self.total += latency
        place = bisect_left(BOUNDS, latency)
        self.buckets[place] = Bucket(self.buckets[place].requests + 1, conn, latency, now)


class _Ledger:
    """The series of one sort, by their numbers, and those numbers by key."""

    def __init__(self) -> None:
        self.series = [_Series(None)]
        self._numbers: dict[bytes, int] = {}
        self._looked = 0

    def number(self, key: bytes, now: int) -> int:
        """Return the number of a key's series, a new one where there is room."""
        known = self._numbers.get(key)
        if known is not None:
            return known
        if len(self.series) <= ROOM:
            self.series.append(_Series(key))
            place = len(self.series) - 1
        else:
            place = self._idle(now)
            if place == OTHER:
                return OTHER
            del self._numbers[self.series[place].key or b""]
            self.series[place] = _Series(key)
        self._numbers[key] = place
        return place

    def _idle(self, now: int) -> int:
        if now - self._looked < LOOK:
            return OTHER
        self._looked = now
        place = min(range(1, len(self.series)), key=lambda at: self.series[at].used)
        return place if now - self.series[place].used > IDLE else OTHER

    def read(self) -> list[Series]:
        """Return all series, the shared one first."""
        return [
            Series(one.key, one.requests, one.no_responders, one.total, tuple(one.buckets))
            for one in self.series
        ]


class RequestMeter:
    """The requests of all connections of a proxy.

    patterns: of the subjects that count, in their order, at most `ROOM`; None: all count, by their templates.
    """

    def __init__(self, patterns: tuple[bytes, ...] | None = None) -> None:
        if patterns is not None and len(patterns) > ROOM:
            raise ValueError(f"there can be {ROOM} patterns at most")
        self._subjects, self._clients = _Ledger(), _Ledger()
        self._number: Callable[[bytes, int], int | None] = self._by_template
        if patterns is not None:
            numbers = [(pattern, self._subjects.number(pattern, 0)) for pattern in patterns]
            self._patterns = PatternSet(numbers)
            self._number = self._by_pattern

    def _by_template(self, subject: bytes, now: int) -> int:
        if len(subject) > LONGEST or not subject.isascii():
            return OTHER
        return self._subjects.number(template(subject), now)

    def _by_pattern(self, subject: bytes, now: int) -> int | None:
        return self._patterns.first(subject)

    def client(self, conn: int) -> ClientMeter:
        """Return the meter of the connection of that number."""
        return ClientMeter(self, conn)

    def subjects(self) -> list[Series]:
        """Return the series of subjects, the shared one first."""
        return self._subjects.read()

    def clients(self) -> list[Series]:
        """Return the series of clients, the shared one first."""
        return self._clients.read()

    def requested(self, subject: bytes, client: bytes, now: int) -> int:
        """Take a request; return its ticket."""
        subject_number = self._number(subject, now)
        if subject_number is None:
            return 0
        client_number = OTHER if len(client) > LONGEST else self._clients.number(client, now)
        self._subjects.series[subject_number].requested(now)
        self._clients.series[client_number].requested(now)
        at = now // MICROSECOND & ((1 << _TIME) - 1)
        return _GIVEN | subject_number << (_TIME + _SERIES) | client_number << _TIME | at

    def answered(self, ticket: int, conn: int, now: int, *, no_responders: bool) -> None:
        """Take the answer to the request of a ticket."""
        begun = (ticket & ((1 << _TIME) - 1)) * MICROSECOND
        latency = max(0, now - begun)
        subject = ticket >> (_TIME + _SERIES) & ((1 << _SERIES) - 1)
        client = ticket >> _TIME & ((1 << _SERIES) - 1)
        if latency > IDLE:  # the numbers may be those of other series by now
            subject = client = OTHER
        self._subjects.series[subject].answered(latency, conn, now, no_responders=no_responders)
        self._clients.series[client].answered(latency, conn, now, no_responders=no_responders)


class ClientMeter:
    """The requests of one connection (see `awaited.Meter`).

    now: the time of the bytes that are scanned (ns).
    """

    def __init__(self, meter: RequestMeter, conn: int) -> None:
        self.now = 0
        self._meter, self._conn = meter, conn
        self._key: bytes | None = None

    def identify(self, account: str, user: str) -> None:
        """Count requests from now on, as those of this user of this account."""
        self._key = f"{account}\0{user}".encode("utf-8", "replace")

    def requested(self, subject: bytes) -> int:
        """Take a request; return its ticket."""
        return 0 if self._key is None else self._meter.requested(subject, self._key, self.now)

    def answered(self, ticket: int, *, no_responders: bool) -> None:
        """Take the answer to the request of a ticket."""
        self._meter.answered(ticket, self._conn, self.now, no_responders=no_responders)
