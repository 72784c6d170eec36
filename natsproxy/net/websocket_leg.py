"""A leg with WebSocket: the NATS stream in binary frames, over a plain leg or one with TLS.

The borders of frames mean nothing to NATS: a frame may hold half a message or a hundred.  So what is received
is given on as it comes, frame by frame, and what is written at once becomes one frame.  The library's
sans-I/O protocol does all the rest: upgrade, masks, pings, the closing handshake.

Compression is neither offered nor accepted, as nats-server does by default.  No subprotocol is chosen:
nats-server chooses none either.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from websockets.client import ClientProtocol
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import OPEN, SEND_EOF, Event, Protocol
from websockets.server import ServerProtocol
from websockets.typing import Origin
from websockets.uri import WebSocketURI

from natsproxy.addresses import Address
from natsproxy.net.leg import Leg, LegLost

_CARRY_DATA: Final = (Opcode.BINARY, Opcode.TEXT, Opcode.CONT)
_BROWSER_FRAME: Final = 4096  # bytes: some browsers mishandle larger frames, so nats-server cuts them as well
_MOST_BACKLOG: Final = 65_536  # bytes; a peer that does not even take those gets no answers to its pings
_OTHER_PATHS: Final = ("/leafnode", "/mqtt")  # nats-server speaks other protocols there
_SILENT: Final = logging.Logger("natsproxy.websocket", logging.CRITICAL + 1)  # the library would log cookies


class WebSocketRefused(Exception):
    """The upgrade to WebSocket failed; the text is the reason."""


class WebSocketLeg:
    """A leg whose bytes travel in WebSocket frames; its operations are those of `Leg`.

    inner: the leg that carries the frames.  protocol: after the upgrade.  first: frames that came with the
    answer to the upgrade.  most: bytes of a frame that is written.
    """

    def __init__(
        self, inner: Leg, protocol: Protocol, first: Sequence[Event] = (), *, most: int | None = None
    ) -> None:
        self._inner = inner
        self._protocol = protocol
        self._received = _data_of(first)
        self._most = most
        self._end_received = False
        self._error: str | None = None

    # -- bytes

    def try_receive(self) -> bytes | None:
        """Return bytes, `b""` at the end of the stream, or None when there are none yet.  Raises LegLost."""
        while not self._received:
            if self._protocol.state is not OPEN and not self._end_received:
                self._end_received = True
                return b""
            data = self._inner.try_receive()
            if not data:
                return data
            if not self._end_received:  # else a peer still sends after its end: read, and without a meaning
                self._take(data)
        received, self._received = self._received, b""
        return received

    def _take(self, data: bytes) -> None:
        self._protocol.receive_data(data)
        self._received = _data_of(self._protocol.events_received())
        if (error := self._protocol.parser_exc) is not None:
            self._error = f"WebSocket: {error}"
        answers = self._protocol.data_to_send()  # to pings and to the end
        if self._inner.backlog < _MOST_BACKLOG or self._protocol.state is not OPEN:
            with suppress(LegLost):  # the leg is `gone` then; what it sent before is still received
                _send(self._inner, answers)

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
        if self._protocol.state is not OPEN:
            return
        most = self._most or len(data)
        for start in range(0, len(data), most or 1):
            self._protocol.send_binary(data[start : start + most])
        _send(self._inner, self._protocol.data_to_send())

    def write_all(self, parts: list[bytes | memoryview]) -> None:
        """Send several pieces in one frame.  Raises LegLost."""
        self.write(parts[0] if len(parts) == 1 else b"".join(parts))

    async def flush(self) -> None:
        """Wait until the kernel has all written bytes; several tasks may wait at once.  Raises LegLost."""
        await self._inner.flush()

    def finish(self) -> None:
        """Tell the peer that nothing follows; it ends the stream then."""
        if self._protocol.state is OPEN:
            self._protocol.send_close(CloseCode.NORMAL_CLOSURE)
            with suppress(LegLost):
                _send(self._inner, self._protocol.data_to_send())

    def close(self) -> None:
        """Close; idempotent."""
        self._inner.close()

    def reset(self) -> None:
        """Close with RST, and drop all that is unsent or unread."""
        self._inner.reset()

    # -- state

    @property
    def backlog(self) -> int:
        """Bytes written that the kernel has not taken yet."""
        return self._inner.backlog

    @property
    def gone(self) -> bool:
        """True if the peer takes no more; writes are dropped."""
        return self._inner.gone

    @property
    def lost(self) -> str | None:
        """The reason why it was lost; None where it is not, or the peer had ended the stream."""
        return self._error or self._inner.lost

    @property
    def readable(self) -> bool:
        """True if bytes are waiting."""
        return bool(self._received) or self._inner.readable

    @property
    def local(self) -> Address:
        """Our own address and port."""
        return self._inner.local

    @property
    def peer(self) -> str:
        """The peer's address as `host:port`; `gone` where it has left already."""
        return self._inner.peer


