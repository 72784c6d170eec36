"""Arriving clients: no more of them log in at once than can be served in time; the others wait in line.

Many clients come at once after a restart, and each gives up after two seconds or so.  If all of them were
served at once, each would wait for all the others, and most of the work would be for clients that left.

Theory
1. A client is *on its way* from its accept to its first PONG.  `limit` bounds how many are.  One that waits
   for its server for `LONGEST`, or that says nothing for `SILENT` after its INFO, goes on without being
   counted: it costs nothing meanwhile, so it keeps nobody out.
2. The limit follows a measurement: the time that a dial takes, until the server's INFO is there.  Where it is
   longer than `SLOW` beyond twice the time without load, there are too many; where it is not, and others
   wait, there may be more.  Time that a client takes does not count: it may be far away.
3. Those that must wait are accepted but get no byte.  They stand in a line by address, and the addresses take
   turns, so that a client that connects in a loop delays only those of its own address.  The line is bounded;
   behind it there is the kernel's queue, which is first come, first served.
   Once the first one of an address has waited for `STALE`, its newest client has every other turn.  Where
   all take longer than the clients wait, the first one always gives up before it is served, and in order of
   arrival nobody would be.
4. A connection that has lost its server, or whose first dial found none, stands in the same line before it
   dials again: when a server dies, a thousand others may need another one at once.
5. A *storm* begins when a client has to wait, and is over when nobody has for `QUIET`.  One in which somebody
   waited for `WORTH` is reported, at its end.
"""

from __future__ import annotations

import resource
import socket
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Final, NamedTuple

import trio

from natsproxy.addresses import address_of
from natsproxy.events import Event, Notice
from natsproxy.net.leg import has_left
from natsproxy.net.timeslice import LENGTH
from natsproxy.units import MILLISECOND, SECOND

FIRST_LIMIT: Final = 64
LEAST: Final = 16
"""The lowest limit: so few are no load, and the time that a dial takes then is the time without load."""
MOST: Final = 1_024
LONGEST: Final = SECOND
SILENT: Final = SECOND // 4
SLOW: Final = 20 * MILLISECOND
QUIET: Final = SECOND
WORTH: Final = 100 * MILLISECOND
STALE: Final = SECOND
"""Half of the time after which NATS clients give up."""
LINE: Final = 4_096
"""Clients in the line at most; fewer where the process may open few files."""


Beginning = tuple[int, Callable[[], None]]
"""The number of a connection, and the function that lets it begin."""
Take = Callable[[socket.socket], Beginning]
"""Takes the socket of a client."""


class Waiting(NamedTuple):
    """A client or connection in the line.  host: its address.  since: the begin of its wait (ns).

    turn: called when it is its turn; returns None where it has left.  close: called instead at the end of the
    proxy.
    """

    host: str
    since: int
    turn: Callable[[], Beginning | None]
    close: Callable[[], None]


class _Line(deque[Waiting]):
    """The clients of one address, the oldest first."""

    newest_is_next = False

    def take(self, now: int) -> Waiting:
        """Take out the one whose turn it is."""
        self.newest_is_next = now - self[0].since >= STALE and not self.newest_is_next
        return self.pop() if self.newest_is_next else self.popleft()


