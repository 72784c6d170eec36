"""The order of endpoints by their health, and the notices about them."""

from __future__ import annotations

import socket
from random import Random

from natsproxy.addresses import Address
from natsproxy.config.endpoints import Server
from natsproxy.events import Event, Notice
from natsproxy.net.endpoints import Endpoint
from natsproxy.net.health import ASIDE, FIRST_WAIT, LONGEST_WAIT, MOST_REASONS, Health


def endpoint(number: int) -> Endpoint:
    """Return an endpoint of 127.0.0.1."""
    server = Server(Address("127.0.0.1", number))
    return Endpoint(server, socket.AF_INET, ("127.0.0.1", number))


A, B, C = ENDPOINTS = [endpoint(number) for number in (1, 2, 3)]


class Case:
    """A health with a clock of its own."""

    def __init__(self, random: Random | None = None) -> None:
        self.now = 0
        self.events: list[Event] = []
        self.health = Health(self.events.append, lambda: self.now, random)

    @property
    def order(self) -> list[Endpoint]:
        """The endpoints as a new connection tries them."""
        return self.health.in_order(ENDPOINTS)

    def notices(self) -> list[tuple[str, str]]:
        """Return level and text of the notices, and forget them."""
        found = [(event.level, event.text) for event in self.events if isinstance(event, Notice)]
        self.events.clear()
        return found


def test_an_endpoint_that_failed_is_tried_later_for_a_while() -> None:
    """The while doubles with each failure, up to a bound; one success ends it."""
    case = Case()
    for expected in (FIRST_WAIT, 2 * FIRST_WAIT, 4 * FIRST_WAIT):
        case.health.failed(A)
        case.now += expected - 1
        assert case.order == [B, C, A]
        case.now += 1
        assert case.order == [A, B, C]
    for _ in range(70):
        case.health.failed(A)
    case.now += LONGEST_WAIT
    assert case.order == [A, B, C]
    case.health.failed(A)
    case.health.answered(A)
    assert case.order == [A, B, C]
    case.health.failed(A)
    case.now += FIRST_WAIT
    assert case.order == [A, B, C]


def test_the_one_whose_time_is_over_first_is_tried_first() -> None:
    case = Case()
    case.health.failed(B)
    case.now += 1
    case.health.failed(A)
    case.now += 1
    case.health.failed(C)
    assert case.order == [B, A, C]


def test_one_that_takes_no_more_is_behind_those_that_failed() -> None:
    """It is reported once, and has its place again after a while."""
    case = Case()
    for _ in range(3):
        case.health.takes_no_more(A, "is in lame duck mode")
    case.health.failed(B)
    case.health.answered(A)  # its greeting alone does not bring it back
    assert case.order == [C, B, A]
    assert case.notices() == [("info", "the server 127.0.0.1:1 is in lame duck mode: others are preferred")]
    case.now += ASIDE
    assert case.order == [A, B, C]


def test_a_random_order_has_a_seed() -> None:
    """Of the same seed the orders are the same, and each endpoint comes first at times."""
    one, two = Case(Random(7)), Case(Random(7))
    orders = [one.order for _ in range(50)]
    assert orders == [two.order for _ in range(50)]
    assert {order[0] for order in orders} == set(ENDPOINTS)
    one.health.failed(B)
    assert {one.order[2] for _ in range(50)} == {B}


def test_the_outage_of_one_is_two_notices() -> None:
    case = Case()
    for _ in range(2):
        case.health.failed(A)
        case.health.report(A, "no route", "info")
    case.health.failed(B)
    case.health.report(B, "slow", "warning", from_count=2)
    assert case.notices() == [("info", "a server cannot be used: no route")]
    case.health.failed(B)
    case.health.report(B, "slow", "warning", from_count=2)
    case.health.unresolved(["no such host"])
    case.health.unresolved(["no such host"])
    assert case.notices() == [
        ("warning", "a server cannot be used: slow"),
        ("warning", "a server cannot be used: no such host"),
    ]
    case.health.answered(A)
    case.health.answered(A)
    case.health.answered(C)
    assert case.notices() == [("info", "the server 127.0.0.1:1 is back")]


def test_endpoints_that_are_no_longer_named_are_forgotten() -> None:
    case = Case()
    for each in ENDPOINTS:
        case.health.failed(each)
        case.health.report(each, "gone", "warning")
    case.notices()
    assert case.health.in_order([A, B]) == [A, B]
    case.health.answered(C)
    assert case.notices() == []


def test_the_reasons_of_one_outage_are_bounded() -> None:
    """Each new address behind a name makes a new one, as long as the outage lasts."""
    case = Case()
    for number in range(2 * MOST_REASONS):
        case.health.down([f"cannot connect to {number}"], turned_away=True)
    assert len(case.notices()) == MOST_REASONS
    case.health.up()
    case.health.down(["cannot connect to 1"], turned_away=True)
    assert len(case.notices()) == 2
