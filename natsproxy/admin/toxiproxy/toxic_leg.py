"""Legs with toxics: a chain between the session and the socket that a direction goes to.

The chain is after the session, so that it cuts and delays the bytes that a peer gets.  The end of a stream
goes through it too: the leg that it comes from withholds it until it has passed the chain, because the
session would end the connection, and lose what the chain still holds.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from math import inf

import trio

from natsproxy.admin.toxiproxy.stages import END, Chunk, ToxicChain
from natsproxy.net.clock import now_ns
from natsproxy.net.layered_leg import LayeredLeg
from natsproxy.net.leg import AnyLeg, LegLost


class ToxicTraffic:
    """The bytes of one direction of a proxy."""

    def __init__(self) -> None:
        self.received = self.sent = 0


class Flow:
    """One direction of one connection: its chain, and the leg that it goes to.

    traffic: counts its bytes.  ended: the sender's stream has ended.  released: the session may see that end.
    moved: wakes tasks that wait for room in the chain.  closed: called when a toxic ends the connection.
    The loss of the receiver's leg is raised by `put` only; the reader of that leg sees it in any case.
    """

    def __init__(self, target: AnyLeg, traffic: ToxicTraffic, closed: Callable[[ToxicChain], None]) -> None:
        self.chain = ToxicChain()
        self.traffic = traffic
        self.ended = False
        self.released = trio.Event()
        self.moved = trio.lowlevel.ParkingLot()
        self._target = target
        self._closed = closed
        self._finishing = False
        self._woken = trio.Event()

    async def run(self) -> None:
        """Send chunks when they are due, until cancelled."""
        while True:
            self._woken = trio.Event()
            due = self.chain.due
            with trio.move_on_at(inf if due is None else due / 1e9):
                await self._woken.wait()
            self.step()
            with suppress(LegLost):
                await self._target.flush()

    def put(self, data: bytes) -> None:
        """Send bytes.  Raises LegLost."""
        now = now_ns()
        self.chain.put(data, now)
        self._send(self.chain.step(now))

    def end(self) -> None:
        """Note the end of the sender's stream."""
        self.ended = True
        self.chain.end()
        self.step()

    def finish(self) -> None:
        """Half-close the receiver's leg after all bytes in the chain."""
        self._finishing = True
        if self.chain.done:
            self._target.finish()
        else:
            self.chain.end()
            self.step()

    def step(self) -> None:
        """Send what is due."""
        with suppress(LegLost):
            self._send(self.chain.step(now_ns()))

    def remove(self, toxic: str) -> None:
        """Remove a toxic, and send what it held."""
        with suppress(LegLost):
            self._send(self.chain.remove(toxic, now_ns()))

    def _send(self, chunks: list[Chunk]) -> None:
        if self.chain.due is not None:
            self._woken.set()
        self.moved.unpark_all()
        try:
            for chunk in chunks:
                if chunk.data:  # one by one: joined writes would undo the slicer
                    self.traffic.sent += len(chunk.data)
                    self._target.write_all([chunk.data])
        finally:
            if chunks and chunks[-1] is END:
                self._over()

    def _over(self) -> None:
        self.released.set()
        if self.chain.closed_by:
            self._closed(self.chain)
        elif self._finishing:
            self._target.finish()


class ToxicLeg(LayeredLeg):
    """A leg with a chain over it.

    incoming: the flow whose bytes come from it.  outgoing: the one whose bytes go to it.
    """

    def __init__(self, inner: AnyLeg, incoming: Flow, outgoing: Flow) -> None:
        super().__init__(inner)
        self._incoming = incoming
        self._outgoing = outgoing

    def _decode(self, data: bytes) -> bytes | None:
        if data:
            self._incoming.traffic.received += len(data)
            return data
        self._incoming.end()
        if self._outgoing.ended:  # both peers have left: nothing to wait for
            self._outgoing.released.set()
            self._incoming.released.set()
        return self._end()

    def _end(self) -> bytes | None:
        self._ended = self._incoming.released.is_set()
        return b"" if self._ended else None

    def _encode(self, parts: list[bytes | memoryview]) -> list[bytes | memoryview]:
        try:
            self._outgoing.put(b"".join(parts))
        except LegLost as lost:
            raise LegLost(self, str(lost)) from None
        return []  # the flow sends them

    def try_receive(self) -> bytes | None:
        """Return bytes, `b""` at the end of the stream, or None when there are none yet.  Raises LegLost."""
        return self._end() if self._incoming.ended else super().try_receive()

    async def wait_readable(self) -> None:
        """Wait until there may be something to receive, or the leg is lost; `try_receive` tells which."""
        if self._incoming.ended:
            await self._incoming.released.wait()
        else:
            await super().wait_readable()

    async def flush(self) -> None:
        """Wait until the chain takes more, and the kernel has all that came out of it.  Raises LegLost."""
        while self._outgoing.chain.full and not self.gone:
            await self._outgoing.moved.park()
        await super().flush()

    def finish(self) -> None:
        """Half-close: the peer sees the end of the stream after the bytes that were sent."""
        self._outgoing.finish()

    @property
    def backlog(self) -> int:
        """Bytes written that the kernel has not taken yet, and those in the chain where it is full."""
        chain = self._outgoing.chain
        return super().backlog + (chain.held if chain.full else 0)
