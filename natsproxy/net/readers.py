"""One task that reads many legs: a read costs a system call, and no round of trio's loop.

Each leg belongs to a task that waits for its end.  The bytes go to a function, which writes at once and never
waits; `room` is awaited where it said that no more should be read for now.
"""

from __future__ import annotations

import select
from collections.abc import Awaitable, Callable
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
        self._selector = DefaultSelector()

    def close(self) -> None:
        """Free what it holds; nobody reads any more."""
        self._selector.close()

    async def read(self, leg: Leg, received: Callable[[bytes], bool]) -> None:
        """Give the bytes of a leg to `received` until the stream ends, or it returns False.

        Raises LegLost, and what `received` raises.
        """
        reader = _Reader(leg, received)
        fd = leg.fileno()
        self._selector.register(fd, EVENT_READ, reader)
        try:
            await reader.ended.wait()
        finally:
            self._selector.unregister(fd)
        if reader.error is not None:
            raise reader.error

    async def run(self) -> None:
        """Read until cancelled."""
        idle = IdleLoop()
        bytes_or_trio = select.poll()
        for fd in (self._selector.fileno(), idle.fd):
            if fd >= 0:
                bytes_or_trio.register(fd, select.POLLIN)
        with idle.watched():
            while True:
                await trio.lowlevel.wait_readable(self._selector.fileno())
                self._read()
                while not self._full() and (spare := idle.spare()):
                    found = bytes_or_trio.poll(spare // 1_000_000)
                    if not found or any(fd == idle.fd for fd, _ in found):
                        break
                    self._read()
                while self._full():
                    await self._room()

    def _read(self) -> None:
        for key, _ in self._selector.select(0):
            reader: _Reader = key.data
            if not reader.ended.is_set():
                reader.read()
            if self._full():
                return
