"""Recordings on a disk that is slow, full or gone, under each `--record-overflow`."""

from __future__ import annotations

import errno
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from natsproxy import close_reasons
from natsproxy.addresses import Address
from natsproxy.capture.format.records import Frames, GapRecord, Note, OpenRecord, Preamble
from natsproxy.capture.read.reader import open_capture
from natsproxy.capture.write import index
from natsproxy.config.endpoints import Listener, Server
from natsproxy.config.recording import RecordSettings
from natsproxy.config.settings import ProxySettings
from natsproxy.events import Closed, Event, Notice, RecordingResumed
from natsproxy.net import writer_thread
from natsproxy.net.admission import Admission
from natsproxy.net.clock import now_ns
from natsproxy.net.proxy import Proxy
from natsproxy.net.recorder import Recorder
from natsproxy.wire.ops import C2S
from tests.kit.captures import legs
from tests.kit.disks import Disk
from tests.kit.servers import NatsServer
from tests.kit.tee import Tee

CONNECT = b'CONNECT {"verbose":false}\r\n'
MESSAGE = b"PUB a 10000\r\n" + bytes(10_000) + b"\r\n"
QUEUE = 200_000
MS = 1_000_000


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """Give a disk that obeys, tried again after 10 ms."""
    monkeypatch.setattr(writer_thread, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(writer_thread, "LONGEST_PAUSE", 0.01)
    return Disk(monkeypatch)


@dataclass
class RunningProxy:
    """A proxy that records, before a tee before a real server; `events` has its events."""

    proxy: Proxy
    tee: Tee
    path: Path
    events: list[Event] = field(default_factory=list)
    streams: list[trio.SocketStream] = field(default_factory=list)

    async def dial(self) -> trio.SocketStream:
        """Return a connection to the proxy; it is closed at the end."""
        (address,) = self.proxy.listen
        self.streams.append(await trio.open_tcp_stream(address.host, address.port))
        return self.streams[-1]

    async def connect(self) -> trio.SocketStream:
        """Return a connection through the proxy that has had its first PONG."""
        stream = await self.dial()
        assert await ask(stream, CONNECT)
        return stream

    def notices(self, level: str) -> list[str]:
        """Return the notices of a level."""
        return [one.text for one in self.events if isinstance(one, Notice) and one.level == level]

    def gaps(self) -> list[RecordingResumed]:
        """Return the events of captures that went on."""
        return [one for one in self.events if isinstance(one, RecordingResumed)]

    def ends(self) -> list[str]:
        """Return why connections ended."""
        return [one.cause for one in self.events if isinstance(one, Closed)]

    async def until(self, true: Callable[[], Any]) -> None:
        """Wait until something is so."""
        with trio.fail_after(20):
            while not true():  # noqa: ASYNC110 - states of several threads
                await trio.sleep(0.001)

    def check_all_that_passed_is_recorded(self) -> None:
        """Check that the bytes sent to the server are all in the capture, and that no gap is reported."""
        reader = open_capture(self.path)
        assert reader.tail() is None
        items = [item for _, item in reader.items()]
        assert not any(isinstance(item, GapRecord) for item in items)
        conns = [item.conn for item in items if isinstance(item, OpenRecord)]
        assert len(conns) == len(self.tee.conns)
        for conn, (sent, _) in zip(conns, self.tee.conns, strict=True):
            assert legs(reader, conn)["proxy->server"] == sent


async def ask(stream: trio.SocketStream, data: bytes) -> bool:
    """Send bytes and a PING; tell whether the PONG came, or else the end of the stream."""
    received = b""
    with trio.fail_after(20):
        try:
            await stream.send_all(data + b"PING\r\n")
            while b"PONG\r\n" not in received and (more := await stream.receive_some()):
                received += more
        except trio.BrokenResourceError:
            return False
    return b"PONG\r\n" in received


@asynccontextmanager
async def running(server: NatsServer, path: Path, **record: Any) -> AsyncIterator[RunningProxy]:
    """Run a proxy that records; it is drained at the end of the block."""
    settings = RecordSettings(path, **{"queue": QUEUE, "flush": 5 * MS, **record})
    tee = Tee("127.0.0.1", server.port)
    async with trio.open_nursery() as nursery:
        port = await nursery.start(tee.serve)
        proxy = Proxy(
            ProxySettings(
                listen=(Listener(),), upstream=(Server(Address("127.0.0.1", port)),), record=settings
            )
        )
        run = RunningProxy(proxy, tee, path)
        proxy.subscribe(run.events.append)
        await nursery.start(proxy.serve)
        yield run
        for stream in run.streams:
            await trio.aclose_forcefully(stream)
        await proxy.drain(5)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def alone(path: Path, **record: Any) -> AsyncIterator[Recorder]:
    """Run a recorder without a proxy; it is closed at the end of the block."""
    recorder = Recorder(
        RecordSettings(path, **{"flush": 5 * MS, **record}),
        seed=None,
        rules=None,
        owner="test",
        emit=lambda _: None,
        preambles=lambda: (),
        admission=Admission(),
        end_all=lambda _: None,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(recorder.run)
        await wait_all_tasks_blocked()
        yield recorder
        recorder.close()


def counted(path: Path) -> tuple[int, list[GapRecord]]:
    """Return how many frames came to the proxy by the capture, and its gaps."""
    items = [item for _, item in open_capture(path).items()]
    came = sum(one.frames for one in items if isinstance(one, Frames) and one.in_first is not None)
    return came, [one for one in items if isinstance(one, GapRecord)]


def listed(folder: Path) -> list[str]:
    """Return the names of the files in a folder, in order."""
    return sorted(one.name for one in folder.iterdir())


def arrived(run: RunningProxy) -> int:
    """Return the number of frames that the proxy received, by its events at the ends of connections."""
    return sum(one.c2s_frames + one.s2c_frames for one in run.events if isinstance(one, Closed))


@pytest.mark.server
async def test_blocks_are_written_while_the_loop_is_busy(nats_server: NatsServer, tmp_path: Path) -> None:
    """The writer has a thread of its own, and needs no turn of the loop for any block."""
    async with running(nats_server, tmp_path / "x.ncap", queue=4 << 20) as run:
        recorder = run.proxy.recorder
        assert recorder is not None
        await (await run.connect()).aclose()
        await run.until(lambda: run.ends() and not recorder.waiting)
        before = arrived(run)
        deadline = time.monotonic() + 20
        for number in range(32):
            data = MESSAGE * 100
            recorder.put(Frames(9, C2S, data, 100, 1, 100 * number, 0, 100 * number, 0))
            while recorder.waiting > 2 << 20:
                assert time.monotonic() < deadline, "nothing is written unless the loop turns"
                time.sleep(0.001)  # noqa: ASYNC251 - a loop that never comes to its other tasks
    frames, gaps = counted(tmp_path / "x.ncap")
    assert (frames, gaps) == (before + 3_200, [])


@pytest.mark.server
async def test_gap_lets_traffic_go_on(nats_server: NatsServer, tmp_path: Path, disk: Disk) -> None:
    """The capture and its gaps account for all frames.  One line begins an outage, one ends it."""
    path = tmp_path / "x.ncap"
    async with running(nats_server, path) as run:
        stream = await run.connect()
        disk.moving.clear()
        for _ in range(10):
            assert await ask(stream, MESSAGE * 10)
        assert not run.gaps()
        disk.moving.set()
        await run.until(run.gaps)
        assert await ask(stream, MESSAGE)
        await stream.aclose()
        await run.until(run.ends)
    frames, (gap,) = counted(path)
    assert frames + gap.info["frames"] == arrived(run)
    assert gap.info["bytes"] > 500_000
    assert gap.info["t0"] < gap.info["t1"]
    (event,) = run.gaps()
    assert (event.frames, event.bytes) == (gap.info["frames"], gap.info["bytes"])
    assert run.notices("error") == ["recording suspended: disk too slow, traffic is not recorded"]


@pytest.mark.server
async def test_a_segment_that_begins_in_an_outage_stands_alone(
    nats_server: NatsServer, tmp_path: Path, disk: Disk
) -> None:
    """Its preambles come behind the gap."""
    async with running(nats_server, tmp_path / "x.ncap") as run:
        recorder = run.proxy.recorder
        assert recorder is not None
        stream = await run.connect()
        disk.moving.clear()
        for _ in range(10):
            assert await ask(stream, MESSAGE * 10)
        recorder.rotate()
        with trio.fail_after(20):
            while recorder._rotate:  # noqa: ASYNC110 - no event tells it
                await trio.sleep(0.001)
        disk.moving.set()
        await run.until(run.gaps)
        assert await ask(stream, MESSAGE)
    items = [item for _, item in open_capture(tmp_path / listed(tmp_path)[-1]).items()]
    gap, preamble, *rest = items
    assert isinstance(gap, GapRecord)
    assert isinstance(preamble, Preamble)
    assert sum(one.frames for one in rest if isinstance(one, Frames)) > 0


@pytest.mark.parametrize("trouble", ["slow", "full"])
async def test_quiet_traffic_in_an_outage_comes_in_few_blocks(
    trouble: str, tmp_path: Path, disk: Disk, mock_clock: MockClock
) -> None:
    """Each block takes memory beside its bytes, so few wait; all of them are written in the end."""
    path = tmp_path / "x.ncap"
    async with alone(path) as recorder:
        if trouble == "slow":
            disk.moving.clear()
        else:
            disk.fill()
        for number in range(100):
            recorder.put(Note(now_ns(), {"text": str(number)}))
            await wait_all_tasks_blocked()
            mock_clock.jump(0.006)
            await wait_all_tasks_blocked()
        disk.error = 0
        disk.moving.set()
    reader = open_capture(path)
    assert len([item for _, item in reader.items() if isinstance(item, Note)]) == 100
    assert len(list(reader.blocks())) < 20


async def test_the_queue_is_bounded_in_memory_where_blocks_are_small(tmp_path: Path, disk: Disk) -> None:
    """Those who look on have a block sealed at each look, in an outage too."""
    path = tmp_path / "x.ncap"
    async with alone(path, queue=QUEUE) as recorder:
        disk.moving.clear()
        for number in range(100):
            recorder.put(Note(now_ns(), {"text": str(number)}))
            recorder.seal()
        disk.moving.set()
    reader = open_capture(path)
    assert len(list(reader.blocks())) < 40
    assert any(isinstance(item, GapRecord) for _, item in reader.items())


async def test_segments_do_not_pile_up_in_an_outage(tmp_path: Path, disk: Disk) -> None:
    """Those that wait to begin are enough."""
    async with alone(tmp_path) as recorder:
        disk.moving.clear()
        for _ in range(20):
            recorder.put(Note(now_ns(), {"text": ""}))
            recorder.rotate()
            await wait_all_tasks_blocked()
        disk.moving.set()
    assert len(listed(tmp_path)) == 3


async def test_a_segment_ends_before_its_index_is_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of quiet traffic are small, so a large index comes before a large file; 0 means one file."""
    monkeypatch.setattr(index, "FULL", 500)
    for folder, rotate_size in (("many", 1 << 20), ("one", 0)):
        async with alone(tmp_path / folder, rotate_size=rotate_size) as recorder:
            for _ in range(30):
                recorder.put(Note(now_ns(), {"text": ""}))
                recorder.seal()
                with trio.fail_after(20):
                    while recorder.waiting:  # noqa: ASYNC110 - states of the writer's thread
                        await trio.sleep(0.001)
    assert len(listed(tmp_path / "many")) > 2
    assert len(listed(tmp_path / "one")) == 1


@pytest.mark.server
async def test_gap_slows_traffic_down_before_it_misses_any(
    nats_server: NatsServer, tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With more than half of the queue used traffic is held up, for a moment only if that does not help."""
    holds: list[int] = []
    hold = Admission.hold

    def counted_hold(admission: Admission) -> None:
        holds.append(1)
        hold(admission)

    monkeypatch.setattr(Admission, "hold", counted_hold)
    async with running(nats_server, tmp_path / "x.ncap", queue=64 << 20) as run:
        stream = await run.connect()
        disk.moving.clear()
        assert await ask(stream, MESSAGE * 4_500)
        assert holds
        disk.moving.set()
        await stream.aclose()
        await run.until(run.ends)
    assert run.notices("error") == []
    run.check_all_that_passed_is_recorded()


@pytest.mark.server
async def test_wait_holds_traffic_up(nats_server: NatsServer, tmp_path: Path, disk: Disk) -> None:
    """While the disk stands still, next to nothing more is read; then all passes, and all is recorded."""
    async with running(nats_server, tmp_path / "x.ncap", overflow="wait", wait=60_000 * MS) as run:
        stream = await run.connect()
        disk.moving.clear()
        answered: list[bool] = []

        async def publish() -> None:
            answered.append(await ask(stream, MESSAGE * 500))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish)
            await run.until(lambda: run.proxy._recording.admission.held)
            passed = run.proxy.relays[1].session.pipes[C2S].in_bytes
            late = await run.dial()
            await late.send_all(CONNECT + b"PING\r\n")  # it waits as well
            assert passed < 2_000_000
            disk.moving.set()
        assert answered == [True]
        assert await ask(late, b"")
        await late.aclose()
        await stream.aclose()
        await run.until(lambda: len(run.ends()) == 2)
    run.check_all_that_passed_is_recorded()
    assert run.notices("error") == []


@pytest.mark.server
@pytest.mark.parametrize("overflow", ["wait", "close"])
@pytest.mark.parametrize("trouble", ["slow", "full"])
async def test_frames_that_cannot_be_recorded_do_not_pass(
    overflow: str, trouble: str, nats_server: NatsServer, tmp_path: Path, disk: Disk
) -> None:
    """Open connections are ended, of new ones not a byte reaches the server, until it can be recorded."""
    wait = 20 * MS if trouble == "slow" else 60_000 * MS  # a full disk is not waited for
    async with running(nats_server, tmp_path / "x.ncap", overflow=overflow, wait=wait) as run:
        stream, idle = await run.connect(), await run.connect()
        if trouble == "slow":
            disk.moving.clear()
        else:
            disk.fill()
        while await ask(stream, MESSAGE):
            pass
        await run.until(lambda: len(run.ends()) == 2)
        assert await idle.receive_some() == b""
        for _ in range(3):
            refused = await run.dial()
            assert not await ask(refused, CONNECT + b"PUB a 1\r\nx\r\n")
        assert run.ends() == [close_reasons.RECORDER] * 5
        assert len(run.tee.conns) == 2
        assert len(run.notices("error")) == 1
        disk.error = 0
        disk.moving.set()
        await run.until(run.gaps)
        again = await run.connect()
        assert await ask(again, MESSAGE)
        await again.aclose()
        await run.until(lambda: len(run.ends()) == 6)
        assert [(gap.frames, gap.bytes) for gap in run.gaps()] == [(0, 0)]
        assert len(run.notices("error")) == 1
    run.check_all_that_passed_is_recorded()


@pytest.mark.server
async def test_a_full_disk_with_room_again(nats_server: NatsServer, tmp_path: Path, disk: Disk) -> None:
    """The queue is written then, the dropped frames are a gap, and the same file goes on."""
    path = tmp_path / "x.ncap"
    async with running(nats_server, path) as run:
        stream = await run.connect()
        disk.fill()
        assert await ask(stream, MESSAGE)
        await run.until(lambda: disk.attempts > 3)
        disk.error = 0
        await run.until(run.gaps)
        assert counted(path)[1] == []
        disk.fill()
        for _ in range(100):
            assert await ask(stream, MESSAGE)
        disk.error = 0
        await run.until(lambda: len(run.gaps()) == 2)
        await stream.aclose()
        await run.until(run.ends)
    assert listed(tmp_path) == ["x.ncap"]
    frames, (gap,) = counted(path)
    assert frames + gap.info["frames"] == arrived(run)
    assert [one.frames for one in run.gaps()] == [0, gap.info["frames"]]
    assert len(run.notices("error")) >= 2  # the queue may be full before the first write fails
    assert open_capture(path).tail() is None


async def test_the_reason_is_the_write_that_fails(tmp_path: Path, disk: Disk, mock_clock: MockClock) -> None:
    """Also where the queue is full before a block was tried: that the disk is slow is not the whole truth."""
    path = tmp_path / "x.ncap"
    async with alone(path, queue=QUEUE, flush=60_000 * MS) as recorder:
        disk.fill()
        for number in range(40):
            recorder.put(Frames(1, C2S, MESSAGE, 1, 1, number, now_ns(), number, now_ns()))
        with trio.fail_after(20):
            while recorder._outage is None or "No space" not in recorder._outage[0]:
                await trio.lowlevel.checkpoint()
        disk.error = 0
    frames, (gap,) = counted(path)
    assert "No space left on device" in gap.info["reason"]
    assert frames + gap.info["frames"] == 40


@pytest.mark.server
@pytest.mark.parametrize("trouble", ["EIO", "removed"])
async def test_a_file_that_is_no_more_is_left_for_a_new_one(
    trouble: str, nats_server: NatsServer, tmp_path: Path, disk: Disk
) -> None:
    """A device that reports errors, a folder that was removed: the capture goes on in a new segment."""
    folder = tmp_path / "capture"
    async with running(nats_server, folder) as run:
        stream = await run.connect()
        assert await ask(stream, MESSAGE)
        recorder = run.proxy.recorder
        assert recorder is not None
        await run.until(lambda: not recorder.waiting)
        if trouble == "EIO":
            disk.error = errno.EIO
            assert await ask(stream, MESSAGE)
            await run.until(lambda: disk.attempts > 2)
            disk.error = 0
        else:
            for file in folder.iterdir():
                file.unlink()
            folder.rmdir()
        assert await ask(stream, MESSAGE * 3)
        await stream.aclose()
        await run.until(run.ends)
    found = [name.rpartition("-")[2] for name in listed(folder)]  # `<time>-<recorder>-<n>`
    assert found == ["0.ncap", "1.ncap"] if trouble == "EIO" else ["1.ncap"]
    frames, gaps = counted(folder)
    assert gaps == []
    assert frames >= (arrived(run) if trouble == "EIO" else 4)
    assert open_capture(folder / listed(folder)[-1]).tail() is None


@pytest.mark.server
async def test_frames_that_a_disk_never_took_are_reported_at_the_end(
    nats_server: NatsServer, tmp_path: Path, disk: Disk
) -> None:
    """A proxy ends in time with a full disk, says how much is lost, and leaves a capture that can be read."""
    path = tmp_path / "x.ncap"
    async with running(nats_server, path) as run:
        stream = await run.connect()
        recorder = run.proxy.recorder
        assert recorder is not None
        await run.until(lambda: not recorder.waiting)
        disk.fill()
        assert await ask(stream, MESSAGE)
        await stream.aclose()
        await run.until(run.ends)
    first, last = run.notices("error")
    assert "No space left on device" in first
    assert run.proxy.unwritten == last
    frames, _ = counted(path)
    assert last.endswith(f": {arrived(run) - frames} frames at its end are not in it")
    assert open_capture(path).tail() == (path, len(path.read_bytes()))
