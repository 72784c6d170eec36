"""A leg with WebSocket against a peer that speaks frames by hand, well and badly."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from websockets.client import ClientProtocol
from websockets.frames import CloseCode, Frame, Opcode
from websockets.uri import WebSocketURI

from natsproxy.addresses import Address
from natsproxy.net.leg import Leg, LegLost
from natsproxy.net.websocket_leg import (
    WebSocketLeg,
    WebSocketRefused,
    accept_websocket,
    connect_websocket,
)

MASK = b"\0\0\0\0"
SERVER = Address("127.0.0.1", 80)


class Peer:
    """The client's end: the library's protocol on a trio stream."""

    def __init__(self, stream: trio.SocketStream, path: str = "/") -> None:
        self.stream = stream
        self.protocol = ClientProtocol(WebSocketURI(False, "localhost", 80, path, ""))
        self._frames: list[Frame] = []

    async def upgrade(self, **headers: str) -> None:
        """Ask for the upgrade."""
        request = self.protocol.connect()
        for name, value in headers.items():
            request.headers[name.replace("_", "-")] = value
        self.protocol.send_request(request)
        await self.send()

    async def send(self) -> None:
        """Send what the protocol has to send."""
        for data in self.protocol.data_to_send():
            await self.stream.send_all(data)

    async def frame(self, opcode: Opcode) -> bytes:
        """Return the data of the next frame, of the kind that is expected."""
        while not self._frames:
            self.protocol.receive_data(await self.stream.receive_some())
            self._frames += [event for event in self.protocol.events_received() if isinstance(event, Frame)]
        frame = self._frames.pop(0)
        assert frame.opcode == opcode
        return bytes(frame.data)


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[Leg, trio.SocketStream]]:
    """Give a leg and its peer."""
    ours, theirs = socket.socketpair()
    leg = Leg(ours)
    try:
        async with trio.SocketStream(trio.socket.from_stdlib_socket(theirs)) as stream:
            yield leg, stream
    finally:
        leg.close()


@asynccontextmanager
async def upgraded(**headers: str) -> AsyncIterator[tuple[WebSocketLeg, Peer]]:
    """Give a leg after the upgrade, and its peer."""
    async with pair() as (leg, stream):
        peer = Peer(stream)
        await peer.upgrade(**headers)
        websocket, _ = await accept_websocket(leg)
        peer.protocol.receive_data(await stream.receive_some())
        assert peer.protocol.events_received()
        yield websocket, peer


async def test_frames_are_a_stream() -> None:
    async with upgraded() as (leg, peer):
        for text in (b"PUB a 5\r\nhe", b"llo\r\n"):
            peer.protocol.send_binary(text)
        peer.protocol.send_text(b"PING", fin=False)
        peer.protocol.send_continuation(b"\r\n", fin=True)
        received = b""
        for byte in b"".join(peer.protocol.data_to_send()):
            await peer.stream.send_all(bytes([byte]))
            received += leg.try_receive() or b""
        assert received == b"PUB a 5\r\nhello\r\nPING\r\n"
        assert leg.try_receive() is None


async def test_a_frame_of_any_length_is_given_on_as_it_comes() -> None:
    async with upgraded() as (leg, peer):
        await peer.stream.send_all(b"\x82\xff" + (1 << 40).to_bytes(8, "big") + MASK + b"PUB a")
        assert await leg.receive() == b"PUB a"
        await peer.stream.send_all(b" 5\r\n")
        assert await leg.receive() == b" 5\r\n"


async def test_frames_may_come_with_the_upgrade() -> None:
    async with pair() as (leg, stream):
        await stream.send_all(
            b"GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
            b"\x82\x86" + MASK + b"PING\r\n\x82"
        )
        websocket, _ = await accept_websocket(leg)
        assert websocket.readable
        assert websocket.try_receive() == b"PING\r\n"
        await stream.send_all(b"\x86" + MASK + b"PONG\r\n")
        assert await websocket.receive() == b"PONG\r\n"


async def test_what_is_written_at_once_is_one_frame() -> None:
    async with upgraded() as (leg, peer):
        leg.write_all([b"INFO {}\r\n", b"PING\r\n"])
        assert await peer.frame(Opcode.BINARY) == b"INFO {}\r\nPING\r\n"


async def test_browsers_get_small_frames() -> None:
    async with upgraded(User_Agent="Mozilla/5.0") as (leg, peer):
        leg.write(bytes(10_000))
        assert [len(await peer.frame(Opcode.BINARY)) for _ in range(3)] == [4096, 4096, 1808]


async def test_a_ping_is_answered_and_carries_nothing() -> None:
    async with upgraded() as (leg, peer):
        peer.protocol.send_ping(b"there?")
        await peer.send()
        assert leg.try_receive() is None
        assert await peer.frame(Opcode.PONG) == b"there?"


async def test_a_flood_of_pings_from_a_peer_that_takes_nothing_costs_no_memory() -> None:
    async with upgraded() as (leg, peer):
        for _ in range(200):
            for _ in range(50):
                peer.protocol.send_ping(bytes(125))
            await peer.send()
            leg.try_receive()
        assert leg.backlog < 150_000


async def test_a_close_ends_the_stream_and_is_answered() -> None:
    async with upgraded() as (leg, peer):
        peer.protocol.send_binary(b"PING\r\n")
        peer.protocol.send_close(CloseCode.GOING_AWAY)
        await peer.send()
        assert await leg.receive() == b"PING\r\n"
        assert leg.try_receive() == b""
        assert leg.lost is None
        assert await peer.frame(Opcode.CLOSE) == CloseCode.GOING_AWAY.to_bytes(2, "big")


async def test_our_end_is_a_close_frame() -> None:
    async with upgraded() as (leg, peer):
        leg.finish()
        leg.write(b"never sent")
        assert await peer.frame(Opcode.CLOSE) == CloseCode.NORMAL_CLOSURE.to_bytes(2, "big")


async def test_what_the_peer_sends_before_it_sees_our_end_is_received() -> None:
    async with upgraded() as (leg, peer):
        leg.finish()
        for text in (b"PUB a 0\r\n\r\n", b"PING\r\n"):
            peer.protocol.send_binary(text)
            await peer.send()
            assert await leg.receive() == text
        assert await peer.frame(Opcode.CLOSE)  # which the library answers
        await peer.send()
        assert await leg.receive() == b""


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"\x82\x05hello", "incorrect masking"),
        (b"\x89\x00", "incorrect masking"),
        (b"\x82\xff" + (1 << 63).to_bytes(8, "big") + MASK + b"hello", "exceeds limit"),
        (b"\xc2\x85" + MASK + b"hello", "reserved bits"),
        (b"\xa2\x85" + MASK + b"hello", "reserved bits"),
        (b"\x83\x80" + MASK, "invalid opcode"),
        (b"\x80\x85" + MASK + b"hello", "unexpected continuation frame"),
        (b"\x02\x80" + MASK + b"\x82\x85" + MASK + b"hello", "expected a continuation frame"),
        (b"\x09\x80" + MASK, "fragmented control frame"),
        (b"\x89\xfe\0\x7e" + MASK + bytes(126), "control frame too long"),
        (b"\x8a\xff" + (1 << 62).to_bytes(8, "big") + MASK, "exceeds limit"),
        (b"\x02\x80" + MASK + b"\x88\x80" + MASK, "incomplete fragmented message"),
    ],
)
async def test_a_frame_against_the_protocol_ends_the_stream(data: bytes, cause: str) -> None:
    async with upgraded() as (leg, peer):
        await peer.stream.send_all(data)
        with pytest.raises(LegLost, match=cause):
            await leg.receive()
        assert cause in (leg.lost or "")
        assert len(await peer.frame(Opcode.CLOSE)) > 2  # a status and the cause


@pytest.mark.parametrize(
    ("request_bytes", "answer", "cause"),
    [
        (b'CONNECT {"pass":"hunter2"}\r\n', b"HTTP/1.1 400 Bad Request", "does not ask for WebSocket"),
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"HTTP/1.1 426", "refused"),
        (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n", b"HTTP/1.1 414", "does not ask for WebSocket"),
        (b"GET /x/leafnode HTTP/1.1\r\nHost: a\r\n\r\n", b"HTTP/1.1 404", "/leafnode"),
    ],
)
async def test_another_request_is_refused_in_http(request_bytes: bytes, answer: bytes, cause: str) -> None:
    async with pair() as (leg, stream):
        await stream.send_all(request_bytes)
        with pytest.raises(WebSocketRefused, match=cause) as refused:
            await accept_websocket(leg)
        assert "hunter2" not in str(refused.value)
        assert (await stream.receive_some()).startswith(answer)


async def test_a_page_of_another_origin_is_refused() -> None:
    async with pair() as (leg, stream):
        peer = Peer(stream)
        await peer.upgrade(Origin="https://evil.example")
        with pytest.raises(WebSocketRefused, match="evil"):
            await accept_websocket(leg, origins=["https://good.example"])
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 403")


async def test_a_client_that_leaves_before_the_upgrade() -> None:
    async with pair() as (leg, stream):
        await stream.send_all(b"GET / HT")
        await stream.send_eof()
        with pytest.raises(WebSocketRefused, match="does not ask for WebSocket"):
            await accept_websocket(leg)


async def test_a_server_that_speaks_no_websocket() -> None:
    async with pair() as (leg, stream):
        await stream.send_all(b'INFO {"server_id":"S"} \r\n')
        with pytest.raises(WebSocketRefused, match="no WebSocket server"):
            await connect_websocket(leg, SERVER, "/", secure=False, headers={})


async def test_both_ends_are_ours() -> None:
    async with pair() as (leg, stream), trio.open_nursery() as nursery:
        server = Leg.from_stream(stream)
        legs: list[WebSocketLeg] = []

        async def accept() -> None:
            accepted, headers = await accept_websocket(server)
            assert headers == {"Cookie": "a=b"}
            accepted.write(b"INFO {}\r\n")
            legs.append(accepted)

        nursery.start_soon(accept)
        client = await connect_websocket(leg, SERVER, "/", secure=False, headers={"Cookie": "a=b"})
        assert await client.receive() == b"INFO {}\r\n"
        client.write(b"PING\r\n")
        client.finish()
        (accepted,) = legs
        assert await accepted.receive() == b"PING\r\n"
        assert await accepted.receive() == b""
        assert await client.receive() == b""
        server.close()
