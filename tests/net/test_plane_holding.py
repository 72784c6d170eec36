"""Frames that the native plane holds: their order, times, counts and records, and who has them when."""

from __future__ import annotations

import select
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from natsproxy.capture.format.records import Frames
from natsproxy.capture.read.reader import open_capture
from natsproxy.capture.read.segment import decode_items
from natsproxy.capture.write.builder import BlockBuilder
from natsproxy.config.recording import RecordSettings
from natsproxy.net.proxy import Proxy
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.engine.native_steps import NativeStep
from natsproxy.rules.file.parser import load
from natsproxy.rules.kinds import KINDS
from natsproxy.session.outbox import OVERHEAD
from natsproxy.session.session import Session
from natsproxy.session.values import SMALL, Budget, SessionSettings
from natsproxy.wire.interest import Clause
from natsproxy.wire.ops import C2S, Direction, Op
from natsproxy.wire.scanner import COMPILED, Interest, Scanner

if not COMPILED:
    pytest.skip("there is one plane only", allow_module_level=True)

from tests.kit.stage import receive, stage
from tests.net.test_plane_rules import Owner, always
from tests.net.test_plane_steps import LONG, RULES, Relay, Rig, rig
from tests.net.test_planes import PLANES, plane

_decisions: Any = pytest.importorskip("natsproxy.rules.engine._decisions")
__all__ = ["rig"]
MS = 1_000_000
LATE, OTHER = b"PUB late 1\r\nx\r\n", b"PUB o 1\r\ny\r\n"
RULE = '[[rules]]\nname = "late"\nkind = "latency"\nsubject = "late"\ndelay = "{}"\nevery = 1\n'


class Held:
    """A connection whose `late` frames are held, between sockets of ours."""

    def __init__(self, rig: Rig, delay: int, *, recording: bool = False, most: int = 1 << 30) -> None:
        self.rig, self.told, self.scanners = rig, Owner(), []
        decisions = _decisions.Decisions()
        step = NativeStep(always(), owner=self.told, fact="late", delay=delay, cause="late")
        decisions.put(b"PUB late", b"", [step])
        decisions.put(b"PUB o", b"", [])
        self.relay: Relay
        self.relay, self.client, self.server = rig.connect()
        self.connection = self.relay.connection
        self.connection.limit_held(most)
        for direction in Direction:
            pipe = SimpleNamespace(full=False, swallowing=False, pending=False, whole=0, out_next=0)
            pipe.scanner = Scanner(direction, Interest((Clause(Op.PUB.bit),)))
            self.scanners.append(pipe.scanner)
            self.connection.update_flow(direction, True, pipe, recording, decisions)
        self.decisions = decisions

    def send(self, data: bytes) -> bytes:
        """Send bytes of the client; return what goes on at once."""
        self.client.send(data)
        self.rig.run()
        return self.received()

    def received(self) -> bytes:
        try:
            return self.server.recv(1 << 20)
        except BlockingIOError:
            return b""

    def wait(self, size: int) -> bytes:
        """Step by the plane's descriptor, as a loop does, until so many bytes have gone on."""
        found = b""
        until = time.monotonic() + 30
        poll = select.poll()
        poll.register(self.rig.plane.fd, select.POLLIN)
        while len(found) < size and time.monotonic() < until:
            poll.poll(1_000)
            self.rig.run()
            found += self.received()
        return found


def test_frames_behind_a_held_one_wait_and_need_no_python(rig: Rig) -> None:
    held = Held(rig, 20 * MS)
    begun = time.monotonic_ns()
    assert held.send(OTHER + LATE + OTHER + LATE) == OTHER
    assert held.send(OTHER) == b""
    assert held.wait(1) == LATE + OTHER + LATE + OTHER
    assert time.monotonic_ns() - begun >= 20 * MS
    assert held.relay.told == [RULES]  # of the firings
    frames, sent, size, ops, opened, went, surplus, ahead = held.connection.take(C2S)
    whole = len(OTHER + LATE + OTHER + LATE + OTHER)
    assert (frames, sent, size, ops, opened, went) == (5, 5, whole, [(Op.PUB, 5)], None, whole)
    assert (surplus, ahead) == ([], (0, 0))
    held.decisions.tell()
    assert held.told.told == [(1, 2, "late")]


