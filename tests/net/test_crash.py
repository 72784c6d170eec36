"""What is on the disk after the worst: kill -9 at a random moment, and a disk that is full."""

from __future__ import annotations

import random
import resource
import signal
import socket
import threading
import time
from pathlib import Path

import pytest

from natsproxy.capture.reader import open_capture
from natsproxy.capture.records import Gap
from natsproxy.capture.recover import recover, verify
from natsproxy.capture.view import walk
from natsproxy.wire.ops import C2S, Op
from tests.kit.process import ProxyProcess
from tests.kit.servers import NatsServer

FLUSH = 0.05  # seconds
WRITE = 0.25  # what one write, and the machine's other work, may take: seconds


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
        for one in walk(open_capture(path))
        if one.frame is not None and one.frame.op == Op.PUB and one.direction == C2S
    ]
    assert numbers == list(range(len(numbers)))
    due = sum(1 for moment in sent if moment < at - FLUSH - WRITE)
    assert len(numbers) >= due
    mended = path.with_name("mended.ncap")
    recover(path, mended)
    assert open_capture(mended).tail() is None
    assert sum(one.frame is not None for one in walk(open_capture(mended))) >= len(numbers)
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
    """Let no file of this process grow beyond 1 MiB, as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))


@pytest.mark.server
@pytest.mark.parametrize("strict", [False, True])
def test_a_full_disk_stops_the_capture_and_not_the_traffic(
    strict: bool, nats_server: NatsServer, tmp_path: Path
) -> None:
    """The log says so once; what was written stays whole; `--record-strict` closes connections instead."""
    path = tmp_path / "x.ncap"
    options = ["--record", str(path), "--record-flush", "10ms"] + ["--record-strict"] * strict
    with ProxyProcess(nats_server.url, *options, before=small_files) as proxy:
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=20) as sock:
            sock.sendall(b'CONNECT {"verbose":false}\r\n')
            lost = False
            for _ in range(400):
                try:
                    sock.sendall(b"PUB a 10000\r\n" + bytes(10_000) + b"\r\nPING\r\n")
                    heard = b""
                    while b"PONG\r\n" not in heard:
                        data = sock.recv(65536)
                        if not data:
                            raise ConnectionError
                        heard += data
                except ConnectionError:
                    lost = True
                    break
        assert lost is strict
        said = proxy.wait_for(lambda line: "the capture stopped" in line["event"])
        assert "File too large" in said["event"]
        assert proxy.drain() == 0
        assert sum("the capture stopped" in line["event"] for line in proxy.lines()) == 1
    reader = open_capture(path)
    assert 0 < sum(1 for _ in walk(reader)) < 900
    assert not any(isinstance(item, Gap) for _, item in reader.items())  # there was no room to say it
