"""All clients come back at once: how long it takes until each of them is connected.

Each client waits 2 s for its first PONG, gives up, and comes again 2 s later, as client libraries do.  A
proxy that is slower than that gets the same clients again and again, while those that left still stand in its
way.  The row without a proxy has what the machine and the server give.  Words behind the command choose
numbers of clients and rows.  Loopback only, bounded in time and in clients.
"""

from __future__ import annotations

import json
import resource
import select
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from heapq import heappop, heappush
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.benchmarks.bench_proxy import processor
from tests.kit.process import ProxyProcess
from tests.kit.servers import NatsServer

CLIENTS = (5_000, 9_500)
PATIENCE = PAUSE = 2.0  # seconds that a client waits for its PONG, and after that until it comes again
LONGEST = 100.0  # seconds of one storm
HELLO = b'CONNECT {"verbose":false,"pedantic":false,"lang":"storm","protocol":1}\r\nPING\r\n'
RULE = '[[rules]]\nname = "deny"\nkind = "deny"\nop = "PUB"\nsubject = "secret.>"\n'
ADDRESSES = 16  # of the loopback: ports of clients that left are not free at once
NO_PROXY = "no proxy"
ROWS: Mapping[str, tuple[str, ...]] = {
    NO_PROXY: (),
    "proxy": (),
    "one deny rule": ("--rules",),
    "recording": ("--record",),
    "recording, one deny rule": ("--rules", "--record"),
}


class Client:
    """One client.  since: when it came last.  tries: how often it came."""

    __slots__ = ("received", "since", "sock", "tries", "up")

    def __init__(self) -> None:
        self.sock: socket.socket | None = None
        self.received = b""
        self.up = 0.0
        self.since = 0.0
        self.tries = 0


class Storm:
    """Clients that all want to connect."""

    def __init__(self, port: int, count: int) -> None:
        self._port = port
        self._poll = select.epoll()
        self.clients = [Client() for _ in range(count)]
        self._by_fd: dict[int, Client] = {}
        self._due: list[tuple[float, int]] = []  # to come, or to give up
        self.left = count

    def run(self) -> float:
        """Run until all are up; return the time (s), or the limit."""
        begun = time.perf_counter()
        for number in range(len(self.clients)):
            heappush(self._due, (begun, number))
        while self.left and time.perf_counter() - begun < LONGEST:
            now = time.perf_counter()
            moved = 0
            while self._due and self._due[0][0] <= now and moved < 200:
                _, number = heappop(self._due)
                self._move(number, now)
                moved += 1
            wait = max(0.0, self._due[0][0] - time.perf_counter()) if self._due else 0.1
            for fd, _ in self._poll.poll(min(wait, 0.1), 512):
                self._take(self._by_fd[fd])
        return time.perf_counter() - begun

    def _move(self, number: int, now: float) -> None:
        """Let a client come, or give up."""
        client = self.clients[number]
        if client.up:
            return
        if client.sock is None:
            client.tries += 1
            client.since, client.received = now, b""
            sock = client.sock = socket.socket()
            sock.setblocking(False)
            sock.bind((f"127.0.0.{2 + number % ADDRESSES}", 0))
            sock.connect_ex(("127.0.0.1", self._port))
            self._by_fd[sock.fileno()] = client
            self._poll.register(sock, select.EPOLLIN)
            heappush(self._due, (now + PATIENCE, number))
        elif now - client.since >= PATIENCE:
            self._close(client)
            heappush(self._due, (now + PAUSE, number))

    def _take(self, client: Client) -> None:
        sock = client.sock
        assert sock is not None
        try:
            data = sock.recv(8_192)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:  # refused or closed: it comes again at its time
            self._poll.unregister(sock)
            return
        greeted = b"\n" in client.received
        client.received += data
        if b"PONG\r\n" in client.received:
            client.up = time.perf_counter()
            self.left -= 1
            self._poll.unregister(sock)
        elif not greeted and b"\n" in client.received:
            with suppress(OSError):
                sock.send(HELLO)

    def _close(self, client: Client) -> None:
        assert client.sock is not None
        del self._by_fd[client.sock.fileno()]
        client.sock.close()
        client.sock = None


def storm(port: int, count: int) -> None:
    """Child process: one storm; prints its outcome."""
    made = Storm(port, count)
    begun = time.perf_counter()
    seconds = made.run()
    ups = sorted(client.up - begun for client in made.clients if client.up)
    tries = [client.tries for client in made.clients]
    outcome = {
        "seconds": seconds,
        "up": len(ups),
        "median": statistics.median(ups) if ups else 0,
        "tries": sum(tries) / count,
        "most": max(tries),
    }
    print(json.dumps(outcome), flush=True)


def enough_descriptors() -> None:
    """Allow as many open files as this user may have; children inherit it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextmanager
def way(row: str, server: NatsServer) -> Iterator[tuple[int, int]]:
    """Give the port of a way to the server, and its process (0: none)."""
    if row == NO_PROXY:
        yield server.port, 0
        return
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        options = []
        for option in ROWS[row]:
            place = folder / option.strip("-")
            if option == "--rules":
                place.write_text(RULE)
            options += [option, f"{place}.ncap" if option == "--record" else str(place)]
        proxy = stack.enter_context(ProxyProcess(server.url, *options))
        yield proxy.port, proxy.process.pid


def measure(row: str, count: int) -> str:
    """Return a line of the table."""
    with NatsServer() as server, way(row, server) as (port, pid):
        command = [sys.executable, __file__, "storm", str(port), str(count)]
        cpu = processor(pid) if pid else 0.0
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=LONGEST + 20)
        cpu = processor(pid) - cpu if pid else 0.0
        found = json.loads(done.stdout)
    return (
        f"{row:26}{count:>8}{found['up']:>8}{found['seconds']:>9.1f}{found['median']:>9.1f}"
        f"{found['tries']:>8.1f}{found['most']:>6}{cpu:>9.1f}"
    )


def main(words: list[str]) -> None:
    """Print the table."""
    enough_descriptors()
    counts = [int(word) for word in words if word.isdecimal()] or CLIENTS
    rows = [row for row in ROWS if row in words] or ROWS
    print(f"{'':26}{'clients':>8}{'up':>8}{'all, s':>9}{'half, s':>9}{'tries':>8}{'most':>6}{'CPU, s':>9}")
    for count in counts:
        for row in rows:
            print(measure(row, count), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["storm"]:
        storm(int(sys.argv[2]), int(sys.argv[3]))
    else:
        main(sys.argv[1:])
