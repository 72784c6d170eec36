"""The admin API beside the traffic: throughput and latency with an open live view, as ratios to without.

One publisher and one subscriber, as in `bench_proxy.py`; both proxies run at the same time, the rounds are
interleaved, and medians are shown.  A view is a client that reads the stream of frames.  Its cost is the
processor time that the proxy takes beyond the other's, as a share of one processor.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.benchmarks.bench_proxy import Way, latency, throughput
from tests.kit.process import ProxyProcess
from tests.kit.servers import NatsServer

ROUNDS = 3
REQUESTS = 2_000
SIZES = ((16, 600_000), (1024, 200_000), (16384, 20_000))
_READER = """
import socket, sys
sock = socket.socket(socket.AF_UNIX)
sock.connect(sys.argv[1])
sock.sendall(b"GET /v1/proxies/main/frames/stream HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
print("reads" if sock.recv(65536) else "nothing", flush=True)
while sock.recv(65536):
    pass
"""


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory(prefix="natsproxy-bench-") as folder, NatsServer() as server:
        path = f"{folder}/admin"
        with ProxyProcess(server.url) as plain, ProxyProcess(server.url, "--admin", f"unix:{path}") as seen:
            ways = [Way(proxy.port, proxy.process.pid) for proxy in (plain, seen)]
            command = [sys.executable, "-c", _READER, path]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
                assert reader.stdout is not None
                assert reader.stdout.readline() == "reads\n"
                compare(ways, "with a live view")
                reader.kill()


def compare(ways: list[Way], title: str) -> None:
    """Print how the second way fares beside the first."""
    print(f"{title:30}{'msgs/s, ratio':>15}{'its cost':>10}")
    for size, count in SIZES:
        rates, costs = [], []
        for number in range(ROUNDS):
            rate, cost, seconds = [0.0, 0.0], [0.0, 0.0], 0.0
            for place in (0, 1) if number % 2 else (1, 0):  # neither is always the later one
                way, began = ways[place], time.perf_counter()
                before = way.cpu()
                rate[place] = throughput((way.port, way.port), size, count)
                cost[place] = way.cpu() - before
                seconds = max(seconds, time.perf_counter() - began)
            rates.append(rate[1] / rate[0])
            costs.append((cost[1] - cost[0]) / seconds)
        print(f"{size:>28} B{statistics.median(rates):>16.2f}{statistics.median(costs):>10.1%}", flush=True)
    found = [[latency(way.port, REQUESTS)[0] for way in ways] for _ in range(ROUNDS)]
    print(f"{'request p50, ratio':>30}{statistics.median(seen / plain for plain, seen in found):>15.2f}")


if __name__ == "__main__":
    main()
