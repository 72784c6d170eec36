"""A leg with WebSocket: the NATS stream in binary frames, over a plain leg or one with TLS.

Frame boundaries mean nothing to NATS: a frame may hold half a message or a hundred.  So received bytes are
passed on as they arrive, whatever their frame's length, and bytes written at once become one frame.  The
library's sans-I/O protocol does all the rest: upgrade, pings, the closing handshake.

Compression is neither offered nor accepted, as nats-server does by default.  No subprotocol is chosen:
nats-server chooses none either.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from websockets.client import ClientProtocol
from websockets.frames import CloseCode
from websockets.http11 import Request
from websockets.protocol import OPEN, SEND_EOF, Event, Protocol
from websockets.server import ServerProtocol
from websockets.typing import Origin
from websockets.uri import WebSocketURI

from natsproxy.addresses import Address
from natsproxy.net.layered_leg import LayeredLeg
from natsproxy.net.leg import AnyLeg, LegLost
from natsproxy.net.websocket_frames import LARGEST_WHOLE, FrameReader

_BROWSER_FRAME: Final = 4096  # bytes: some browsers mishandle larger frames, so nats-server cuts them as well
_MOST_BACKLOG: Final = 65_536  # bytes; a peer that does not even take those gets no answers to its pings
_FORWARDED: Final = ("Cookie", "Origin")  # the server may take credentials from one and check the other
_OTHER_PATHS: Final = ("/leafnode", "/mqtt")  # nats-server speaks other protocols there
_SILENT: Final = logging.Logger("natsproxy.websocket", logging.CRITICAL + 1)  # the library would log cookies


class WebSocketRefused(Exception):
    """The upgrade to WebSocket failed; the text is the reason."""


class WebSocketLeg(LayeredLeg):
    """A leg whose bytes travel in WebSocket frames.

    inner: the leg that carries the frames.  protocol: after the upgrade.  first: bytes that came with that.
    most: bytes of a frame that is written.
    """

    def __init__(self, inner: AnyLeg, protocol: Protocol, first: bytes, *, most: int | None = None) -> None:
        super().__init__(inner)
        self._protocol = protocol
        self._frames = FrameReader(protocol)
        self._first = first
        self._most = most

    def try_receive(self) -> bytes | None:
        """Return bytes, `b""` at the end of the stream, or None when there are none yet.  Raises LegLost."""
        if self._first:
            first, self._first = self._first, b""
            if (data := self._decode(first)) is not None:
                return data
        return super().try_receive()

    def _decode(self, data: bytes) -> bytes | None:
        if not data:
            self._ended = True
            return b""
        received = self._frames.read(data)
        answers: list[bytes | memoryview] = [*self._protocol.data_to_send()]  # to pings and to the end
        if answers and (self._frames.over or self.backlog < _MOST_BACKLOG):
            with suppress(LegLost):  # the leg is `gone` then; what it sent before is still received
                self._send(answers)
        if not self._frames.over:
            return received or None
        if (error := self._protocol.parser_exc) is None:
            self._ended = True
            return received
        lost = self._lose(f"WebSocket: {error}")
        if not received:
            raise lost
        return received

    def _encode(self, parts: list[bytes | memoryview]) -> list[bytes | memoryview]:
        if self._protocol.state is not OPEN:
            return []
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        most = self._most or max(1, len(data))
        for start in range(0, len(data), most):
            self._protocol.send_binary(data[start : start + most])
        return [*self._protocol.data_to_send()]

    def finish(self) -> None:
        """Send a Close frame; the peer then ends the stream."""
        if self._protocol.state is OPEN:
            self._protocol.send_close(CloseCode.NORMAL_CLOSURE)
            with suppress(LegLost):
                self._send([*self._protocol.data_to_send()])

    @property
    def readable(self) -> bool:
        """True if bytes are waiting to be received."""
        return bool(self._first) or super().readable


async def accept_websocket(
    leg: AnyLeg, *, origins: Sequence[str] = ()
) -> tuple[WebSocketLeg, Mapping[str, str]]:
    """Answer a client's upgrade; return the leg, and the headers that a server is to see: they hold secrets.

    origins: of the pages that may connect; none: all.  Raises WebSocketRefused and LegLost.
    """
    # A program is no page and names none; nats-server takes it too.
    allowed = [None, *map(Origin, origins)] if origins else None
    protocol = ServerProtocol(origins=allowed, max_size=LARGEST_WHOLE, logger=_SILENT)
    request, first = await _first_event(leg, protocol)
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
    leg.write(b"".join(protocol.data_to_send()))
    headers = {name: "; ".join(request.headers.get_all(name)) for name in (*_FORWARDED, "User-Agent")}
    most = _BROWSER_FRAME if headers.pop("User-Agent").startswith("Mozilla/") else None
    websocket = WebSocketLeg(leg, protocol, first, most=most)
    return websocket, {name: text for name, text in headers.items() if text}


async def connect_websocket(
    leg: AnyLeg, server: Address, path: str, *, secure: bool, headers: Mapping[str, str]
) -> WebSocketLeg:
    """Ask a server for an upgrade, and return the leg.

    headers: further ones of the request.  Raises WebSocketRefused and LegLost.
    """
    uri = WebSocketURI(secure, server.host, server.port, path, "")
    protocol = ClientProtocol(uri, max_size=LARGEST_WHOLE, logger=_SILENT)
    request = protocol.connect()
    for name, value in headers.items():
        request.headers[name] = value
    protocol.send_request(request)
    leg.write(b"".join(protocol.data_to_send()))
    _, first = await _first_event(leg, protocol)
    if protocol.handshake_exc is not None:
        raise WebSocketRefused(f"no WebSocket server: {_cause(protocol)}")
    return WebSocketLeg(leg, protocol, first)


async def _first_event(leg: AnyLeg, protocol: Protocol) -> tuple[Event | None, bytes]:
    """Return the peer's request or answer, None where it is no HTTP or the peer closed, and what follows."""
    while protocol.handshake_exc is None:
        lines = (await leg.receive()).splitlines(keepends=True)
        if not lines:
            protocol.receive_eof()
        for number, line in enumerate(lines, 1):  # one by one: frames that follow are not for the protocol
            protocol.receive_data(line)
            if protocol.events:
                return protocol.events.pop(0), b"".join(lines[number:])
    return None, b""


async def _refuse(leg: AnyLeg, protocol: Protocol) -> None:
    with suppress(LegLost):
        leg.write(b"".join(protocol.data_to_send()))
        await leg.flush()


def _cause(protocol: Protocol) -> str:
    # Not the error that it was raised from: that one quotes what the peer sent, perhaps a password.
    return str(protocol.handshake_exc)
