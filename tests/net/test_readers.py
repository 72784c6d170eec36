"""One task reads many legs, and lets trio have its turn."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from natsproxy.net.idle_loop import IdleLoop
from natsproxy.net.leg import Leg, LegLost
from natsproxy.net.readers import Readers

pytestmark = pytest.mark.trio


def ends() -> tuple[Leg, socket.socket]:
    """Return a leg and its peer."""
    ours, theirs = socket.socketpair()
    return Leg(ours), theirs


class Heard(list[bytes]):
    """The bytes that came; it takes `most` reads."""

    def __init__(self, most: int = 1000) -> None:
        super().__init__()
        self.most = most

    def take(self, data: bytes) -> bool:
        self.append(data)
        return len(self) < self.most


@asynccontextmanager
async def readers(full: Callable[[], bool] = lambda: False) -> AsyncIterator[tuple[Readers, trio.Nursery]]:
    """Run a task that reads."""
    made = Readers(full, trio.sleep_forever)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made.run)
            with trio.fail_after(20):
                yield made, nursery
            nursery.cancel_scope.cancel()
    finally:
        made.close()


async def test_a_leg_is_read_to_its_end() -> None:
    leg, peer = ends()
    got = Heard()
    peer.sendall(b"one")
    peer.close()
    async with readers() as (made, _):
        await made.read(leg, got.take)
    assert got == [b"one"]
    leg.close()


async def test_nothing_more_is_read_once_the_receiver_has_enough() -> None:
    leg, peer = ends()
    got = Heard(1)
    peer.sendall(b"one")
    async with readers() as (made, _):
        await made.read(leg, got.take)
        peer.sendall(b"two")
        await trio.testing.wait_all_tasks_blocked()
    assert (got, leg.try_receive()) == ([b"one"], b"two")
    leg.close()
    peer.close()


async def test_errors_reach_the_task_that_the_leg_belongs_to() -> None:
    def refuse(data: bytes) -> bool:
        raise ValueError(data)

    leg, peer = ends()
    lost, other = ends()
    async with readers() as (made, _):
        peer.sendall(b"x")
        with pytest.raises(ValueError, match="x"):
            await made.read(leg, refuse)
        other.sendall(b"unread")
        lost.write(b"unread by the peer")
        other.close()  # with bytes unread: a reset
        with pytest.raises(LegLost):
            await made.read(lost, lambda data: True)
    for one in (leg, lost, peer):
        one.close()


async def test_two_legs_that_always_have_bytes_leave_trio_its_turns() -> None:
    """A task, a deadline and a thread's message come through while each answer brings the next bytes."""
    count = 0

    def answer(leg: Leg, data: bytes) -> bool:
        nonlocal count
        count += 1
        leg.write(data)
        return True

    (a, peer_a), (b, peer_b) = ends(), ends()
    peers = Leg(peer_a), Leg(peer_b)
    async with readers() as (made, nursery):
        for leg in (a, b, *peers):
            nursery.start_soon(made.read, leg, lambda data, leg=leg: answer(leg, data))
        peers[0].write(b"x")
        peers[1].write(b"y")
        for _ in range(5):
            before = count
            await trio.sleep(0.001)
            await trio.lowlevel.checkpoint()
            await trio.to_thread.run_sync(os.getpid)
            assert count > before
    for leg in (a, b, *peers):
        leg.close()


async def test_no_leg_is_read_while_there_is_no_room() -> None:
    full = True
    freed = trio.Event()
    got = Heard()
    leg, peer = ends()
    made = Readers(lambda: full, freed.wait)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.run)
        nursery.start_soon(made.read, leg, got.take)
        peer.sendall(b"first")
        await trio.testing.wait_all_tasks_blocked()
        peer.sendall(b" and more")
        await trio.testing.wait_all_tasks_blocked()
        assert got in ([], [b"first"])
        full = False
        freed.set()
        with trio.fail_after(20):
            while b"".join(got) != b"first and more":
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    made.close()
    leg.close()
    peer.close()


async def test_spare_time_ends_with_a_task_that_is_ready_and_before_a_deadline() -> None:
    idle = IdleLoop()
    with idle.watched():
        await trio.lowlevel.checkpoint()
        assert idle.fd >= 0
        whole = idle.spare()
        with trio.move_on_after(whole / 2e9):
            assert 0 <= idle.spare() < whole
            await trio.lowlevel.checkpoint()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.lowlevel.checkpoint)
            assert idle.spare() == 0


async def test_nobody_waits_outside_trio_on_the_clock_of_a_test(autojump_clock: trio.abc.Clock) -> None:
    idle = IdleLoop()
    assert (idle.fd, idle.spare()) == (-1, 0)
