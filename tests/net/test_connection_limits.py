"""Limits of connections: their number, silent clients, clients that take nothing, half-open ones."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from ipaddress import ip_network
from typing import Any

import pytest
import trio

from natsproxy import close_reasons
from natsproxy.addresses import Address
from natsproxy.config.endpoints import Listener, Server
from natsproxy.config.settings import ProxySettings
from natsproxy.config.tls import HandshakeFirst, TlsSettings
from natsproxy.events import Closed, Event
from natsproxy.net import tcp
from natsproxy.net.leg import Leg
from natsproxy.net.proxy import Proxy
from natsproxy.rules.file.parser import load
from natsproxy.rules.kinds import KINDS
from tests.kit.authority import Authority
from tests.kit.servers import NatsServer

MS = 1_000_000
CONNECT = b'CONNECT {"verbose":false}\r\nPING\r\n'
SO_ATTACH_FILTER = 26  # of Linux; the module socket has no name for it


class Run:
    """A proxy before a server, and its events."""

    def __init__(self, server: NatsServer | Address, **settings: Any) -> None:
        address = server if isinstance(server, Address) else Address("127.0.0.1", server.port)
        self._ended, self._ends = trio.open_memory_channel[Closed](100)
        self.proxy = Proxy(ProxySettings(listen=(Listener(),), upstream=(Server(address),), **settings))
        self.proxy.subscribe(self._note)

    def _note(self, event: Event) -> None:
        if isinstance(event, Closed):
            self._ended.send_nowait(event)

    async def connect(self) -> trio.SocketStream:
        """Connect as a client."""
        return await trio.open_tcp_stream("127.0.0.1", self.proxy.listen[0].port)

    async def end_of(self, cause: str) -> Closed:
        """Wait for a connection that ends for a cause."""
        while (closed := await self._ends.receive()).cause != cause:
            pass
        return closed


@asynccontextmanager
async def before(server: NatsServer | Address, **settings: Any) -> AsyncIterator[Run]:
    """Run a proxy with these settings, for at most half a minute."""
    run = Run(server, **settings)
    done = False
    async with trio.open_nursery() as nursery:
        nursery.cancel_scope.deadline = trio.current_time() + 30
        await nursery.start(run.proxy.serve)
        yield run
        done = True
        nursery.cancel_scope.cancel()
    assert done


async def until(stream: trio.SocketStream, end: bytes) -> bytes:
    """Receive up to bytes, or to the end of the stream for `b""`."""
    data = b""
    while not (end and data.endswith(end)):
        more = await stream.receive_some()
        if not more:
            assert not end, data
            return data
        data += more
    return data


async def said_when_full(port: int, others: int) -> bytes:
    """Open `others` connections and one more; return all that the last one gets."""
    streams = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(others)]
    for stream in streams:
        await stream.send_all(CONNECT)
        await until(stream, b"PONG\r\n")
    async with await trio.open_tcp_stream("127.0.0.1", port) as late:
        said = await until(late, b"")
    for stream in streams:
        await stream.aclose()
    return said


async def test_one_connection_too_many_is_told_what_the_server_tells() -> None:
    with NatsServer("max_connections: 2") as full, NatsServer() as server:
        theirs = await said_when_full(full.port, 2)
        async with before(server, max_connections=2) as run:
            ours = await said_when_full(run.proxy.listen[0].port, 2)
            assert [line[:5] for line in ours.splitlines()] == [line[:5] for line in theirs.splitlines()]
            assert ours.splitlines()[1:] == theirs.splitlines()[1:]
            closed = await run.end_of(close_reasons.LIMIT)
            assert closed.detail == "there are 2 connections, max-connections"
            for _ in range(2):  # those that ended make room
                await run.end_of(close_reasons.CLIENT_CLOSED)
            async with await run.connect() as stream:
                await stream.send_all(CONNECT)
                await until(stream, b"PONG\r\n")


async def test_an_address_has_a_limit_of_its_own(nats_server: NatsServer) -> None:
    async with before(nats_server, max_connections_per_address=1) as run:
        said = await said_when_full(run.proxy.listen[0].port, 1)
        assert said.endswith(b"-ERR 'maximum connections exceeded'\r\n")
        closed = await run.end_of(close_reasons.LIMIT)
        assert closed.detail == "127.0.0.1 has 1 connections, max-connections-per-address"


async def test_legs_that_never_open_take_no_more_than_their_number(nats_server: NatsServer) -> None:
    settings = ProxySettings(
        listen=(Listener(Address(), "ws"),),
        upstream=(Server(Address("127.0.0.1", nats_server.port)),),
        max_connections=1,
    )
    proxy, events = Proxy(settings), list[Event]()
    proxy.subscribe(events.append)
    async with trio.open_nursery() as nursery:
        nursery.cancel_scope.deadline = trio.current_time() + 30
        (address,) = await nursery.start(proxy.serve)
        silent = await trio.open_tcp_stream("127.0.0.1", address.port)
        async with await trio.open_tcp_stream("127.0.0.1", address.port) as other:
            assert await other.receive_some() == b""
        await silent.aclose()
        nursery.cancel_scope.cancel()
    assert close_reasons.LIMIT in [event.cause for event in events if isinstance(event, Closed)]


@pytest.mark.parametrize("kind", ["ws", "tls", "wss", "behind a load balancer"])
async def test_a_probe_of_any_listener_is_a_client_that_closed(authority: Authority, kind: str) -> None:
    """And no client that broke a protocol, as one that sent a byte."""
    balanced = kind == "behind a load balancer"
    networks = (ip_network("127.0.0.0/8"),) if balanced else ()
    settings = ProxySettings(
        listen=(Listener(scheme="nats" if balanced else kind, proxy_protocol=networks),),
        upstream=(Server(Address("127.0.0.1", 1)),),
        tls=TlsSettings(cert=authority.server(), handshake_first=HandshakeFirst()),
    )
    proxy = Proxy(settings)
    ended, ends = trio.open_memory_channel[Closed](2)
    proxy.subscribe(lambda event: ended.send_nowait(event) if isinstance(event, Closed) else None)
    async with trio.open_nursery() as nursery:
        (address,) = await nursery.start(proxy.serve)
        with trio.fail_after(30):
            for sent in (b"", b"\x16"):
                stream = await trio.open_tcp_stream("127.0.0.1", address.port)
                await stream.send_all(sent)
                await stream.aclose()
                closed = await ends.receive()
                assert (closed.cause == close_reasons.CLIENT_CLOSED, not closed.detail) == (not sent,) * 2
        nursery.cancel_scope.cancel()
    ended.close()
    ends.close()


UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


@pytest.mark.parametrize("kind", ["ws", "tls", "behind a load balancer"])
async def test_legs_of_one_address_that_never_open_leave_room_for_others(
    nats_server: NatsServer, authority: Authority, kind: str
) -> None:
    balanced = kind == "behind a load balancer"

    streams: list[trio.SocketStream] = []

    async def connect(number: int) -> trio.SocketStream:
        local = "127.0.0.1" if balanced else f"127.0.0.{number}"
        stream = await trio.open_tcp_stream("127.0.0.1", address.port, local_address=local)
        streams.append(stream)
        if balanced:
            await stream.send_all(f"PROXY TCP4 10.0.0.{number} 10.0.0.1 1 2\r\n".encode())
        return stream

    settings = ProxySettings(
        listen=(
            Listener(
                scheme="tls" if kind == "tls" else "ws",
                proxy_protocol=(ip_network("127.0.0.0/8"),) if balanced else (),
            ),
        ),
        upstream=(Server(Address("127.0.0.1", nats_server.port)),),
        max_connections=4,
        max_connections_per_address=1,
        tls=TlsSettings(cert=authority.server(), handshake_first=HandshakeFirst()),
    )
    proxy, events, done = Proxy(settings), list[Event](), False
    proxy.subscribe(events.append)
    async with trio.open_nursery() as nursery:
        nursery.cancel_scope.deadline = trio.current_time() + 30
        (address,) = await nursery.start(proxy.serve)
        for stream in [await connect(7) for _ in range(4)][1:]:
            assert await until(stream, b"") == b""
        client = await connect(9)
        if kind == "tls":
            context = authority.client_context()
            secured = trio.SSLStream(client, context, server_hostname="127.0.0.1")
            assert (await secured.receive_some()).startswith(b"INFO ")
        else:
            await client.send_all(UPGRADE)
            assert (await client.receive_some()).startswith(b"HTTP/1.1 101 ")
        for stream in streams:
            stream.socket.close()
        done = True
        nursery.cancel_scope.cancel()
    assert done
    host = "10.0.0.7" if balanced else "127.0.0.7"
    reason = f"{host} is opening 1 connections, max-connections-per-address"
    ends = [event for event in events if isinstance(event, Closed)]
    assert [(end.cause, end.detail) for end in ends[:3]] == [(close_reasons.LIMIT, reason)] * 3


@pytest.mark.parametrize("plane", ["native", "python"])
async def test_a_silent_client_is_stale(
    nats_server: NatsServer, plane: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NATSPROXY_PLANE", plane)
    async with before(nats_server, idle_timeout=1000 * MS) as run:  # a busy machine stands still for less
        async with await run.connect() as busy, await run.connect() as silent:
            for stream in (busy, silent):
                await stream.send_all(CONNECT)
                await until(stream, b"PONG\r\n")
            async with trio.open_nursery() as nursery:

                async def keep_busy() -> None:
                    while True:
                        await busy.send_all(b"PING\r\n")
                        await until(busy, b"PONG\r\n")
                        await trio.sleep(0.02)

                nursery.start_soon(keep_busy)
                assert await until(silent, b"") == b"-ERR 'Stale Connection'\r\n"
                nursery.cancel_scope.cancel()
        closed = await run.end_of(close_reasons.IDLE)
        assert closed.detail == "the client sent nothing in 1s"


@pytest.mark.parametrize("plane", ["native", "python"])
@pytest.mark.parametrize("held_by", ["an operator", "a server that takes nothing", "a limit"])
async def test_a_client_that_we_do_not_read_is_not_silent(
    held_by: str, plane: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NATSPROXY_PLANE", plane)

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.send_all(b'INFO {"version":"2.15.1","max_payload":100000} \r\n')
            await over.wait()

    over = trio.Event()
    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        upstream = Address("127.0.0.1", listener.socket.getsockname()[1])
        async with before(upstream, idle_timeout=200 * MS) as run, await run.connect() as held:
            await until(held, b"\r\n")
            await held.send_all(CONNECT)
            relay = run.proxy.relays[1]
            if held_by == "an operator":
                run.proxy.pause(1, None)
            if held_by == "a limit":
                run.proxy.rules.load(load('[[rules]]\nname = "r"\nkind = "limit"\nmessages = "1/h"\n', KINDS))
                await run.proxy.rules_in_force()
                await held.send_all(b"PUB a 0\r\n\r\n" * 2)
            while held_by == "a server that takes nothing" and not (
                relay.server.backlog and relay.client.readable
            ):
                await held.send_all(b"PUB a 100000\r\n" + bytes(100_000) + b"\r\n")
            async with await run.connect() as silent:  # silent for less time than the other one
                await until(silent, b"-ERR 'Stale Connection'\r\n")
            assert not relay.session.over
            over.set()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("plane", ["native", "python"])
async def test_a_client_that_takes_nothing_ends(
    nats_server: NatsServer, plane: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NATSPROXY_PLANE", plane)
    async with before(nats_server, write_deadline=400 * MS) as run:
        async with await run.connect() as slow, await run.connect() as publisher:
            await slow.send_all(CONNECT + b"SUB a 1\r\nPING\r\n")
            await until(slow, b"PONG\r\nPONG\r\n")
            await publisher.send_all(CONNECT)
            await until(publisher, b"PONG\r\n")
            message = b"PUB a 100000\r\n" + bytes(100_000) + b"\r\n"
            async with trio.open_nursery() as nursery:

                async def publish() -> None:
                    while True:
                        await publisher.send_all(message + b"PING\r\n")
                        await until(publisher, b"PONG\r\n")

                nursery.start_soon(publish)
                closed = await run.end_of(close_reasons.SLOW)
                nursery.cancel_scope.cancel()
        assert closed.detail == "the client took no bytes in 400ms"


def is_found_within_minutes(leg: object) -> bool:
    """Tell whether the kernel asks the peer of a leg for signs of life, and limits bytes on their way."""
    assert isinstance(leg, Leg)
    with socket.socket(fileno=os.dup(leg.fileno())) as sock:
        idle, every, count, unacknowledged = (
            sock.getsockopt(socket.IPPROTO_TCP, option)
            for option in (
                socket.TCP_KEEPIDLE,
                socket.TCP_KEEPINTVL,
                socket.TCP_KEEPCNT,
                socket.TCP_USER_TIMEOUT,
            )
        )
        asked = bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))
    assert (idle + every * count <= 180) == asked
    assert (0 < unacknowledged <= 180_000) == asked
    return asked


@pytest.mark.parametrize("asked", [True, False])
async def test_a_peer_that_vanishes_is_found_within_minutes(nats_server: NatsServer, asked: bool) -> None:
    """The kernel asks it on both legs; by its own defaults that would take more than two hours."""
    async with before(nats_server, keepalive=asked) as run, await run.connect() as client:
        await until(client, b"\n")
        relay = run.proxy.relays[1]
        assert [is_found_within_minutes(one) for one in (relay.accepted.plain, relay.legs[1])] == [asked] * 2


async def test_a_client_that_came_before_the_proxy_did_is_found_too(nats_server: NatsServer) -> None:
    """Its connection waits in a socket that is passed on: it has inherited nothing of ours."""
    passed = socket.create_server(("127.0.0.1", 0))
    address = Address("127.0.0.1", passed.getsockname()[1])
    server = Server(Address("127.0.0.1", nats_server.port))
    async with await trio.open_tcp_stream(address.host, address.port) as client:
        proxy = Proxy(ProxySettings(listen=(Listener(address),), upstream=(server,)), sockets=(passed,))
        async with trio.open_nursery() as nursery:
            await nursery.start(proxy.serve)
            await until(client, b"\n")
            assert is_found_within_minutes(proxy.relays[1].accepted.plain)
            nursery.cancel_scope.cancel()


async def test_a_peer_that_vanishes_with_bytes_on_their_way_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the kernel asks nothing: it repeats the bytes, for a quarter of an hour by its defaults."""
    monkeypatch.setattr(tcp, "UNACKNOWLEDGED", 300)
    asked = trio.Event()
    drop_all = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))  # BPF: return 0

    async def serve(stream: trio.SocketStream) -> None:
        await stream.send_all(b'INFO {"version":"2.15.1","max_payload":1000} \r\n')
        assert (await stream.receive_some()).startswith(b"CONNECT")
        program = struct.pack("HL", 1, ctypes.addressof(drop_all))
        stream.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)
        asked.set()
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        upstream = Address("127.0.0.1", listener.socket.getsockname()[1])
        async with before(upstream) as run, await run.connect() as client:
            await client.send_all(CONNECT)
            await asked.wait()
            await client.send_all(b"PUB a 2\r\nhi\r\n")
            closed = await run.end_of(close_reasons.SERVER_LOST)
        nursery.cancel_scope.cancel()
    assert "Connection timed out" in closed.detail
