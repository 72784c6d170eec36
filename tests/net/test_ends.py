"""The end of a connection: a peer's last words are passed on, and the record names who was lost."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import groupby

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from natsproxy import close_reasons
from natsproxy.addresses import Address
from natsproxy.config.endpoints import Listener, Server
from natsproxy.config.settings import ProxySettings
from natsproxy.events import Closed
from natsproxy.net.leg import Leg, LegLost
from natsproxy.net.proxy import Proxy
from natsproxy.session.session import Session
from tests.kit.servers import NatsServer

TIMES = 20
DEADLINE = 20.0  # seconds
INFO = b'INFO {"server_id":"x","version":"2.15.1","headers":true,"max_payload":1048576}\r\n'
HELLO = b'CONNECT {"verbose":false,"user":"u","pass":"right"}\r\n'
PIECE = bytes(70_000)


@asynccontextmanager
async def before(port: int) -> AsyncIterator[tuple[Proxy, trio.MemoryReceiveChannel[Closed]]]:
    """Yield a proxy before a server, and the ends of its connections."""
    proxy = Proxy(ProxySettings(listen=(Listener(),), upstream=(Server(Address("127.0.0.1", port)),)))
    put, ends = trio.open_memory_channel[Closed](1_000)
    proxy.subscribe(lambda event: put.send_nowait(event) if isinstance(event, Closed) else None)
    async with trio.open_nursery() as nursery:
        await nursery.start(proxy.serve)
        with trio.fail_after(DEADLINE * 2):
            yield proxy, ends
        nursery.cancel_scope.cancel()


async def read(stream: trio.SocketStream, *, until: bytes = b"") -> bytes:
    """Return the bytes of a peer, to its end or to a text."""
    received = b""
    with suppress(trio.BrokenResourceError):
        while not (until and until in received):
            data = await stream.receive_some()
            if not data:
                break
            received += data
    return received


async def offend(port: int, offence: list[bytes], hello: bytes) -> bytes:
    """Send bytes that the server closes for, as far as it takes them; return the bytes received."""
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    received = b""

    async def listen() -> None:
        nonlocal received
        received = await read(stream)

    async with stream, trio.open_nursery() as nursery:
        nursery.start_soon(listen)
        with suppress(trio.BrokenResourceError):
            await stream.send_all(hello)
            for piece in offence:
                await stream.send_all(piece)
    return received


OFFENCES = {
    "a payload that is too large": (
        [b"SUB a 1\r\n" + b"PUB a 5\r\nhello\r\n" * 10 + b"PUB b 9000000\r\n", *[PIECE] * 128],
        HELLO + b"PING\r\n",
        [b"PONG\r\n", b"MSG a 1 5\r\nhello\r\n" * 10, b"-ERR 'Maximum Payload Violation'\r\n"],
    ),
    "a wrong password": (
        [b"PING\r\n", *[b"PUB a 5\r\nhello\r\n" * 1_000] * 30],
        HELLO.replace(b"right", b"wrong"),
        [b"-ERR 'Authorization Violation'\r\n"],
    ),
}


@pytest.mark.server
@pytest.mark.parametrize("offence", OFFENCES)
async def test_a_client_gets_the_error_with_which_the_server_closes(offence: str) -> None:
    """Though the client is still sending, as on its own."""
    pieces, hello, expected = OFFENCES[offence]
    with NatsServer("authorization { user: u, password: right }") as server:
        async with before(server.port) as (proxy, _):
            for port in (server.port, proxy.listen[0].port):
                received = [await offend(port, pieces, hello) for _ in range(TIMES)]
                assert [all(one in each for one in expected) for each in received] == [True] * TIMES, port


def reset(stream: trio.SocketStream) -> None:
    """Close with RST."""
    stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.socket.close()


@asynccontextmanager
async def pair() -> AsyncIterator[
    tuple[trio.SocketStream, trio.SocketStream, trio.MemoryReceiveChannel[Closed]]
]:
    """Yield a client and a server that stand on both sides of a proxy, and the ends of connections."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener, before(listener.socket.getsockname()[1]) as (proxy, ends):
        client = await trio.open_tcp_stream("127.0.0.1", proxy.listen[0].port)
        server = await listener.accept()
        async with client, server:
            await server.send_all(INFO)
            await read(client, until=b"\r\n")
            yield client, server, ends


