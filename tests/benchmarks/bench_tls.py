"""TLS on one leg and on both: processor time, handshakes and latency, beside haproxy with TLS on those legs.

A client publishes in writes of two sizes; a small write is a TLS record of its own.  Processor time is that
of the proxy's process, for bytes in one direction, without a recording.  TLS is before INFO everywhere, since
haproxy knows no other.  Legs with TLS are on the plane in Python: their cost alone is the difference to the
plain proxy on that plane (the last rows).  With a number, natsproxy has so many threads
(`python -m tests.benchmarks.bench_tls 2`).  Loopback only, bounded in count; medians of interleaved rounds.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import ssl
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.benchmarks.bench_proxy import Way, dial, haproxy, until
from tests.kit.authority import Authority
from tests.kit.process import ProxyProcess
from tests.kit.servers import NatsServer

ROUNDS = 3
WRITES = ((65_536, 1_500), (512, 20_000))
REQUESTS = 500
HANDSHAKES = 100
COLUMNS = {
    "CPU s/GB, 64 KiB": ".2f",
    "CPU s/GB, 512 B": ".2f",
    "connections/s": ".0f",
    "CPU ms for each": ".2f",
    "PING p50, µs": ".0f",
    "more than direct": "+.0f",
}
"""Their names, and the formats of their figures."""


class Route(NamedTuple):
    """A way to a server, and the context of its clients."""

    way: Way
    context: ssl.SSLContext | None

    def dial(self) -> socket.socket:
        """Connect and wait for the first PONG."""
        return dial(self.way.port, self.context)


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


def open_paths(folder: Path, stack: contextlib.ExitStack, threads: int = 1) -> dict[str, Route]:
    """Start servers and proxies; threads: of natsproxy."""
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
    tls = secured.url.replace("nats://", "tls://")
    terminate, begin = (
        f" ssl crt {certificate}",
        f" ssl verify required ca-file {authority.file} no-ssl-reuse",
    )
    if shutil.which("haproxy"):
        for name, upstream, bind, to in (
            ("haproxy, client leg", plain.port, terminate, ""),
            ("haproxy, server leg", secured.port, "", begin),
            ("haproxy, both legs", secured.port, terminate, begin),
        ):
            way = stack.enter_context(haproxy(upstream, folder, bind, to))
            paths[name] = Route(way, context if bind else None)
    for name, url, options, plane in (
        ("plain", plain.url, [], "native"),
        ("plain, plane in Python", plain.url, [], "python"),
        ("client leg", plain.url, client, "native"),
        ("server leg", tls, server, "native"),
        ("both legs", tls, [*client, *server], "native"),
    ):
        choose = partial(os.environ.__setitem__, "NATSPROXY_PLANE", plane)
        several = ["--threads", str(threads)] if plane == "native" else []
        proxy = stack.enter_context(ProxyProcess(url, *options, *several, before=choose))
        listen = proxy.wait_for(lambda line: line["event"] == "listening")["listen"][-1]
        way = Way(int(listen.rpartition(":")[2]), proxy.process.pid)
        paths[name] = Route(way, context if options[:1] == client[:1] else None)
    return paths


def measure(path: Route) -> list[float]:
    """Return the figures of one round, in the order of `COLUMNS`."""
    costs = [publish(path, size, count) for size, count in WRITES]
    return [*costs, *handshakes(path), latency(path)]


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        paths = open_paths(Path(folder), stack, *map(int, sys.argv[1:]))
        rounds = [{name: measure(path) for name, path in paths.items()} for _ in range(ROUNDS)]
    print(f"{'':24}" + "".join(f"{name:>18}" for name in COLUMNS))
    found = {
        name: [statistics.median(values) for values in zip(*(one[name] for one in rounds), strict=True)]
        for name in paths
    }
    for name, figures in found.items():
        show(name, [*figures, figures[-1] - found["direct"][-1]])
    for name in ("client leg", "server leg", "both legs"):
        costs = zip(found[name], found["plain, plane in Python"], strict=True)
        show(f"TLS of the {name}", [cost - without for cost, without in costs][: len(WRITES)])


def show(name: str, figures: list[float]) -> None:
    """Print a row; it may be shorter than the table."""
    cells = zip(figures, COLUMNS.values(), strict=False)
    print(f"{name:24}" + "".join(f"{format(value, form):>18}" for value, form in cells))


if __name__ == "__main__":
    main()
