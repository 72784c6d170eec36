"""The page under load: the time from a key to the next picture while 10,000 frames a second arrive.

Headless Chromium shows live frames of a proxy, through which a publisher sends at that rate.  Keys move the
selection or go into the filter; the browser itself says how long each took to be seen (Event Timing).

Then the traffic beside all that can look at it: as in `bench_admin.py`, with the page open and the monitoring
port asked each second.  The browser, which belongs on another machine, has the lowest priority there.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.admin.page.site import Client, Site, site
from tests.benchmarks.bench_admin import compare
from tests.benchmarks.bench_monitor import asked
from tests.benchmarks.bench_proxy import Way
from tests.kit.browser import Browser
from tests.kit.process import ProxyProcess
from tests.kit.servers import NatsServer

RATE = 10_000
KEYS = 60
WATCH = """
window.took = [];
new PerformanceObserver((list) => took.push(...list.getEntries().map((one) => one.duration)))
  .observe({type: "event", durationThreshold: 16});
window.frames_ = 0;
requestAnimationFrame(function next() { frames_ += 1; requestAnimationFrame(next); });
"""


def main() -> None:
    """Print the figures."""
    # Processes of a browser write to its profile a moment longer than the one that was started.
    with tempfile.TemporaryDirectory(prefix="natsproxy-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with Browser(folder / "profile") as browser, site(browser, folder / "keys") as page:
            keys(page)
        with (
            Browser(folder / "low", "nice", "-n", "19") as browser,
            site(browser, folder / "beside", "--monitor", "127.0.0.1:0") as page,
        ):
            beside(page)


def keys(page: Site) -> None:
    """Measure the keys beside a publisher."""
    ended = threading.Event()
    publisher = threading.Thread(target=publish, args=(page.proxy.port, ended))
    publisher.start()
    try:
        measure(page)
    finally:
        ended.set()
        publisher.join()


def publish(port: int, ended: threading.Event) -> None:
    """Send messages of 100 bytes, in bursts of 10 ms."""
    burst = b"PUB bench.page 100\r\n%b\r\n" % (b"x" * 100) * (RATE // 100)
    with Client(port, "bench") as client:
        at = time.monotonic()
        while not ended.is_set():
            client.send(burst)
            at = max(at + 0.01, time.monotonic() - 0.5)
            time.sleep(max(0.0, at - time.monotonic()))


def measure(page: Site) -> None:
    """Press keys while traffic flows."""
    page.visit()
    page.until("document.querySelector('.share.sampled')")
    time.sleep(5)
    page.run(WATCH)
    began = time.monotonic()
    for number in range(KEYS):
        key = ("ArrowUp", "ArrowUp", "End")[number % 3]  # each changes what is seen
        page.browser.press(key)
        time.sleep(0.1)
    page.browser.press("/", "/")
    for letter in "bench.>":
        page.browser.press(letter, letter)
        time.sleep(0.1)
    seconds = time.monotonic() - began
    time.sleep(0.5)
    took = sorted(page.run("took"))  # those of less than 16 ms are not told
    pictures = page.run("frames_") / seconds
    heap = page.run("performance.memory.usedJSHeapSize") / 1e6
    print(page.text(".state"), "|", page.text(".share"))
    print(f"keys {2 * (KEYS + 8)} events, {len(took)} took 16 ms or more")
    if took:
        middle, late = took[len(took) // 2], took[len(took) * 95 // 100]
        print(f"of these: median {middle:.0f} ms, p95 {late:.0f} ms, worst {took[-1]:.0f} ms")
    print(f"{pictures:.0f} pictures/s, {heap:.0f} MB of heap")


def beside(page: Site) -> None:
    """Print how traffic fares beside that of a proxy that nobody looks at."""
    page.visit()
    with NatsServer() as server, ProxyProcess(server.url) as plain, asked(page.proxy):
        ways = [Way(proxy.port, proxy.process.pid) for proxy in (plain, page.proxy)]
        compare(ways, "with the page and the monitor")
    print(page.text(".state"), "|", page.text(".share"))


if __name__ == "__main__":
    main()
