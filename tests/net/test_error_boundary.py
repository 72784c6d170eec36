"""A bug in one of three connections, met by a call to all of them: it ends that one, and the call is done."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from natsproxy import close_reasons
from natsproxy.admin.statistics import Statistics
from natsproxy.capture.filter.recording_filter import Selection
from natsproxy.capture.read.frames import read_frames
from natsproxy.capture.read.reader import open_capture
from natsproxy.config.recording import RecordSettings
from natsproxy.net.live_blocks import LiveBlocks
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.file.parser import load
from natsproxy.rules.kinds import KINDS
from natsproxy.session.session import Session
from natsproxy.units import MILLISECOND
from tests.kit.stage import FRAME, Stage, receive, stage

Pair = tuple[trio.SocketStream, trio.SocketStream]
DROP = 'rules = [{ name = "r", kind = "drop", subject = "a" }]'
# The session holds such frames on both planes.
LATE = 'rules = [{ name = "r", kind = "latency", subject = "a", delay = "50ms", overtake = true }]'
ALLOWED = b"PUB b 2\r\nhi\r\n"


@pytest.fixture(params=["native", "python"], autouse=True)
def _plane(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NATSPROXY_PLANE", request.param)


Break = Callable[[str], None]


@pytest.fixture
def break_first(monkeypatch: pytest.MonkeyPatch) -> Break:
    """Give a function that puts a bug into a method, for the first connection alone."""

    def put(name: str) -> None:
        real = getattr(Session, name)

        def method(self: Any, *args: Any, **options: Any) -> Any:
            if self.conn == 1:
                raise RuntimeError("a bug")
            return real(self, *args, **options)

        monkeypatch.setattr(Session, name, method)

    return put


async def check(made: Stage, pairs: list[Pair], sent: bytes = FRAME, passed: bytes = FRAME) -> None:
    """Check that the first connection passes nothing more, and the others pass what they should."""
    for number, (client, server) in enumerate(pairs, 1):
        if number == 1:
            assert await receive(server, 100) == b""
            assert await made.end_of(1) == close_reasons.INTERNAL
            assert "RuntimeError at test_error_boundary.py" in made.ends[1].detail
        else:
            await client.send_all(sent)
            assert await receive(server, len(passed)) == passed
    assert set(made.ends) == {1}


async def close(pairs: list[Pair]) -> None:
    """Close all ends."""
    for pair in pairs:
        for stream in pair:
            await stream.aclose()


@pytest.mark.parametrize("name", ["catch_up", "swap", "_update_conditions"])
async def test_other_rules(name: str, break_first: Break) -> None:
    """The connection that did not get them passes no frame that they would lose."""
    async with stage() as made:
        pairs = [await made.connect() for _ in range(3)]
        break_first(name)
        # Without an await: no other task has its turn before the swap.
        pairs[0][0].socket._sock.send(FRAME)  # type: ignore[attr-defined]
        made.proxy.swap(RuleChain(load(DROP, KINDS), seed=1))
        await check(made, pairs, FRAME + ALLOWED, ALLOWED)
        await close(pairs)


@pytest.mark.parametrize("name", ["catch_up", "next_tick", "tick"])
async def test_a_deadline(name: str, break_first: Break) -> None:
    """The deadlines of all connections go on: delayed frames of the others pass in their time."""
    async with stage(chain=RuleChain(load(LATE, KINDS), seed=1)) as made:
        pairs = [await made.connect() for _ in range(3)]
        await pairs[0][0].send_all(FRAME)
        break_first(name)
        await check(made, pairs)
        await close(pairs)


async def test_rules_that_change_while_a_server_is_dialled(break_first: Break) -> None:
    """Not even the greeting passes."""
    async with stage() as made:
        client = await trio.open_tcp_stream("127.0.0.1", made.proxy.listen[0].port)
        server = await made.listener.accept()
        break_first("swap")
        made.proxy.swap(RuleChain(load(DROP, KINDS), seed=1))
        await server.send_all(b"INFO {}\r\n")
        assert await receive(client, 100) == b""
        assert await made.end_of(1) == close_reasons.INTERNAL
        await close([(client, server), await made.connect()])


@pytest.mark.parametrize("name", ["catch_up", "record", "snapshot"])
async def test_a_capture_that_begins(name: str, break_first: Break, tmp_path: Path) -> None:
    async with stage() as made:
        pairs = [await made.connect() for _ in range(3)]
        break_first(name)
        made.proxy.start_recording(RecordSettings(tmp_path / "x.ncap"))
        await check(made, pairs)
        await made.proxy.stop_recording()
        await close(pairs)
    found = {
        (frame.conn.number, bytes(frame.data)) for frame in read_frames(open_capture(tmp_path / "x.ncap"))
    }
    assert {(2, FRAME), (3, FRAME)} <= found


@pytest.mark.parametrize("name", ["catch_up", "record"])
async def test_a_capture_that_ends(name: str, break_first: Break, tmp_path: Path) -> None:
    async with stage() as made:
        made.proxy.start_recording(RecordSettings(tmp_path / "x.ncap"))
        pairs = [await made.connect() for _ in range(3)]
        for client, server in pairs:
            await client.send_all(FRAME)
            assert await receive(server, len(FRAME)) == FRAME
        break_first(name)
        await made.proxy.stop_recording()
        assert made.proxy.unwritten is None
        await check(made, pairs)
        await close(pairs)
    found = [one.conn.number for one in read_frames(open_capture(tmp_path / "x.ncap")) if one.data == FRAME]
    assert sorted(found) == [1, 2, 3]


async def test_a_sample_for_those_who_look_on(break_first: Break) -> None:
    async with stage() as made:
        pairs = [await made.connect() for _ in range(3)]
        break_first("record")
        await made.proxy.look_on(LiveBlocks(Selection()))
        await check(made, pairs)
        assert made.proxy.look().frames == 2
        await close(pairs)


async def test_a_look_at_the_limits(break_first: Break) -> None:
    async with stage(write_deadline=40 * MILLISECOND) as made:
        pairs = [await made.connect() for _ in range(3)]
        break_first("catch_up")
        await check(made, pairs)
        await close(pairs)


@pytest.mark.parametrize("name", ["catch_up", "lame_duck", "requests", "drain"])
async def test_a_drain(name: str, break_first: Break) -> None:
    async def answer(server: trio.SocketStream) -> None:
        while b"PING\r\n" in await server.receive_some():
            await server.send_all(b"PONG\r\n")

    async with stage() as made, trio.open_nursery() as nursery:
        pairs = [await made.connect() for _ in range(3)]
        break_first(name)
        for _, server in pairs:
            nursery.start_soon(answer, server)
        await made.proxy.drain(50)
        causes = {conn: closed.cause for conn, closed in made.ends.items()}
        assert causes == {1: close_reasons.INTERNAL, 2: close_reasons.DRAINED, 3: close_reasons.DRAINED}
        assert made.ends[2].detail == "natsproxy is shutting down"
        await close(pairs)


async def test_a_question_for_the_traffic(break_first: Break) -> None:
    """As the metrics ask."""
    async with stage() as made:
        pairs = [await made.connect() for _ in range(3)]
        break_first("catch_up")
        await Statistics(made.proxy, print).traffic()
        await check(made, pairs)
        await close(pairs)


async def test_a_barrier(break_first: Break) -> None:
    """A connection that ends counts as answered."""
    async with stage() as made:
        pairs = [await made.connect() for _ in range(3)]
        break_first("fence")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made.proxy.barrier)
            for _, server in pairs[1:]:
                assert await receive(server, 6) == b"PING\r\n"
                await server.send_all(b"PONG\r\n")
        await check(made, pairs)
        await close(pairs)
