"""Replays to a server: how fast at `--speed max`, how true to its times at recorded speed.

The captures are generated: three publishers in bursts of 50, one subscriber to all of it or none, a request
now and then.  Recorded speed takes half a minute; the number of seconds is the argument (300 for what the
drift does in five minutes).  Loopback only.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

import trio

sys.path.insert(0, str(Path(__file__).parents[2]))
from natsproxy.addresses import Address
from natsproxy.replay.client_playback.batches import batches
from natsproxy.replay.client_playback.playback import ClientPlayback
from natsproxy.replay.client_playback.player import ClientPlayer
from tests.replay.big import big
from tests.replay.kit import nats_server

ROUNDS = 5
RATE = 20_000
SHAPES = (
    ("16 B, nobody listens", 600_000, 16, False),
    ("16 B, all delivered", 600_000, 16, True),
    ("1 KiB, nobody listens", 200_000, 1024, False),
    ("1 KiB, all delivered", 200_000, 1024, True),
)


async def fastest(capture: Path, server: Address) -> tuple[float, float]:
    """Return frames sent and frames handled in both directions, each in a second."""
    machine = ClientPlayback(batches(capture))
    began = time.perf_counter()
    await ClientPlayer(machine, server).run()
    seconds = time.perf_counter() - began
    assert not machine.missing, machine.missing[0]
    return machine.sent / seconds, (machine.sent + machine.received_frames) / seconds


async def measure_speed(folder: Path) -> None:
    """Print the medians of `ROUNDS` replays of each shape."""
    print(f"{'to a server, --speed max':<26}{'sent/s':>12}{'sent and received/s':>22}")
    for name, frames, payload, listen in SHAPES:
        capture = big(folder / "speed.ncap", frames, payload=payload, listen=listen, asks=100)
        async with nats_server() as server:
            runs = [await fastest(capture, server) for _ in range(ROUNDS)]
        capture.unlink()
        sent, both = (statistics.median(column) for column in zip(*runs, strict=True))
        print(f"{name:<26}{sent:>12,.0f}{both:>22,.0f}")


async def measure_times(folder: Path, seconds: int) -> None:
    """Print how late frames went out at recorded speed, and how that changed from beginning to end."""
    capture = big(folder / "times.ncap", seconds * RATE, rate=RATE, listen=False, asks=100)
    machine = ClientPlayback(batches(capture), speed=1.0)
    lags: list[int] = []

    async def sample() -> None:
        while True:
            await trio.sleep(seconds / 200)
            lags.append(machine.lag.last)

    async with nats_server() as server, trio.open_nursery() as nursery:
        nursery.start_soon(sample)
        began = time.perf_counter()
        await ClientPlayer(machine, server).run()
        took = time.perf_counter() - began
        nursery.cancel_scope.cancel()
    drift = statistics.median(lags[-40:]) - statistics.median(lags[:40])
    p50, p99 = (machine.lag.percentile(share) / 1e6 for share in (0.5, 0.99))
    print(
        f"\nrecorded speed, {machine.sent / took:,.0f} frames/s for {took:.1f} s: behind its time p50 "
        f"{p50:.2f} ms, p99 {p99:.2f} ms, worst {machine.lag.worst / 1e6:.2f} ms, drift {drift / 1e6:+.3f} ms"
    )


async def main() -> None:
    """Measure both."""
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    with tempfile.TemporaryDirectory() as name:
        await measure_speed(Path(name))
        await measure_times(Path(name), seconds)


if __name__ == "__main__":
    trio.run(main)
