"""All clients come back at once: what a connection costs, and how long a client waits for its first PONG.

Two tables.  The first has the processor time of a bare connection: connect, INFO, CONNECT and PING, PONG,
close, a few at a time.  The second has storms: all clients at once, from many addresses of the loopback,
while one connection that is open already sends PINGs.  Each client waits 2 s for its first PONG, gives up,
and comes again 2 s later, as client libraries do.  A proxy that is slower than that gets the same clients
again and again, while those that left still stand in its way.

The rows without natsproxy have what the machine, the server and haproxy (where it is installed) give in the
same run.  Clients and the PINGs have processes of their own.  Words behind the command choose numbers of
clients and rows.  Loopback only, bounded in time, and in clients by the limit of open files: a connection
takes two descriptors of a proxy.
"""

from __future__ import annotations

import json
import resource
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.benchmarks.bench_proxy import dial, haproxy, processor, until
from tests.kit.process import ProxyProcess
from tests.kit.servers import NatsServer

CLIENTS = (100, 1_000, 10_000)
BARE = 2_000  # connections of the first table
AT_A_TIME = 8  # of them
PATIENCE = PAUSE = 2.0  # seconds that a client waits for its PONG, and after that until it comes again
LONGEST = 100.0  # seconds of one storm
BETWEEN = 0.002  # seconds between a PONG and the next PING of the connection that is open
SPARE = 500  # descriptors for everything but the clients
HELLO = b'CONNECT {"verbose":false,"pedantic":false,"lang":"storm","protocol":1}\r\nPING\r\n'
RULES = (
    '[[rules]]\nname = "deny"\nkind = "deny"\nop = "PUB"\nsubject = "secret.>"\n'
    '[[rules]]\nname = "drop"\nkind = "drop"\nop = "MSG"\nsubject = "lossy.>"\n'
)
ADDRESSES = 250  # of the loopback that clients come from
NO_PROXY, HAPROXY = "no proxy", "haproxy"
ROWS: Mapping[str, tuple[str, ...]] = {
    NO_PROXY: (),
    HAPROXY: (),
    "proxy": (),
    "two rules": ("--rules",),
    "recording": ("--record",),
    "recording, two rules": ("--rules", "--record"),
}
OF_NATSPROXY = [row for row in ROWS if row not in (NO_PROXY, HAPROXY)]


class Client:
    """One client.  first, since: when it came first, and last.  tries: how often it came."""

    __slots__ = ("first", "received", "since", "sock", "tries", "up")

    def __init__(self) -> None:
        self.sock: socket.socket | None = None
        self.received = b""
        self.up = self.first = self.since = 0.0
        self.tries = 0


class Storm:
    """Clients that all want to connect.

    at_a_time: clients that are on their way at once; others come as these are up.  stay: they stay connected.
    """

    def __init__(self, port: int, count: int, *, at_a_time: int = 0, stay: bool = True) -> None:
        self._port = port
        self._poll = select.epoll()
        self.clients = [Client() for _ in range(count)]
        self._by_fd: dict[int, Client] = {}
        self._due: list[tuple[float, int]] = []  # to come, or to give up
        self.left = count
        self._next = at_a_time or count
        self._stay = stay

    def run(self) -> float:
        """Run until all are up; return the time (s), or the limit."""
        begun = time.perf_counter()
        for number in range(min(self._next, len(self.clients))):
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
            client.first = client.first or now
            sock = client.sock = socket.socket()
            sock.setblocking(False)
            sock.bind((f"127.0.1.{1 + number % ADDRESSES}", 0))
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
            self._is_up(client)
        elif not greeted and b"\n" in client.received:
            with suppress(OSError):
                sock.send(HELLO)

    def _is_up(self, client: Client) -> None:
        client.up = time.perf_counter()
        self.left -= 1
        if self._stay:
            assert client.sock is not None
            self._poll.unregister(client.sock)
        else:
            self._close(client)
        if self._next < len(self.clients):
            heappush(self._due, (client.up, self._next))
            self._next += 1

    def _close(self, client: Client) -> None:
        assert client.sock is not None
        del self._by_fd[client.sock.fileno()]
        client.sock.close()
        client.sock = None


