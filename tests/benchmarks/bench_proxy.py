"""Through the proxy against direct: publish plus deliver, request latency, idle connections, the start.

Raw sockets and pre-built buffers, a publisher and a subscriber process; every row is measured on all paths in
interleaved rounds, and the medians are shown as ratios to the direct path.  Beside the proxy stand a bare
relay on trio, which shows what the framework costs, and haproxy where it is installed, which shows what a
second pair of sockets costs on this machine.  The frames in the recording are counted against those sent.
Loopback only, bounded in count.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import trio

sys.path.insert(0, str(Path(__file__).parents[2]))
from natsproxy.capture.format.records import Frames
from natsproxy.capture.read.reader import open_capture
from tests.kit.process import ProxyProcess
from tests.kit.servers import NatsServer

ROUNDS = 3
STARTS = 5
REQUESTS = 2_000
SIZES = ((16, 600_000), (128, 500_000), (1024, 200_000), (16384, 20_000))
CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"echo":false,"protocol":1}\r\nPING\r\n'


def processor(pid: int) -> float:
    """Return the processor time of a process, ended threads included, in seconds."""
    return time.clock_gettime(
        ~pid << 3 | 2
    )  # as clock_getcpuclockid(3) says; /proc tells it in ticks of 10 ms


class Way(NamedTuple):
    """A way to the server: its port, and the process that it costs (0: none)."""

    port: int
    pid: int

    def cpu(self) -> float:
        """Return the processor time of its process so far, in seconds."""
        return processor(self.pid) if self.pid else 0.0


def dial(port: int, context: ssl.SSLContext | None = None) -> socket.socket:
    """Connect and wait for the first PONG.  context: of TLS before INFO."""
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.settimeout(15)
    if context is not None:
        sock = context.wrap_socket(sock, server_hostname="127.0.0.1")
    sock.sendall(CONNECT)
    until(sock, b"PONG\r\n")
    return sock


def until(sock: socket.socket, mark: bytes) -> None:
    """Read until a mark came."""
    seen = b""
    while mark not in seen:
        seen = seen[-len(mark) :] + sock.recv(65536)


def subscriber(port: int, subject: str, expected: int) -> None:
    """Child process: read `expected` bytes of messages, print how long from the first to the last."""
    sock = dial(port)
    sock.sendall(b"SUB %s 1\r\nPING\r\n" % subject.encode())
    until(sock, b"PONG\r\n")
    print("ready", flush=True)
    got, began = 0, 0.0
    buffer = bytearray(1 << 20)
    while got < expected:
        size = sock.recv_into(buffer)
        if not size:
            raise SystemExit("the subscriber was cut off")
        got += size
        began = began or time.perf_counter()
    print(time.perf_counter() - began, flush=True)


def throughput(ports: tuple[int, int], size: int, count: int) -> float:
    """Return messages a second from publish to delivery."""
    subject = f"b.{size}.{time.monotonic_ns()}"
    frame = f"PUB {subject} {size}\r\n".encode() + b"x" * size + b"\r\n"
    delivered = len(f"MSG {subject} 1 {size}\r\n") + size + 2
    child = subprocess.Popen(
        [sys.executable, __file__, "subscriber", str(ports[1]), subject, str(delivered * count)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    child.stdout.readline()
    batch = max(1, 65536 // len(frame))
    block = frame * batch
    with dial(ports[0]) as sock:
        for _ in range(count // batch):
            sock.sendall(block)
        sock.sendall(frame * (count % batch))
        seconds = float(child.stdout.readline())
        child.wait()
    child.stdout.close()
    return count / seconds


def kept(folder: Path) -> dict[int, int]:
    """Return how many PUBs and MSGs of `throughput` a capture has, by their size."""
    found: dict[int, int] = {}
    for _, item in open_capture(folder).items():
        # All messages of a connection are on one subject, and no payload has such a word.
        if isinstance(item, Frames) and (first := re.search(rb"(?:PUB|MSG) b\.(\d+)\.", item.data)):
            size = int(first[1])
            found[size] = found.get(size, 0) + bytes(item.data).count(first[0])
    return found


def latency(port: int, count: int, context: ssl.SSLContext | None = None) -> tuple[float, float]:
    """Return p50 and p99 of a request (four passes), in µs."""
    times = []
    with dial(port, context) as asker, dial(port, context) as answerer:
        answerer.sendall(b"SUB l.req 1\r\nPING\r\n")
        until(answerer, b"PONG\r\n")
        asker.sendall(b"SUB l.rep 1\r\nPING\r\n")
        until(asker, b"PONG\r\n")
        for _ in range(count):
            began = time.perf_counter()
            asker.sendall(b"PUB l.req l.rep 1\r\nx\r\n")
            until(answerer, b"x\r\n")
            answerer.sendall(b"PUB l.rep 1\r\ny\r\n")
            until(asker, b"y\r\n")
            times.append((time.perf_counter() - began) * 1e6)
    times.sort()
    return times[count // 2], times[count * 99 // 100]


def relay(upstream: int) -> None:
    """Child process: the least that trio can do between two sockets."""

    async def copy(source: trio.SocketStream, target: trio.SocketStream) -> None:
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while data := await source.receive_some(65536):
                await target.send_all(data)
            await target.send_eof()

    async def serve(client: trio.SocketStream) -> None:
        async with (
            client,
            await trio.open_tcp_stream("127.0.0.1", upstream) as server,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(copy, client, server)
            nursery.start_soon(copy, server, client)

    async def main() -> None:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        print(listeners[0].socket.getsockname()[1], flush=True)
        await trio.serve_listeners(serve, listeners)

    trio.run(main)


@contextlib.contextmanager
def bare_relay(upstream: int) -> Iterator[Way]:
    """Run the bare relay."""
    command = [sys.executable, __file__, "relay", str(upstream)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Way(int(process.stdout.readline()), process.pid)
        finally:
            process.kill()


@contextlib.contextmanager
def haproxy(upstream: int, folder: Path, bind: str = "", server: str = "") -> Iterator[Way]:
    """Run haproxy in TCP mode.  bind, server: further words for its two legs."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = folder / f"haproxy-{port}.cfg"
    config.write_text(
        "defaults\n mode tcp\n timeout connect 5s\n timeout client 1h\n timeout server 1h\n"
        f"listen nats\n bind 127.0.0.1:{port}{bind}\n server s 127.0.0.1:{upstream}{server}\n"
    )
    process = subprocess.Popen(["haproxy", "-db", "-f", str(config)], stderr=subprocess.DEVNULL)
    try:
        for _ in range(500):
            with socket.socket() as sock:
                if sock.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.01)
        yield Way(port, process.pid)
    finally:
        process.kill()
        process.wait()


