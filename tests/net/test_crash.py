"""Captures after a crash: kill -9 at a random moment, and disks that are full."""

from __future__ import annotations

import asyncio
import gc
import random
import resource
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import nats
import pytest

from natsproxy.capture.format.records import Gap
from natsproxy.capture.read.frames import Query, read_frames
from natsproxy.capture.read.reader import open_capture
from natsproxy.capture.read.recover import recover, verify
from natsproxy.wire.ops import C2S, Op, op_mask
from tests.kit.process import ProxyProcess
from tests.kit.servers import NatsServer

FLUSH = 0.05  # seconds
WRITE = 0.25  # seconds that one write and the machine's other work may take


class Sender:
    """Publishes numbered messages from a thread, and notes when each was sent."""

    def __init__(self, port: int, rate: float) -> None:
        self._sock = socket.create_connection(("127.0.0.1", port))
        self._sock.sendall(b'CONNECT {"verbose":false}\r\n')
        self._pause = 1 / rate if rate else 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.sent: list[float] = []

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            try:
                self._sock.sendall(b"PUB n 8\r\n%08d\r\n" % number)
            except OSError:
                return
            self.sent.append(time.monotonic())
            number += 1
            if self._pause:
                self._stop.wait(self._pause)

    def stop(self) -> None:
        """End, and close."""
        self._stop.set()
        self._thread.join()
        self._sock.close()


def killed(server: NatsServer, path: Path, rate: float, after: float) -> tuple[list[float], float]:
    """Run, send, kill -9; return the times of sending, and of the kill."""
    with ProxyProcess(server.url, "--record", str(path), "--record-flush", f"{FLUSH}s") as proxy:
        sender = Sender(proxy.port, rate)
        sender.start()
        sender._stop.wait(after)
        at = time.monotonic()
        proxy.kill()
        sender.stop()
    return sender.sent, at


def check(path: Path, sent: list[float], at: float) -> None:
    """Every frame older than flush plus one write is there, in order, and `recover` makes it whole."""
    numbers = [
        int(one.frame.body)
        for one in read_frames(open_capture(path))
        if one.frame is not None and one.frame.op == Op.PUB and one.direction == C2S
    ]
    assert numbers == list(range(len(numbers)))
    due = sum(1 for moment in sent if moment < at - FLUSH - WRITE)
    assert len(numbers) >= due
    mended = path.with_name("mended.ncap")
    recover(path, mended)
    assert open_capture(mended).tail() is None
    assert sum(one.frame is not None for one in read_frames(open_capture(mended))) >= len(numbers)
    assert verify(mended).whole


@pytest.mark.server
@pytest.mark.parametrize("rate", [10, 0], ids=["ten a second", "under load"])
def test_kill_9_loses_no_more_than_one_flush(rate: float, nats_server: NatsServer, tmp_path: Path) -> None:
    """Two moments here, fifty in the long form."""
    rng = random.Random(rate)
    for number in range(2):
        path = tmp_path / f"{number}.ncap"
        check(path, *killed(nats_server, path, rate, rng.uniform(0.3, 0.8)))
        path.with_name("mended.ncap").unlink()


@pytest.mark.server
@pytest.mark.long
def test_kill_9_fifty_times(nats_server: NatsServer, tmp_path: Path) -> None:
    """At random moments, by turns at ten frames a second and under load."""
    rng = random.Random(50)
    for number in range(50):
        path = tmp_path / f"{number}.ncap"
        rate = 10 if number % 2 else 0
        check(path, *killed(nats_server, path, rate, rng.uniform(0.0, 1.2 if rate else 0.5)))
        path.unlink()
        path.with_name("mended.ncap").unlink()


