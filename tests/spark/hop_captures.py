"""Captures of two proxies in a row, whose clocks differ, with the times of their frames."""

from __future__ import annotations

from pathlib import Path

from natsproxy.capture.format.records import Close, Open
from natsproxy.wire.ops import C2S, S2C
from tests.kit.captures import MONO, Scribe, write

MS = 1_000_000
AHEAD = 7 * MS
"""The time by which the clock of the second is ahead, ns."""


def in_a_row(folder: Path) -> list[Path]:
    """Write them: a frame takes 2 ms from one to the other, the second request 3 ms; one frame gets lost.

    The address between the two is used again, by a client of another machine.
    """
    near, far, address = Scribe(), Scribe(), "10.9.0.1:4000"
    near.items.append(Open(1, MONO, {"client": "10.9.0.9:1", "upstream_local": address}))
    for conn, since in ((5, 1 * MS), (6, 90_000 * MS)):
        told = {"client": "10.9.0.9:1", "proxied_by": address} if conn == 5 else {"client": address}
        info = {**told, "upstream_local": "10.9.0.2:1"}
        far.items.append(Open(conn, MONO + since + AHEAD, info))
    far.frame(2 * MS + AHEAD, 5, S2C, b"INFO {}\r\n")
    near.frame(4 * MS, 1, S2C, b"INFO {}\r\n")
    for number, took in enumerate((2, 3)):
        near.frame((10 + number) * MS, 1, C2S, b"PUB a.%d 1\r\nx\r\n" % number)
        far.frame((10 + number + took) * MS + AHEAD, 5, C2S, b"PUB a.%d 1\r\nx\r\n" % number)
    near.frame(20 * MS, 1, C2S, b"PUB lost 1\r\nx\r\n")
    far.frame(90_001 * MS, 6, C2S, b"PUB a.0 1\r\nx\r\n")
    for scribe, conn in ((near, 1), (far, 5)):
        scribe.items.append(Close(conn, MONO + 30 * MS, "client-closed", {}))
    return [write(folder / "near.ncap", near.items), write(folder / "far.ncap", far.items)]
