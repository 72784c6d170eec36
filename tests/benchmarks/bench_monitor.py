"""The monitoring port beside the traffic: throughput and latency while it is asked every second, as ratios.

As in `bench_admin.py`: a proxy with the port and one without, interleaved rounds, medians.  A reader asks for
/metrics, /varz and /connz, as Prometheus and nats-top do, though these come less often.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.benchmarks.bench_admin import compare
from tests.benchmarks.bench_proxy import Way
from tests.kit.process import ProxyProcess
from tests.kit.servers import NatsServer

_READER = """
import sys, time, urllib.request
while True:
    for path in ("/metrics", "/varz", "/connz?subs=1"):
        with urllib.request.urlopen(sys.argv[1] + path) as answer:
            answer.read()
    print("read", flush=True)
    time.sleep(1)
"""


def main() -> None:
    """Print the table."""
    with (
        NatsServer() as server,
        ProxyProcess(server.url) as plain,
        ProxyProcess(server.url, "--monitor", "127.0.0.1:0") as seen,
        asked(seen),
    ):
        compare([Way(proxy.port, proxy.process.pid) for proxy in (plain, seen)], "with /metrics each second")


@contextmanager
def asked(proxy: ProxyProcess) -> Iterator[None]:
    """Ask the monitoring port of a proxy each second."""
    url = proxy.wait_for(lambda line: line["event"] == "monitor listens")["url"]
    command = [sys.executable, "-c", _READER, url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "read\n"
        try:
            yield
        finally:
            reader.kill()


if __name__ == "__main__":
    main()