async def accept_websocket(
    leg: Leg, *, frame_max: int, origins: Sequence[str] = ()
) -> tuple[WebSocketLeg, Request]:
    """Answer a client's upgrade; return the leg and the request, which holds secrets.

    frame_max: bytes of one frame.  origins: of the pages that may connect; none: all.  Raises
    WebSocketRefused and LegLost.
    """
    allowed = [Origin(origin) for origin in origins] or None
    protocol = ServerProtocol(origins=allowed, max_size=(None, frame_max), logger=_SILENT)
    request = await _first_event(leg, protocol)
    if not isinstance(request, Request):
        if protocol.writes == [SEND_EOF]:  # not even HTTP: nats-server says this
            leg.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        await _refuse(leg, protocol)
        raise WebSocketRefused(f"a client that does not ask for WebSocket: {_cause(protocol)}")
    if request.path.endswith(_OTHER_PATHS):
        protocol.send_response(protocol.reject(404, "natsproxy serves clients only.\n"))
        await _refuse(leg, protocol)
        raise WebSocketRefused(f"a client that asks for {request.path[-20:]}: natsproxy serves clients only")
    protocol.send_response(protocol.accept(request))
    if protocol.handshake_exc is not None:
        await _refuse(leg, protocol)
        raise WebSocketRefused(f"a client whose upgrade to WebSocket is refused: {_cause(protocol)}")
    _send(leg, protocol.data_to_send())
    browser = request.headers.get("User-Agent", "").startswith("Mozilla/")
    return WebSocketLeg(leg, protocol, most=_BROWSER_FRAME if browser else None), request


async def connect_websocket(
    leg: Leg, server: Address, path: str, *, secure: bool, frame_max: int, headers: dict[str, str]
) -> WebSocketLeg:
    """Ask a server for an upgrade, and return the leg.

    headers: further ones of the request.  Raises WebSocketRefused and LegLost.
    """
    uri = WebSocketURI(secure, server.host, server.port, path, "")
    protocol = ClientProtocol(uri, max_size=(None, frame_max), logger=_SILENT)
    request = protocol.connect()
    for name, value in headers.items():
        request.headers[name] = value
    protocol.send_request(request)
    _send(leg, protocol.data_to_send())
    await _first_event(leg, protocol)
    if protocol.handshake_exc is not None:
        raise WebSocketRefused(f"no WebSocket server: {_cause(protocol)}")
    return WebSocketLeg(leg, protocol, protocol.events_received())


async def _first_event(leg: Leg, protocol: Protocol) -> Event | None:
    """Return the peer's request or answer; None where it is no HTTP, or the peer closed instead."""
    while protocol.handshake_exc is None:
        if data := await leg.receive():
            protocol.receive_data(data)
        else:
            protocol.receive_eof()
        if protocol.events:
            return protocol.events.pop(0)
    return None


async def _refuse(leg: Leg, protocol: Protocol) -> None:
    with suppress(LegLost):
        _send(leg, protocol.data_to_send())
        await leg.flush()


def _cause(protocol: Protocol) -> str:
    # Not the error that it was raised from: that one quotes what the peer sent, perhaps a password.
    return str(protocol.handshake_exc)


def _data_of(events: Sequence[Event]) -> bytes:
    data = [event.data for event in events if isinstance(event, Frame) and event.opcode in _CARRY_DATA]
    return bytes(data[0]) if len(data) == 1 else b"".join(data)


def _send(leg: Leg, pieces: list[bytes]) -> None:
    """Send what a protocol has to send; SEND_EOF, its last piece, half-closes."""
    data: list[bytes | memoryview] = [piece for piece in pieces if piece is not SEND_EOF]
    if data:
        leg.write_all(data)
    if len(data) < len(pieces):
        leg.finish()