def small_files() -> None:
    """Let no file of this process grow beyond 1 MiB, as some file systems do."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))


async def publish(url: str, count: int) -> None:
    """Publish messages of 10,000 bytes, each once the one before it is at the server."""
    client = await nats.connect(url)
    for _ in range(count):
        await client.publish("a", bytes(10_000))
        await client.flush()
    await client.close()


def published(path: Path) -> int:
    """Return how many messages from the client a capture holds, which must have no gap and be whole."""
    reader = open_capture(path)
    assert reader.tail() is None
    assert not any(isinstance(item, Gap) for _, item in reader.items())
    return sum(1 for _ in read_frames(reader, Query(direction=C2S, ops=op_mask(Op.PUB))))


@pytest.mark.server
def test_a_file_that_cannot_grow_is_left_for_the_next(nats_server: NatsServer, tmp_path: Path) -> None:
    """Nothing of it is lost."""
    path = tmp_path / "capture"
    with ProxyProcess(
        nats_server.url, "--record", str(path), "--record-flush", "10ms", before=small_files
    ) as proxy:
        asyncio.run(publish(f"nats://127.0.0.1:{proxy.port}", 250))
        assert proxy.drain() == 0
        assert any("File too large" in line["event"] for line in proxy.lines())
    assert len(list(path.iterdir())) > 2
    assert all(file.stat().st_size <= 1 << 20 for file in path.iterdir())
    assert sum(1 for _ in read_frames(open_capture(path), Query(direction=C2S, ops=op_mask(Op.PUB)))) == 250


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Give a file system of 4 MiB; only root may mount one."""
    where = tmp_path / "disk"
    where.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(where)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here (tests/net/test_recorder.py has a disk of its own)")
    yield where
    subprocess.run(["umount", str(where)], check=True)


@pytest.mark.server
def test_a_capture_outlives_a_full_disk(nats_server: NatsServer, small_disk: Path) -> None:
    """The log has one line when it begins and one when it is over; frames that waited are in the capture."""
    path, other = small_disk / "x.ncap", small_disk / "other"
    with ProxyProcess(nats_server.url, "--record", str(path), "--record-flush", "10ms") as proxy:
        url = f"nats://127.0.0.1:{proxy.port}"
        other.write_bytes(bytes(4_000_000))
        asyncio.run(publish(url, 100))
        line = proxy.wait_for(lambda line: "the capture stands still" in line["event"])
        assert "No space left on device" in line["event"]
        asyncio.run(publish(url, 50))
        other.unlink()
        over = proxy.wait_for(lambda line: line["event"] == "the capture goes on")
        assert (over["missing_frames"], over["missing_bytes"]) == (0, 0)
        assert proxy.drain() == 0
        assert [line["level"] for line in proxy.lines()].count("error") == 1
    assert published(path) == 150


@pytest.mark.server
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # of nats-py: failed reconnects
def test_a_full_disk_lets_nothing_pass_under_close(nats_server: NatsServer, small_disk: Path) -> None:
    """When there is room again clients come back by themselves, and their frames are in the capture."""
    path, other = small_disk / "x.ncap", small_disk / "other"
    options = ["--record", str(path), "--record-flush", "10ms", "--record-overflow", "close"]
    with ProxyProcess(nats_server.url, *options) as proxy:
        other.write_bytes(bytes(4_000_000))
        url = f"nats://127.0.0.1:{proxy.port}"
        asyncio.run(_through_an_outage(url, proxy, other.unlink))
        gc.collect()  # nats-py leaves the transports of failed reconnects open: they warn here, not later
        assert proxy.drain() == 0
        causes = [line["cause"] for line in proxy.lines() if line["event"] == "closed"]
        assert causes.count("recorder") >= 2  # the open one, and at least one that came meanwhile
    assert published(path) >= 10


async def _through_an_outage(url: str, proxy: ProxyProcess, make_room: Callable[[], None]) -> None:
    gone, back = asyncio.Event(), asyncio.Event()

    async def note_gone() -> None:
        gone.set()

    async def note_back() -> None:
        back.set()

    async def fill() -> None:
        for _ in range(100):  # too much for what is free now, and not for the whole disk
            await client.publish("a", bytes(10_000))

    client = await nats.connect(
        url,
        reconnect_time_wait=0.05,
        max_reconnect_attempts=-1,
        disconnected_cb=note_gone,
        reconnected_cb=note_back,
    )
    filling = asyncio.create_task(fill())  # nats-py: a publish that meets the end may never return
    await asyncio.wait_for(gone.wait(), 20)
    filling.cancel()
    refused = await asyncio.to_thread(proxy.wait_for, lambda line: line.get("cause") == "recorder", 2)
    assert "No space left on device" in refused["detail"]
    make_room()
    await asyncio.wait_for(back.wait(), 20)
    for _ in range(10):
        await client.publish("a", bytes(10_000))
        await client.flush()
    await client.close()
