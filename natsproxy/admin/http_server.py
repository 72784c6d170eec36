"""An HTTP server for ASGI applications, on trio: h11 reads and writes HTTP/1.1, starlette makes the answers.

hypercorn would do the same, and HTTP/2.  But it has no limit on connections, and it shields sends from
cancellation: a client that does not read its answer would keep the whole proxy from stopping.  Here each
client has time limits for its head, its body and each piece of its answer, and size limits for head and body.
When the server is full, the connection that has been idle longest is closed for a new one, so idle or
unauthorized clients lock nobody out.
"""

from __future__ import annotations

import errno
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import h11
import trio

from natsproxy.addresses import Address
from natsproxy.admin.http_exchange import HttpExchange, HttpLost, Stream
from natsproxy.config.endpoints import HttpListener
from natsproxy.errors import ConfigError, place_of
from natsproxy.net.certificates import file_expiry

App = Callable[
    [MutableMapping[str, Any], Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]],
    Awaitable[None],
]
"""An ASGI application."""
MOST_CONNECTIONS: Final = 200
_HEAD: Final = 16 * 1024  # bytes of a request line with its headers
_IDLE: Final = 15.0  # seconds for the next request, with its headers
_HANDSHAKE: Final = 5.0  # seconds
_RETRY: Final = 0.1  # seconds until the next try where the process is out of descriptors
_OUT_OF: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_FULL: Final = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class HttpServer:
    """Serves an application on one address.

    report: takes a sentence about a bug in the application.  most_body: bytes of a request's body.
    holds: tells whether a request protects its connection from eviction.
    address: where it listens, once `serve` has started.  answers: their number by status.
    """

    def __init__(
        self,
        app: App,
        listener: HttpListener,
        report: Callable[[str], None],
        *,
        most_body: int = 1 << 20,
        most_connections: int = MOST_CONNECTIONS,
        holds: Callable[[MutableMapping[str, Any]], bool] = lambda _: True,
    ) -> None:
        self._app = app
        self._listener = listener
        self._report = report
        self._most_body = most_body
        self._room = most_connections
        self._holds = holds
        self._spare: dict[trio.CancelScope, None] = {}  # may be evicted for new ones, in this order
        self._context = _context(listener)
        self.expiry = None if listener.cert is None else file_expiry(listener.cert)
        self.address: Address | Path = listener.address
        self.answers: Counter[int] = Counter()

    @property
    def url(self) -> str:
        """The URL of the server; of a unix socket, `unix:` and its path."""
        if isinstance(self.address, Path):
            return f"unix:{self.address}"
        return f"http{'s' if self._context else ''}://{self.address}"

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen and answer until cancelled.  Raises ConfigError for an address that cannot be used."""
        listeners = await _open(self._listener.address)
        if not isinstance(self.address, Path):
            self.address = Address(*listeners[0].socket.getsockname()[:2])
        try:
            async with trio.open_nursery() as nursery:
                for listener in listeners:
                    nursery.start_soon(self._accept, listener, nursery)
                task_status.started()
        finally:
            for listener in listeners:
                listener.socket.close()
            if isinstance(self.address, Path):
                self.address.unlink(missing_ok=True)

    async def _accept(self, listener: trio.SocketListener, nursery: trio.Nursery) -> None:
        while True:
            try:
                stream = await listener.accept()
            except OSError as error:
                if error.errno in _OUT_OF:
                    await trio.sleep(_RETRY)
                continue
            if not self._room and self._spare:
                longest = next(iter(self._spare))
                del self._spare[longest]
                longest.cancel()
                self._room += 1
            if self._room:
                self._room -= 1
                nursery.start_soon(self._guarded, stream)
            else:
                with suppress(OSError):  # a new socket takes such a small write at once
                    await stream.socket.send(_FULL)
                stream.socket.close()

    async def _guarded(self, stream: trio.SocketStream) -> None:
        """Serve one connection; a bug there ends no other."""
        place = trio.CancelScope()
        try:
            with (
                place,
                suppress(HttpLost, trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError),
            ):
                self._give_up(place)
                await self._connection(await self._secured(stream), place)
        except Exception as error:
            self._report(f"the HTTP server failed, please report it: {place_of(error)}")
        finally:
            stream.socket.close()
            self._spare.pop(place, None)
            # One that was evicted has given up its place.
            self._room += not place.cancel_called

    def _give_up(self, place: trio.CancelScope) -> None:
        """Queue a connection as the last to be evicted, unless it was evicted already."""
        self._spare.pop(place, None)
        if not place.cancel_called:
            self._spare[place] = None

    async def _secured(self, stream: trio.SocketStream) -> Stream:
        if self._context is None:
            return stream
        secured = trio.SSLStream(stream, self._context, server_side=True, https_compatible=True)
        with trio.fail_after(_HANDSHAKE):
            await secured.do_handshake()
        return secured

    async def _connection(self, stream: Stream, place: trio.CancelScope) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=_HEAD)
        while True:
            exchange = HttpExchange(connection, stream, self._most_body, self.answers)
            try:
                with trio.fail_after(_IDLE):
                    request = await exchange.head()
            except h11.RemoteProtocolError as error:
                await exchange.refuse(error.error_status_hint, str(error))
                return
            if request is None:
                return
            scope = exchange.scope(request, secured=self._context is not None)
            if self._holds(scope):
                self._spare.pop(place, None)
            await self._answer(exchange, scope)
            self._give_up(place)
            if not await exchange.finish():
                await exchange.linger()
                return
            connection.start_next_cycle()

    async def _answer(self, exchange: HttpExchange, scope: MutableMapping[str, Any]) -> None:
        lost = failed = False
        try:
            await self._app(scope, exchange.receive, exchange.send)
        except* HttpLost:
            lost = True
        except* Exception as error:
            failed = not exchange.left  # otherwise the application only reports an incomplete request
            if failed:
                self._report(f"a request failed, please report it: {place_of(error.exceptions[0])}")
        if lost or exchange.left:
            raise HttpLost("the client has gone")
        if failed:
            await exchange.refuse(500, "the request failed; the log says why")


@asynccontextmanager
async def try_to_serve(listener: HttpListener) -> AsyncIterator[None]:
    """Hold the address of a server for the time of a block.

    Raises ConfigError for an address or a certificate that the server could not have.
    """
    _context(listener)
    opened = await _open(listener.address)
    try:
        yield
    finally:
        for one in opened:
            one.socket.close()
        if isinstance(listener.address, Path):
            listener.address.unlink(missing_ok=True)


async def _open(where: Address | Path) -> list[trio.SocketListener]:
    """Listen on an address.  Raises ConfigError."""
    try:
        if isinstance(where, Path):
            return [_open_unix(where)]
        return await trio.open_tcp_listeners(where.port, host=where.host)
    except OSError as error:
        raise ConfigError(f"cannot listen on {where}: {error.strerror or error}") from None


def _open_unix(path: Path) -> trio.SocketListener:
    """Listen on a unix socket that only this user may use; one that a dead process left is replaced."""
    if path.is_socket():
        with socket.socket(socket.AF_UNIX) as probe:
            probe.setblocking(False)  # if a busy process listens, `bind` fails
            if probe.connect_ex(str(path)) == errno.ECONNREFUSED:
                path.unlink()
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.bind(str(path))
        path.chmod(0o600)  # before `listen`, so that nobody connects in between
        sock.listen(64)
    except BaseException:
        sock.close()
        raise
    return trio.SocketListener(trio.socket.from_stdlib_socket(sock))


def _context(listener: HttpListener) -> ssl.SSLContext | None:
    if listener.cert is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(listener.cert, listener.key, lambda: "")
    except (OSError, ssl.SSLError) as error:
        reason = error.strerror or error.reason if isinstance(error, ssl.SSLError) else error.strerror
        raise ConfigError(f"admin-tls-cert and admin-tls-key cannot be used: {reason}") from None
    return context
