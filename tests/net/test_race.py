"""The race for a server, with dials that do as the test says."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Iterable

import pytest
import trio

from natsproxy.addresses import Address
from natsproxy.bounded import BoundedDict
from natsproxy.config.endpoints import Server
from natsproxy.net.dial import SLOW, Dialled, NoServer, Race
from natsproxy.net.endpoints import Endpoint
from natsproxy.net.leg import Leg

INFO = b'INFO {"server_id":"S","max_payload":1} \r\n'
LAME = b'INFO {"server_id":"S","max_payload":1,"ldm":true} \r\n'
ROUTE = b'INFO {"server_id":"S","proto":3} \r\n'
NUMBERS = range(1, 5)
A, B, C, D = ENDPOINTS = [
    Endpoint(Server(Address("127.0.0.1", number)), socket.AF_INET, ("127.0.0.1", number))
    for number in NUMBERS
]
Step = Callable[[], Awaitable[bytes]]


def after(delay: float, greeting: bytes = INFO) -> Step:
    """Return a dial that gets a greeting after some seconds."""

    async def step() -> bytes:
        await trio.sleep(delay)
        return greeting

    return step


def fails(delay: float = 0) -> Step:
    """Return a dial that fails after some seconds."""

    async def step() -> bytes:
        await trio.sleep(delay)
        raise NoServer("no")

    return step


def known(*quick: Endpoint) -> BoundedDict[Endpoint, None]:
    """Return the memory of races in which these were quick."""
    found = BoundedDict[Endpoint, None]()
    for endpoint in quick:
        found[endpoint] = None
    return found


class Dials:
    """Dials as the test describes them; `legs` has the socket of each that got a greeting."""

    def __init__(self, steps: dict[Endpoint, Step]) -> None:
        self.steps = steps
        self.begun: list[Endpoint] = []
        self.legs: dict[Endpoint, Leg] = {}

    async def dial(self, endpoint: Endpoint, within: float) -> Dialled | None:
        """Make one attempt."""
        self.begun.append(endpoint)
        with trio.move_on_after(within) as scope:
            greeting = await self.steps[endpoint]()
        if scope.cancelled_caught:
            return None
        ours, theirs = socket.socketpair()
        theirs.close()
        self.legs[endpoint] = Leg(ours)
        return Dialled(endpoint, self.legs[endpoint], greeting)

    def open(self) -> set[Endpoint]:
        """Return the endpoints whose sockets are open."""
        return {endpoint for endpoint, leg in self.legs.items() if leg.fileno() != -1}


@pytest.mark.parametrize(
    ("steps", "winner", "begun", "slow", "failed"),
    [
        ({A: after(0), B: after(0)}, A, [A], [], []),
        ({A: fails(), B: fails(0.1), C: after(0.1)}, C, [A, B, C], [], [A, B]),
        # A black hole is overtaken, and so is a server that takes too long.
        ({A: after(9), B: after(0)}, B, [A, B], [A], []),
        ({A: after(9), B: after(9), C: after(SLOW / 2), D: after(0)}, C, [A, B, C], [A, B], []),
        # One that was slow may win all the same.
        ({A: after(SLOW * 1.5), B: after(9)}, A, [A, B], [], []),
        ({A: fails(SLOW * 1.5), B: after(SLOW / 2 * 3)}, B, [A, B], [], [A]),
        ({A: fails(), B: fails()}, None, [A, B], [], [A, B]),
        # A lame one waits for a better one, but not for a time-out.
        ({A: after(0, LAME), B: after(0.1)}, B, [A, B], [], []),
        ({A: after(0, LAME), B: fails()}, A, [A, B], [], [B]),
        ({A: after(0, LAME), B: after(9), C: after(9)}, A, [A, B, C], [B, C], []),
        ({A: after(0, LAME), B: after(0, LAME)}, A, [A, B], [], []),
        ({A: after(0, ROUTE), B: after(0)}, B, [A, B], [], [A]),
        ({A: after(0, ROUTE), B: after(0, LAME)}, B, [A, B], [], [A]),
        ({A: after(0, ROUTE), B: fails()}, A, [A, B], [], [A, B]),
        ({A: after(0, b"HTTP/1.1 400 Bad Request\r\n"), B: after(0)}, B, [A, B], [], [A]),
        ({A: after(0, b"INFO {\r\n"), B: after(0)}, B, [A, B], [], [A]),
    ],
)
async def test_the_best_server_is_returned_and_the_others_are_closed(
    autojump_clock: trio.abc.Clock,
    steps: dict[Endpoint, Step],
    winner: Endpoint | None,
    begun: list[Endpoint],
    slow: list[Endpoint],
    failed: list[Endpoint],
) -> None:
    dials = Dials(steps)
    race = Race(dials.dial, BoundedDict())
    found = await race.run(list(steps))
    assert dials.begun == begun
    assert race.slow == slow
    assert list(race.failures) == failed
    if winner is not None:
        assert found is not None
        assert found.endpoint == winner
    assert dials.open() == ({found.endpoint} if found is not None else set())
    assert race.refused == (found is not None and found.greeting == ROUTE)
    if found is not None:
        found.leg.close()


async def test_of_two_that_greet_in_the_same_moment_one_is_closed(
    autojump_clock: trio.abc.Clock, nursery: trio.Nursery
) -> None:
    moment = trio.Event()

    async def together() -> bytes:
        await moment.wait()
        return INFO

    dials = Dials({A: together, B: together})

    async def later() -> None:
        await trio.sleep(SLOW * 2)
        moment.set()

    nursery.start_soon(later)
    found = await Race(dials.dial, BoundedDict()).run([A, B])
    assert found is not None
    assert set(dials.legs) == {A, B}
    assert dials.open() == {found.endpoint}
    found.leg.close()


@pytest.mark.parametrize("quick", [(), (A,)])
async def test_a_cancelled_race_leaves_no_socket_behind(
    autojump_clock: trio.abc.Clock, quick: Iterable[Endpoint]
) -> None:
    """At any moment: also where a server has just greeted."""
    for moment in (0.0, 0.05, 0.1, 0.3, 0.4, 0.6):
        dials = Dials({A: after(0, LAME), B: after(0.05, ROUTE), C: after(0.5), D: after(9)})
        with trio.move_on_after(moment):
            found = await Race(dials.dial, known(*quick)).run(ENDPOINTS)
            assert found is not None
            found.leg.close()
        assert dials.open() == set()


async def test_no_endpoint_is_no_server() -> None:
    assert await Race(Dials({}).dial, BoundedDict()).run([]) is None


@pytest.mark.parametrize(
    ("steps", "winner", "begun", "slow", "failed", "seconds"),
    [
        ({A: after(0.2), B: after(0)}, A, [A], [], [], 0.2),
        # It lets this client wait: the others are next, and it comes once more.
        ({A: after(9), B: after(0)}, B, [A, B], [A], [], SLOW),
        ({A: after(9), B: fails(), C: after(0.1)}, C, [A, B, C], [A], [B], SLOW + 0.1),
        ({A: after(SLOW * 1.5), B: fails()}, A, [A, B, A], [], [B], SLOW * 2.5),
        ({A: fails(0.1), B: after(0.1)}, B, [A, B], [], [A], 0.2),
        ({A: after(0, LAME), B: after(0.1)}, B, [A, B], [], [], 0.1),
        ({A: after(0, LAME), B: fails()}, A, [A, B], [], [B], 0),
        ({A: after(0, ROUTE), B: after(0)}, B, [A, B], [], [A], 0),
        # The only one has all the time that a dial may take.
        ({A: after(9)}, A, [A], [], [], 9),
    ],
)
async def test_a_server_that_was_quick_is_dialled_alone_first(
    autojump_clock: trio.abc.Clock,
    steps: dict[Endpoint, Step],
    winner: Endpoint,
    begun: list[Endpoint],
    slow: list[Endpoint],
    failed: list[Endpoint],
    seconds: float,
) -> None:
    dials = Dials(steps)
    race, start = Race(dials.dial, known(A)), trio.current_time()
    found = await race.run(list(steps))
    assert found is not None
    assert (found.endpoint, dials.begun, race.slow, list(race.failures)) == (winner, begun, slow, failed)
    assert trio.current_time() - start == pytest.approx(seconds)
    assert dials.open() == {winner}
    found.leg.close()


async def test_a_server_is_quick_until_it_lets_a_client_wait(autojump_clock: trio.abc.Clock) -> None:
    quick = BoundedDict[Endpoint, None]()
    for delays, expected in (((9, 0), [B]), ((0, 9), [B, A]), ((9, 9), []), ((0, 0), [A])):
        dials = Dials({A: after(delays[0]), B: after(delays[1])})
        found = await Race(dials.dial, quick).run([A, B])
        assert found is not None
        found.leg.close()
        assert list(quick) == expected
