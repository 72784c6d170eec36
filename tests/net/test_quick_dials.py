"""Connections that are served without a task each, and dials that are slower than expected."""

from __future__ import annotations

import select
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NoReturn

import pytest
import trio
import trio.testing

from natsproxy import close_reasons
from natsproxy.addresses import Address
from natsproxy.config.endpoints import Server
from natsproxy.events import Closed, Event, Opened
from natsproxy.net import connections
from natsproxy.net.dial import SLOW, BegunDial
from natsproxy.net.endpoints import Endpoint
from natsproxy.net.leg import AnyLeg
from natsproxy.net.quick_dials import QuickDials
from natsproxy.rules.interface import EmptyChain
from tests.kit.stage import FRAME, HELLO, INFO, Stage, receive, stage

CONNECTIONS = 20


async def greeted(client: trio.SocketStream) -> bytes:
    """Return the INFO that a client gets."""
    line = b""
    while b"\r\n" not in line:
        line += await client.receive_some()
    return line


async def test_each_dial_is_slow_in_its_own_time(mock_clock: trio.testing.MockClock) -> None:
    """Also one that begins while the time of an earlier one runs, which has ended since."""
    ended: list[BegunDial | None] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        sockaddr = listening.getsockname()
        endpoint = Endpoint(Server(Address(*sockaddr)), socket.AF_INET, sockaddr)
        dials = QuickDials(keepalive=False)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(dials.run)
            for _ in range(2):  # the second time from rest
                assert dials.begin(endpoint, ended.append)
                await trio.testing.wait_all_tasks_blocked()
                with listening.accept()[0] as server:
                    server.sendall(INFO)
                    while not ended:
                        await trio.lowlevel.checkpoint()
                quick = ended.pop()
                assert quick is not None
                assert quick.said == INFO
                mock_clock.jump(0.6 * SLOW)
                assert dials.begin(endpoint, ended.append)
                await trio.testing.wait_all_tasks_blocked()
                mock_clock.jump(0.6 * SLOW)  # that of the first one is over
                await trio.testing.wait_all_tasks_blocked()
                assert not ended
                mock_clock.jump(0.5 * SLOW)
                await trio.testing.wait_all_tasks_blocked()
                slow = ended.pop()
                assert slow is not None
                assert (slow.leg is not None, slow.said) == (True, b"")
                assert slow.seconds == pytest.approx(1.1 * SLOW)
                slow.close()
                quick.close()
                listening.accept()[0].close()
            nursery.cancel_scope.cancel()


def asks_again(made: Stage) -> bool:
    """Tell whether another connection to the server is waiting to be accepted."""
    return bool(select.select([made.listener.socket], [], [], 0)[0])


def dialling(made: Stage) -> list[int]:
    """Return the ports of the dials that wait without a task."""
    waiting = made.proxy.connections._quick_dials._waiting.values()
    return [one.dial.leg.local.port for one in waiting if one.dial.leg is not None]


async def dial(made: Stage) -> tuple[trio.SocketStream, trio.SocketStream]:
    """Return a client, and the connection of its server, which has sent nothing."""
    client = await trio.open_tcp_stream("127.0.0.1", made.proxy.listen[0].port)
    return client, await made.listener.accept()