@pytest.mark.parametrize("who", [close_reasons.CLIENT_LOST, close_reasons.SERVER_LOST])
@pytest.mark.parametrize("sends", ["the one who stays", "the one who goes", "nobody"])
async def test_the_record_names_who_was_lost(who: str, sends: str) -> None:
    for _ in range(4):
        async with pair() as (client, server, ends):
            goes, stays = (client, server) if who == close_reasons.CLIENT_LOST else (server, client)
            frame = {client: b"PUB a 1\r\nx\r\n", server: b"MSG a 1 1\r\nx\r\n"}
            await client.send_all(HELLO)
            await read(server, until=HELLO)
            if sends == "the one who goes":
                await goes.send_all(frame[goes] * 1_000)
            elif sends == "the one who stays":
                await stays.send_all(frame[stays] * 1_000)
            reset(goes)
            with suppress(trio.BrokenResourceError):
                if sends == "the one who stays":
                    await stays.send_all(frame[stays] * 1_000)
            await read(stays)
            await stays.aclose()
            assert (await ends.receive()).cause == who


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the proxy linger longer than any test lasts."""
    monkeypatch.setattr("natsproxy.net.leg.LINGER", 10 * DEADLINE)


async def write_on(client: trio.SocketStream) -> None:
    """Write until the connection is reset."""
    with suppress(trio.BrokenResourceError):
        while True:
            await client.send_all(b"PUB a 70000\r\n" + PIECE + b"\r\n")


@pytest.mark.parametrize("plane", ["native", "python"])
@pytest.mark.usefixtures("patient")
async def test_a_client_that_writes_on_after_the_end_of_its_server_is_reset(
    plane: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by the server itself, and not at the end of the linger; it has the server's last words."""
    monkeypatch.setenv("NATSPROXY_PLANE", plane)
    async with pair() as (client, server, ends):
        await client.send_all(HELLO)
        await read(server, until=HELLO)
        await server.send_all(b"-ERR 'Maximum Payload Violation'\r\n")
        await server.aclose()
        await write_on(client)
        assert await read(client) == b"-ERR 'Maximum Payload Violation'\r\n"
        assert (await ends.receive()).cause == close_reasons.SERVER_CLOSED


@pytest.mark.usefixtures("patient")
async def test_a_client_that_writes_on_has_all_of_its_server_before_it_is_reset() -> None:
    """Though it takes more than the kernel holds: an RST would destroy what is still on its way."""
    sent = (b"MSG a 1 70000\r\n" + PIECE + b"\r\n") * 200
    async with pair() as (client, server, _), trio.open_nursery() as nursery:
        await client.send_all(HELLO)
        await read(server, until=HELLO)

        async def serve() -> None:
            await server.send_all(sent)
            await server.send_eof()

        nursery.start_soon(serve)
        nursery.start_soon(read, server)
        nursery.start_soon(write_on, client)
        assert await read(client) == sent


async def test_a_client_that_had_written_before_the_end_of_its_server_is_not_reset() -> None:
    """An RST may destroy what it has not read yet, on some systems."""
    async with pair() as (client, server, _):
        await client.send_all(HELLO)
        await read(server, until=HELLO)
        await client.send_all(PIECE)
        await server.send_all(b"-ERR 'Stale Connection'\r\n")
        await server.aclose()
        assert await client.receive_some() == b"-ERR 'Stale Connection'\r\n"
        assert await client.receive_some() == b""


async def test_the_last_frames_of_a_client_reach_the_server() -> None:
    """Though deliveries are on their way to it: unread, they make an RST of its close."""
    rng = random.Random(1)
    sent = b"PUB a 5\r\nhello\r\n" * 100
    for _ in range(TIMES):
        async with pair() as (client, server, ends), trio.open_nursery() as nursery:
            await client.send_all(HELLO)
            await read(server, until=HELLO)

            async def flood(server: trio.SocketStream = server) -> None:
                with suppress(trio.BrokenResourceError):
                    while True:
                        await server.send_all(b"MSG a 1 1000\r\n" + bytes(1_000) + b"\r\n")

            nursery.start_soon(flood)
            for _ in range(rng.randrange(10, 40)):
                await trio.lowlevel.checkpoint()
            await client.send_all(sent)
            await client.aclose()
            assert await read(server, until=sent) == sent
            nursery.cancel_scope.cancel()
            assert (await ends.receive()).cause in (close_reasons.CLIENT_LOST, close_reasons.CLIENT_CLOSED)