def test_what_waits_is_told_and_can_be_taken_back(rig: Rig) -> None:
    held = Held(rig, 3_600_000 * MS)
    assert held.send(OTHER + LATE + OTHER + OTHER) == OTHER
    frames, sent, _, _, _, _, surplus, ahead = held.connection.take(C2S)
    assert (frames, sent, surplus) == (4, 1, [(Op.PUB, -3)])
    assert ahead == (3, len(LATE + OTHER + OTHER) + 2 * OVERHEAD)
    rig.plane.budget = Budget(1 << 20)
    assert held.connection.may_hold(C2S, False)
    items = held.connection.give_back(C2S)
    assert [(data, ops, first, cause) for data, ops, first, _, _, cause in items] == [
        (LATE, [(Op.PUB, 1)], 1, b"late"),
        (OTHER + OTHER, [(Op.PUB, 2)], 2, b""),
    ]
    (_, _, _, came, due, _), (_, _, _, after, after_due, _) = items
    assert (due - came, after, after_due) == (3_600_000 * MS, came, came)
    assert rig.plane.budget.used == 0
    # In the plane again, due now: they go, and the budget with them.
    again = [(data, ops, first, came, came, cause) for data, ops, first, came, _, cause in items]
    held.connection.hold(C2S, again)
    assert rig.plane.budget.used == ahead[1]
    assert held.wait(1) == LATE + OTHER + OTHER
    assert rig.plane.budget.used == 0


