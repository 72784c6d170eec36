"""One client floods small PUBs; the PING of another one is measured, under each setting that costs work.

The flood is what one connection can send: blocks of 64 KiB, as fast as they are taken.  Beside the answer
times of the other client (median and worst) stands how many frames of the flood were taken meanwhile.
Loopback only, bounded in time.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.benchmarks.bench_proxy import dial, until
from tests.benchmarks.rules_live import processor, rule
from tests.kit.process import ProxyProcess
from tests.kit.servers import NatsServer

SECONDS = 4.0  # of measuring, for each row
PAUSE = 0.002  # between two PINGs
FRAME = b"PUB flood.x 2\r\nhi\r\n"
ROWS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("no recording", (), ""),
    ("recording", ("--record",), ""),
    ("recording, payload dropped", ("--record-payload", ">=drop", "--record"), ""),
    ("recording, payload truncated", ("--record-payload", ">=truncate:1", "--record"), ""),
    ("recording another subject", ("--record-subject", "other.>", "--record"), ""),
    ("a corrupt rule", (), rule("corrupt", 'subject = "flood.>"', 'op = "PUB"')),
    ("a corrupt rule, recording", ("--record",), rule("corrupt", 'subject = "flood.>"', 'op = "PUB"')),
    ("a rewrite rule", (), rule("rewrite", 'prefix = "t"')),
    ("a rewrite rule, recording", ("--record",), rule("rewrite", 'prefix = "t"')),
    ("a deny rule", (), rule("deny", 'subject = "flood.>"', 'op = "PUB"')),
    ("a header set", (), rule("headers", 'subject = "flood.>"', 'op = "PUB"', 'set = { A = "b" }')),
)


class Flood(threading.Thread):
    """A client that publishes as fast as it can until it is stopped."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._sock = dial(port)
        self._over = threading.Event()
        self.frames = 0

    def run(self) -> None:
        """Send blocks, and read past what is said."""
        block = FRAME * (65536 // len(FRAME))
        reader = threading.Thread(target=self._listen, daemon=True)
        reader.start()
        try:
            while not self._over.is_set():
                self._sock.sendall(block)
                self.frames += 65536 // len(FRAME)
        except OSError:
            return  # `stop` closed it, or a send took longer than the socket's time-out

    def _listen(self) -> None:
        try:
            while self._sock.recv(1 << 18):
                pass
        except OSError:
            return

    def stop(self) -> None:
        """Stop it."""
        self._over.set()
        self._sock.close()
        self.join(20)


def pings(sock: socket.socket) -> list[float]:
    """Return how long each PING took to be answered (ms)."""
    times = []
    sock.settimeout(60)
    until_then = time.monotonic() + SECONDS
    while time.monotonic() < until_then:
        began = time.perf_counter()
        sock.sendall(b"PING\r\n")
        until(sock, b"PONG\r\n")
        times.append((time.perf_counter() - began) * 1e3)
        time.sleep(PAUSE)
    return times


def measure(server: NatsServer, options: tuple[str, ...], rules: str, folder: Path) -> str:
    """Return a row: quiet and under the flood."""
    if "--record" in options:
        options = (*options, str(folder / "f.ncap"))
    if rules:
        file = folder / "rules.toml"
        file.write_text(rules)
        options = (*options, "--rules", str(file))
    with ProxyProcess(server.url, *options) as proxy, dial(proxy.port) as other:
        flood = Flood(proxy.port)
        began, used = time.monotonic(), processor(proxy)
        flood.start()
        found = pings(other)
        frames, took, used = flood.frames, time.monotonic() - began, processor(proxy) - used
        flood.stop()
    return (
        f"{statistics.median(found):8.2f} {sorted(found)[len(found) * 99 // 100]:8.2f} {max(found):8.2f} "
        f"{frames / took / 1e3:8.0f} k/s {used / max(1, frames) * 1e6:8.2f} µs"
    )


def main() -> None:
    """Print the table."""
    print(f"{'PING of another client (ms)':32}{'median':>8} {'p99':>8} {'worst':>8}  flood, cost a frame")
    rows = [row for row in ROWS if not sys.argv[1:] or any(word in row[0] for word in sys.argv[1:])]
    for name, options, rules in rows:
        with NatsServer() as server, tempfile.TemporaryDirectory() as folder:
            print(f"{name:32}{measure(server, options, rules, Path(folder))}", flush=True)
    print(json.dumps({"cpus": os.cpu_count(), "seconds": SECONDS}))


if __name__ == "__main__":
    main()
