"""One client floods small PUBs; what another one waits for is measured, under each setting that costs work.

The flood is what one connection can send: blocks of 64 KiB, as fast as they are taken.  Measured are the PING
of a client that is connected, and a new connection up to its first PONG; beside them stands how many frames
of the flood were taken meanwhile.  The row without a proxy has what the machine and the server give.  Each
policy for payloads and each kind of rule has a row; a kind that would end the flood waits for another
subject.  Words behind the command choose rows.  Loopback only, bounded in time.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))
from natsproxy.rules.kinds import KINDS
from tests.benchmarks.bench_proxy import dial, processor, until
from tests.benchmarks.rules_live import rule
from tests.kit.process import ProxyProcess
from tests.kit.servers import NatsServer

SECONDS = 3.0  # of measuring, for each row
PAUSE = 0.002  # between two PINGs
EACH = 20  # PINGs for one new connection
NO_PROXY = "no proxy"
FRAME = b"PUB flood.x 2\r\nhi\r\n"

FLOOD = 'op = "PUB"\nsubject = "flood.>"'
OTHER = 'op = "PUB"\nsubject = "other.>"'  # nobody publishes there: each kind that would end the flood
FIRST = "client = { ordinal = 1 }"  # the connection that floods
RULES: Mapping[str, tuple[str, ...]] = {
    "permissions": ('publish = "flood.>"', "allow_responses = true"),
    "limit": (FLOOD, 'messages = "10000/s"', 'action = "drop"'),
    "stamp": (FLOOD.partition("\n")[2],),
    "trace": (FLOOD.partition("\n")[2],),
    "rewrite": ('prefix = "t"',),
    "latency": (FLOOD, 'delay = "10ms"'),
    "drop": (FLOOD, "probability = 0.01"),
    "reorder": (FLOOD, "every = 10"),
    "truncate": (FLOOD, "keep = 1"),
    "headers": (FLOOD, 'set = { A = "b" }'),
    "answer": (FLOOD, 'body = "x"'),
    "error": (FLOOD, 'text = "Invalid Publish Subject"', "close = false"),
    "info": ('max_payload = "64KiB"',),
    "announce": ("lame_duck = true",),
    "close": (OTHER,),
    "reset": (OTHER,),
    "refuse": ("client = { ordinal = 1000000 }",),
    "bandwidth": (FIRST, 'direction = "c2s"', 'rate = "16MiB"'),
    "slice": (FIRST, 'direction = "c2s"', "size = 1000"),
    "pause": (OTHER,),
    "swallow": (OTHER,),
    "stop_reading": (OTHER, 'direction = "c2s"'),
    "half_close": (OTHER, 'direction = "c2s"'),
    "slow_close": (FIRST, 'delay = "1s"'),
}
"""The lines of a rule behind its kind, for a kind that FLOOD alone does not suit or does not show."""


class Row(NamedTuple):
    """A row of the table: options of the proxy, and a rules file."""

    options: tuple[str, ...] = ()
    rules: str = ""


ROWS: Mapping[str, Row] = {
    NO_PROXY: Row(),
    "no recording": Row(),
    "recording": Row(("--record",)),
    "recording, payload dropped": Row(("--record-payload", ">=drop", "--record")),
    "recording, payload truncated": Row(("--record-payload", ">=truncate:1", "--record")),
    "recording, payload hashed": Row(("--record-payload", ">=hash", "--record")),
    "recording another subject": Row(("--record-subject", "other.>", "--record")),
    **{kind: Row(rules=rule(kind, *RULES.get(kind, (FLOOD,)))) for kind in KINDS},
    "limit, not reached": Row(rules=rule("limit", FLOOD, 'messages = "100000000/s"')),
    "latency of all": Row(rules=rule("latency", 'delay = "10ms"', 'direction = "c2s"', FIRST)),
    "corrupt, recording": Row(("--record",), rule("corrupt", FLOOD)),
    "rewrite, recording": Row(("--record",), rule("rewrite", *RULES["rewrite"])),
}


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


def measure(server: NatsServer, row: Row, folder: Path) -> str:
    """Return a row: through a proxy."""
    options, rules = row
    if "--record" in options:
        options = (*options, str(folder / "f.ncap"))
    if rules:
        file = folder / "rules.toml"
        file.write_text(rules)
        options = (*options, "--rules", str(file))
    with ProxyProcess(server.url, *options) as proxy:
        return under_flood(proxy.port, lambda: processor(proxy.process.pid))


def main() -> None:
    """Print the table."""
    waited = f"{'median':>8} {'p99':>8} {'worst':>8}"
    print(f"{'ms, of a PING, of a connection':32}{waited}  {waited}  flood, cost a frame")
    for name, row in ROWS.items():
        if sys.argv[1:] and not any(word in name for word in sys.argv[1:]):
            continue
        with NatsServer() as server, tempfile.TemporaryDirectory() as folder:
            if name == NO_PROXY:
                figures = under_flood(server.port, lambda: 0.0)
            else:
                figures = measure(server, row, Path(folder))
            print(f"{name:32}{figures}", flush=True)
    print(json.dumps({"cpus": os.cpu_count(), "seconds": SECONDS}))


if __name__ == "__main__":
    main()
