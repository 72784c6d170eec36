"""Connections on both planes, and what happens to them from outside: bugs, captures, rules, held traffic."""

from __future__ import annotations

import os
import resource
import socket
import threading
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import pytest
import trio

from natsproxy import close_reasons
from natsproxy.capture.format.records import Flags, Frames
from natsproxy.capture.read.frames import read_frames
from natsproxy.capture.read.reader import open_capture
from natsproxy.capture.write.builder import BLOCK_SIZE
from natsproxy.config.recording import RecordSettings
from natsproxy.net.recorder import Recorder
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.file.parser import load
from natsproxy.rules.kinds import KINDS
from natsproxy.session.session import Session
from natsproxy.session.values import SessionSettings
from natsproxy.wire.ops import C2S, S2C, Direction
from tests.kit.stage import DEADLINE, FRAME, Stage, receive, stage

SIZE = 200_000
HEAD = b"PUB a %d\r\n" % SIZE


@pytest.fixture(params=["native", "python"], autouse=True)
def _plane(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NATSPROXY_PLANE", request.param)


async def test_a_test_that_fails_leaves_no_socket_open() -> None:
    """Sockets that are left over would fail another test."""
    streams: list[trio.SocketStream] = []

    async def fail() -> None:
        async with stage() as made:
            streams.extend(await made.connect())
            raise AssertionError

    with pytest.raises(ExceptionGroup):
        await fail()
    assert [stream.socket.fileno() for stream in streams] == [-1, -1]


async def test_a_bug_in_the_code_of_one_connection_ends_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Session.receive

    def receive_or_fail(self: Session, direction: Direction, data: bytes, *rest: Any) -> Any:
        if b"bug" in data:
            raise RuntimeError("a bug")
        return real(self, direction, data, *rest)

    monkeypatch.setattr(Session, "receive", receive_or_fail)
    async with stage() as made:
        bad, bad_server = await made.connect()
        good, good_server = await made.connect()
        await bad.send_all(b"SUB bug 1\r\n" + FRAME)
        await good.send_all(FRAME)
        assert await receive(good_server, len(FRAME)) == FRAME
        assert await made.end_of(1) == close_reasons.INTERNAL
        assert await receive(bad_server, 1) == b""
        await good.send_all(FRAME)
        assert await receive(good_server, len(FRAME)) == FRAME
        assert 2 not in made.ends
        for stream in (bad, bad_server, good, good_server):
            await stream.aclose()


async def test_a_bug_at_the_end_of_a_connection_leaves_no_socket_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with stage() as made:
        client, server = await made.connect()
        await client.send_all(FRAME)
        assert await receive(server, len(FRAME)) == FRAME

        def fail(*_: object) -> None:
            raise RuntimeError("a bug")

        monkeypatch.setattr(Session, "catch_up", fail)
        await client.send_all(b"PING\r\n")
        assert await made.end_of(1) == close_reasons.INTERNAL
        assert await receive(server, 100) in (b"", b"PING\r\n")
        await client.aclose()
        await server.aclose()


async def play_open_frame(made: Stage, path: Path, on: tuple[int, ...]) -> bytes:
    """Send a frame in four pieces; a capture is started or stopped before the pieces of those numbers."""
    client, server = await made.connect()
    frame = HEAD + b"".join(bytes([65 + n]) * (SIZE // 4) for n in range(4)) + b"\r\n"
    sent = 0
    for number in range(4):
        if number in on:
            if made.proxy.recorder is None:
                made.proxy.start_recording(RecordSettings(path / f"{number}.ncap"))
            else:
                await made.proxy.stop_recording()
        piece = frame[number * 50_000 + (20 if number else 0) : (number + 1) * 50_000 + 20]
        await client.send_all(piece)
        sent += len(piece)
        assert await receive(server, len(piece)) == piece
    await client.send_all(frame[sent:] + FRAME)
    assert await receive(server, len(frame) - sent + len(FRAME)) == frame[sent:] + FRAME
    await client.aclose()
    await server.aclose()
    await made.end_of(1)
    return frame


@pytest.mark.parametrize("on", [(1,), (0, 2), (0, 1, 3), (0,)])
async def test_a_capture_that_begins_or_ends_inside_a_frame_has_its_beginning_or_nothing(
    on: tuple[int, ...], tmp_path: Path
) -> None:
    """Never pieces that did not follow each other: a reader would take them for a frame."""
    async with stage() as made:
        frame = await play_open_frame(made, tmp_path, on)
        if made.proxy.recorder is not None:
            await made.proxy.stop_recording()
    for number in on[::2]:
        reader = open_capture(tmp_path / f"{number}.ncap")
        found = [item for _, item in reader.items() if isinstance(item, Frames) and item.direction == C2S]
        large = [item for item in found if item.data != FRAME and b"CONNECT" not in bytes(item.data)]
        for item in large:
            assert frame.startswith(bytes(item.data))
            assert len(item.data) == SIZE + len(HEAD) + 2 or item.flags & (Flags.TRUNCATED | Flags.CUT)
        assert all(one.head is not None for one in read_frames(reader))
        if on == (0,):
            assert [bytes(item.data) for item in large] == [frame]


@pytest.mark.parametrize("full", [True, False], ids=["of a full block", "at the end of a step"])
async def test_a_bug_in_the_recorder_ends_the_connection_that_is_recorded(
    full: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = Recorder.added
    bugs: list[Exception] = []

    def added_or_fail(self: Recorder) -> None:
        if bugs and (self.builder.size >= BLOCK_SIZE) is full:
            raise bugs.pop()
        real(self)

    monkeypatch.setattr(Recorder, "added", added_or_fail)
    frame = b"PUB a %d\r\n%b\r\n" % (1 << 20, bytes(1 << 20)) if full else FRAME
    async with stage() as made:
        made.proxy.start_recording(RecordSettings(tmp_path / "x.ncap"))
        bad, bad_server = await made.connect()
        good, good_server = await made.connect()
        bugs.append(RuntimeError("a bug"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive, bad_server, 1 << 30)
            with suppress(trio.BrokenResourceError):
                await bad.send_all(frame * 3)
            assert await made.end_of(1) == close_reasons.INTERNAL
        await good.send_all(FRAME)
        assert await receive(good_server, len(FRAME)) == FRAME
        assert 2 not in made.ends
        for stream in (bad, bad_server, good, good_server):
            await stream.aclose()


async def test_rules_are_swapped_under_load_and_every_byte_arrives() -> None:
    rules = '[[rules]]\nname = "r"\nkind = "%s"\nsubject = "%s"\n%s'
    texts = [
        "rules = []\n",
        rules % ("drop", "nobody", ""),
        rules % ("latency", "late", 'delay = "1ms"'),
        rules % ("corrupt", "a.b", ""),
    ]
    chains = [RuleChain(load(text, KINDS), seed=1) for text in texts]
    sent = (FRAME + HEAD + bytes(SIZE) + b"\r\n" + b"PUB late 2\r\nhi\r\n" + FRAME * 500) * 10
    async with stage() as made:
        client, server = await made.connect()
        received = bytearray()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send_all, sent)
            turn = 0
            while len(received) < len(sent):
                received += await server.receive_some(30_000)
                made.proxy.swap(chains[turn % len(chains)])
                turn += 1
        assert received == sent
        await client.aclose()
        await server.aclose()


async def test_a_denial_behind_a_frame_that_passed_has_a_fence_of_its_own() -> None:
    """The server's PONG for the first says nothing about the frame between the two."""
    rules = '[[rules]]\nname = "r"\nkind = "permissions"\npublish = { deny = "no" }\n'
    denied, ping, pong = b"PUB no 1\r\nx\r\n", b"PING\r\n", b"PONG\r\n"
    violation = b"-ERR 'Permissions Violation for Publish to \"no\"'\r\n"
    async with stage(RuleChain(load(rules, KINDS), seed=1)) as made:
        client, server = await made.connect()
        for sent, arrives in ((denied, ping), (FRAME, FRAME), (denied + denied + FRAME, ping + FRAME)):
            await client.send_all(sent)
            assert await receive(server, len(arrives)) == arrives
        for violations in (1, 2):
            message = b"MSG a 1 1\r\n%d\r\n" % violations
            await server.send_all(pong + message)
            expected = violation * violations + message
            assert await receive(client, len(expected)) == expected
        await client.aclose()
        await server.aclose()


async def test_no_leg_is_read_while_traffic_is_held() -> None:
    """And all are afterwards, those too that had bytes before."""
    async with stage() as made:
        pairs = [await made.connect() for _ in range(3)]
        admission = made.proxy._recording.admission
        admission.hold()
        for client, _ in pairs:
            await client.send_all(FRAME)
        for _ in range(50):
            await trio.lowlevel.checkpoint()
        for _, server in pairs:
            with pytest.raises(BlockingIOError):
                server.socket._sock.recv(1)  # type: ignore[attr-defined]
        admission.open()
        for client, server in pairs:
            assert await receive(server, len(FRAME)) == FRAME
            await client.aclose()
            await server.aclose()


async def test_a_slow_reader_holds_up_no_more_than_its_own_deliveries() -> None:
    """The frames that it sends are on time, and those that wait for it do not pile up behind its leg."""
    late = '[[rules]]\nname = "late"\nkind = "latency"\nop = "PUB"\ndelay = "20ms"\n'
    stop = '[[rules]]\nname = "stop"\nkind = "pause"\ndirection = "s2c"\nop = "MSG"\n'
    messages = (b"MSG a 1 8000\r\n" + bytes(8000) + b"\r\n") * 20

    async def flood(server: trio.SocketStream) -> None:
        while True:
            await server.send_all(messages)

    chain = RuleChain(load(late + stop, KINDS))
    async with (
        stage(chain, session=SessionSettings(queue_bytes=1 << 24)) as made,
        trio.open_nursery() as nursery,
    ):
        client, server = await made.connect()
        relay = made.proxy.relays[1]
        held = relay.session.pipes[S2C]
        nursery.start_soon(flood, server)
        while not held.full:
            await trio.lowlevel.checkpoint()
        made.proxy.swap(RuleChain(load(late, KINDS), previous=chain))
        while not relay.client.backlog:
            await trio.lowlevel.checkpoint()
        for _ in range(3):
            await client.send_all(FRAME)
            assert await receive(server, len(FRAME)) == FRAME
        assert held.outbox.bytes > relay.client.backlog > 0
        nursery.cancel_scope.cancel()
        for stream in (client, server):
            stream.socket.close()


async def test_the_kernel_keeps_little_that_it_cannot_send_to_a_client() -> None:
    """What waits for a slow reader is ours, counted and bounded."""
    async with stage(RuleChain([])) as made:
        client, server = await made.connect()
        leg = made.proxy.relays[1].accepted.plain
        with socket.socket(fileno=os.dup(leg.fileno())) as sock:
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == 16_384
        for stream in (client, server):
            await stream.aclose()


@pytest.mark.parametrize("direction", [C2S, S2C])
async def test_a_large_frame_that_was_delayed_arrives_whole_though_nothing_follows(
    direction: Direction,
) -> None:
    """Its peer takes the rest later: no read of ours is there to send it."""
    late = '[[rules]]\nname = "late"\nkind = "latency"\nsubject = "a"\ndelay = "1ms"\n'
    size = 8 << 20
    frame = (b"MSG a 1 %d\r\n" if direction == S2C else b"PUB a %d\r\n") % size + bytes(size) + b"\r\n"
    async with stage(RuleChain(load(late, KINDS)), session=SessionSettings(queue_bytes=1 << 24)) as made:
        client, server = await made.connect()
        source, target = (server, client) if direction == S2C else (client, server)
        relay = made.proxy.relays[1]
        await source.send_all(frame)
        while not (relay.client if direction == S2C else relay.server).backlog:
            await trio.lowlevel.checkpoint()
        assert await receive(target, len(frame)) == frame
        for stream in (client, server):
            await stream.aclose()


async def test_control_calls_deadlines_and_new_connections_get_their_turn_under_unending_traffic() -> None:
    over = threading.Event()

    def blocking(stream: trio.SocketStream) -> socket.socket:
        sock = socket.socket(fileno=os.dup(stream.socket.fileno()))
        sock.settimeout(DEADLINE)
        return sock

    def flood(sock: socket.socket) -> None:
        with sock:
            while not over.is_set():
                sock.sendall(FRAME * 1_000)
            sock.shutdown(socket.SHUT_WR)

    def drain(sock: socket.socket) -> None:
        with sock:
            while sock.recv(1 << 16):
                pass

    async with stage() as made, trio.open_nursery() as nursery:
        client, server = await made.connect()
        nursery.start_soon(trio.to_thread.run_sync, flood, blocking(client))
        nursery.start_soon(trio.to_thread.run_sync, drain, blocking(server))
        try:
            for _ in range(5):
                await trio.to_thread.run_sync(trio.from_thread.run_sync, len, "from another thread")
                await trio.sleep(0.001)
                others = await made.connect()
                await others[0].send_all(FRAME)
                assert await receive(others[1], len(FRAME)) == FRAME
                for stream in others:
                    await stream.aclose()
        finally:
            over.set()
            for stream in (client, server):  # the threads have descriptors of their own
                stream.socket.close()


@pytest.mark.long
async def test_five_thousand_connections_with_traffic_on_a_tenth() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # All four sockets of each connection are in this process: fewer, where that allows no more.
    count, every = min(5_000, (hard - 500) // 4), 10
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4 * count + 500), hard))
    async with stage(deadline=inf) as made:  # each step has its own: all of them may take minutes
        pairs = []
        for _ in range(count):
            with trio.fail_after(DEADLINE):
                pairs.append(await made.connect())

        async def talk(client: trio.SocketStream, server: trio.SocketStream) -> None:
            for _ in range(20):
                with trio.fail_after(DEADLINE):
                    await client.send_all(FRAME * 10)
                    assert await receive(server, 10 * len(FRAME)) == FRAME * 10

        async with trio.open_nursery() as nursery:
            for client, server in pairs[::every]:
                nursery.start_soon(partial(talk, client, server))
        for client, server in pairs:
            client.socket.close()
            server.socket.close()
        for conn in range(1, count + 1):
            with trio.fail_after(DEADLINE):
                await made.end_of(conn)
        assert {end.cause for end in made.ends.values()} <= {
            close_reasons.CLIENT_CLOSED,
            close_reasons.SERVER_CLOSED,
        }