async def test_a_leg_that_takes_no_more_is_still_read() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        leg = Leg(socket.create_connection(listener.getsockname()))
        with listener.accept()[0] as peer:
            leg.write(b"unread")
            peer.sendall(b"why")
        with pytest.raises(LegLost) as lost:
            leg.write_all([b"more", b"and more"])
        assert lost.value.leg is leg
        assert leg.gone
        leg.write(b"dropped")
        assert leg.try_receive() == b"why"
        assert leg.try_receive() == b""
        assert leg.lost is not None
        leg.close()


async def test_a_leg_that_a_read_has_lost_has_nothing_to_flush() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        leg = Leg(socket.create_connection(listener.getsockname()))
        peer, _ = listener.accept()
        while not leg.backlog:
            leg.write(bytes(1 << 20))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(leg.flush)
            await wait_all_tasks_blocked()
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.close()
            with pytest.raises(LegLost):
                leg.try_receive()
        assert leg.lost is not None
        leg.close()


async def test_a_look_whether_a_leg_has_bytes_leaves_the_reason_why_it_was_lost() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        leg = Leg(socket.create_connection(listener.getsockname()))
        peer, _ = listener.accept()
        peer.sendall(b"x")
        assert leg.readable
        assert leg.try_receive() == b"x"
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
        assert not leg.readable
        leg.close()
        assert not leg.readable
        await leg.wait_readable()
        with pytest.raises(LegLost):
            await leg.receive()
        leg.close()


@pytest.mark.server
@pytest.mark.parametrize(
    ("sent", "announced"),
    [
        (b'CONNECT {"verbose":false,"protocol":1}\r\nPING\r\n', True),
        (b'CONNECT {"verbose":false,"protocol":0}\r\nPING\r\n', False),
        (b'CONNECT {"verbose":true,"protocol":1}\r\n', False),
    ],
)
async def test_a_drain_announces_lame_duck_mode_to_clients_that_take_it(
    sent: bytes, announced: bool, nats_server: NatsServer
) -> None:
    """As a server in lame-duck mode: those past their first PONG, that take INFO at any time."""
    async with before(nats_server.port) as (proxy, ends):
        async with await trio.open_tcp_stream("127.0.0.1", proxy.listen[0].port) as client:
            await read(client, until=b"\r\n")
            await client.send_all(sent)
            await read(client, until=b"PONG\r\n" if b"PING" in sent else b"+OK\r\n")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(proxy.drain)
                received = await read(client)
                await client.aclose()
        # Another INFO may be among them: the server sends a second one of its own.
        assert received.count(b'"ldm":true') == int(announced)
        assert (await ends.receive()).cause == close_reasons.DRAINED


class Passes(trio.abc.Instrument):
    """Counts how often trio has looked for tasks that are ready."""

    count = 0

    def before_io_wait(self, timeout: float) -> None:
        self.count += 1


async def test_a_drain_ends_connections_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """New connections are refused from the first moment of a drain."""
    passes = Passes()
    trio.lowlevel.add_instrument(passes)
    drained: list[int] = []
    monkeypatch.setattr(Session, "drain", lambda *_, **options: drained.append(passes.count))
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    count = 2 * TIMES
    monkeypatch.setattr("natsproxy.net.proxy._DRAIN_STEP", count // 2)
    async with listener, before(listener.socket.getsockname()[1]) as (proxy, _):
        clients, servers = [], []
        for _ in range(count):
            clients.append(await trio.open_tcp_stream("127.0.0.1", proxy.listen[0].port))
            servers.append(await listener.accept())
            await servers[-1].send_all(INFO)
            await read(clients[-1], until=b"\r\n")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(proxy.drain, 60)
            while len(drained) < count:
                await trio.lowlevel.checkpoint()
            with pytest.raises(OSError, match="connect"):
                await trio.open_tcp_stream("127.0.0.1", proxy.listen[0].port)
            nursery.cancel_scope.cancel()
        for client in (*clients, *servers):
            await client.aclose()
    assert [len(list(step)) for _, step in groupby(drained)] == [count // 2, count // 2]
