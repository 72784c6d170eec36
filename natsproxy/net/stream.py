"""A leg: one non-blocking socket with a try form for everything.

trio charges for every wake-up, so each operation is tried on the socket first and trio is asked to wait only
when it would block.  This is the seam that TLS will fit behind: try-receive, try-send, wait, swap.
Only this module and `net/proxy.py` name socket errors.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from contextlib import suppress

import trio

RECEIVE_SIZE = 65536
RECEIVE_MOST = 262144
_PARTS = 64  # pieces of one system call; of more it is cheaper to make one


class LegLost(Exception):
    """The peer of a leg reset the connection or the network did: it takes no more.

    What it had sent before may still be there to receive.
    """

    def __init__(self, leg: Leg, reason: str) -> None:
        super().__init__(reason)
        self.leg = leg


def taken(stream: trio.SocketStream) -> socket.socket:
    """Take the plain socket out of a trio stream."""
    return socket.socket(fileno=stream.socket.detach())


class Leg:
    """The connection on one side of the proxy.

    gone: the peer takes no more; what is written is dropped.  lost: why, where it had not said goodbye.
    """

    def __init__(self, sock: socket.socket, *, keepalive: bool = True) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._backlog: deque[memoryview] = deque()
        self.backlog = 0
        self._flushing: trio.Event | None = None
        self._open = True
        self.gone = False
        self.lost: str | None = None
        self._ended = False  # the peer has said goodbye
        self._finished = False  # we have
        self._receive_size = RECEIVE_SIZE
        with suppress(OSError):  # the peer may be gone already
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if keepalive:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def try_receive(self) -> bytes | None:
        """Return bytes, `b""` at EOF, or None when nothing is there yet."""
        try:
            data = self._sock.recv(self._receive_size)
        except BlockingIOError:
            return None
        except OSError as error:
            raise self._lose(error) from None
        self._ended = not data
        if len(data) == self._receive_size < RECEIVE_MOST:
            self._receive_size *= 2  # more is waiting: fewer, larger reads
        return data

    async def wait_readable(self) -> None:
        """Wait until there may be something to receive, or the leg is lost: receiving says which."""
        with suppress(trio.ClosedResourceError, OSError):
            await trio.lowlevel.wait_readable(self._sock)

    def write(self, data: bytes | memoryview) -> None:
        """Send what the kernel takes now and keep the rest; `flush` sends that."""
        if self.gone or self._finished:
            return
        if self._backlog:
            self._keep(memoryview(data))
            return
        try:
            sent = self._sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise self._lose(error) from None
        if sent < len(data):
            self._keep(memoryview(data)[sent:])

    def write_all(self, parts: list[bytes | memoryview]) -> None:
        """Send several pieces with one call; the same as `write` for each in turn."""
        if len(parts) > _PARTS:
            parts = [b"".join(parts)]
        if self._backlog or len(parts) == 1 or self.gone or self._finished:
            for part in parts:
                self.write(part)
            return
        try:
            sent = self._sock.sendmsg(parts)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise self._lose(error) from None
        for part in parts:
            if sent >= len(part):
                sent -= len(part)
            else:
                self._keep(memoryview(part)[sent:])
                sent = 0

    def _keep(self, data: memoryview) -> None:
        self._backlog.append(data)
        self.backlog += len(data)

    async def flush(self) -> None:
        """Wait until everything written is in the kernel; several tasks may wait at once."""
        while self._backlog:
            if self._flushing is not None:
                await self._flushing.wait()
                continue
            self._flushing = trio.Event()
            try:
                await self._flush()
            finally:
                self._flushing.set()
                self._flushing = None

    async def _flush(self) -> None:
        while self._backlog:
            try:
                await trio.lowlevel.wait_writable(self._sock)
                sent = self._sock.send(self._backlog[0])
            except BlockingIOError:
                continue
            except (OSError, trio.ClosedResourceError) as error:
                raise self._lose(error) from None
            self.backlog -= sent
            rest = self._backlog[0][sent:]
            if len(rest):
                self._backlog[0] = rest
            else:
                self._backlog.popleft()

    def _lose(self, error: Exception) -> LegLost:
        self.gone = True
        if not self._ended and self.lost is None:
            self.lost = str(error)
        self._backlog.clear()
        self.backlog = 0
        return LegLost(self, str(error))

    def finish(self) -> None:
        """Half-close: the peer sees EOF after what was sent."""
        self._finished = True
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close; idempotent."""
        if self._open:
            self._open = False
            self._backlog.clear()
            self.backlog = 0
            trio.lowlevel.notify_closing(self._sock)
            self._sock.close()

    def reset(self) -> None:
        """Close with RST, whatever is unsent or unread."""
        if self._open:
            with suppress(OSError):
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close()

    @property
    def readable(self) -> bool:
        """Whether bytes are waiting in the kernel."""
        try:
            return bool(self._sock.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    @property
    def local(self) -> tuple[str, int]:
        """Our own address and port."""
        host, port = self._sock.getsockname()[:2]
        return str(host), int(port)

    @property
    def peer(self) -> str:
        """The peer's address as `host:port`."""
        try:
            host, port = self._sock.getpeername()[:2]
        except OSError:
            return "gone"
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
