"""Traffic that passes, on one core and on two: what each thread of the proxy carries, beside haproxy's.

A scripted server sends ready-made blocks of messages to all clients at once, so that the peers cost as
little as they can.  They still need a core, so on a machine with two cores a second thread of the proxy
competes with them, and messages a second say little about it.  What is compared is the *capacity*: messages
for each second of processor that the busiest thread has spent, which is the rate at which that thread has no
time left.  Two threads that share the work evenly and do not hinder each other have twice one's capacity.

The proxy is pinned to as many cores as it has threads, from the first on; the peers to the last core, and
where there are not more to all of them.  Loopback only, bounded in bytes.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.kit.process import ProxyProcess

ROUNDS = 3
CONNECTIONS = (1, 4, 40, 400)
SIZES = {16: 160_000_000, 1024: 800_000_000}  # of a payload; bytes of all messages of a round
BLOCK = {1: 65536}
"""Bytes of one write, by connections; 16 KiB for more of them."""
INFO = b'INFO {"server_id":"cores","version":"2.15.1","headers":true,"max_payload":1048576}\r\n'
HELLO = b'CONNECT {"verbose":false,"protocol":1}\r\nSUB a 1\r\nPING\r\n'
PONG = b"PONG\r\n"
CORES = sorted(os.sched_getaffinity(0))


class Way(NamedTuple):
    """A way to the server: its port, its process (0: none), and the number of its threads."""

    port: int
    pid: int
    threads: int


class Cost(NamedTuple):
    """Of one round: messages a second; seconds of processor for a million messages, of all threads and of the
    busiest.
    """

    rate: float
    all: float
    busiest: float


def threads(pid: int) -> dict[str, int]:
    """Return the processor time of each thread of a process, in ns."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir() if pid else ():
        with contextlib.suppress(OSError):
            found[task.name] = int(Path(task, "schedstat").read_text().split()[0])
    return found


