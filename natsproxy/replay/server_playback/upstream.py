"""The real server behind a cassette, for unrecorded input: one plain connection per client."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import trio

from natsproxy.addresses import Address
from natsproxy.net.leg import Leg, LegLost
from natsproxy.replay.errors import ServerLost
from natsproxy.replay.handshake import UNLIMITED, open_connection, receive
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import S2C, Op
from natsproxy.wire.parse import EVERYTHING
from natsproxy.wire.scanner import Scanner

_CONNECT: Final = (
    b'{"verbose":false,"pedantic":false,"protocol":1,"headers":true,"no_responders":true,"lang":"natsproxy"}'
)


class Upstream:
    """Carries a client's unrecorded frames to a real server; `deliver` gets its messages, errors and PONGs.

    behind: connections whose first frames the server must have handled before this one sends anything.
    backlog: bytes that the server has not read yet; a sender waits in `room` when they are too many.
    passed: set when others need not wait for this one.
    """

    def __init__(
        self, address: Address, deliver: Callable[[Frame], None], *, behind: Sequence[Upstream] = ()
    ) -> None:
        self.address = address
        self.backlog = 0
        self.passed = trio.Event()
        self.passed.set()
        self._behind = behind
        self._deliver = deliver
        self._parts: list[bytes] = []
        self._more = trio.Event()
        self._sent = trio.Event()
        self._scope = trio.CancelScope()

    def send(self, data: bytes) -> None:
        """Send whole client frames."""
        self._parts.append(data)
        self.backlog += len(data)
        self._more.set()

    def send_barrier(self, data: bytes) -> None:
        """Send the first frames; other connections wait until the server has handled them."""
        self.passed = trio.Event()
        self.send(data + encode.PING)

    async def room(self) -> None:
        """Wait until some of the backlog was sent, or the connection has ended."""
        await self._sent.wait()

    def close(self) -> None:
        """End the connection."""
        self._scope.cancel()

    async def run(self) -> None:
        """Connect, and carry frames until `close` or the server's end.

        Raises ConfigError or ReplayError if the server cannot be used, ServerLost if it closes at once.
        """
        try:
            with self._scope:
                await self._carry()
        finally:
            self.backlog = 0
            self._sent.set()
            self.passed.set()

    async def _carry(self) -> None:
        try:
            leg, early = await open_connection(self.address, lambda info: _CONNECT)
        except LegLost as lost:
            raise ServerLost(f"nats://{self.address}: {lost}") from None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write, leg)
                await self._read(leg, early)
                nursery.cancel_scope.cancel()
        finally:
            leg.close()

    async def _write(self, leg: Leg) -> None:
        for other in self._behind:
            await other.passed.wait()
        with suppress(LegLost):  # the reading task sees the end, too
            while True:
                # Frames that came during a flush go out together in the next one.
                while self._parts:
                    data, self._parts = b"".join(self._parts), []
                    leg.write(data)
                    await leg.flush()
                    self.backlog -= len(data)
                    self._sent.set()
                    self._sent = trio.Event()
                self._more = trio.Event()
                await self._more.wait()

    async def _read(self, leg: Leg, early: bytes) -> None:
        scanner = Scanner(S2C, EVERYTHING, buffer_limit=UNLIMITED, hold=UNLIMITED)
        data = early
        with suppress(LegLost):
            while True:
                scanner.feed(data)
                while (frame := scanner.next()) is not None:
                    if not isinstance(frame, Frame):
                        return
                    if frame.op == Op.PING:
                        self.send(encode.PONG)
                    elif frame.op == Op.PONG and not self.passed.is_set():
                        self.passed.set()
                    elif frame.op in (Op.MSG, Op.HMSG, Op.ERR, Op.PONG):
                        self._deliver(frame)
                data = await receive(leg)
                if not data:
                    return
