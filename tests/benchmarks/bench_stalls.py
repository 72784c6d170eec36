"""Another client's longest PING while one client, or a reload, gives the proxy a large piece of work.

Each row names the work: a SIGHUP that brings rules while 300 connections have subscriptions, header blocks of
a megabyte under rules that look at headers, many subscriptions of one connection, and their end.  Beside the
longest PING stands how much of it the proxy waited for a processor, which other programs had, and how long
the work took; rows that say "direct" have no proxy.  The client that is measured is a process of its own.
Words behind the command choose rows.  Loopback only, bounded in count.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.benchmarks.bench_proxy import dial, until
from tests.kit.process import ProxyProcess
from tests.kit.servers import NatsServer

CONNECTIONS = 300
SUBS = 20  # of each of them
MANY = 100_000  # subscriptions of one connection
VERBOSE = 50_000
PAUSE = 0.001  # between two PINGs
QUIET = 0.3  # seconds before and behind the work
RUN = 1000  # SUBs of one write


def rules(count: int, kind: str = "deny", *lines: str, subject: str = "no.{}.x") -> str:
    """Return a rules file of `count` rules, each on a subject of its own."""
    head = f'[[rules]]\nname = "r{{}}"\nkind = "{kind}"\n' + "".join(f"{line}\n" for line in lines)
    return (
        "rules = []\n"
        if not count
        else "\n".join(head.format(n) + f'subject = "{subject.format(n)}"\n' for n in range(count))
    )


# -- the client that is measured


def waited(pid: int) -> float:
    """Return how long (ms) the main thread of a process has waited for a processor; 0 for no process."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e6 if pid else 0.0


def ping(port: int, pid: int) -> None:
    """Child process: PING until the end of stdin, then print begin, length (ms) and wait (ms) of each PING.

    pid: the proxy, whose wait for a processor that is; 0 for none.
    """
    times = []
    os.set_blocking(sys.stdin.fileno(), False)
    with dial(port) as sock:
        sock.settimeout(120)
        print("ready", flush=True)
        while sys.stdin.buffer.read(1) is None:
            began, before = time.monotonic(), waited(pid)
            sock.sendall(b"PING\r\n")
            until(sock, b"PONG\r\n")
            times.append((began, (time.monotonic() - began) * 1e3, waited(pid) - before))
            time.sleep(PAUSE)
    print(json.dumps(times))