def block_of(size: int, connections: int) -> bytes:
    """Return a block of whole messages."""
    frame = b"MSG a 1 %d\r\n" % size + b"x" * size + b"\r\n"
    return frame * max(1, BLOCK.get(connections, 16384) // len(frame))


# -- the peers, in processes of their own


def serve(connections: int, size: int, blocks: int) -> None:
    """Child process: greet clients, and at a line of input send `blocks` to each."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    print(listener.getsockname()[1], flush=True)
    socks = []
    for _ in range(connections):
        sock = listener.accept()[0]
        sock.sendall(INFO)
        seen = b""
        while not seen.endswith(b"PING\r\n"):
            seen += sock.recv(4096)
        sock.sendall(PONG)
        sock.setblocking(False)
        socks.append(sock)
    sys.stdin.readline()
    block = block_of(size, connections)
    view = memoryview(block)
    by_number = {sock.fileno(): sock for sock in socks}
    left = dict.fromkeys(by_number, len(block) * blocks)
    poll = select.epoll()
    for number in left:
        poll.register(number, select.EPOLLOUT)
    while left:
        for number, _ in poll.poll():
            with contextlib.suppress(BlockingIOError):
                left[number] -= by_number[number].send(view[-left[number] % len(block) :])
            if not left[number]:
                poll.unregister(number)
                del left[number]
    sys.stdin.readline()


def drink(port: int, connections: int, expected: int) -> None:
    """Child process: connect clients, and print how long all of their messages take."""
    socks = []
    for _ in range(connections):
        sock = socket.create_connection(("127.0.0.1", port))
        sock.settimeout(30)
        sock.sendall(HELLO)
        seen = b""
        while not seen.endswith(PONG):
            seen += sock.recv(4096)
        socks.append(sock)
    by_number = {sock.fileno(): sock for sock in socks}
    poll = select.epoll()
    for number in by_number:
        poll.register(number, select.EPOLLIN)
    print("ready", flush=True)
    buffer = bytearray(1 << 20)
    left, began = expected, 0.0
    while left:
        for number, _ in poll.poll():
            size = by_number[number].recv_into(buffer)
            if not size:
                raise SystemExit("a client was cut off")
            left -= size
        began = began or time.perf_counter()
    print(time.perf_counter() - began, flush=True)
    sys.stdin.readline()


def child(*words: object, cores: set[int]) -> subprocess.Popen[str]:
    """Start a peer."""
    return subprocess.Popen(
        [sys.executable, __file__, *map(str, words)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )


# -- the ways


@contextlib.contextmanager
def haproxy(upstream: int, count: int) -> Iterator[Way]:
    """Run haproxy with some threads."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        config = Path(folder, "haproxy.cfg")
        config.write_text(
            f"global\n nbthread {count}\n"
            "defaults\n mode tcp\n timeout connect 5s\n timeout client 1h\n timeout server 1h\n"
            f"listen nats\n bind 127.0.0.1:{port}\n server s 127.0.0.1:{upstream}\n"
        )
        free.close()
        process = subprocess.Popen(
            ["haproxy", "-db", "-f", str(config)],
            stderr=subprocess.DEVNULL,
            preexec_fn=lambda: os.sched_setaffinity(0, set(CORES[:count])),
        )
        try:
            state = Path("/proc/net/tcp")
            while f":{port:04X} 00000000:0000 0A" not in state.read_text():
                time.sleep(0.01)  # a connection would reach the server, which counts them
            yield Way(port, process.pid, count)
        finally:
            process.kill()
            process.wait()


@contextlib.contextmanager
def proxy(upstream: int, count: int, *, record: bool) -> Iterator[Way]:
    """Run natsproxy with some threads."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["--record", f"{folder}/c/"] if record else []
        with ProxyProcess(
            f"nats://127.0.0.1:{upstream}",
            "--threads",
            str(count),
            *options,
            before=lambda: os.sched_setaffinity(0, set(CORES[:count])),
        ) as process:
            yield Way(process.port, process.process.pid, count)


@contextlib.contextmanager
def direct(upstream: int) -> Iterator[Way]:
    """Connect the clients with the server."""
    yield Way(upstream, 0, 0)


WAYS: dict[str, Callable[[int], contextlib.AbstractContextManager[Way]]] = {
    "direct": direct,
    "haproxy 1": lambda port: haproxy(port, 1),
    "haproxy 2": lambda port: haproxy(port, 2),
    "proxy 1": lambda port: proxy(port, 1, record=False),
    "proxy 2": lambda port: proxy(port, 2, record=False),
    "recording 1": lambda port: proxy(port, 1, record=True),
    "recording 2": lambda port: proxy(port, 2, record=True),
}


def measure(name: str, connections: int, size: int) -> Cost:
    """Send all messages once."""
    block = len(block_of(size, connections))
    blocks = max(1, SIZES[size] // block // connections)
    total = blocks * block * connections
    messages = total // (len(f"MSG a 1 {size}\r\n") + size + 2)
    count = int(name[-1]) if name[-1].isdigit() else 1
    cores = set(CORES[count:]) or set(CORES)
    with child("serve", connections, size, blocks, cores=cores) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        with (
            WAYS[name](int(server.stdout.readline())) as way,
            child("drink", way.port, connections, total, cores=cores) as client,
        ):
            assert client.stdin is not None
            assert client.stdout is not None
            assert client.stdout.readline() == "ready\n"
            before = threads(way.pid)
            server.stdin.write("go\n")
            server.stdin.flush()
            seconds = float(client.stdout.readline())
            after = threads(way.pid)
            client.communicate("\n")
        server.communicate("\n")
    spent = [after[task] - before.get(task, 0) for task in after]
    return Cost(messages / seconds, sum(spent) / messages / 1e3, max(spent, default=0) / messages / 1e3)


def main(names: list[str]) -> None:
    """Print the table: medians of interleaved rounds."""
    if not shutil.which("haproxy"):
        names = [name for name in names if not name.startswith("haproxy")]
    print("k msgs/s, CPU s for a million messages (all threads / the busiest), capacity beside one thread's")
    for size in SIZES:
        for connections in CONNECTIONS:
            found: dict[str, list[Cost]] = {name: [] for name in names}
            for _ in range(ROUNDS):
                for name in names:
                    found[name].append(measure(name, connections, size))
            medians = {
                name: Cost(*(statistics.median(column) for column in zip(*costs, strict=True)))
                for name, costs in found.items()
            }
            for name, cost in medians.items():
                alone = medians.get(f"{name[:-1]}1")
                ratio = f"{alone.busiest / cost.busiest:>6.2f}" if alone and cost.busiest else ""
                print(
                    f"{size:>6} B {connections:>4} connections  {name:<12}{cost.rate / 1e3:>8.0f}"
                    f"{cost.all:>9.3f} /{cost.busiest:>7.3f}{ratio}",
                    flush=True,
                )
    print(json.dumps({"cpus": len(CORES), "rounds": ROUNDS}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(*map(int, sys.argv[2:5]))
    elif sys.argv[1:2] == ["drink"]:
        drink(*map(int, sys.argv[2:5]))
    else:
        main(sys.argv[1:] or list(WAYS))
