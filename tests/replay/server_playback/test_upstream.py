"""Frames that a cassette passes on reach a real server, and its answers come back."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import trio

from natsproxy.addresses import Address
from tests.replay.kit import cassette, nats_server, stalls
from tests.replay.scripted import Line, hello, write


@pytest.mark.server
async def test_unrecorded_input_is_answered_by_the_real_server(tmp_path: Path) -> None:
    capture = write(tmp_path / "x.ncap", hello(1, "a"))
    async with (
        nats_server() as server,
        cassette(capture, unrecorded="pass", upstream=server) as played,
        await trio.open_tcp_stream("127.0.0.1", played.address.port) as stream,
    ):
        await stream.send_all(
            b'CONNECT {"verbose":false,"name":"a","headers":true}\r\nSUB x 4\r\nPUB x 2\r\nhi\r\n'
        )
        received = b""
        with trio.fail_after(5):
            while b"MSG" not in received or not received.endswith(b"hi\r\n"):
                received += await stream.receive_some()
        assert b"MSG x 4 2\r\nhi\r\n" in received
        assert played.mismatches == []


async def hear(stream: trio.SocketStream, what: bytes) -> None:
    """Read until something arrives."""
    received = b""
    with trio.fail_after(10):
        while what not in received:
            data = await stream.receive_some()
            assert data, received
            received += data


async def test_what_was_recorded_needs_no_server(tmp_path: Path) -> None:
    recorded: list[Line] = [
        *hello(1, "a"),
        (1, ">", b"SUB x 1\r\nPUB x 2\r\nhi\r\n"),
        (1, "<", b"MSG x 1 2\r\nhi\r\n"),
    ]
    capture, nobody = write(tmp_path / "x.ncap", recorded), Address("127.0.0.1", 9)
    async with (
        cassette(capture, unrecorded="record", upstream=nobody) as played,
        await trio.open_tcp_stream("127.0.0.1", played.address.port) as stream,
    ):
        await stream.send_all(b'CONNECT {"verbose":false,"name":"a"}\r\nSUB x 4\r\nPUB x 2\r\nhi\r\nPING\r\n')
        await hear(stream, b"MSG x 4 2\r\nhi\r\n")
    assert played.failure is None


@pytest.mark.server
async def test_a_new_message_reaches_a_client_that_subscribed_as_recorded(tmp_path: Path) -> None:
    """Its connection to the real server is another one, which begins with the publisher's."""
    recorded: list[Line] = [
        *hello(1, "a"),
        *hello(2, "b"),
        (1, ">", b"SUB x 1\r\n"),
        (2, ">", b"SUB y 1\r\n"),
    ]
    capture = write(tmp_path / "x.ncap", recorded)
    async with nats_server() as server:
        for _ in range(5):
            async with (
                cassette(capture, unrecorded="pass", upstream=server) as played,
                await trio.open_tcp_stream("127.0.0.1", played.address.port) as a,
                await trio.open_tcp_stream("127.0.0.1", played.address.port) as b,
            ):
                await a.send_all(b'CONNECT {"verbose":false,"name":"a"}\r\nSUB x 4\r\nPING\r\n')
                await hear(a, b"PONG")
                await b.send_all(b'CONNECT {"verbose":false,"name":"b"}\r\nPUB x 2\r\nhi\r\n')
                await hear(a, b"MSG x 4 2\r\nhi\r\n")


async def test_a_server_that_does_not_read_stops_the_reading_of_its_client(tmp_path: Path) -> None:
    """More than it holds for the server stays with the client: memory is bounded, nothing is lost."""
    capture, size, count = write(tmp_path / "x.ncap", hello(1, "a")), 1 << 20, 60
    sent = (b"PUB x %d\r\n%b\r\n" % (size, bytes(size))) * count
    took, go, whole = 0, trio.Event(), trio.Event()

    async def slow(stream: trio.SocketStream) -> None:
        nonlocal took
        await stream.send_all(b"INFO {} \r\nPONG\r\n")
        await go.wait()
        async for data in stream:
            took += len(data)
            if took > len(sent):
                whole.set()

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, slow, 0, host="127.0.0.1"))
        upstream = Address("127.0.0.1", listener.socket.getsockname()[1])
        async with (
            cassette(capture, unrecorded="pass", upstream=upstream) as played,
            await trio.open_tcp_stream("127.0.0.1", played.address.port) as stream,
        ):
            nursery.start_soon(stream.send_all, b'CONNECT {"verbose":false,"name":"a"}\r\n' + sent)
            await stalls(played, "waiting for the real server to take")
            go.set()
            with trio.fail_after(30):
                await whole.wait()
        nursery.cancel_scope.cancel()
