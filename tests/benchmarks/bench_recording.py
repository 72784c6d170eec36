"""Recording: the processor time of a recorder for one frame, and a fast stream through the proxy.

The first table has the cost of a capture's settings: runs of 64 KiB, as a busy connection gives them, go to a
builder and a writer without a proxy around them.

The second table has the speed of the proxy with and without recording, and the frames kept.  One publisher
and one subscriber, as in `bench_proxy.py`; the rounds of both are interleaved and medians are shown, with the
processor seconds that the proxy used for all rounds.  The capture is of the default overflow, `gap`: the PUBs
and MSGs in it are counted against those that were sent.

The third table has the speed of the proxy with each policy for payloads, as a ratio to recording them whole.
Loopback and temporary files only, bounded in count.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from natsproxy.capture.filter.recording_filter import PayloadPolicy, RecordingFilter, Selection
from natsproxy.capture.format.records import Frames
from natsproxy.capture.write.builder import BLOCK_SIZE, BlockBuilder
from natsproxy.capture.write.writer import CaptureWriter, SegmentInfo
from natsproxy.wire.ops import C2S
from tests.benchmarks.bench_proxy import kept, processor, throughput
from tests.kit.process import ProxyProcess
from tests.kit.servers import NatsServer

ROUNDS = 3
POLICIES = ("keep", "drop", "truncate:8", "hash")
COUNTS = {16: 400_000, 128: 300_000, 1024: 100_000, 16384: 10_000}


SELECTIONS = {
    "plain": Selection(),
    "drop": Selection(payloads=(PayloadPolicy(b"orders.>", "drop"),)),
    "truncate": Selection(payloads=(PayloadPolicy(b"orders.>", "truncate", 8),)),
    "hash": Selection(payloads=(PayloadPolicy(b"orders.>", "hash"),)),
    "selected": Selection(subjects=(b"orders.*.new",)),
    "left out": Selection(subjects=(b"stock.>",)),
}


def cost(selection: Selection, size: int, seconds: float = 0.5) -> float:
    """Return the processor time that a recorder takes for one frame, in ns."""
    frame = b"PUB orders.4711.new %d\r\n%b\r\n" % (size, bytes(size))
    frames = (1 << 16) // len(frame)
    run = Frames(1, C2S, frame * frames, frames, 1, 0, 0, 0, 0)
    builder, began, done = BlockBuilder(RecordingFilter(selection)), time.process_time(), 0
    with tempfile.TemporaryDirectory(prefix="natsproxy-bench-") as folder:
        while (spent := time.process_time() - began) < seconds:
            writer = CaptureWriter(Path(folder) / "x.ncap", SegmentInfo(bytes(16), bytes(16), 0, 0))
            writer.open_segment()
            while writer.size < 64 << 20 and time.process_time() - began < seconds:
                builder.begin(0, 0)
                builder.put(run)
                done += frames
                if builder.size >= BLOCK_SIZE:
                    writer.write(builder.seal())
            writer.abandon()
            (Path(folder) / "x.ncap").unlink(missing_ok=True)
    return spent / done * 1e9


def print_costs() -> None:
    """Print the first table."""
    print(f"{'ns a frame':18}" + "".join(f"{name:>10}" for name in SELECTIONS))
    for size in COUNTS:
        costs = [cost(selection, size) for selection in SELECTIONS.values()]
        print(f"{size:>8} B payload" + "".join(f"{ns:>10.0f}" for ns in costs), flush=True)
    print()


def measure(server: NatsServer, size: int, count: int, folder: Path) -> None:
    """Print one row."""
    rates: tuple[list[float], list[float]] = ([], [])
    with ProxyProcess(server.url) as plain, ProxyProcess(server.url, "--record", str(folder)) as recording:
        for _ in range(ROUNDS):
            for proxy, rate in zip((plain, recording), rates, strict=True):
                rate.append(throughput((proxy.port, proxy.port), size, count))
        seconds = processor(plain.process.pid), processor(recording.process.pid)
        recording.drain()
    found = kept(folder)
    before, after = (statistics.median(rate) for rate in rates)
    print(
        f"{size:>8} B payload {before / 1e3:>9.0f} k/s {after / 1e3:>9.0f} k/s {after / before:>8.2f}"
        f" {seconds[0]:>9.2f} s {seconds[1]:>8.2f} s   {found.get(size, 0):,} of {2 * ROUNDS * count:,}",
        flush=True,
    )


def print_policies(server: NatsServer) -> None:
    """Print the third table."""
    print(f"\n{'ratio of speed':18}" + "".join(f"{policy:>12}" for policy in POLICIES))
    for size, count in COUNTS.items():
        rates: dict[str, list[float]] = {policy: [] for policy in POLICIES}
        with tempfile.TemporaryDirectory(prefix="natsproxy-bench-") as folder, ExitStack() as proxies:
            ports = {
                policy: proxies.enter_context(
                    ProxyProcess(server.url, "--record", f"{folder}/{n}/", "--record-payload", f">={policy}")
                ).port
                for n, policy in enumerate(POLICIES)
            }
            for _ in range(ROUNDS):
                for policy, port in ports.items():
                    rates[policy].append(throughput((port, port), size, count))
        found = [statistics.median(rates[policy]) for policy in POLICIES]
        print(f"{size:>8} B payload" + "".join(f"{rate / found[0]:>12.2f}" for rate in found), flush=True)


def main() -> None:
    """Print the tables."""
    print_costs()
    print(
        f"{'':18} {'plain':>13} {'recording':>13} {'ratio':>8} {'cpu':>11} {'cpu':>10}   kept of those sent"
    )
    with NatsServer() as server:
        for size, count in COUNTS.items():
            folder = Path(tempfile.mkdtemp(prefix="natsproxy-bench-"))
            try:
                measure(server, size, count, folder)
            finally:
                shutil.rmtree(folder)
        print_policies(server)


if __name__ == "__main__":
    main()
