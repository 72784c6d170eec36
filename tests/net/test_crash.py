"""Captures after a crash: kill -9 at a random moment, and disks that are full."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import random
import resource
import secrets
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import nats
import pytest

from natsproxy.capture.format.records import Frames, GapRecord
from natsproxy.capture.read.frames import Query, read_frames
from natsproxy.capture.read.reader import open_capture
from natsproxy.capture.read.recover import recover, verify
from natsproxy.errors import Exit
from natsproxy.wire.ops import C2S, Op, op_mask
from tests.kit.process import ProxyProcess
from tests.kit.servers import NatsServer

FLUSH = 0.05  # seconds
WRITE = 0.25  # seconds that one write may take
TICK = 0.01  # seconds
AGED = round((FLUSH + WRITE) / TICK)
"""The ticks after which a frame is on the disk.  Time counts in ticks, each of which ends with an answer of
the proxy: a busy machine may leave it without a processor for longer than a write takes.
"""


class Numbers:
    """Messages with rising numbers, published through the proxy.

    arrived: how many a subscriber has that is connected to the server; the proxy has read at least these.
    """

    def __init__(self, server: NatsServer, proxy: ProxyProcess, rate: float) -> None:
        self.arrived = 0
        self._subject = secrets.token_hex(4).encode()
        self._pause = 1 / rate if rate else 0.0
        self._publisher = socket.create_connection(("127.0.0.1", proxy.port))
        self._subscriber = socket.create_connection(("127.0.0.1", server.port))
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._publish, self._count)]

    def __enter__(self) -> Numbers:
        self._subscriber.sendall(b'CONNECT {"verbose":false}\r\nSUB %s 1\r\nPING\r\n' % self._subject)
        greeting = b""
        while b"PONG\r\n" not in greeting:
            greeting += self._subscriber.recv(4096)
        for thread in self._threads:
            thread.start()
        return self

    def _publish(self) -> None:
        with contextlib.suppress(OSError):  # the proxy is killed
            self._publisher.sendall(b'CONNECT {"verbose":false}\r\n')
            for number in itertools.count():
                self._publisher.sendall(b"PUB %s 8\r\n%08d\r\n" % (self._subject, number))
                if self._stop.wait(self._pause):
                    return

    def _count(self) -> None:
        size, got = len(b"MSG %s 1 8\r\n%08d\r\n" % (self._subject, 0)), 0
        while data := self._subscriber.recv(1 << 20):
            got += len(data)
            self.arrived = got // size

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._subscriber.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._publisher.close()
        self._subscriber.close()


def tick(proxy: ProxyProcess) -> None:
    """Let time pass that the proxy had, too: it greets a client, of which it records nothing."""
    time.sleep(TICK)
    with socket.create_connection(("127.0.0.1", proxy.port), 20) as probe:
        assert probe.recv(4) == b"INFO"


def killed(server: NatsServer, path: Path, rate: float, ticks: int) -> int:
    """Kill the proxy so many ticks after the first message; return how many must be on the disk."""
    options = ["--record", str(path), "--record-flush", f"{FLUSH}s"]
    with ProxyProcess(server.url, *options) as proxy, Numbers(server, proxy, rate) as numbers:
        while not numbers.arrived:
            tick(proxy)
        arrived = [0] * AGED
        for _ in range(ticks):
            arrived.append(numbers.arrived)
            tick(proxy)
        proxy.kill()
    return arrived[-AGED]


def check(path: Path, due: int) -> None:
    """The messages that are due are there and maybe later ones, in order, and `recover` makes it whole."""
    numbers = [
        int(one.frame.body)
        for one in read_frames(open_capture(path))
        if one.frame is not None and one.frame.op == Op.PUB and one.direction == C2S
    ]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) >= due
    mended = path.with_name("mended.ncap")
    recover(path, mended)
    assert open_capture(mended).tail() is None
    assert sum(one.frame is not None for one in read_frames(open_capture(mended))) >= len(numbers)
    assert verify(mended).whole


@pytest.mark.server
@pytest.mark.parametrize("rate", [10, 0], ids=["ten a second", "under load"])
def test_kill_9_loses_no_more_than_one_flush(rate: float, nats_server: NatsServer, tmp_path: Path) -> None:
    """One moment here, fifty in the long form."""
    path = tmp_path / "x.ncap"
    due = killed(nats_server, path, rate, random.Random(rate).randrange(AGED, 2 * AGED))
    assert due
    check(path, due)


@pytest.mark.server
@pytest.mark.long
@pytest.mark.parametrize("seed", range(10))
def test_kill_9_fifty_times(seed: int, nats_server: NatsServer, tmp_path: Path) -> None:
    """At random moments, five in each test, by turns under load and at ten frames a second."""
    rng = random.Random(seed)
    for number in range(5):
        path = tmp_path / f"{number}.ncap"
        rate = 10 if (seed + number) % 2 else 0
        check(path, killed(nats_server, path, rate, rng.randrange(3 * AGED)))
        path.unlink()
        path.with_name("mended.ncap").unlink()


def small_files() -> None:
    """Let no file of this process grow beyond 1 MiB, as some file systems do."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))


