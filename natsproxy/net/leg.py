"""A leg: the connection on one side of the proxy, on a non-blocking socket.

trio charges for every wake-up, so each operation is first tried on the socket itself, and the task waits in
trio only where it would block: `try_receive`, then `wait_readable`; `write`, then `flush`.

`AnyLeg` is the interface, `Leg` the plain leg on a socket.  The others are layers (`layered_leg.py`).
Errors of sockets are translated here, once: a leg raises LegLost and nothing else.
`linger` closes legs in good order.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import sys
import termios
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, Protocol

import trio

from natsproxy.addresses import Address, address_of
from natsproxy.net.tcp import TcpInfo, keep_alive, tcp_info

SMALLEST_READ = 65_536
LARGEST_READ = 524_288
_MOST_PARTS = 64  # pieces of one system call; joining more of them is cheaper than passing them
_LOOK_AHEAD: Final = int(socket.MSG_PEEK | socket.MSG_DONTWAIT)  # flags of an enum are slow to join
_NO_BACKLOG: Final[deque[memoryview]] = deque()
"""Shared by legs that keep up.

An empty deque takes 760 bytes, and each idle connection would have two of them.
"""


class LegLost(Exception):
    """The peer of a leg, or the network, reset the connection: it accepts no more bytes.

    Bytes that the peer sent before may still be there to receive.
    """

    def __init__(self, leg: AnyLeg, reason: str) -> None:
        super().__init__(reason)
        self.leg = leg


class PlaneLeg(Protocol):
    """A leg on a plane, as a relay uses it.

    backlog, gone, lost: as in `Leg`.
    """

    @property
    def backlog(self) -> int:
        """Bytes written that the kernel has not taken yet."""
        ...

    @property
    def gone(self) -> bool:
        """True if the peer takes no more; writes are dropped."""
        ...

    @property
    def lost(self) -> str | None:
        """The reason why it was lost; None where it is not, or the peer had ended the stream."""
        ...

    @property
    def broken(self) -> bool:
        """True if it was lost because its peer broke the protocol of a layer, such as TLS."""
        ...

    @property
    def readable(self) -> bool:
        """True if bytes are waiting in the kernel."""
        ...

    def write_all(self, parts: list[bytes | memoryview]) -> object:
        """Send several pieces; what the kernel does not take is kept.  Raises LegLost."""
        ...

    async def flush(self) -> None:
        """Wait until the kernel has all written bytes.  Raises LegLost, or returns where the leg is lost."""
        ...

    def finish(self) -> None:
        """Half-close: the peer sees the end of the stream after the bytes that were sent."""
        ...


class AnyLeg(PlaneLeg, Protocol):
    """The operations of a leg, plain or not.

    All errors are LegLost, with the outermost leg of its layers.
    """

    @property
    def local(self) -> Address:
        """Our own address and port."""
        ...

    @property
    def peer(self) -> str:
        """The peer's address as `host:port`; `gone` where it has left already."""
        ...

    def try_receive(self) -> bytes | None:
        """Return bytes, `b""` at the end of the stream, or None when there are none yet.  Raises LegLost."""
        ...

    async def receive(self) -> bytes:
        """Return the next bytes, `b""` at the end of the stream.  Raises LegLost."""
        ...

    async def wait_readable(self) -> None:
        """Wait until there may be something to receive, or the leg is gone; `try_receive` tells which."""
        ...

    def write(self, data: bytes | memoryview) -> None:
        """Send as much as the kernel takes now and keep the rest for `flush`.  Raises LegLost."""
        ...

    @property
    def unread(self) -> int:
        """The bytes that are waiting in the kernel."""
        ...

    @property
    def arrived(self) -> bool:
        """True if the peer's kernel has all that we sent; else, or not known, False."""
        ...

    @property
    def delivered(self) -> bool:
        """True if the peer's kernel has all that we sent, and our end; else, or not known, False."""
        ...

    def close(self) -> None:
        """Close; idempotent."""
        ...

    def reset(self) -> None:
        """Close with RST, and drop all that is unsent or unread."""
        ...


def has_left(sock: socket.socket) -> bool:
    """Tell whether a peer has ended its stream, or is lost, and all that it sent before is read."""
    try:
        return not sock.recv(1, _LOOK_AHEAD)
    except BlockingIOError:
        return False
    except OSError:
        return True


