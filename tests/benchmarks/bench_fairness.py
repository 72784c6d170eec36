"""One client floods small PUBs; what another one waits for is measured, under each setting that costs work.

The flood is what one connection can send: blocks of 64 KiB, as fast as they are taken.  Measured are the PING
of a client that is connected, and a new connection up to its first PONG; beside them stands how many frames
of the flood were taken meanwhile.  The row without a proxy has what the machine and the server give.
Loopback only, bounded in time.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.benchmarks.bench_proxy import dial, until
from tests.benchmarks.rules_live import processor, rule
from tests.kit.process import ProxyProcess
from tests.kit.servers import NatsServer

SECONDS = 4.0  # of measuring, for each row
PAUSE = 0.002  # between two PINGs
EACH = 20  # PINGs for one new connection
NO_PROXY = "no proxy"
FRAME = b"PUB flood.x 2\r\nhi\r\n"
ROWS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    (NO_PROXY, (), ""),
    ("no recording", (), ""),
    ("recording", ("--record",), ""),
    ("recording, payload dropped", ("--record-payload", ">=drop", "--record"), ""),
    ("recording, payload truncated", ("--record-payload", ">=truncate:1", "--record"), ""),
    ("recording, payload hashed", ("--record-payload", ">=hash", "--record"), ""),
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


def waits(port: int) -> tuple[list[float], list[float]]:
    """Return how long each PING of one connection took, and each new connection (ms)."""
    times: tuple[list[float], list[float]] = ([], [])
    with dial(port) as sock:
        sock.settimeout(60)
        until_then = time.monotonic() + SECONDS
        while time.monotonic() < until_then:
            for _ in range(EACH):
                began = time.perf_counter()
                sock.sendall(b"PING\r\n")
                until(sock, b"PONG\r\n")
                times[0].append((time.perf_counter() - began) * 1e3)
                time.sleep(PAUSE)
            began = time.perf_counter()
            dial(port).close()
            times[1].append((time.perf_counter() - began) * 1e3)
    return times


def under_flood(port: int, used: Callable[[], float]) -> str:
    """Return the figures of a row.  used: the processor time (s) of the proxy so far."""
    flood = Flood(port)
    began, before = time.monotonic(), used()
    flood.start()
    found = waits(port)
    frames, took, spent = flood.frames, time.monotonic() - began, used() - before
    flood.stop()
    columns = "  ".join(
        f"{statistics.median(times):8.2f} {sorted(times)[len(times) * 99 // 100]:8.2f} {max(times):8.2f}"
        for times in found
    )
    return f"{columns} {frames / took / 1e3:8.0f} k/s {spent / max(1, frames) * 1e6:8.2f} µs"


def measure(server: NatsServer, options: tuple[str, ...], rules: str, folder: Path) -> str:
    """Return a row: through a proxy."""
    if "--record" in options:
        options = (*options, str(folder / "f.ncap"))
    if rules:
        file = folder / "rules.toml"
        file.write_text(rules)
        options = (*options, "--rules", str(file))
    with ProxyProcess(server.url, *options) as proxy:
        return under_flood(proxy.port, lambda: processor(proxy))


def main() -> None:
    """Print the table."""
    waited = f"{'median':>8} {'p99':>8} {'worst':>8}"
    print(f"{'ms, of a PING, of a connection':32}{waited}  {waited}  flood, cost a frame")
    rows = [row for row in ROWS if not sys.argv[1:] or any(word in row[0] for word in sys.argv[1:])]
    for name, options, rules in rows:
        with NatsServer() as server, tempfile.TemporaryDirectory() as folder:
            if name == NO_PROXY:
                row = under_flood(server.port, lambda: 0.0)
            else:
                row = measure(server, options, rules, Path(folder))
            print(f"{name:32}{row}", flush=True)
    print(json.dumps({"cpus": os.cpu_count(), "seconds": SECONDS}))


if __name__ == "__main__":
    main()