def compare_throughput(paths: dict[str, Way]) -> None:
    """Print messages a second on each path as a ratio to direct, and its processor time beside haproxy's."""
    for size, count in SIZES:
        rates: dict[str, list[float]] = {name: [] for name in paths}
        costs: dict[str, list[float]] = {name: [] for name in paths}
        for _ in range(ROUNDS):
            for name, way in paths.items():
                before = way.cpu()
                rates[name].append(throughput((way.port, way.port), size, count))
                costs[name].append((way.cpu() - before) / count * 1e6)
        rate = {name: statistics.median(values) for name, values in rates.items()}
        cost = {name: statistics.median(values) for name, values in costs.items()}
        base = rate["direct"]
        print(
            f"{size:>8} B  msgs/s  " + "".join(f"{v / 1e3:>9.0f} k {v / base:>5.2f}" for v in rate.values())
        )
        print(
            f"{'':>10}  CPU µs  " + "".join(_ratio(cost[name], cost.get("haproxy")) for name in paths),
            flush=True,
        )


def _ratio(cost: float, base: float | None) -> str:
    return f"{cost:>11.3f} {cost / base:>5.2f}" if base else f"{cost:>11.3f}      "


def compare_latency(paths: dict[str, Way]) -> None:
    """Print the latency that each path adds to a request (four passes), and its processor time."""
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in paths}
    for _ in range(ROUNDS):
        for name, way in paths.items():
            before = way.cpu()
            p50, p99 = latency(way.port, REQUESTS)
            found[name].append((p50, p99, (way.cpu() - before) / REQUESTS * 1e6))
    medians = {
        name: [statistics.median(one[i] for one in values) for i in range(3)]
        for name, values in found.items()
    }
    base = medians["direct"]
    print(f"{'request  p50/p99 µs':20}" + "".join(f"{a:>9.0f} /{b:>6.0f}" for a, b, _ in medians.values()))
    added = "".join(f"{a - base[0]:>+9.0f} /{b - base[1]:>+6.0f}" for a, b, _ in medians.values())
    print(f"{'  added to direct':20}{added}")
    print(
        f"{'  CPU µs':20}"
        + "".join(_ratio(c, medians.get("haproxy", base)[2]) for _, _, c in medians.values())
    )