@pytest.mark.parametrize("plane", ["native", "python"])
async def test_an_open_connection_has_no_task(plane: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for those that move its bytes, where the plane is in Python."""
    monkeypatch.setenv("NATSPROXY_PLANE", plane)
    async with stage() as made:
        each = 0 if type(made.proxy.connections.plane).__name__ == "NativePlane" else 2
        peers = [*await made.connect()]  # all other tasks have begun
        before = trio.lowlevel.current_statistics().tasks_living
        for _ in range(CONNECTIONS):
            peers += await made.connect()
        assert trio.lowlevel.current_statistics().tasks_living == before + each * CONNECTIONS
        for client in peers[2::2]:
            await client.aclose()
        for server in peers[3::2]:
            await server.aclose()
        for conn in range(2, CONNECTIONS + 2):
            assert await made.end_of(conn) == close_reasons.CLIENT_CLOSED
        while trio.lowlevel.current_statistics().tasks_living > before:
            await trio.lowlevel.checkpoint()
        for peer in peers[:2]:
            await peer.aclose()


@pytest.mark.parametrize("plane", ["native", "python"])
async def test_connections_that_end_together_are_finished_in_slices(
    plane: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However they come to their end: within a step of the plane, or outside."""
    monkeypatch.setenv("NATSPROXY_PLANE", plane)
    monkeypatch.setattr(connections, "LENGTH", -1)  # a slice is over behind the first
    at_once: list[int] = []
    some = connections.Connections._finish_some

    def counted(self: connections.Connections) -> None:
        before = len(self._over)
        some(self)
        at_once.append(before - len(self._over))

    monkeypatch.setattr(connections.Connections, "_finish_some", counted)
    async with stage() as made:
        peers = [peer for _ in range(CONNECTIONS) for peer in await made.connect()]
        for client in peers[:CONNECTIONS:2]:
            await client.aclose()
        for server in peers[1:CONNECTIONS:2]:
            await server.aclose()
        for conn in range(CONNECTIONS // 2 + 1, CONNECTIONS + 1):
            made.proxy.relays[conn].kill(close_reasons.KILLED, reset=True)
        ends = [await made.end_of(conn) for conn in range(1, CONNECTIONS + 1)]
        assert ends[: CONNECTIONS // 2] == [close_reasons.CLIENT_CLOSED] * (CONNECTIONS // 2)
        assert ends[CONNECTIONS // 2 :] == [close_reasons.KILLED] * (CONNECTIONS // 2)
        assert (max(at_once), sum(at_once)) == (1, CONNECTIONS)
        for peer in peers:
            await trio.aclose_forcefully(peer)


@pytest.mark.parametrize("said", [0, 7, len(INFO)], ids=["nothing", "half a line", "its INFO"])
@pytest.mark.parametrize("slow", [False, True], ids=["quick", "slow"])
async def test_a_dial_goes_on_with_the_connection_that_it_has(said: int, slow: bool) -> None:
    async with stage() as made:
        client, server = await dial(made)
        async with client, server:
            if said:
                await server.send_all(INFO[:said])
            if slow:
                await trio.sleep(1.5 * SLOW)
            if said < len(INFO):
                await server.send_all(INFO[said:])
            assert (await greeted(client)).startswith(b"INFO {")
            await client.send_all(HELLO + FRAME)
            assert await receive(server, len(HELLO + FRAME)) == HELLO + FRAME
            assert not asks_again(made)
            assert made.proxy.connections.upstreams.dials == {"connected": 1, "failed": 0}


async def test_a_dial_that_is_lost_is_repeated() -> None:
    async with stage() as made:
        client, server = await dial(made)
        await server.aclose()
        async with client, await made.listener.accept() as again:
            await again.send_all(INFO)
            assert (await greeted(client)).startswith(b"INFO {")


async def test_a_client_that_leaves_during_the_dial() -> None:
    async with stage() as made:
        client, server = await dial(made)
        await client.aclose()
        async with server:
            await server.send_all(INFO)
            assert await made.end_of(1) == close_reasons.CLIENT_CLOSED
            assert await receive(server, 1) == b""
        assert made.ends[1].detail == "the client left before there was a server"


async def test_a_cancellation_during_the_dial_is_told() -> None:
    async with stage() as made:
        client, server = await dial(made)
    async with client, server:
        assert list(made.ends) == [1]
        assert await receive(client, 1) == await receive(server, 1) == b""


async def test_a_dial_goes_on_with_a_connection_that_is_not_there_yet() -> None:
    """As to a far server; here the kernel drops the SYN, since nobody takes earlier connections."""
    async with stage() as made:
        socket = made.listener.socket
        socket.listen(0)
        async with await trio.open_tcp_stream(*socket.getsockname()):
            client = await trio.open_tcp_stream("127.0.0.1", made.proxy.listen[0].port)
            async with client:
                while not (waiting := dialling(made)):
                    await trio.lowlevel.checkpoint()
                while dialling(made):
                    await trio.lowlevel.checkpoint()
                await (await made.listener.accept()).aclose()
                async with await made.listener.accept() as server:
                    assert server.socket.getpeername()[1] in waiting
                    await server.send_all(INFO)
                    assert (await greeted(client)).startswith(b"INFO {")


async def test_a_failure_to_report_an_end_does_not_keep_the_connection() -> None:
    def fail(event: Event) -> None:
        if isinstance(event, Closed) and event.cause != close_reasons.INTERNAL:
            raise ZeroDivisionError

    async with stage() as made:
        made.proxy.subscribe(fail)
        client, server = await made.connect()
        await client.aclose()
        await server.aclose()
        while made.ends.get(1) is None or made.ends[1].cause != close_reasons.INTERNAL:
            await trio.lowlevel.checkpoint()
        with trio.fail_after(5):
            await made.proxy.drain()
        assert made.proxy.connections.open == 0


@asynccontextmanager
async def no_layers(conn: int, client: AnyLeg, server: AnyLeg) -> AsyncIterator[tuple[AnyLeg, AnyLeg]]:
    yield client, server


async def test_a_cancellation_under_layers_is_told() -> None:
    async with stage() as made:
        made.proxy.put_over_legs(no_layers)
        peers = await made.connect()
    for peer in peers:
        await peer.aclose()
    assert list(made.ends) == [1]
    assert not made.proxy.relays


async def test_a_failing_chain_ends_a_connection_under_layers_once() -> None:
    class Failing(EmptyChain):
        def bind(self, *_: object) -> NoReturn:
            raise ZeroDivisionError

    async with stage() as made:
        made.proxy.put_over_legs(no_layers)
        client, server = await dial(made)
        made.proxy.connections.chain = Failing()  # as a change of the rules during the dial
        async with client, server:
            await server.send_all(INFO)
            assert await made.end_of(1) == close_reasons.INTERNAL
    assert made.proxy.connections.open == 0


@asynccontextmanager
async def failing_layers(conn: int, client: AnyLeg, server: AnyLeg) -> AsyncIterator[tuple[AnyLeg, AnyLeg]]:
    raise ZeroDivisionError
    yield client, server


@pytest.mark.parametrize("fails", ["a subscriber", "the layers"])
async def test_what_fails_behind_the_greeting_leaves_no_socket(fails: str) -> None:
    """A socket that is only dropped would be a warning, and warnings are errors here."""

    def fail(event: object) -> None:
        if isinstance(event, Opened):
            raise ZeroDivisionError

    async with stage() as made:
        if fails == "the layers":
            made.proxy.put_over_legs(failing_layers)
        else:
            made.proxy.subscribe(fail)
        client, server = await dial(made)
        async with client, server:
            await server.send_all(INFO)
            assert await made.end_of(1) == close_reasons.INTERNAL
            assert await receive(server, 1) == b""
    assert made.proxy.connections.open == 0