def storm(port: int, count: int) -> None:
    """Child process: one storm; prints its outcome, and keeps the clients until its input ends."""
    made = Storm(port, count)
    seconds = made.run()
    waits = sorted(client.up - client.first for client in made.clients if client.up)
    order = sorted(client.up for client in made.clients if client.up)
    tenth = max(1, len(order) // 10)
    outcome = {
        "seconds": seconds,
        "up": len(waits),
        "p50": _part(waits, 0.5),
        "p99": _part(waits, 0.99),
        "again": sum(client.tries > 1 for client in made.clients),
        # The time in which the last tenth came up, as a multiple of the first's.
        "slowdown": (order[-1] - order[-tenth]) / max(1e-9, order[tenth - 1] - order[0]) if order else 0,
        "own": time.process_time(),
    }
    print(json.dumps(outcome), flush=True)
    sys.stdin.read()


def bare(port: int, count: int) -> None:
    """Child process: bare connections, a few at a time."""
    Storm(port, count, at_a_time=AT_A_TIME, stay=False).run()


def pings(port: int) -> None:
    """Child process: an open connection; prints how long its PINGs took once its input ends."""
    took: list[float] = []
    with dial(port) as sock:
        print("ready", flush=True)
        while not select.select([sys.stdin], [], [], BETWEEN)[0]:
            begun = time.perf_counter()
            sock.sendall(b"PING\r\n")
            until(sock, b"PONG\r\n")
            took.append(time.perf_counter() - begun)
    took.sort()
    print(json.dumps({"p50": _part(took, 0.5), "p99": _part(took, 0.99), "most": took[-1]}), flush=True)


def _part(values: list[float], part: float) -> float:
    """Return a quantile of sorted values."""
    return values[min(len(values) - 1, int(len(values) * part))] if values else 0.0


class Child:
    """A process of this file.  It goes on until its input ends."""

    def __init__(self, *words: object) -> None:
        command = [sys.executable, __file__, *map(str, words)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def line(self) -> str:
        """Return its next line."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"a process has failed: {self._process.args!r}")
        return line

    def end(self) -> str:
        """End its input; return the rest that it prints."""
        return self._process.communicate()[0]


def enough_descriptors() -> int:
    """Allow as many open files as this user may have, which children inherit; return their number."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


class Way(NamedTuple):
    """A way to the server.  port: its.  pid: of the process that it costs."""

    port: int
    pid: int


@contextmanager
def way(row: str, server: NatsServer) -> Iterator[Way]:
    """Give a way to the server; without a proxy it costs the server itself."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if row == NO_PROXY:
            yield Way(server.port, server._process.pid)
        elif row == HAPROXY:
            yield Way(*stack.enter_context(haproxy(server.port, folder)))
        else:
            options = []
            for option in ROWS[row]:
                place = folder / option.strip("-")
                if option == "--rules":
                    place.write_text(RULES)
                options += [option, f"{place}.ncap" if option == "--record" else str(place)]
            proxy = stack.enter_context(ProxyProcess(server.url, *options))
            yield Way(proxy.port, proxy.process.pid)


def resident(pid: int) -> int:
    """Return the resident memory of a process, in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def descriptors(pid: int) -> int:
    """Return the open files of a process."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def measure_bare(row: str) -> tuple[float, float]:
    """Return the processor time of a bare connection (ms), of the way and of the server."""
    with NatsServer() as server, way(row, server) as (port, pid):
        run = [sys.executable, __file__, "bare", str(port)]
        subprocess.run([*run, "200"], check=True)  # first uses cost more
        before = processor(pid), processor(server._process.pid)
        subprocess.run([*run, str(BARE)], check=True)
        time.sleep(0.2)  # the last ends
        after = processor(pid), processor(server._process.pid)
    own, servers = ((b - a) / BARE * 1e3 for a, b in zip(before, after, strict=True))
    return own, servers


def measure(row: str, count: int) -> dict[str, Any]:
    """Return the outcome of one storm."""
    with NatsServer() as server, way(row, server) as (port, pid):
        pinger = Child("pings", port)
        pinger.line()
        memory, cpu = resident(pid), processor(pid)
        clients = Child("storm", port, count)
        found: dict[str, Any] = json.loads(clients.line())
        found["ping"] = json.loads(pinger.end())
        found["cpu"] = (processor(pid) - cpu) / count * 1e3
        found["memory"] = (resident(pid) - memory) / count / 1024
        found["files"] = descriptors(pid)
        clients.end()
    return found


def print_bare(rows: list[str]) -> None:
    """Print the first table."""
    print(f"{'bare connection, CPU ms':26}{'own':>8}{'server':>8}")
    for row in rows:
        own, servers = measure_bare(row)
        print(f"{row:26}{own:>8.3f}{servers:>8.3f}", flush=True)


def print_storms(rows: list[str], counts: list[int]) -> None:
    """Print the second table; times in ms."""
    heads = (
        "clients",
        "up",
        "again",
        "all, s",
        "p50",
        "p99",
        "slow",
        "PING p99",
        "most",
        "CPU ms",
        "KiB",
        "files",
    )
    print(f"{'storm':22}" + "".join(f"{head:>9}" for head in heads))
    for count in counts:
        for row in rows:
            found = measure(row, count)
            print(
                f"{row:22}{count:>9}{found['up']:>9}{found['again']:>9}{found['seconds']:>9.2f}"
                f"{found['p50'] * 1e3:>9.0f}{found['p99'] * 1e3:>9.0f}{found['slowdown']:>9.1f}"
                f"{found['ping']['p99'] * 1e3:>9.1f}{found['ping']['most'] * 1e3:>9.1f}{found['cpu']:>9.3f}"
                f"{found['memory']:>9.1f}{found['files']:>9}",
                flush=True,
            )


def main(words: list[str]) -> None:
    """Print the tables."""
    most = (enough_descriptors() - SPARE) // 2
    counts = [int(word) for word in words if word.isdecimal()] or list(CLIENTS)
    if max(counts) > most:
        print(f"at most {most} clients: the limit of open files")
    rows = [row for row in ROWS if row in words] or list(ROWS)
    if HAPROXY in rows and shutil.which("haproxy") is None:
        rows.remove(HAPROXY)
    if "bare" in words or not words:
        print_bare(rows)
    if words != ["bare"]:
        print_storms(rows, [min(count, most) for count in counts])


if __name__ == "__main__":
    children: dict[str, Callable[..., None]] = {"storm": storm, "bare": bare, "pings": pings}
    if len(sys.argv) > 2 and sys.argv[1] in children and sys.argv[2].isdecimal():
        children[sys.argv[1]](*map(int, sys.argv[2:]))
    else:
        main(sys.argv[1:])