def start(upstream: str) -> tuple[float, float, float]:
    """Return the seconds of `natsproxy run` until it listens and until a PONG came, and of its processor."""
    command = [sys.executable, "-m", "natsproxy", "run", "--listen", "127.0.0.1:0", "--upstream", upstream]
    began = time.perf_counter()
    with subprocess.Popen([*command, "--log-format", "json"], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            line = next(line for text in process.stderr if (line := json.loads(text))["event"] == "listening")
            listening = time.perf_counter() - began
            dial(int(line["listen"][0].rpartition(":")[2])).close()
            return listening, time.perf_counter() - began, processor(process.pid)
        finally:
            process.kill()


def print_start(upstream: str) -> None:
    """Print how long the proxy takes to be ready."""
    starts = [start(upstream) for _ in range(STARTS)]
    listening, pong, cpu = (statistics.median(values) * 1e3 for values in zip(*starts, strict=True))
    print(
        f"start: {listening:.0f} ms to listening, {pong:.0f} ms to the first PONG, {cpu:.0f} ms of processor"
    )


def print_kept(folder: Path) -> None:
    """Print how many of the messages that were sent are in the recording; each came and went once."""
    found = kept(folder)
    rows = (f"{size} B: {found.get(size, 0):,} of {2 * ROUNDS * count:,}" for size, count in SIZES)
    print(f"frames kept of those sent: {', '.join(rows)}")


def main() -> None:
    """Print the tables."""
    with tempfile.TemporaryDirectory() as folder, NatsServer() as server, contextlib.ExitStack() as stack:
        paths = {"direct": Way(server.port, 0)}
        if shutil.which("haproxy"):
            paths["haproxy"] = stack.enter_context(haproxy(server.port, Path(folder)))
        paths["bare relay"] = stack.enter_context(bare_relay(server.port))
        plain = stack.enter_context(ProxyProcess(server.url))
        paths["proxy"] = Way(plain.port, plain.process.pid)
        recorder = stack.enter_context(ProxyProcess(server.url, "--record", f"{folder}/b/"))
        paths["recording"] = Way(recorder.port, recorder.process.pid)
        print(f"{'publish + deliver':20}" + "".join(f"{name:>17}" for name in paths))
        compare_throughput(paths)
        compare_latency(paths)
        before = plain.memory()
        idle = [dial(plain.port) for _ in range(1_000)]
        print(f"idle connections: {(plain.memory() - before) / 1_024_000:.1f} KiB each, at 1,000")
        for sock in idle:
            sock.close()
        print_start(server.url)
        recorder.drain()
        print_kept(Path(folder, "b"))
    print(json.dumps({"cpus": os.cpu_count(), "rounds": ROUNDS}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["subscriber"]:
        subscriber(int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
    elif sys.argv[1:2] == ["relay"]:
        relay(int(sys.argv[2]))
    else:
        main()
