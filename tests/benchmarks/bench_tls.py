"""TLS on one leg and on both: processor time, handshakes and latency, beside haproxy terminating TLS.

A client publishes in writes of two sizes; a small write is a TLS record of its own.  Processor time is that
of the proxy's process, for bytes in one direction, without a recording.  TLS is before INFO everywhere, since
haproxy knows no other.  Loopback only, bounded in count; medians of interleaved rounds.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.benchmarks.bench_proxy import CONNECT, Way, haproxy, until
from tests.kit.authority import Authority
from tests.kit.process import ProxyProcess
from tests.kit.servers import NatsServer

ROUNDS = 3
WRITES = ((65_536, 1_500), (512, 20_000))
REQUESTS = 500
HANDSHAKES = 100


class Route(NamedTuple):
    """A way to a server, and the context of its clients."""

    way: Way
    context: ssl.SSLContext | None

    def dial(self) -> socket.socket:
        """Connect and wait for the first PONG."""
        sock = socket.create_connection(("127.0.0.1", self.way.port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.settimeout(15)
        if self.context is not None:
            sock = self.context.wrap_socket(sock, server_hostname="127.0.0.1")
        sock.sendall(CONNECT)
        until(sock, b"PONG\r\n")
        return sock


def publish(path: Route, size: int, count: int) -> float:
    """Return processor seconds for a GB in writes of a size."""
    message = min(size, 16_384)
    head = f"PUB b {message - 32:05} \r\n".encode()
    frame = head + b"x" * (message - 32) + b"\r\n"
    block = frame * (size // len(frame) or 1)
    with path.dial() as sock:
        before = path.way.cpu()
        for _ in range(count):
            sock.sendall(block)
        sock.sendall(b"PING\r\n")
        until(sock, b"PONG\r\n")
        return (path.way.cpu() - before) / (len(block) * count) * 1e9


def latency(path: Route) -> float:
    """Return p50 of a PING and its PONG, in µs."""
    times = []
    with path.dial() as sock:
        for _ in range(REQUESTS):
            began = time.perf_counter()
            sock.sendall(b"PING\r\n")
            until(sock, b"PONG\r\n")
            times.append((time.perf_counter() - began) * 1e6)
    return statistics.median(times)


def handshakes(path: Route) -> tuple[float, float]:
    """Return connections a second, one after the other, and processor ms of each."""
    before, began = path.way.cpu(), time.perf_counter()
    for _ in range(HANDSHAKES):
        path.dial().close()
    seconds = time.perf_counter() - began
    return HANDSHAKES / seconds, (path.way.cpu() - before) / HANDSHAKES * 1e3


def open_paths(folder: Path, stack: contextlib.ExitStack) -> dict[str, Route]:
    """Start servers and proxies."""
    authority = Authority(folder)
    certificate, context = authority.server(), authority.client_context()
    plain = stack.enter_context(NatsServer())
    secured = stack.enter_context(NatsServer(authority.server_config("handshake_first: true")))
    client = ["--tls-cert", str(certificate), "--tls-handshake-first", "on", "--listen", "tls://127.0.0.1:0"]
    server = ["--upstream-tls-ca", str(authority.file), "--upstream-tls-handshake-first"]
    paths = {
        "direct": Route(Way(plain.port, 0), None),
        "direct, TLS": Route(Way(secured.port, 0), context),
    }
    if shutil.which("haproxy"):
        way = stack.enter_context(haproxy(plain.port, folder, f" ssl crt {certificate}"))
        paths["haproxy, client"] = Route(way, context)
    tls = secured.url.replace("nats://", "tls://")
    for name, upstream, options in (
        ("plain", plain.url, []),
        ("client leg", plain.url, client),
        ("server leg", tls, server),
        ("both legs", tls, [*client, *server]),
    ):
        proxy = stack.enter_context(ProxyProcess(upstream, *options))
        listen = proxy.wait_for(lambda line: line["event"] == "listening")["listen"][-1]
        way = Way(int(listen.rpartition(":")[2]), proxy.process.pid)
        paths[name] = Route(way, context if "--tls-cert" in options else None)
    return paths


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        paths = open_paths(Path(folder), stack)
        print(f"{'':28}" + "".join(f"{name:>17}" for name in paths))
        for size, count in WRITES:
            costs = {
                name: statistics.median(publish(path, size, count) for _ in range(ROUNDS))
                for name, path in paths.items()
            }
            _row(f"CPU s/GB, writes of {size} B", costs, "{:.2f}")
        opened = {name: handshakes(path) for name, path in paths.items()}
        _row("connections a second", {name: rate for name, (rate, _) in opened.items()}, "{:.0f}")
        _row("CPU ms a connection", {name: cost for name, (_, cost) in opened.items()}, "{:.2f}")
        rounds = [{name: latency(path) for name, path in paths.items()} for _ in range(ROUNDS)]
        _row(
            "PING p50, µs", {name: statistics.median(one[name] for one in rounds) for name in paths}, "{:.0f}"
        )


def _row(title: str, values: dict[str, float], form: str) -> None:
    print(f"{title:28}" + "".join(f"{form.format(value):>17}" for value in values.values()), flush=True)


if __name__ == "__main__":
    main()
