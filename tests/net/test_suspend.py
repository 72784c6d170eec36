"""A suspended connection: nothing is delivered, and neither side gives it up."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import trio

from natsproxy.addresses import Address
from natsproxy.capture.read.frames import read_frames
from natsproxy.capture.read.reader import open_capture
from natsproxy.config.endpoints import Listener, Server
from natsproxy.config.recording import RecordSettings
from natsproxy.config.settings import ProxySettings
from natsproxy.net.proxy import Proxy
from natsproxy.wire.ops import C2S
from tests.kit.servers import NatsServer

STALE_SOON = 'ping_interval: "200ms"\nping_max: 1\n'


class Client:
    """A client that answers the server's PINGs, as client libraries do."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._bytes = b""

    async def send(self, data: bytes) -> None:
        """Send frames."""
        await self._stream.send_all(data)

    async def line(self) -> bytes:
        """Return the next line; a PING is answered."""
        while b"\r\n" not in self._bytes:
            data = await self._stream.receive_some()
            assert data, "the connection was closed"
            self._bytes += data
        line, _, self._bytes = self._bytes.partition(b"\r\n")
        if line == b"PING":
            await self.send(b"PONG\r\n")
        return line

    async def other_line(self) -> bytes:
        """Return the next line that is no PING."""
        while (line := await self.line()) == b"PING":
            pass
        return line


@asynccontextmanager
async def connected(server: NatsServer) -> AsyncIterator[tuple[Proxy, Client]]:
    """Run a proxy before a server, with one client that has its INFO."""
    proxy = Proxy(ProxySettings(listen=(Listener(),), upstream=(Server(Address("127.0.0.1", server.port)),)))
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            (address,) = await nursery.start(proxy.serve)
            async with await trio.open_tcp_stream("127.0.0.1", address.port) as stream:
                client = Client(stream)
                assert (await client.other_line()).startswith(b"INFO")
                yield proxy, client
            nursery.cancel_scope.cancel()


async def watching(server: NatsServer) -> trio.SocketStream:
    """Return a connection to a server itself, which is subscribed to `a`."""
    stream = await trio.open_tcp_stream("127.0.0.1", server.port)
    watcher = Client(stream)
    assert (await watcher.other_line()).startswith(b"INFO")
    await watcher.send(b'CONNECT {"verbose":false}\r\nSUB a 1\r\nPING\r\n')
    assert await watcher.other_line() == b"PONG"
    return stream


@contextmanager
def stopped(server: NatsServer) -> Iterator[None]:
    """Stop the process of a server for a while."""
    pid = server._process.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("plane", ["native", "python"])
async def test_a_suspended_connection_outlives_a_server_that_stops(
    plane: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client asks for signs of life, as client libraries do, and gets them; later all is as before."""
    monkeypatch.setenv("NATSPROXY_PLANE", plane)
    with NatsServer() as server:
        async with connected(server) as (proxy, client):
            await client.send(b'CONNECT {"verbose":false}\r\nPING\r\n')
            assert await client.other_line() == b"PONG"
            with stopped(server):
                proxy.suspend(1)
                for _ in range(2):
                    await client.send(b"PUB a 4\r\nlost\r\nPING\r\n")
                    assert await client.other_line() == b"PONG"
                await client.send(b"SUB a 1\r\nPING\r\n")
                assert await client.other_line() == b"PONG"
            proxy.suspend(1, on=False)
            await client.send(b"PUB a 5\r\nagain\r\nPING\r\n")
            assert [await client.other_line() for _ in range(3)] == [b"MSG a 1 5", b"again", b"PONG"]


@pytest.mark.parametrize("plane", ["native", "python"])
async def test_a_connection_is_suspended_behind_a_backlog(
    plane: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that has stopped took all that it could; later it has whole frames, and those that passed."""
    monkeypatch.setenv("NATSPROXY_PLANE", plane)
    payload, published = b"x" * 100_000, 1
    with NatsServer() as server:
        async with connected(server) as (proxy, client), await watching(server) as stream:
            watcher = Client(stream)
            proxy.start_recording(RecordSettings(tmp_path / "x.ncap"))
            await client.send(b'CONNECT {"verbose":false}\r\nPING\r\n')
            assert await client.other_line() == b"PONG"
            with stopped(server):
                while not proxy.relays[1].server.backlog:
                    await client.send(b"PUB a 100000\r\n%b\r\n" % payload)
                    published += 1
                await client.send(b"PUB a 100000\r\n%b" % payload)
                proxy.suspend(1)
                await client.send(b"\r\nSUB b 1\r\n")
                while not proxy.relays[1].session.subs:
                    await trio.lowlevel.checkpoint()
                for _ in range(2):
                    await client.send(b"PUB a 4\r\nlost\r\nPING\r\n")
                    assert await client.other_line() == b"PONG"
            proxy.suspend(1, on=False)
            await client.send(b"PUB b 5\r\nagain\r\nPUB a 3\r\nend\r\nPING\r\n")
            assert [await client.other_line() for _ in range(3)] == [b"MSG b 1 5", b"again", b"PONG"]
            whole = 0
            while (line := await watcher.other_line()) == b"MSG a 1 100000":
                assert await watcher.other_line() == payload
                whole += 1
            assert [line, await watcher.other_line()] == [b"MSG a 1 3", b"end"]
            await proxy.stop_recording()
    frames = [one for one in read_frames(open_capture(tmp_path / "x.ncap")) if one.direction == C2S]
    sent = [one for one in frames if one.out_ordinal is not None and one.data.startswith(b"PUB a")]
    lost = [one for one in frames if one.cause == "swallow"]
    assert len(sent) == whole + 1
    assert [one.data for one in lost][-4:] == [b"PUB a 4\r\nlost\r\n", b"PING\r\n"] * 2
    assert whole + len(lost) - 4 == published


@pytest.mark.parametrize("plane", ["native", "python"])
async def test_a_suspended_connection_lives(plane: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NATSPROXY_PLANE", plane)
    with NatsServer(STALE_SOON) as server:
        async with connected(server) as (proxy, client):
            await client.send(b'CONNECT {"verbose":false}\r\nSUB a 1\r\nPUB a 2\r\nhi\r\nPING\r\n')
            assert [await client.other_line() for _ in range(3)] == [b"MSG a 1 2", b"hi", b"PONG"]
            proxy.suspend(1)
            await client.send(b"PUB a 4\r\nlost\r\nPING\r\n")
            assert await client.other_line() == b"PONG"
            # The server closes after one PING without an answer.
            assert [await client.line() for _ in range(3)] == [b"PING"] * 3
            proxy.suspend(1, on=False)
            await client.send(b"PUB a 5\r\nagain\r\n")
            assert [await client.other_line() for _ in range(2)] == [b"MSG a 1 5", b"again"]
