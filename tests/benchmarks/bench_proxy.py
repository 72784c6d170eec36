"""Through the proxy against direct: publish plus deliver, request latency, idle connections.

Raw sockets and pre-built buffers, a publisher and a subscriber process; every row is measured on all paths in
interleaved rounds, and the medians are shown as ratios to the direct path.  Loopback only, bounded in count.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.kit.servers import NatsServer

ROUNDS = 3
CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"echo":false,"protocol":1}\r\nPING\r\n'


def dial(port: int) -> socket.socket:
    """Connect and wait for the first PONG."""
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.settimeout(15)
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
    subject = f"b.{os.getpid()}.{time.monotonic_ns()}"
    frame = f"PUB {subject} {size}\r\n".encode() + b"x" * size + b"\r\n"
    delivered = len(f"MSG {subject} 1 {size}\r\n") + size + 2
    child = subprocess.Popen(
        [sys.executable, __file__, "subscriber", str(ports[1]), subject, str(delivered * count)],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
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


def latency(port: int, count: int = 2_000) -> tuple[float, float]:
    """Return p50 and p99 of a request (four passes), in µs."""
    times = []
    with dial(port) as asker, dial(port) as answerer:
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


@contextlib.contextmanager
def proxy(upstream: str, *more: str) -> Iterator[tuple[int, int]]:
    """Run `natsproxy run`; yield its port and pid."""
    command = [sys.executable, "-m", "natsproxy", "run", "--listen", "127.0.0.1:0", "--upstream", upstream]
    process = subprocess.Popen([*command, "--log-format", "json", *more], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        line = next(line for line in process.stderr if "listening" in line)
        # A log that nobody reads fills its pipe and then stops the proxy.
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield int(re.findall(r"127\.0\.0\.1:(\d+)", line)[0]), process.pid
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def resident(pid: int) -> float:
    """Return a process's resident memory in KiB."""
    return float(re.findall(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[0])


def main() -> None:
    """Print the tables."""
    with tempfile.TemporaryDirectory() as folder, NatsServer() as server, contextlib.ExitStack() as stack:
        plain, plain_pid = stack.enter_context(proxy(server.url))
        recording, _ = stack.enter_context(proxy(server.url, "--record", f"{folder}/b.ncap"))
        paths = {"direct": server.port, "proxy": plain, "proxy, recording": recording}
        print(f"{'publish + deliver':26}" + "".join(f"{name:>22}" for name in paths))
        for size, count in ((16, 1_000_000), (128, 600_000), (1024, 200_000), (16384, 20_000)):
            rates: dict[str, list[float]] = {name: [] for name in paths}
            for _ in range(ROUNDS):
                for name, port in paths.items():
                    rates[name].append(throughput((port, port), size, count))
            medians = {name: statistics.median(values) for name, values in rates.items()}
            base = medians["direct"]
            cells = "".join(f"{rate / 1e3:>12.0f} k/s {rate / base:>4.2f}" for rate in medians.values())
            print(f"{size:>8} B payload        {cells}")
        print(f"{'request, p50 / p99 µs':26}", end="")
        for port in paths.values():
            found = [latency(port) for _ in range(ROUNDS)]
            p50, p99 = (statistics.median(one[i] for one in found) for i in (0, 1))
            print(f"{p50:>13.0f} / {p99:<6.0f}", end="")
        before = resident(plain_pid)
        idle = [dial(plain) for _ in range(1_000)]
        print(f"\nidle connections: {(resident(plain_pid) - before) / 1_000:.1f} KiB each, at 1,000")
        for sock in idle:
            sock.close()
    print(json.dumps({"cpus": os.cpu_count(), "rounds": ROUNDS}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["subscriber"]:
        subscriber(int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
    else:
        main()
