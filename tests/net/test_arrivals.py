"""Clients that arrive: a bounded number is on its way, the others wait by address, and none for ever."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from functools import partial

import pytest
import trio
import trio.testing

from natsproxy.events import Event, Notice
from natsproxy.net import arrivals as module
from natsproxy.net.arrivals import (
    FIRST_LIMIT,
    LEAST,
    LONGEST,
    MOST,
    QUIET,
    SILENT,
    SLOW,
    WORTH,
    Arrivals,
    Take,
)
from natsproxy.net.clock import now_ns
from natsproxy.net.listener import accept
from natsproxy.net.shortage import Shortage
from natsproxy.session.values import SessionSettings
from natsproxy.units import MILLISECOND, SECOND
from tests.kit.stage import HELLO, INFO, receive, stage

TICK = MILLISECOND / SECOND
QUICK = MILLISECOND  # of a dial


class Door:
    """Arrivals, with clients that the test has the other ends of.  taken: their hosts, in order."""

    def __init__(self, stack: ExitStack) -> None:
        self.events: list[Event] = []
        self.gone: list[str] = []
        self.taken: list[str] = []
        self.arrivals = Arrivals(self.events.append, self.gone.append, now_ns)
        self._stack = stack

    def come(self, host: str = "10.0.0.1", count: int = 1) -> socket.socket:
        """Let clients come; return the last one's own end."""
        for _ in range(count):
            mine, client = socket.socketpair()
            self._stack.enter_context(mine)
            self.arrivals.come(client, host, 7, partial(self._take, host=host), more=False)
        return mine

    def _take(self, client: socket.socket, host: str) -> tuple[int, Callable[[], None]]:
        self._stack.enter_context(client)
        return len(self.taken) + 1, partial(self.taken.append, host)

    def named(self, name: str, order: list[str]) -> tuple[socket.socket, str, int, Take]:
        """Return the arguments of `come` for a client of one address, whose name goes into `order`."""
        mine, client = socket.socketpair()
        self._stack.enter_context(mine)

        def take(client: socket.socket) -> tuple[int, Callable[[], None]]:
            self._stack.enter_context(client)
            return FIRST_LIMIT + 1 + len(order), partial(order.append, name)

        return client, "10.0.0.1", 7, take

    @property
    def storms(self) -> list[Notice]:
        return [event for event in self.events if isinstance(event, Notice)]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@asynccontextmanager
async def door(stack: ExitStack) -> AsyncIterator[Door]:
    made = Door(stack)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.arrivals.run)
        yield made
        nursery.cancel_scope.cancel()
    made.arrivals.close()


async def settled() -> None:
    await trio.testing.wait_all_tasks_blocked()


async def test_never_more_than_the_limit_are_on_their_way(
    stack: ExitStack, autojump_clock: trio.testing.MockClock
) -> None:
    async with door(stack) as made:
        arrivals = made.arrivals
        made.come(count=3 * FIRST_LIMIT)
        await settled()
        assert len(made.taken) == arrivals.on_their_way == FIRST_LIMIT
        assert arrivals.waiting == arrivals.delayed == 2 * FIRST_LIMIT
        for conn in range(1, 3 * FIRST_LIMIT + 1):  # each arrives as soon as it may
            arrivals.greeted(conn, QUICK)
            arrivals.arrived(conn)
            arrivals.arrived(conn)  # again, at its end
            await settled()
            assert arrivals.on_their_way <= int(arrivals.limit)
        assert (len(made.taken), arrivals.on_their_way, arrivals.waiting) == (3 * FIRST_LIMIT, 0, 0)


async def test_a_slow_server_does_not_hold_the_others_for_ever(
    stack: ExitStack, autojump_clock: trio.testing.MockClock
) -> None:
    async with door(stack) as made:
        made.come(count=FIRST_LIMIT + 5)
        await trio.sleep(LONGEST / SECOND - TICK)
        assert len(made.taken) == FIRST_LIMIT
        await trio.sleep(2 * TICK)
        assert len(made.taken) == FIRST_LIMIT + 5
        made.arrivals.arrived(1)  # it is not counted twice
        assert made.arrivals.on_their_way == 5


