"""A leg over another leg: the base of TLS and WebSocket legs.

A layer translates bytes.  The socket and its buffers are the inner leg's.  A subclass has `_decode` and
`_encode`; it sets `_ended` where the peer ended the stream by the layer's means, calls `_cut_off` where the
inner stream ended without that, and `_lose` for a stream that cannot go on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from natsproxy.addresses import Address
from natsproxy.net.leg import AnyLeg, LegLost


class LayeredLeg(ABC):
    """A leg that encodes and decodes the bytes of an inner one (see `AnyLeg`)."""

    def __init__(self, inner: AnyLeg) -> None:
        self._inner = inner
        self._ended = False
        self.broken = False
        self._lost: str | None = None

    # -- for subclasses

    @abstractmethod
    def _decode(self, data: bytes) -> bytes | None:
        """Return the bytes in received ones, `b""` at the end of the stream, None for none yet.

        data: `b""` at the end of the inner stream.  Raises LegLost.
        """

    @abstractmethod
    def _encode(self, parts: list[bytes | memoryview]) -> list[bytes | memoryview]:
        """Return the pieces to send for those that are written, none where none is due yet."""

    def _lose(self, reason: str) -> LegLost:
        """Mark the leg as broken, and return the error to raise."""
        self.broken = True
        self._lost = self._lost or reason
        return LegLost(self, self._lost)

    def _cut_off(self, reason: str) -> None:
        """Note that the stream ended without the layer's own end; the peer may still receive."""
        self._ended = True
        self._lost = self._lost or reason

    # -- bytes

    def try_receive(self) -> bytes | None:
        """Return bytes, `b""` at the end of the stream, or None when there are none yet.  Raises LegLost."""
        if self._ended:
            return b""
        if self.broken:
            raise LegLost(self, self._lost or "")
        try:
            data = self._inner.try_receive()
        except LegLost as lost:
            raise LegLost(self, str(lost)) from None
        return None if data is None else self._decode(data)

    async def receive(self) -> bytes:
        """Return the next bytes, `b""` at the end of the stream.  Raises LegLost."""
        while (data := self.try_receive()) is None:
            await self.wait_readable()
        return data

    async def wait_readable(self) -> None:
        """Wait until there may be something to receive, or the leg is lost; `try_receive` tells which."""
        await self._inner.wait_readable()

    def write(self, data: bytes | memoryview) -> None:
        """Send as much as the kernel takes now and keep the rest for `flush`.  Raises LegLost."""
        self.write_all([data])

    def write_all(self, parts: list[bytes | memoryview]) -> None:
        """Send several pieces; the same as `write` for each in turn.  Raises LegLost."""
        if not self.gone and (data := self._encode(parts)):
            self._send(data)

    def _send(self, pieces: list[bytes | memoryview]) -> None:
        try:
            self._inner.write_all(pieces)
        except LegLost as lost:
            raise LegLost(self, str(lost)) from None

    async def flush(self) -> None:
        """Wait until the kernel has all written bytes; several tasks may wait at once.  Raises LegLost."""
        try:
            await self._inner.flush()
        except LegLost as lost:
            raise LegLost(self, str(lost)) from None

    # -- the end

    def finish(self) -> None:
        """Half-close: the peer sees the end of the stream after the bytes that were sent."""
        self._inner.finish()

    def close(self) -> None:
        """Close; idempotent."""
        self._inner.close()

    def reset(self) -> None:
        """Close with RST, and drop all that is unsent or unread."""
        self._inner.reset()

    # -- facts

    @property
    def backlog(self) -> int:
        """Bytes written that the kernel has not taken yet."""
        return self._inner.backlog

    @property
    def gone(self) -> bool:
        """True if the peer takes no more; writes are dropped."""
        return self.broken or self._inner.gone

    @property
    def lost(self) -> str | None:
        """The reason why it was lost; None where it is not, or the peer had ended the stream."""
        return self._lost or (None if self._ended else self._inner.lost)

    @property
    def readable(self) -> bool:
        """True if bytes are waiting to be received."""
        return self._inner.readable

    @property
    def unread(self) -> int:
        """The bytes that are waiting in the kernel."""
        return self._inner.unread

    @property
    def arrived(self) -> bool:
        """True if the peer's kernel has all that we sent."""
        return self._inner.arrived

    @property
    def delivered(self) -> bool:
        """True if the peer's kernel has all that we sent, and our end."""
        return self._inner.delivered

    @property
    def local(self) -> Address:
        """Our own address and port."""
        return self._inner.local

    @property
    def peer(self) -> str:
        """The peer's address as `host:port`; `gone` where it has left already."""
        return self._inner.peer