class Arrivals:
    """The arrivals of one proxy.

    emit: takes the report of a storm.  gone: takes the `host:port` of a client that left while it waited.
    clock: in nanoseconds.  limit: of the clients that are on their way.  delayed: how many clients have had
    to wait.  longest: the longest wait of the storm (ns).
    """

    def __init__(
        self, emit: Callable[[Event], None], gone: Callable[[str], None], clock: Callable[[], int]
    ) -> None:
        self._emit = emit
        self._gone = gone
        self._clock = clock
        self.limit = float(FIRST_LIMIT)
        self.delayed = 0
        self.longest = 0
        self._most_waiting = _line()
        self._opening: dict[int, int] = {}  # since when, by the number of the connection; oldest first
        self._greeted: dict[int, int] = {}  # the same, since the INFO
        self._line: OrderedDict[str, _Line] = OrderedDict()  # by address, the next one first
        self._waiting = 0
        self._closed = False
        self._usual: int | None = None  # the time of a dial without load
        self._until_slower = 0  # dials that were begun before the limit was lowered
        self._wake = trio.Event()
        self._shorter = trio.Event()  # the line has become shorter
        self._since: int | None = None  # of the storm; None: there is none
        self._last = self._came = self._left = 0

    # -- facts

    @property
    def on_their_way(self) -> int:
        """The clients that are counted as on their way."""
        return len(self._opening) + len(self._greeted)

    @property
    def waiting(self) -> int:
        """The clients in the line."""
        return self._waiting

    # -- the line

    @property
    def full(self) -> bool:
        """True if the line takes no more."""
        return self._waiting >= self._most_waiting

    async def wait_shorter(self) -> None:
        """Wait until the line has become shorter."""
        if self._shorter.is_set():
            self._shorter = trio.Event()
        await self._shorter.wait()

    def come(self, client: socket.socket, host: str, port: int, take: Take, *, more: bool) -> bool:
        """Take a client that was accepted, now or when it is its turn; return whether it was taken now.

        take: takes its socket.  more: another one was taken just now, and open connections are to run before
        the next.
        """
        now = self._clock()
        waiting = Waiting(host, now, partial(self._take, client, host, port, take), client.close)
        if not more and not self._waiting and self._has_room(now):
            return self._begin(waiting, now)
        self._stand_in_line(waiting)
        return False

    def _take(self, client: socket.socket, host: str, port: int, take: Take) -> Beginning | None:
        if not has_left(client):  # it may be back already: serving it delays others
            return take(client)
        client.close()
        self._gone(str(address_of(host, port)))
        return None

    async def turn(self, conn: int, host: str) -> None:
        """Wait until an open connection may dial: then it is on its way.  host: of its client's address."""
        self.arrived(conn)  # it may have lost its next server on its way
        now, begun, left = self._clock(), trio.Event(), False
        if self._closed:
            return
        if not self._waiting and self._has_room(now):
            self._opening[conn] = now
            return

        def its_turn() -> Beginning | None:
            return None if left else (conn, begun.set)

        self._stand_in_line(Waiting(host, now, its_turn, begun.set))
        try:
            await begun.wait()
        except trio.Cancelled:
            left = True
            raise

    def _stand_in_line(self, waiting: Waiting) -> None:
        if self._since is None:
            self._since = waiting.since
        self._line.setdefault(waiting.host, _Line()).append(waiting)
        self._waiting += 1
        self.delayed += 1
        if self._waiting == 1:
            self._wake.set()

    def _next(self) -> Waiting:
        """Take out the next client of the line; its address goes behind the others."""
        host, clients = self._line.popitem(last=False)
        found = clients.take(self._clock())
        if clients:
            self._line[host] = clients
        self._waiting -= 1
        self._shorter.set()
        return found

    def _begin(self, waiting: Waiting, now: int) -> bool:
        """Let a client go on, unless it has left; return whether it has not."""
        if self._since is not None:
            self._last = now
            self._came += 1
            self.longest = max(self.longest, now - waiting.since)
        beginning = waiting.turn()
        if beginning is None:
            self._left += self._since is not None
            return False
        conn, begin = beginning
        self._opening[conn] = now
        begin()
        return True

    def _has_room(self, now: int) -> bool:
        for counted, longest in ((self._opening, LONGEST), (self._greeted, SILENT)):
            while counted and now - counted[first := next(iter(counted))] >= longest:
                del counted[first]
        return self.on_their_way < int(self.limit)

    # -- the way of a client

    def greeted(self, conn: int, took: int) -> None:
        """Note that the server of a connection has sent INFO, which its client gets now.

        took: the time of the dial (ns).
        """
        if self._opening.pop(conn, None) is not None:
            self._greeted[conn] = self._clock()
            self._measure(took)

    def arrived(self, conn: int) -> None:
        """Note that a connection has had its first PONG, or has ended, or waits for a server; idempotent."""
        if self._greeted.pop(conn, None) is None:
            self._opening.pop(conn, None)
        if self._waiting:
            self._wake.set()

    def _measure(self, took: int) -> None:
        """Adapt the limit to the time that a dial took."""
        if self._until_slower:
            self._until_slower -= 1
        light = self.limit <= LEAST or (not self._waiting and self.on_their_way <= LEAST)
        if light:
            self._usual = took if self._usual is None else self._usual + (took - self._usual) // 8
        if took <= SLOW + 2 * (self._usual or 0):
            if self._waiting:
                self.limit = min(MOST, self.limit + 0.25)
        elif not self._until_slower:
            self.limit = max(LEAST, self.limit * 0.8)
            self._until_slower = self.on_their_way

    # -- time

    async def run(self) -> None:
        """Let clients of the line begin when it is their turn, and report storms, until cancelled."""
        while True:
            while self._begin_next():
                await trio.lowlevel.checkpoint()
            since = self._since
            if since is not None and not self._waiting and self._clock() - self._last >= QUIET:
                self._end_storm(since)
            self._wake = trio.Event()
            with trio.move_on_after(self._pause()):
                await self._wake.wait()

    def close(self) -> None:
        """Close the clients of the line, as the kernel does with its queue; connections wait no more."""
        self._closed = True
        while self._waiting:
            self._next().close()
        if self._since is not None:
            self._end_storm(self._since)

    def _pause(self) -> float:
        """Return the seconds until there is something to do without a call."""
        now = self._clock()
        if self._waiting:  # until the first one is no longer counted
            ends = [
                next(iter(counted.values())) + longest
                for counted, longest in ((self._opening, LONGEST), (self._greeted, SILENT))
                if counted
            ]
            return max(0, min(ends) - now) / SECOND if ends else 0
        return max(0, self._last + QUIET - now) / SECOND if self._since is not None else inf

    def _begin_next(self) -> bool:
        """Let the next client begin; return whether another one may, once open connections had a turn.

        Clients of the line that have left are closed, for a time slice at most.
        """
        now, until = self._clock(), time.perf_counter_ns() + LENGTH
        while self._waiting and self._has_room(now):
            if self._begin(self._next(), now) or time.perf_counter_ns() >= until:
                return True
        return False

    def _end_storm(self, since: int) -> None:
        """Report a storm that is over.  since: its begin."""
        now = self._clock()
        if self.longest >= WORTH:
            facts: dict[str, object] = {
                "clients": self._came,
                "left": self._left,
                "seconds": round((self._last - since) / SECOND, 3),
                "longest_wait": round(self.longest / SECOND, 3),
            }
            self._emit(Notice(now, None, "info", "many clients came at once", facts))
        self._since = None
        self._came = self._left = self.longest = 0


def _line() -> int:
    """Return how many clients may stand in the line: at most a quarter of the descriptors."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return LINE if most == resource.RLIM_INFINITY else max(1, min(LINE, most // 4))