@contextmanager
def watched(port: int, found: list[float], pid: int = 0) -> Iterator[None]:
    """Measure PINGs while the block runs; `found` gets the columns of the table (ms).  pid: of the proxy."""
    command = [sys.executable, __file__, "ping", str(port), str(pid)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdout.readline()
    time.sleep(QUIET)
    began = time.monotonic()
    yield
    ended = time.monotonic()
    time.sleep(QUIET)
    child.stdin.close()
    times = json.loads(child.stdout.readline())
    child.wait()
    child.stdout.close()
    during = sorted((took, wait) for at, took, wait in times if at + took / 1e3 >= began and at <= ended)
    found += [*during[-1], during[len(during) * 99 // 100][0], (ended - began) * 1e3]


# -- the works


def reload(server: NatsServer, count: int, connections: int = CONNECTIONS) -> str:
    """Bring `count` deny rules by SIGHUP."""
    found: list[float] = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as open_:
        file = Path(folder) / "rules.toml"
        file.write_text(rules(0))
        proxy = open_.enter_context(ProxyProcess(server.url, "--rules", str(file)))
        for at in range(connections):
            sock = open_.enter_context(dial(proxy.port))
            sock.sendall(b"".join(b"SUB s.%d.%d.* %d\r\n" % (at, n, n) for n in range(SUBS)) + b"PING\r\n")
            until(sock, b"PONG\r\n")
        file.write_text(rules(count))
        with watched(proxy.port, found, proxy.process.pid):
            proxy.process.send_signal(signal.SIGHUP)
            proxy.wait_for(lambda line: line["event"] == "reloaded")
            last = open_.enter_context(dial(proxy.port))
            last.sendall(b"PING\r\n")
            until(last, b"PONG\r\n")
    return shown(found)


def headers(server: NatsServer, text: str, line: bytes, size: int, frames: int) -> str:
    """Publish header blocks of `size` bytes of a line under rules."""
    found: list[float] = []
    block = b"NATS/1.0\r\n" + line * (size // len(line)) + b"\r\n"
    frame = b"HPUB h.x %d %d\r\n%s\r\n" % (len(block), len(block), block)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rules.toml"
        file.write_text(text)
        with (
            ProxyProcess(server.url, "--rules", str(file)) as proxy,
            socket.create_connection(("127.0.0.1", proxy.port)) as sock,
        ):
            sock.settimeout(120)
            sock.sendall(b'CONNECT {"verbose":false,"headers":true}\r\nPING\r\n')
            until(sock, b"PONG\r\n")
            with watched(proxy.port, found, proxy.process.pid):
                for _ in range(frames):
                    sock.sendall(frame + b"PING\r\n")
                    until(sock, b"PONG\r\n")
    return shown(found)


def subscribe(server: NatsServer, count: int, verbose: bool, direct: bool, text: str = "") -> str:
    """Make `count` subscriptions on one connection, end them one by one, make them again, and close."""
    columns = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as open_:
        port, pid = server.port, 0
        if not direct:
            file = Path(folder) / "rules.toml"
            file.write_text(text)
            options = ("--rules", str(file)) if text else ()
            proxy = open_.enter_context(ProxyProcess(server.url, *options))
            port, pid = proxy.port, proxy.process.pid
        sock = open_.enter_context(dial(port))
        if verbose:
            sock.sendall(b'CONNECT {"verbose":true}\r\nPING\r\n')
            until(sock, b"PONG\r\n")
        for form in (b"SUB a.b.%(n)d %(n)d\r\n", b"UNSUB %(n)d\r\n", b"SUB a.b.%(n)d %(n)d\r\n"):
            blocks = [b"".join(form % {b"n": n} for n in range(at, at + RUN)) for at in range(0, count, RUN)]
            found: list[float] = []
            with watched(port, found, pid):
                for block in blocks:
                    sock.sendall(block)
                sock.sendall(b"PING\r\n")
                until(sock, b"PONG\r\n")
            columns.append(shown(found))
        found = []
        with watched(port, found, pid):
            sock.close()
            time.sleep(0.5)
        columns.append(shown(found[:3]))
    return " | ".join(columns)


def shown(found: list[float]) -> str:
    """Return figures as columns."""
    return " ".join(f"{figure:8.1f}" for figure in found)


HEADER_RULE = '[[rules]]\nname = "r"\nkind = "headers"\nsubject = "h.>"\nset = { A = "b" }\n'
SELECTOR = '[[rules]]\nname = "r"\nkind = "latency"\nsubject = "h.>"\nheader = { A = "b" }\ndelay = "1ms"\n'
MANY_SELECTORS = "\n".join(SELECTOR.replace('"r"', f'"r{n}"') for n in range(400))
MANY_HEADER_RULES = "\n".join(HEADER_RULE.replace('"r"', f'"r{n}"') for n in range(400))
SHORT, LONG = b"k:v\r\n", b"k: " + b"v" * 4000 + b"\r\n"
SAME = b"A:c\r\n"  # the name that the rules look for

WORKS: Mapping[str, Callable[[NatsServer], str]] = {
    **{f"reload to {n} rules": partial(reload, count=n) for n in (10, 50, 100, 10_000)},
    "reload to 10000 rules, nobody": partial(reload, count=10_000, connections=0),
    "headers rule, short lines": partial(headers, text=HEADER_RULE, line=SHORT, size=1_000_000, frames=20),
    "headers rule, one name": partial(headers, text=HEADER_RULE, line=SAME, size=1_000_000, frames=20),
    "header selector, short lines": partial(headers, text=SELECTOR, line=SHORT, size=1_000_000, frames=20),
    "header selector, one name": partial(headers, text=SELECTOR, line=SAME, size=1_000_000, frames=20),
    "400 deny rules, long lines": partial(headers, text=rules(400), line=LONG, size=1_700_000, frames=5),
    "400 selectors, long lines": partial(headers, text=MANY_SELECTORS, line=LONG, size=1_700_000, frames=5),
    "400 headers rules, long lines": partial(
        headers, text=MANY_HEADER_RULES, line=LONG, size=1_700_000, frames=5
    ),
    "400 selectors, short lines": partial(headers, text=MANY_SELECTORS, line=SHORT, size=1_000_000, frames=2),
    "100000 SUBs, direct": partial(subscribe, count=MANY, verbose=False, direct=True),
    "100000 SUBs": partial(subscribe, count=MANY, verbose=False, direct=False),
    "100000 SUBs, 100 deny rules": partial(
        subscribe, count=MANY, verbose=False, direct=False, text=rules(100)
    ),
    "50000 verbose SUBs, direct": partial(subscribe, count=VERBOSE, verbose=True, direct=True),
    "50000 verbose SUBs": partial(subscribe, count=VERBOSE, verbose=True, direct=False),
}


def main() -> None:
    """Print the table."""
    print(f"{'ms: longest PING, its wait, p99, time':38} (for SUBs: of SUBs | UNSUBs | SUBs | the end)")
    for name, work in WORKS.items():
        if sys.argv[1:] and not any(word in name for word in sys.argv[1:]):
            continue
        with NatsServer("max_payload = 8388608") as server:
            print(f"{name:38}{work(server)}", flush=True)
    print(json.dumps({"cpus": os.cpu_count()}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["ping"]:
        ping(int(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
