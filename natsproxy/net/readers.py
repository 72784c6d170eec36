"""One task that reads many legs: a read then costs a system call, but no round of trio's loop.

Each leg belongs to a task that waits for its end.  The bytes go to a function, which writes at once and never
waits; `room` is awaited where it said that no more should be read for now.
"""

from __future__ import annotations

import select
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from selectors import EVENT_READ, DefaultSelector

import trio

from natsproxy.net.idle_loop import IdleLoop
from natsproxy.net.leg import Leg


@dataclass(slots=True, eq=False)
class _Reader:
    """A leg that is read.  error: raised in the task that it belongs to."""

    leg: Leg
    received: Callable[[bytes], bool]
    ended: trio.Event = field(default_factory=trio.Event)
    error: Exception | None = None

    def read(self) -> None:
        """Read once."""
        try:
            data = self.leg.try_receive()
            if data is None or (data and self.received(data)):
                return
        except Exception as error:
            self.error = error
        self.ended.set()


class Readers:
    """All legs that are read.

    full: tells whether no leg may be read until `room` returns.
    """

    def __init__(self, full: Callable[[], bool], room: Callable[[], Awaitable[None]]) -> None:
        self._full = full
        self._room = room
        self._readers: dict[int, _Reader] = {}
        self._legs = DefaultSelector()
        self._idle = IdleLoop()
        # The legs and trio, to wait for outside trio.
        self._all = select.epoll() if self._idle.fd >= 0 else None
        if self._all is not None:
            self._all.register(self._idle.fd, select.EPOLLIN)

    def close(self) -> None:
        """Free what it holds; nobody reads any more."""
        self._legs.close()
        if self._all is not None:
            self._all.close()

    async def read(self, leg: Leg, received: Callable[[bytes], bool]) -> None:
        """Give the bytes of a leg to `received` until the stream ends, or it returns False.

        Raises LegLost, and what `received` raises.
        """
        reader = _Reader(leg, received)
        fd = leg.fileno()
        self._readers[fd] = reader
        self._legs.register(fd, EVENT_READ)
        if self._all is not None:
            self._all.register(fd, select.EPOLLIN)
        try:
            await reader.ended.wait()
        finally:
            del self._readers[fd]
            self._legs.unregister(fd)
            if self._all is not None:
                with suppress(OSError):  # the leg was closed, and the kernel forgot it
                    self._all.unregister(fd)
        if reader.error is not None:
            raise reader.error

    async def run(self) -> None:
        """Read until cancelled."""
        with self._idle.watched():
            while True:
                await trio.lowlevel.wait_readable(self._legs.fileno())
                self._read(key.fd for key, _ in self._legs.select(0))
                while self._all is not None and not self._full() and (spare := self._idle.spare()):
                    found = [fd for fd, _ in self._all.poll(spare // 1_000_000 / 1000)]
                    if not found or self._idle.fd in found:
                        break
                    self._read(found)
                while self._full():
                    await self._room()

    def _read(self, fds: Iterable[int]) -> None:
        for fd in fds:
            reader = self._readers[fd]
            if not reader.ended.is_set():
                reader.read()
            if self._full():
                return
