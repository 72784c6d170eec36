"""The handshake of a client of ours with a server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio

from natsproxy.addresses import Address
from natsproxy.errors import ConfigError
from natsproxy.net.leg import LegLost
from natsproxy.replay.errors import ReplayError
from natsproxy.replay.handshake import open_connection, receive


@asynccontextmanager
async def _server(data: bytes, *, stay: bool = True) -> AsyncIterator[tuple[Address, list[bytes]]]:
    """Listen; send `data` to whoever connects, and keep the first bytes that come back."""
    received: list[bytes] = []

    async def serve(stream: trio.SocketStream) -> None:
        await stream.send_all(data)
        if stay:
            received.append(await stream.receive_some())
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        yield Address("127.0.0.1", listener.socket.getsockname()[1]), received
        nursery.cancel_scope.cancel()


def _arguments(info: dict[str, Any]) -> bytes:
    return b'{"sig":"%b"}' % str(info.get("nonce", "")).encode()


async def test_the_connect_answers_the_info_and_early_frames_are_handed_on() -> None:
    frames = b'INFO {"nonce":"n"}\r\nINFO {}\r\nPONG\r\nMSG a 1 0\r\n\r\n'
    async with _server(frames) as (address, received):
        leg, early = await open_connection(address, _arguments)
        with trio.fail_after(5):
            while not received:  # noqa: ASYNC110 (the peer runs in this loop)
                await trio.sleep(0.001)
        leg.close()
    assert early == b"MSG a 1 0\r\n\r\n"
    assert received == [b'CONNECT {"sig":"n"}\r\nPING\r\n']


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak NATS"),
        (b'INFO {"tls_required":true}\r\n', "requires TLS: name it tls://"),
        (b"INFO {}\r\n-ERR 'Authorization Violation'\r\n", "refused a connection: 'Authorization Violation'"),
    ],
)
async def test_a_server_that_cannot_be_used_is_reported(answers: bytes, message: str) -> None:
    async with _server(answers) as (address, _):
        with pytest.raises(ConfigError, match=message):
            await open_connection(address, _arguments)


async def test_a_server_that_closes_is_lost() -> None:
    async with _server(b"INFO {}\r\n", stay=False) as (address, _):
        with pytest.raises(LegLost):
            await open_connection(address, _arguments)


async def test_a_silent_server_is_given_up_after_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("natsproxy.replay.handshake.TIMEOUT", 0.05)
    async with _server(b"") as (address, _):
        with pytest.raises(ReplayError, match="gave no INFO and PONG"):
            await open_connection(address, _arguments)


async def test_receive_waits_for_bytes() -> None:
    async with _server(b"INFO {}\r\nPONG\r\n+OK\r\n") as (address, _):
        leg, early = await open_connection(address, _arguments)
        with trio.fail_after(5):
            assert early + (b"" if early else await receive(leg)) == b"+OK\r\n"
        leg.close()