class Leg:
    """A plain leg.

    backlog: bytes written that the kernel has not taken yet.  gone: the peer takes no more, and writes are
    dropped.  lost: the reason for that, where the peer had not ended the stream before.
    silent: no byte has come.
    """

    __slots__ = (
        "__weakref__",
        "_backlog",
        "_finished",
        "_flushing",
        "_open",
        "_peer",
        "_peer_ended",
        "_receive_size",
        "_sock",
        "_waits",
        "backlog",
        "gone",
        "lost",
        "silent",
    )
    broken: Final = False  # there is no layer

    def __init__(self, sock: socket.socket, *, keepalive: bool = True) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._backlog: deque[memoryview] = _NO_BACKLOG
        self.backlog = 0
        self._flushing: trio.Event | None = None
        self._open = True
        self._waits = 0  # tasks that wait for the socket
        self._peer: str | None = None
        self.gone = False
        self.lost: str | None = None
        self._peer_ended, self.silent = False, True
        self._finished = False  # we have half-closed it
        self._receive_size = SMALLEST_READ
        with suppress(OSError):  # the peer may be gone already
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if keepalive:
                keep_alive(sock)

    @classmethod
    def from_stream(cls, stream: trio.SocketStream, *, keepalive: bool = True) -> Leg:
        """Return a leg on the socket of a trio stream, which it takes away from the stream."""
        return cls(socket.socket(fileno=stream.socket.detach()), keepalive=keepalive)

    # -- given to a plane, and taken back

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        return self._sock.fileno()

    def tcp_info(self) -> TcpInfo | None:
        """Return what the kernel knows of the connection."""
        return tcp_info(self._sock)

    def take_backlog(self) -> list[bytes | memoryview]:
        """Take out the bytes that the kernel has not taken yet."""
        backlog: list[bytes | memoryview] = list(self._backlog)
        self._backlog.clear()
        self.backlog = 0
        return backlog

    def take_back(self, backlog: bytes, lost: str | None, *, gone: bool, ended: bool) -> None:
        """Go on from the state in which a plane leaves the socket; the arguments are the fields of a leg."""
        self.gone, self.lost, self._peer_ended = gone, lost, ended
        if backlog:
            self._keep(memoryview(backlog))

    # -- bytes

    def try_receive(
        self, most: int = 0
    ) -> bytes | None:  # nothing beyond `most`: those bytes belong to another reader
        """Return bytes, `b""` at the end of the stream, or None when there are none yet.  Raises LegLost."""
        try:
            data = self._sock.recv(most or self._receive_size)
        except BlockingIOError:
            return None
        except OSError as error:
            raise self._lose(error) from None
        self._peer_ended, self.silent = not data, self.silent and not data
        if len(data) == self._receive_size < LARGEST_READ:
            self._receive_size *= 2  # more is waiting in the kernel: fewer, larger reads
        return data

    async def receive(self) -> bytes:
        """Return the next bytes, `b""` at the end of the stream.  Raises LegLost."""
        while (data := self.try_receive()) is None:
            await self.wait_readable()
        return data

    async def wait_readable(self) -> None:
        """Wait until there may be something to receive, or the leg is gone; `try_receive` tells which."""
        if self._sock.fileno() < 0:  # closed: epoll knows no such descriptor
            return
        with suppress(trio.ClosedResourceError, OSError):
            await self._waiting(trio.lowlevel.wait_readable)

    async def wait_connected(self) -> None:
        """Wait until the peer has accepted a connection that was begun.  Raises OSError where it does not."""
        if self.peer == "gone":
            await self._waiting(trio.lowlevel.wait_writable)
            if error := self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise OSError(error, os.strerror(error))

    async def _waiting(self, wait: Callable[[socket.socket], Awaitable[None]]) -> None:
        self._waits += 1
        try:
            await wait(self._sock)
        finally:
            self._waits -= 1

    def write(self, data: bytes | memoryview) -> None:
        """Send as much as the kernel takes now and keep the rest for `flush`.  Raises LegLost."""
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
        """Send several pieces with one system call; the same as `write` for each in turn.  Raises LegLost."""
        if len(parts) > _MOST_PARTS:
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
        if self._backlog is _NO_BACKLOG:
            self._backlog = deque()
        self._backlog.append(data)
        self.backlog += len(data)

    async def flush(self) -> None:
        """Wait until the kernel has all written bytes; several tasks may wait at once.  Raises LegLost."""
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
                await self._waiting(trio.lowlevel.wait_writable)
                if not self._backlog:  # a read has lost the leg meanwhile
                    return
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
        if not self._peer_ended and self.lost is None:
            self.lost = str(error)
        self._backlog.clear()
        self.backlog = 0
        return LegLost(self, str(error))

    def finish(self) -> None:
        """Half-close: the peer sees the end of the stream after the bytes that were sent."""
        self._finished = True
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close; idempotent."""
        if self._open:
            self._open = False
            self._backlog.clear()
            self.backlog = 0
            if self._waits:  # rarely; telling trio costs as much as the close itself
                trio.lowlevel.notify_closing(self._sock)
            self._sock.close()

    def reset(self) -> None:
        """Close with RST, and drop all that is unsent or unread."""
        if self._open:
            with suppress(OSError):
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close()

    @property
    def peer_ended(self) -> bool:
        """True if the end of the peer's stream has been read."""
        return self._peer_ended

    def has_left(self) -> bool:
        """Tell whether the peer has ended the stream, or is lost, and all that it sent before is read."""
        return has_left(self._sock)

    @property
    def readable(self) -> bool:
        """True if bytes are waiting in the kernel; peeking would consume the error that lost the leg."""
        return self.unread > 0

    @property
    def unread(self) -> int:
        """The bytes that are waiting in the kernel."""
        return self._asked(termios.FIONREAD) or 0

    @property
    def arrived(self) -> bool:
        """True if the peer's kernel has all that we sent; else, or not known, False."""
        return not self.backlog and self._asked(termios.TIOCOUTQ) == 0

    @property
    def delivered(self) -> bool:
        """True if the peer's kernel has all that we sent, and our end; else, or not known, False."""
        return self._finished and self.arrived

    def _asked(self, request: int) -> int | None:
        """Return a number of bytes that the kernel knows; None where it does not tell."""
        answer = bytearray(4)
        if not self._open:
            return None
        try:
            fcntl.ioctl(self._sock, request, answer)
        except OSError:
            return None
        return int.from_bytes(answer, sys.byteorder)

    @property
    def local(self) -> Address:
        """Our own address and port."""
        return address_of(*self._sock.getsockname()[:2])

    @property
    def peer(self) -> str:
        """The peer's address as `host:port`; `gone` where it has left already."""
        if self._peer is None:
            try:
                name = self._sock.getpeername()
            except OSError:
                return "gone"
            self._peer = str(address_of(*name[:2]))
        return self._peer


