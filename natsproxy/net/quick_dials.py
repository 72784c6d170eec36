"""Dials without a task each: those of servers that nearly always greet at once.

One task waits for the first lines of all of them, and another one for the time from which the oldest is slow:
a scope for each wait would cost more than the wait.  What is not usual (a refusal, a slow server, the end of
a stream) is for `dial.py`, which goes on with the connection.
"""

from __future__ import annotations

import errno
import select
import socket
import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import trio

from natsproxy.net.dial import LONGEST_LINE, SLOW, BegunDial
from natsproxy.net.endpoints import Endpoint
from natsproxy.net.leg import Leg, LegLost
from natsproxy.net.timeslice import LENGTH

AVAILABLE: Final = hasattr(select, "epoll")
_EVENTS: Final = 16
Then = Callable[[BegunDial | None], None]


class _Waiting(NamedTuple):
    dial: BegunDial
    since: float  # of trio's clock
    then: Then


class QuickDials:
    """The dials of one proxy.  keepalive: of their sockets."""

    def __init__(self, *, keepalive: bool) -> None:
        self._keepalive = keepalive
        self._epoll = select.epoll() if AVAILABLE else None
        self._waiting: dict[int, _Waiting] = {}  # by descriptor, oldest first
        self._begun = trio.Event()  # set by a dial that has none beside it

    def begin(self, endpoint: Endpoint, then: Then) -> bool:
        """Dial an endpoint; return False where that fails at once.

        then: called with the dial and its first line, or at the time from which it is slow, or lost.
        """
        if self._epoll is None:
            return False
        try:
            sock = socket.socket(endpoint.family, socket.SOCK_STREAM)
        except OSError:
            return False
        sock.setblocking(False)
        try:
            if sock.connect_ex(endpoint.sockaddr) not in (0, errno.EINPROGRESS):
                raise OSError
            self._epoll.register(sock, select.EPOLLIN)
        except OSError:
            sock.close()
            return False
        since = trio.current_time()
        if not self._waiting:
            self._begun.set()
        dial = BegunDial(endpoint, Leg(sock, keepalive=self._keepalive))
        self._waiting[sock.fileno()] = _Waiting(dial, since, then)
        return True

    async def run(self) -> None:
        """Wait for the servers, until cancelled."""
        if self._epoll is None:
            return
        with self._epoll as epoll:
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._watch, epoll)
                    while True:
                        await trio.lowlevel.wait_readable(epoll.fileno())
                        self._look(epoll)
            finally:
                self._epoll = None

    async def _watch(self, epoll: select.epoll) -> None:
        """Give up the dials that are slow.  Those that end meanwhile wake nobody."""
        while True:
            if (since := self._oldest()) is None:
                self._begun = trio.Event()
                await self._begun.wait()
                continue
            await trio.sleep_until(since + SLOW)
            self._look(epoll)  # what has come just now is in time
            self._give_up(trio.current_time() - SLOW)

    def _oldest(self) -> float | None:
        """Return when the oldest dial was begun; None for none."""
        return next((waiting.since for waiting in self._waiting.values()), None)

    def _look(self, epoll: select.epoll) -> None:
        """Read first lines, for a time slice."""
        until = time.perf_counter_ns() + LENGTH
        for fd, _ in epoll.poll(0, _EVENTS):
            line = _first_line(self._waiting[fd].dial)
            if line is not None:
                self._end(fd, usable=line)
            if time.perf_counter_ns() >= until:  # the others are there the next time
                return

    def _give_up(self, since: float) -> None:
        """End the dials that were begun so long ago."""
        while self._waiting:
            fd, waiting = next(iter(self._waiting.items()))
            if waiting.since > since:
                return
            self._end(fd, usable=True)

    def _end(self, fd: int, *, usable: bool) -> None:
        """Give a dial back.  usable: its connection is; else the endpoint is to be dialled anew."""
        assert self._epoll is not None
        self._epoll.unregister(fd)
        dial, since, then = self._waiting.pop(fd)
        dial.seconds = trio.current_time() - since
        if not usable:
            dial.close()
        then(dial)

    def stop(self) -> Iterator[Then]:
        """Close the dials; yield what waits for them, which is to be called with None; call last."""
        while self._waiting:
            _, (dial, _, then) = self._waiting.popitem()
            dial.close()
            yield then


def _first_line(dial: BegunDial) -> bool | None:
    """Read from a server; return whether there is a first line, None where it is yet to come."""
    assert dial.leg is not None
    try:
        data = dial.leg.try_receive()
    except LegLost:
        return False
    if not data:
        return None if data is None else False
    dial.said += data
    return True if b"\n" in dial.said or len(dial.said) >= LONGEST_LINE else None
