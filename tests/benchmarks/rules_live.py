"""The cost of rules through sockets: publish plus deliver, against the same proxy without rules.

A publisher and a subscriber, both through the proxy, before a real server; blocks are built beforehand and
the clock runs in the subscriber, from its first byte to the mark that ends the load.  Rounds are interleaved;
the medians are shown.  Beside the rate stands the proxy's own processor time for a message (both passes),
which says the same on a machine that others use too.  Called by `bench_rules`.
"""

from __future__ import annotations

import contextlib
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.benchmarks.bench_proxy import dial, processor, until
from tests.kit.process import ProxyProcess
from tests.kit.servers import NatsServer

ROUNDS = 3
MARK = b"the end of load"
BODY = b"0123456789abcdef"
RATE, SECONDS = 200_000, 3  # of the run with latency


def blocks(subjects: list[bytes]) -> list[bytes]:
    """Return PUBs as blocks of some 64 KiB."""
    found, data = [], bytearray()
    for subject in subjects:
        data += b"PUB %s 16\r\n%s\r\n" % (subject, BODY)
        if len(data) >= 65536:
            found.append(bytes(data))
            data.clear()
    return [*found, bytes(data)]


@contextlib.contextmanager
def listener(port: int, how: str) -> Iterator[subprocess.Popen[str]]:
    """Run a subscriber of `b.>` in a process of its own, up to the mark."""
    command = [sys.executable, __file__, how, str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        child.stdout.readline()
        yield child


def listen(port: int) -> None:
    """Child: read to the mark; print the seconds from the first byte on."""
    with dial(port) as sock:
        sock.sendall(b"SUB b.> 1\r\nPING\r\n")
        until(sock, b"PONG\r\n")
        print("ready", flush=True)
        began, tail = 0.0, b""
        while MARK not in tail:
            data = sock.recv(1 << 20)
            began = began or time.perf_counter()
            tail = tail[-64:] + data[-256:]
        print(time.perf_counter() - began)


def time_delays(port: int) -> None:
    """Child: read to the mark; print how many messages came and the median of their ages, in ns."""
    with dial(port) as sock:
        sock.sendall(b"SUB b.> 1\r\nPING\r\n")
        until(sock, b"PONG\r\n")
        print("ready", flush=True)
        count, tail, ages = 0, b"", []
        while MARK not in tail:
            data = tail + sock.recv(1 << 20)
            cut = data.rfind(b"\r\nMSG ") + 2 if MARK not in data else len(data)
            now, whole, tail = time.monotonic_ns(), data[:cut], data[cut:]
            stamps = re.findall(rb"\r\n(\d{16})\r\n", whole)
            count += len(stamps)
            ages += [now - int(stamps[0]) * 1000] if stamps else []
            tail = whole[-32:] + tail if MARK in data else tail
        print(count, int(statistics.median(ages)))


def throughput(port: int, load: list[bytes], count: int) -> float:
    """Return messages a second from publish to delivery."""
    with listener(port, "listen") as child, dial(port) as sock:
        for block in load:
            sock.sendall(block)
        sock.sendall(b"PUB b.end %d\r\n%s\r\n" % (len(MARK), MARK))
        assert child.stdout is not None
        return count / float(child.stdout.readline())


def delays(port: int, to: int) -> tuple[int, float, float]:
    """Send a paced load; return how many messages were lost, the median age (ms) and the rate reached."""
    step = RATE // 500
    with listener(to, "delays") as child, dial(port) as sock:
        began = time.monotonic()
        for trace in range(SECONDS * 500):
            stamp = b"%016d" % (time.monotonic_ns() // 1000)
            sock.sendall((b"PUB b.load 16\r\n%s\r\n" % stamp) * step)
            time.sleep(max(0.0, began + (trace + 1) / 500 - time.monotonic()))
        rate = SECONDS * RATE / (time.monotonic() - began)
        sock.sendall(b"PUB b.end %d\r\n%s\r\n" % (len(MARK), MARK))
        assert child.stdout is not None
        count, age = map(int, child.stdout.readline().split())
    return SECONDS * RATE - count, age / 1e6, rate


def rule(kind: str, *lines: str, name: str = "r") -> str:
    """Return the text of a rule."""
    return "\n".join(["[[rules]]", f'name = "{name}"', f'kind = "{kind}"', *lines, ""])


THOUSAND = "".join(rule("drop", f'subject = "b.eu.no{n}.*"', name=f"r{n}") for n in range(1000))
HIT = 'subject = "b.eu.hit.x"'
SubjectRewriter = Callable[[int], bytes]
ROWS: tuple[tuple[str, str, int, SubjectRewriter], ...] = (
    ("1,000 rules that match nothing, 1 M subjects", THOUSAND, 1_000_000, lambda n: b"b.eu.%d.x" % n),
    (
        "a drop on 1 % of frames",
        rule("drop", HIT, 'op = "PUB"'),
        500_000,
        lambda n: b"b.eu.hit.x" if n % 100 == 0 else b"b.eu.miss.x",
    ),
    (
        "a body damaged on 1 % of frames",
        rule("corrupt", HIT, 'op = "PUB"'),
        500_000,
        lambda n: b"b.eu.hit.x" if n % 100 == 0 else b"b.eu.miss.x",
    ),
    (
        "a drop with probability 0.01, one subject",
        rule("drop", 'op = "PUB"', "probability = 0.01"),
        200_000,
        lambda n: b"b.eu.new.x",
    ),
    (
        "every 100th PUB dropped, one subject",
        rule("drop", 'op = "PUB"', "every = 100"),
        500_000,
        lambda n: b"b.eu.new.x",
    ),
    (
        "PUBs held 1 ms with probability 0.01",
        rule("latency", 'op = "PUB"', "probability = 0.01", 'delay = "1ms"'),
        200_000,
        lambda n: b"b.eu.new.x",
    ),
    (
        "PUBs sent twice with probability 0.01",
        rule("duplicate", 'op = "PUB"', "probability = 0.01"),
        200_000,
        lambda n: b"b.eu.new.x",
    ),
    (
        "a limit that nothing exceeds, one subject",
        rule("limit", 'subject = "b.eu.>"', 'messages = "100000000/s"', 'per = "user"'),
        500_000,
        lambda n: b"b.eu.new.x",
    ),
    (
        "a limit that drops nearly all, one subject",
        rule("limit", 'subject = "b.eu.>"', "messages = 1", 'action = "drop"'),
        100_000,
        lambda n: b"b.eu.new.x",
    ),
    (
        "a drop of what is large, and nothing is",
        rule("drop", "min_size = 1000"),
        500_000,
        lambda n: b"b.eu.new.x",
    ),
    (
        "every PUB and MSG rewritten, one subject",
        rule("rewrite", 'prefix = "t"'),
        1_000_000,
        lambda n: b"b.eu.new.x",
    ),
    (
        "every PUB and MSG rewritten, 1,000 subjects",
        rule("rewrite", 'prefix = "t"'),
        1_000_000,
        lambda n: b"b.eu.%d.x" % (n % 1000),
    ),
)


class Measured(NamedTuple):
    """One round: messages a second, and the proxy's processor time for each (µs)."""

    rate: float
    cost: float


def measure(proxy: ProxyProcess, load: list[bytes], count: int) -> Measured:
    """Send a load through a proxy."""
    pid = proxy.process.pid
    before = processor(pid)
    rate = throughput(proxy.port, load, count)
    return Measured(rate, (processor(pid) - before) / count * 1e6)


def compare(plain: ProxyProcess, ruled: ProxyProcess, name: str, load: list[bytes], count: int) -> None:
    """Print one row: a load without and with rules."""
    rounds = [(measure(plain, load, count), measure(ruled, load, count)) for _ in range(ROUNDS)]
    without, with_rules = (
        Measured(*map(statistics.median, zip(*side, strict=True))) for side in zip(*rounds, strict=True)
    )
    print(
        f"{name:<44} {without.rate / 1e3:5.0f} k/s {without.cost:5.2f} µs, with rules "
        f"{with_rules.rate / 1e3:5.0f} k/s {with_rules.cost:5.2f} µs: {with_rules.rate / without.rate:4.2f}, "
        f"{ruled.memory('VmHWM') >> 20} MiB",
        flush=True,
    )


def main() -> None:
    """Print the tables."""
    print(f"\nthrough sockets, {os.cpu_count()} processors, medians of {ROUNDS} interleaved rounds")
    with tempfile.TemporaryDirectory() as folder, NatsServer() as server, ProxyProcess(server.url) as plain:
        for number, (name, text, count, subject) in enumerate(ROWS):
            file = Path(folder, f"{number}.toml")
            file.write_text(text)
            load = blocks([subject(n) for n in range(count)])
            with ProxyProcess(server.url, "--rules", str(file)) as ruled:
                compare(plain, ruled, name, load, count)
        for what, selected in (("everything", 'direction = "c2s"'), ("PUB alone", 'op = "PUB"')):
            file = Path(folder, "slow.toml")
            file.write_text(rule("latency", 'delay = "100ms"', selected))
            with ProxyProcess(server.url, "--rules", str(file)) as slow:
                _, usual, _ = delays(plain.port, server.port)
                before = processor(slow.process.pid)
                lost, late, rate = delays(slow.port, server.port)
                print(
                    f"100 ms on {what} at {rate / 1e3:.0f} k/s: {lost} lost, p50 of the added delay "
                    f"{late - usual:.1f} ms (without the rule {usual:.1f} ms), "
                    f"{(processor(slow.process.pid) - before) / (RATE * SECONDS) * 1e6:.2f} µs a message, "
                    f"{slow.memory('VmHWM') >> 20} MiB"
                )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        {"listen": listen, "delays": time_delays}[sys.argv[1]](int(sys.argv[2]))
    else:
        main()
