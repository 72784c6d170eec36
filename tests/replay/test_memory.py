"""Replays and comparisons of large captures: their memory follows windows, not the capture."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.peak_memory import peak, start
from tests.replay.big import big

PAYLOAD = 8192
SMALL, LARGE = 120 << 20, 480 << 20
ROOM = 48 << 20
"""How much more the large one may take: allocators keep what they once had."""


def played(capture: Path) -> tuple[int, int, int]:
    """Play a capture's clients to its server, compare it with itself; return the peaks of the three."""
    server = start("replay", "to-client", capture, "--listen", "127.0.0.1:0", "--timeout", "30")
    assert server.stderr is not None
    address = server.stderr.readline().split("on nats://")[1].strip()
    clients = start("replay", "to-server", capture, "--to", address, "--speed", "max", "--timeout", "30")
    return peak(clients), peak(server), peak(start("capture", "diff", capture, capture))


@pytest.mark.long
def test_memory_does_not_follow_the_capture(tmp_path: Path) -> None:
    peaks = []
    for size in (SMALL, LARGE):
        capture = big(tmp_path / "x.ncap", size // PAYLOAD, payload=PAYLOAD, asks=10)
        assert capture.stat().st_size > size // 2
        peaks.append(played(capture))
        capture.unlink()
    small, large = peaks
    assert all(b < a + ROOM for a, b in zip(small, large, strict=True)), peaks