def test_a_flow_is_not_read_while_too_much_waits(rig: Rig) -> None:
    """Neither above its own limit nor above the budget of all; what is read goes on in order."""
    for most, budget in ((SMALL, None), (1 << 30, Budget(2 * SMALL))):
        rig.plane.budget = budget
        held = Held(rig, 30 * MS, most=most)
        held.send(LATE * 10)
        sent = 10 * len(LATE)
        data = LATE * 1_000
        while held.connection.take(C2S) is not None or sent < 2 * SMALL:
            try:
                sent += held.client.send(data[sent % len(LATE) :])
            except BlockingIOError:
                break
            rig.step(MS)
        before = rig.plane.reads
        rig.step(MS)
        assert rig.plane.reads == before
        came = held.wait(sent)
        assert came == (LATE * (sent // len(LATE) + 1))[:sent][: len(came)]
        assert sent - len(came) < len(LATE)
        held.relay.leave()


def test_a_held_frame_is_recorded_with_both_times(rig: Rig) -> None:
    builder = BlockBuilder()
    rig.plane.set_builder(builder)
    held = Held(rig, 20 * MS, recording=True)
    assert held.send(LATE + OTHER) == b""
    held.wait(1)
    block = builder.seal()
    items = decode_items(b"".join(block.buffers), block.summary[0])
    late, other = [item for item in items if isinstance(item, Frames)]
    assert (bytes(late.data), late.in_first, late.out_first, late.cause) == (LATE, 0, 0, "late")
    assert (bytes(other.data), other.in_first, other.out_first, other.cause) == (OTHER, 1, 1, None)
    assert late.in_t is not None
    assert late.out_t is not None
    assert late.out_t - late.in_t >= 20 * MS
    assert (other.in_t, other.out_t) == (late.in_t, late.out_t)


def test_a_step_waits_for_a_frame_that_is_due_in_it(rig: Rig) -> None:
    held = Held(rig, MS // 2)
    found = held.send(LATE)
    rig.plane.step(LONG, 50 * MS, -1)  # it waits for a millisecond at most
    assert found + held.received() == LATE


def test_frames_that_wait_are_lost_with_their_connection(rig: Rig) -> None:
    rig.plane.budget = Budget(1 << 20)
    first, second = Held(rig, 3_600_000 * MS), Held(rig, 20 * MS)
    assert first.send(LATE) == b""
    assert second.send(LATE) == b""
    rig.step()
    assert rig.plane.budget.used == 2 * (len(LATE) + OVERHEAD)
    first.relay.leave()
    assert second.wait(1) == LATE
    assert rig.plane.budget.used == 0


# -- whole proxies


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The bytes that sessions get."""
    found: list[bytes] = []
    receive = Session.receive

    def noted(session: Session, direction: Direction, data: bytes, *others: Any) -> Any:
        found.append(data)
        return receive(session, direction, data, *others)

    monkeypatch.setattr(Session, "receive", noted)
    return found


@pytest.fixture
async def closing() -> AsyncIterator[list[trio.SocketStream]]:
    """Streams that are closed behind the test."""
    streams: list[trio.SocketStream] = []
    yield streams
    for stream in streams:
        await trio.aclose_forcefully(stream)


def late(delay: str, more: str = "") -> RuleChain:
    return RuleChain(load(RULE.format(delay) + more, KINDS), seed=1)


async def test_the_session_sees_the_first_two_frames_only(
    closing: list[trio.SocketStream], seen: list[bytes]
) -> None:
    with plane("native"):
        async with stage(late("5ms")) as made:
            client, server = await made.connect()
            closing.extend((client, server))
            for _ in range(2):  # what comes once needs no decision of the plane
                await client.send_all(LATE)
                assert await receive(server, len(LATE)) == LATE
            seen.clear()
            for _ in range(20):
                await client.send_all(LATE + OTHER)
            sent = (LATE + OTHER) * 20
            assert await receive(server, len(sent)) == sent
            assert b"".join(seen) == b""
            # A PING waits with them, and they stay where they are.
            await client.send_all(LATE + b"PING\r\n" + LATE)
            assert await receive(server, 2 * len(LATE) + 6) == LATE + b"PING\r\n" + LATE
            assert b"".join(seen) == b"PING\r\n"
            relay = only(made.proxy)
            relay.catch_up()
            traffic = relay.session.traffic()
            assert traffic.messages(0) == traffic.messages(1) == 44


def only(proxy: Proxy) -> Any:
    (relay,) = proxy.relays.values()
    return relay


@pytest.mark.parametrize("name", PLANES)
async def test_rules_change_while_frames_wait(closing: list[trio.SocketStream], name: str) -> None:
    """Those that wait keep their time, and go ahead of those that come later."""
    with plane(name):
        async with stage(late("50ms")) as made:
            client, server = await made.connect()
            closing.extend((client, server))
            for other in ("50ms", "1ms", "100ms"):
                begun = time.monotonic()
                await client.send_all(LATE)
                await client.send_all(OTHER)
                while only(made.proxy).session.pipes[C2S].scanner.counts[Op.PUB] % 3 != 2:
                    await trio.lowlevel.checkpoint()
                    only(made.proxy).catch_up()
                made.proxy.swap(late(other))
                await made.proxy.rules_in_force()
                await client.send_all(OTHER)
                assert await receive(server, len(LATE + OTHER * 2)) == LATE + OTHER * 2
                assert time.monotonic() - begun >= 0.001


@pytest.mark.parametrize("name", PLANES)
async def test_the_end_of_a_stream_waits_behind_held_frames(
    closing: list[trio.SocketStream], name: str
) -> None:
    with plane(name):
        async with stage(late("30ms")) as made:
            client, server = await made.connect()
            closing.extend((client, server))
            await client.send_all(LATE + OTHER)
            assert await receive(server, len(LATE + OTHER)) == LATE + OTHER
            await client.send_all(LATE + OTHER)
            await client.send_eof()
            assert await receive(server, 1000) == LATE + OTHER
            await server.aclose()
            assert await client.receive_some() == b""


@pytest.mark.parametrize("name", PLANES)
async def test_frames_that_wait_at_a_kill_are_recorded_as_not_sent(
    closing: list[trio.SocketStream], name: str, tmp_path: Path
) -> None:
    with plane(name):
        async with stage(late("50ms"), record=RecordSettings(tmp_path / "x.ncap")) as made:
            client, server = await made.connect()
            closing.extend((client, server))
            await client.send_all(LATE)
            assert await receive(server, len(LATE)) == LATE
            await client.send_all(LATE + OTHER)
            relay = only(made.proxy)
            while relay.session.pipes[C2S].scanner.counts[Op.PUB] < 3:
                await trio.lowlevel.checkpoint()
                relay.catch_up()
            relay.kill("killed")
            assert await receive(server, 1000) == b""
            await made.end_of(1)
    rows = [
        (bytes(item.data), item.in_first, item.out_first, item.cause)
        for _, item in open_capture(tmp_path / "x.ncap").items()
        if isinstance(item, Frames) and bytes(item.data).startswith(b"PUB")
    ]
    assert rows == [(LATE, 2, 2, "late"), (LATE, 3, None, "late"), (OTHER, 4, None, "unsent")]


@pytest.mark.parametrize("name", PLANES)
async def test_an_operator_sends_what_waits(closing: list[trio.SocketStream], name: str) -> None:
    with plane(name):
        async with stage(late("100ms")) as made:
            client, server = await made.connect()
            closing.extend((client, server))
            await client.send_all(LATE)
            assert await receive(server, len(LATE)) == LATE
            made.proxy.swap(late("1h"))
            await made.proxy.rules_in_force()
            for _ in range(2):  # the second one waits in the plane, where there is one
                await client.send_all(LATE + OTHER)
                relay = only(made.proxy)
                relay.catch_up()
                while not relay.session.pipes[C2S].outbox.bytes:
                    await trio.lowlevel.checkpoint()
                    relay.catch_up()
                relay.control(Session.send_held)
                assert await receive(server, len(LATE + OTHER)) == LATE + OTHER


@pytest.mark.parametrize("name", PLANES)
async def test_a_receiver_that_does_not_read_keeps_the_sender_back(
    closing: list[trio.SocketStream], name: str
) -> None:
    """Not more than the queue waits, and nothing is lost of what its sender could send."""
    frame = b"PUB late 1000\r\n" + bytes(1000) + b"\r\n"
    with plane(name):
        async with stage(late("1ms"), session=SessionSettings(queue_bytes=2 * SMALL)) as made:
            client, server = await made.connect()
            closing.extend((client, server))
            sent = 0
            with trio.move_on_after(1):
                while True:
                    await client.send_all(frame)
                    sent += 1
            relay = only(made.proxy)
            relay.catch_up()
            assert relay.session.pipes[C2S].outbox.bytes < 16 * SMALL
            size = 0
            with trio.move_on_after(30):
                while size < sent * len(frame):
                    size += len(await server.receive_some())
            assert size >= sent * len(frame)
