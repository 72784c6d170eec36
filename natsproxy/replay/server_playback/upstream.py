"""The real server behind a cassette, for input that was not recorded: one plain connection per client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from natsproxy.config.settings import Address
from natsproxy.replay.errors import ReplayError
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import S2C, Op
from natsproxy.wire.parse import EVERYTHING
from natsproxy.wire.scanner import Scanner

CONNECT_TIMEOUT: Final = 5.0
_CONNECT: Final = (
    b'{"verbose":false,"pedantic":false,"protocol":1,"headers":true,"no_responders":true,"lang":"natsproxy"}'
)


class Upstream:
    """Carries a client's unrecorded frames to a real server; `deliver` gets its messages and errors.

    backlog: bytes that the server has not taken yet; who sends waits for `room` when they become many.
    """

    def __init__(self, address: Address, deliver: Callable[[Frame], None]) -> None:
        self.address = address
        self.backlog = 0
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

    async def room(self) -> None:
        """Wait until something of what waits was sent, or the connection has ended."""
        await self._sent.wait()

    def close(self) -> None:
        """End the connection."""
        self._scope.cancel()

    async def run(self) -> None:
        """Dial and carry until `close`.

        Raises ReplayError when the server cannot be reached.
        """
        try:
            with self._scope:
                await self._carry()
        finally:
            self.backlog = 0
            self._sent.set()

    async def _carry(self) -> None:
        try:
            with trio.fail_after(CONNECT_TIMEOUT):
                stream = await trio.open_tcp_stream(self.address.host, self.address.port)
        except (OSError, trio.TooSlowError) as error:
            raise ReplayError(f"cannot reach the upstream {self.address}: {error}") from None
        async with stream, trio.open_nursery() as nursery:
            await stream.send_all(encode.connect(_CONNECT))
            nursery.start_soon(self._write, stream)
            await self._read(stream)
            nursery.cancel_scope.cancel()

    async def _write(self, stream: trio.SocketStream) -> None:
        while True:
            while self._parts:
                data, self._parts = b"".join(self._parts), []
                await stream.send_all(data)
                self.backlog -= len(data)
                self._sent.set()
                self._sent = trio.Event()
            self._more = trio.Event()
            await self._more.wait()

    async def _read(self, stream: trio.SocketStream) -> None:
        scanner = Scanner(S2C, EVERYTHING, buffer_limit=1 << 30, hold=1 << 30)
        async for data in stream:
            scanner.feed(bytes(data))
            while (frame := scanner.next()) is not None:
                if not isinstance(frame, Frame):
                    return
                if frame.op == Op.PING:
                    self.send(encode.PONG)
                elif frame.op in (Op.MSG, Op.HMSG, Op.ERR):
                    self._deliver(frame)
