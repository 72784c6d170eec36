"""The linger of the native plane, as others feel it: how much later they get their turn than without it.

A process of its own sends requests and answers through the native plane without a pause.  Meanwhile these are
timed: a new connection (to its INFO), a control call from another thread, and a request (four passes) on
connections of a plane in Python, which stand for legs with TLS.  Rounds with and without are interleaved;
medians of the rounds are shown, of their p50 and p99, in µs.  Loopback only, bounded in count.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

sys.path.insert(0, str(Path(__file__).parents[2]))
from natsproxy.addresses import Address
from natsproxy.config.settings import Listener, ProxySettings, Server
from natsproxy.net.idle_loop import IdleLoop
from natsproxy.net.proxy import Proxy
from tests.benchmarks.bench_proxy import CONNECT, dial, latency, until
from tests.kit.servers import NatsServer

ROUNDS = 3
COUNTS = {"accept": 300, "control": 1_000, "request": 500}


def accepting(port: int, count: int) -> tuple[float, float]:
    """Return p50 and p99 of the time from a connect to the INFO, in µs."""
    times = []
    for _ in range(count):
        began = time.perf_counter()
        with socket.create_connection(("127.0.0.1", port)) as sock:
            until(sock, b"\r\n")
            times.append((time.perf_counter() - began) * 1e6)
            sock.sendall(CONNECT)
            until(sock, b"PONG\r\n")
        time.sleep(0.0005)
    times.sort()
    return times[count // 2], times[count * 99 // 100]


def controlling(token: trio.lowlevel.TrioToken, count: int) -> tuple[float, float]:
    """Return p50 and p99 of a control call from this thread, in µs."""
    times = []
    for _ in range(count):
        began = time.perf_counter()
        trio.from_thread.run_sync(len, "", trio_token=token)
        times.append((time.perf_counter() - began) * 1e6)
        time.sleep(0.0005)
    times.sort()
    return times[count // 2], times[count * 99 // 100]


def requests_without_end(port: int) -> None:
    """Child process: the steady traffic."""
    with dial(port) as asker, dial(port) as answerer:
        answerer.sendall(b"SUB s.req 1\r\nPING\r\n")
        until(answerer, b"PONG\r\n")
        asker.sendall(b"SUB s.rep 1\r\nPING\r\n")
        until(asker, b"PONG\r\n")
        print("ready", flush=True)
        while True:
            asker.sendall(b"PUB s.req s.rep 1\r\nx\r\n")
            until(answerer, b"x\r\n")
            answerer.sendall(b"PUB s.rep 1\r\ny\r\n")
            until(asker, b"y\r\n")


class Proxies(threading.Thread):
    """Two proxies in one trio loop and a thread of their own, on the native plane and on that in Python."""

    def __init__(self, server: int) -> None:
        super().__init__()
        self._server = server
        self._ready = threading.Event()
        self._over = trio.Event()
        self.token: trio.lowlevel.TrioToken = None  # type: ignore[assignment]
        self.ports: list[int] = []

    def run(self) -> None:
        """Serve until `stop`."""
        trio.run(self._serve)

    async def _serve(self) -> None:
        async with trio.open_nursery() as nursery:
            for plane in ("native", "python"):
                os.environ["NATSPROXY_PLANE"] = plane
                upstream = Server(Address("127.0.0.1", self._server))
                proxy = Proxy(ProxySettings(listen=(Listener(),), upstream=(upstream,)))
                self.ports.append((await nursery.start(proxy.serve))[0].port)
            self.token = trio.lowlevel.current_trio_token()
            self._ready.set()
            await self._over.wait()
            nursery.cancel_scope.cancel()

    def __enter__(self) -> Proxies:
        self.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        trio.from_thread.run_sync(self._over.set, trio_token=self.token)
        self.join()


@contextmanager
def child(what: str, port: int) -> Iterator[str]:
    """Run this file in a process of its own; yields its first line."""
    command = [sys.executable, __file__, what, str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline()
        finally:
            process.kill()


def measured(what: str, port: int) -> tuple[float, float]:
    """Return p50 and p99 as a child measures them."""
    with child(what, port) as line:
        first, second = line.split()
    return float(first), float(second)


def main() -> None:
    """Print the table."""
    with NatsServer() as server, Proxies(server.port) as proxies, pytest.MonkeyPatch.context() as patch:
        native, python = proxies.ports
        rows: dict[str, Callable[[], tuple[float, float]]] = {
            "accept": lambda: measured("accept", native),
            "control": lambda: controlling(proxies.token, COUNTS["control"]),
            "request": lambda: measured("request", python),
        }
        found: dict[tuple[str, bool], list[tuple[float, float]]] = {}
        with child("traffic", native):
            for _ in range(ROUNDS):
                for name, row in rows.items():
                    found.setdefault((name, True), []).append(row())
                    with patch.context() as without:
                        without.setattr(IdleLoop, "spare", lambda self: 0)
                        found.setdefault((name, False), []).append(row())
    print(f"{'µs':10}{'with: p50':>12}{'p99':>8}{'without: p50':>16}{'p99':>8}{'p50 later by':>16}")
    for name in rows:
        (a, b), (c, d) = (
            [statistics.median(values) for values in zip(*found[name, linger], strict=True)]
            for linger in (True, False)
        )
        print(f"{name:10}{a:>12.0f}{b:>8.0f}{c:>16.0f}{d:>8.0f}{a - c:>+16.0f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["traffic"]:
        requests_without_end(int(sys.argv[2]))
    elif sys.argv[1:]:
        timed = accepting if sys.argv[1] == "accept" else latency
        print(*timed(int(sys.argv[2]), COUNTS[sys.argv[1]]), flush=True)
    else:
        main()
