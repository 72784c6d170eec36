"""The linger of the native plane, as others feel it: how much later they get their turn than without it.

A process of its own sends requests and answers through the native plane without a pause.  Meanwhile these are
timed: a new connection (to its INFO), a control call from another thread, and a request (four passes) between
clients with TLS, whose legs the plane in Python has.  Rounds with and without are interleaved;
medians of the rounds are shown, of their p50 and p99, in µs.  Loopback only, bounded in count.
"""

from __future__ import annotations

import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import trio

sys.path.insert(0, str(Path(__file__).parents[2]))
from natsproxy.addresses import Address
from natsproxy.config.endpoints import Listener, Server
from natsproxy.config.settings import ProxySettings
from natsproxy.config.tls import HandshakeFirst, TlsSettings
from natsproxy.net.idle_loop import IdleLoop
from natsproxy.net.proxy import Proxy
from tests.benchmarks.bench_proxy import CONNECT, dial, latency, until
from tests.kit.authority import Authority
from tests.kit.servers import NatsServer

ROUNDS = 3
COUNTS = {"accept": 300, "control": 1_000, "request, TLS": 500}


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


class ProxyThread(threading.Thread):
    """A proxy in a thread of its own, with a plain listener and one with TLS before INFO."""

    def __init__(self, server: int, certificate: Path) -> None:
        super().__init__()
        self._settings = ProxySettings(
            listen=(Listener(), Listener(scheme="tls")),
            upstream=(Server(Address("127.0.0.1", server)),),
            tls=TlsSettings(cert=certificate, handshake_first=HandshakeFirst()),
        )
        self._ready = threading.Event()
        self._over = trio.Event()
        self.token: trio.lowlevel.TrioToken = None  # type: ignore[assignment]
        self.ports: list[int] = []

    def run(self) -> None:
        """Serve until `stop`."""
        trio.run(self._serve)

    async def _serve(self) -> None:
        async with trio.open_nursery() as nursery:
            self.ports = [address.port for address in await nursery.start(Proxy(self._settings).serve)]
            self.token = trio.lowlevel.current_trio_token()
            self._ready.set()
            await self._over.wait()
            nursery.cancel_scope.cancel()

    def __enter__(self) -> ProxyThread:
        self.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        trio.from_thread.run_sync(self._over.set, trio_token=self.token)
        self.join()


@contextmanager
def child(what: str, port: int, *more: str) -> Iterator[str]:
    """Run this file in a process of its own; yields its first line."""
    command = [sys.executable, __file__, what, str(port), *more]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline()
        finally:
            process.kill()


def measured(what: str, port: int, *more: str) -> tuple[float, float]:
    """Return p50 and p99 as a child measures them."""
    with child(what, port, *more) as line:
        first, second = line.split()
    return float(first), float(second)


def main() -> None:
    """Print the table."""
    with ExitStack() as stack:
        authority = Authority(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        server = stack.enter_context(NatsServer())
        proxy = stack.enter_context(ProxyThread(server.port, authority.server()))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        plain, tls = proxy.ports
        rows: dict[str, Callable[[], tuple[float, float]]] = {
            "accept": lambda: measured("accept", plain),
            "control": lambda: controlling(proxy.token, COUNTS["control"]),
            "request, TLS": lambda: measured("request, TLS", tls, str(authority.file)),
        }
        found: dict[tuple[str, bool], list[tuple[float, float]]] = {}
        with child("traffic", plain):
            for _ in range(ROUNDS):
                for name, row in rows.items():
                    found.setdefault((name, True), []).append(row())
                    with patch.context() as without:
                        without.setattr(IdleLoop, "spare", lambda self: 0)
                        found.setdefault((name, False), []).append(row())
    print(f"{'µs':14}{'with: p50':>12}{'p99':>8}{'without: p50':>16}{'p99':>8}{'p50 later by':>16}")
    for name in rows:
        (a, b), (c, d) = (
            [statistics.median(values) for values in zip(*found[name, linger], strict=True)]
            for linger in (True, False)
        )
        print(f"{name:14}{a:>12.0f}{b:>8.0f}{c:>16.0f}{d:>8.0f}{a - c:>+16.0f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["traffic"]:
        requests_without_end(int(sys.argv[2]))
    elif sys.argv[1:2] == ["accept"]:
        print(*accepting(int(sys.argv[2]), COUNTS["accept"]), flush=True)
    elif sys.argv[1:]:
        trusted = ssl.create_default_context(cafile=sys.argv[3])
        print(*latency(int(sys.argv[2]), COUNTS["request, TLS"], trusted), flush=True)
    else:
        main()