async def publish(url: str, count: int, size: int = 10_000) -> None:
    """Publish messages, each once the one before it is at the server."""
    client = await nats.connect(url)
    for _ in range(count):
        await client.publish("a", bytes(size))
        await client.flush()
    await client.close()


def published(path: Path) -> int:
    """Return how many messages from the client a capture holds, which must have no gap and be whole."""
    reader = open_capture(path)
    assert reader.tail() is None
    assert not any(isinstance(item, GapRecord) for _, item in reader.items())
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
        line = proxy.wait_for(lambda line: "recording suspended" in line["event"])
        assert "No space left on device" in line["event"]
        asyncio.run(publish(url, 50))
        other.unlink()
        over = proxy.wait_for(lambda line: line["event"] == "recording resumed")
        assert (over["missing_frames"], over["missing_bytes"]) == (0, 0)
        assert proxy.drain() == 0
        assert [line["level"] for line in proxy.lines()].count("error") == 1
    assert published(path) == 150


@pytest.mark.server
def test_a_full_disk_at_the_end_is_said_everywhere(nats_server: NatsServer, small_disk: Path) -> None:
    """A large block has no room and small ones behind it do: a gap, a line in the log and the exit code."""
    path, other = small_disk / "x.ncap", small_disk / "other"
    # A changed INFO would be two records: one that came, one that went.
    options = ["--record", str(path), "--record-flush", "10ms", "--advertise", "pass"]
    with ProxyProcess(nats_server.url, *options) as proxy:
        other.write_bytes(bytes(3_700_000))
        asyncio.run(publish(f"nats://127.0.0.1:{proxy.port}", 1))
        proxy.wait_for(lambda line: line["event"] == "closed")
        asyncio.run(publish(f"nats://127.0.0.1:{proxy.port}", 1, size=900_000))
        proxy.wait_for(lambda line: "recording suspended" in line["event"])
        asyncio.run(publish(f"nats://127.0.0.1:{proxy.port}", 10, size=10))
        proxy.wait_for(lambda line: line["event"] == "closed", 3)  # a drain would send frames of its own
        assert proxy.drain() == Exit.PARTLY
        closed = [line for line in proxy.lines() if line["event"] == "closed"]
        (missing,) = [line["missing_frames"] for line in proxy.lines() if "missing_frames" in line]
    reader = open_capture(path)
    items = [item for _, item in reader.items()]
    frames = sum(one.frames for one in items if isinstance(one, Frames))
    gaps = sum(item.info["frames"] for item in items if isinstance(item, GapRecord))
    assert frames + gaps == sum(line["c2s_frames"] + line["s2c_frames"] for line in closed)
    assert missing == gaps > 0


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