LINGER: Final = 1.0
"""Seconds that a peer has to take the bytes before the end."""
_LOOK: Final = 0.001  # seconds between looks at bytes on their way


async def linger(legs: Sequence[AnyLeg], *, shield: bool = False) -> None:
    """Half-close legs in good order, and wait for their peers to do the same.

    shield: wait though the task is cancelled.
    """
    waiting = still_open(legs)
    if not waiting:  # mostly: one side left, and the other was closed in order
        return
    with trio.move_on_after(LINGER, shield=shield):
        async with trio.open_nursery() as nursery:
            for leg in waiting:
                nursery.start_soon(_close_in_order, leg)


def still_open(legs: Sequence[AnyLeg]) -> list[AnyLeg]:
    """Half-close legs that have no backlog; return those whose peers have not done so yet."""
    return [leg for leg in legs if not _closed(leg)]


async def arrive(legs: Sequence[AnyLeg]) -> None:
    """Wait until the peers' kernels have all that was sent: an RST would destroy what is on its way."""
    with trio.move_on_after(LINGER, shield=True):
        for leg in legs:
            with suppress(LegLost):
                await leg.flush()
                while not (leg.gone or leg.arrived):  # noqa: ASYNC110 (the kernel has no event for it)
                    await trio.sleep(_LOOK)


def _closed(leg: AnyLeg) -> bool:
    """Half-close a leg without a backlog; tell whether its peer has done so, or is lost."""
    if leg.backlog:
        return False
    if isinstance(leg, Leg) and leg.peer_ended:  # all of it is read: to close it is in good order
        return True
    leg.finish()
    try:
        return leg.try_receive() == b""
    except LegLost:
        return True


async def _close_in_order(leg: AnyLeg) -> None:
    """Flush, half-close, then read to the end: unread bytes would turn our close into an RST.

    An RST may destroy bytes that the peer has yet to read.  A peer that has all of them, and our FIN, and
    still writes, is reset, as a process that has exited would do.
    """
    before: int | None = None  # bytes that it may have sent before it had our end
    with suppress(LegLost):
        await leg.flush()
        leg.finish()
        while data := await leg.receive():
            if before is not None:
                before -= len(data)
                if before < 0:
                    leg.reset()
                    return
            elif leg.delivered:
                before = leg.unread
            await trio.lowlevel.checkpoint()  # a peer that never stops sending must not hold the loop