async def test_clients_that_say_nothing_after_info_do_not_hold_the_others(
    stack: ExitStack, autojump_clock: trio.testing.MockClock
) -> None:
    async with door(stack) as made:
        made.come(count=FIRST_LIMIT)
        for conn in range(1, FIRST_LIMIT + 1):
            made.arrivals.greeted(conn, QUICK)
        made.come(count=5)
        await trio.sleep(SILENT / SECOND - TICK)
        assert len(made.taken) == FIRST_LIMIT
        await trio.sleep(2 * TICK)
        assert len(made.taken) == FIRST_LIMIT + 5


async def test_the_newest_have_every_other_turn_once_the_oldest_may_give_up(
    stack: ExitStack, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In order of arrival nobody would be served where clients give up before it is their turn."""
    monkeypatch.setattr(module, "STALE", LONGEST // 2)
    async with door(stack) as made:
        made.come("in the way", FIRST_LIMIT)
        order = list[str]()
        for name in ("first", "second", "third", "last"):
            made.arrivals.come(*made.named(name, order), more=False)
        made.arrivals.arrived(1)
        await settled()
        assert order == ["first"]
        await trio.sleep(LONGEST / SECOND / 2)
        for conn in (2, 3, 4):
            made.arrivals.arrived(conn)
            await settled()
        assert order == ["first", "last", "second", "third"]


async def test_addresses_take_turns(stack: ExitStack, autojump_clock: trio.testing.MockClock) -> None:
    """A client that connects in a loop delays those of its own address."""
    async with door(stack) as made:
        made.come("10.0.0.1", FIRST_LIMIT + 100)
        made.come("10.0.0.2", 2)
        made.come("10.0.0.3")
        for conn in range(1, 7):
            made.arrivals.arrived(conn)
        await settled()
        later = [host[-1] for host in made.taken[FIRST_LIMIT:]]
        assert later == ["1", "2", "3", "1", "2", "1"]


async def test_the_limit_follows_the_time_of_a_dial(
    stack: ExitStack, autojump_clock: trio.testing.MockClock
) -> None:
    async with door(stack) as made:
        arrivals = made.arrivals
        made.come(count=FIRST_LIMIT + 1)
        arrivals.greeted(1, SLOW + 1)
        assert LEAST < arrivals.limit < FIRST_LIMIT
        once = arrivals.limit
        arrivals.greeted(2, SLOW + 1)  # it was begun before
        assert arrivals.limit == once


def test_the_limit_has_bounds_and_knows_a_server_that_is_far(stack: ExitStack) -> None:
    made = Door(stack)
    arrivals, conn = made.arrivals, 0

    def dialled(took: int) -> None:
        """Let a dial end while as many as may be are on their way, and others wait."""
        nonlocal conn
        while arrivals.on_their_way < int(arrivals.limit):
            conn += 1
            arrivals._opening[conn] = 0
        oldest = next(iter(arrivals._opening))
        arrivals._waiting = 1
        arrivals.greeted(oldest, took)
        arrivals.arrived(oldest)

    arrivals._clock = lambda: 0
    far = 10 * SLOW
    for _ in range(1_000):
        dialled(far)
        if arrivals.limit == LEAST:
            break
    assert arrivals.limit == LEAST
    for _ in range(10_000):  # as slow as before: it is far away, and not busy
        dialled(far)
    assert arrivals.limit == MOST
    for _ in range(100_000):
        dialled(10 * far)
        assert arrivals.limit >= LEAST
        if arrivals.limit == LEAST:
            break
    assert arrivals.limit == LEAST
    arrivals._waiting = 0


async def test_a_storm_is_reported_once_at_its_end(
    stack: ExitStack, autojump_clock: trio.testing.MockClock
) -> None:
    async with door(stack) as made:
        made.come(count=FIRST_LIMIT + 3)
        made.come().close()
        await trio.sleep(2 * WORTH / SECOND)
        made.arrivals.arrived(1)
        made.arrivals.arrived(2)
        await trio.sleep(WORTH / SECOND)
        for conn in range(3, FIRST_LIMIT + 3):
            made.arrivals.arrived(conn)
        await trio.sleep(QUIET / SECOND - TICK)
        assert made.storms == []
        assert len(made.gone) == 1
        await trio.sleep(10)
        (storm,) = made.storms
        assert (storm.level, storm.text) == ("info", "many clients came at once")
        assert storm.data == {"clients": 4, "left": 1, "seconds": 0.3, "longest_wait": 0.3}
        made.come(count=FIRST_LIMIT + 1)  # the next one is another storm
        await trio.sleep(5 * LONGEST / SECOND)
        assert [storm.data["clients"] for storm in made.storms] == [4, 1]


async def test_a_short_wait_is_no_storm(stack: ExitStack, autojump_clock: trio.testing.MockClock) -> None:
    async with door(stack) as made:
        made.come(count=FIRST_LIMIT + 1)
        await trio.sleep(WORTH / SECOND - TICK)
        made.arrivals.arrived(1)
        await trio.sleep(10)
        assert made.arrivals.delayed == 1
    assert made.storms == []


async def test_a_storm_that_the_end_of_the_proxy_cuts_short_is_reported(
    stack: ExitStack, autojump_clock: trio.testing.MockClock
) -> None:
    """Those that still wait are closed."""
    async with door(stack) as made:
        waiting = made.come(count=FIRST_LIMIT + 2)
        await trio.sleep(2 * WORTH / SECOND)
        made.arrivals.arrived(1)
        await settled()
    assert waiting.recv(1) == b""
    assert [storm.data["clients"] for storm in made.storms] == [1]


async def test_a_client_that_left_while_it_waited_is_not_begun(
    stack: ExitStack, autojump_clock: trio.testing.MockClock
) -> None:
    async with door(stack) as made:
        made.come(count=FIRST_LIMIT)
        made.come("10.0.0.9").close()
        made.arrivals.arrived(1)
        await settled()
        assert made.gone == ["10.0.0.9:7"]
        assert len(made.taken) == FIRST_LIMIT
        assert made.arrivals.on_their_way == FIRST_LIMIT - 1


async def test_a_full_line_leaves_clients_in_the_queue_of_the_kernel(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LINE", 2)
    made = Door(stack)
    listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    listening.setblocking(False)
    for _ in range(FIRST_LIMIT + 4):
        stack.enter_context(socket.create_connection(listening.getsockname()))
    shortage = Shortage(made.events.append, now_ns)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.arrivals.run)
        nursery.start_soon(accept, listening, made.arrivals, lambda one: made._take(one, ""), shortage)
        while len(made.taken) < FIRST_LIMIT or made.arrivals.waiting < 2:
            await trio.lowlevel.checkpoint()
        await settled()
        assert (len(made.taken), made.arrivals.waiting) == (FIRST_LIMIT, 2)
        made.arrivals.arrived(1)
        made.arrivals.arrived(2)
        await settled()
        assert (len(made.taken), made.arrivals.waiting) == (FIRST_LIMIT + 2, 2)
        nursery.cancel_scope.cancel()
    made.arrivals.close()


@pytest.mark.parametrize("plane", ["native", "python"])
async def test_the_first_pong_of_a_client_lets_the_next_one_in(
    plane: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NATSPROXY_PLANE", plane)
    for name in ("LONGEST", "SILENT", "SLOW"):
        monkeypatch.setattr(module, name, 3600 * SECOND)
    async with stage(connect_timeout=3600 * SECOND, auth_timeout=0) as made, trio.open_nursery() as nursery:
        arrivals, port = made.proxy.arrivals, made.proxy.listen[0].port
        clients = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(FIRST_LIMIT + 1)]
        servers = [await made.listener.accept() for _ in range(FIRST_LIMIT)]
        while not arrivals.waiting:
            await trio.lowlevel.checkpoint()
        assert arrivals.on_their_way == FIRST_LIMIT
        # The first server has the first client, as dials begin in the order of the accepts.
        await servers[0].send_all(INFO)
        assert (await clients[0].receive_some()).startswith(b"INFO")
        await clients[0].send_all(HELLO)
        assert await receive(servers[0], len(HELLO)) == HELLO
        assert arrivals.waiting == 1
        await servers[0].send_all(b"PONG\r\n")
        assert await receive(clients[0], 6) == b"PONG\r\n"
        servers.append(await made.listener.accept())
        assert (arrivals.waiting, arrivals.on_their_way) == (0, FIRST_LIMIT)
        for one in (*clients, *servers):
            nursery.start_soon(one.aclose)


async def test_open_connections_wait_for_their_turn_in_the_same_line(
    stack: ExitStack, autojump_clock: trio.testing.MockClock
) -> None:
    async with door(stack) as made, trio.open_nursery() as nursery:
        arrivals, begun = made.arrivals, list[int]()

        async def turn(conn: int) -> None:
            await arrivals.turn(conn, "10.0.0.1")
            begun.append(conn)

        for conn in range(1000, 1000 + FIRST_LIMIT + 3):
            nursery.start_soon(turn, conn)
        await settled()
        assert len(begun) == arrivals.on_their_way == FIRST_LIMIT
        made.come("10.0.0.2")
        for conn in begun[:4]:
            arrivals.greeted(conn, QUICK)
            arrivals.arrived(conn)
        await settled()
        assert (len(begun), made.taken, arrivals.waiting) == (FIRST_LIMIT + 3, ["10.0.0.2"], 0)
        await arrivals.turn(begun[10], "10.0.0.1")  # it has lost its next server, too
        assert arrivals.on_their_way == FIRST_LIMIT


async def test_a_connection_that_ends_while_it_waits_takes_no_turn(
    stack: ExitStack, autojump_clock: trio.testing.MockClock
) -> None:
    async with door(stack) as made:
        made.come(count=FIRST_LIMIT)
        with trio.move_on_after(TICK):
            await made.arrivals.turn(1000, "10.0.0.2")
            pytest.fail("there is no room")
        made.arrivals.arrived(1)
        await settled()
        assert (made.arrivals.on_their_way, made.arrivals.waiting) == (FIRST_LIMIT - 1, 0)


async def test_connections_that_wait_go_on_at_the_end_of_the_proxy(
    stack: ExitStack, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        async with door(stack) as made:
            made.come(count=FIRST_LIMIT)
            nursery.start_soon(made.arrivals.turn, 1000, "10.0.0.2")
            await settled()
        await made.arrivals.turn(1001, "10.0.0.2")


@pytest.mark.parametrize("plane", ["native", "python"])
async def test_a_bounded_number_of_held_clients_comes_to_another_server_at_once(
    plane: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NATSPROXY_PLANE", plane)
    for name in ("FIRST_LIMIT", "MOST"):
        monkeypatch.setattr(module, name, 4)
    for name in ("LONGEST", "SILENT", "SLOW"):
        monkeypatch.setattr(module, name, 3600 * SECOND)
    session = SessionSettings(failover="hold", failover_hold=3600 * SECOND)
    async with stage(session=session, connect_timeout=3600 * SECOND) as made, AsyncExitStack() as opened:
        arrivals = made.proxy.arrivals
        ends = [await made.connect() for _ in range(10)]
        for client, server in ends:
            await opened.enter_async_context(client)
            await server.aclose()
        while arrivals.waiting < 6:
            await trio.lowlevel.checkpoint()
        for left in range(10, 0, -1):
            assert arrivals.on_their_way == min(4, left)
            server = await opened.enter_async_context(await made.listener.accept())
            await server.send_all(INFO)
            assert await receive(server, len(HELLO)) == HELLO
            assert arrivals.on_their_way == min(4, left)
            await server.send_all(b"PONG\r\n")
            while (arrivals.on_their_way, arrivals.waiting) != (min(4, left - 1), max(0, left - 5)):
                await trio.lowlevel.checkpoint()
