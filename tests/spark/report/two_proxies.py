"""Captures of two proxies in a row for the report: what both saw, and what only the first one did.

The expected values of the report stand beside the frames that make them.  Times are in ms.
"""

from __future__ import annotations

from pathlib import Path

from natsproxy.capture.format.records import OpenRecord
from natsproxy.wire.ops import C2S, S2C, Direction
from tests.kit.captures import MONO, Scribe, write
from tests.spark.known_conversation import status

MS = 1_000_000
ADDRESS = "10.9.0.1:4000"
"""The first proxy's own, to the second."""
BOTH, ALONE, BEHIND = 1, 2, 5
"""Connections: of the first proxy to the second, of the first to a server, and what the second has of it."""
TOOK, TOOK_ONCE = 2, 6
"""The time of a frame from one proxy to the other, and that of one frame."""
STEP, SPAN = 500, 60_000
"""The width of the report's steps, and all of the time."""
ERRORS = 3
QUICK = {1_000 * second: 4 + second for second in range(1, 9)}
"""Requests to `svc.quick` through both: when, and the latency that the first one saw."""
ONLY_NEAR = {1_000 * second: 40 for second in range(21, 29)}
"""Requests to it through the first alone."""
PIPED = 500
"""The latency of two requests that came in one read, and whose answers left together."""
PENDING = [(1_000, 9), (1_200, 3), (2_000, 7), (3_000, 8), (30_000, 2)]
"""Deliveries: when, and how many messages wait for the consumer then."""
FAILED = {10: (2, 1), 11: (1, 0), 40: (1, 1)}
"""By second: requests to `svc.some`, and those of them that got no answer or met no responders."""
NAMES = 7
"""Different subjects of the template `many.*`."""


class _Row:
    """Two recorders, one of which gets frames from the other."""

    def __init__(self) -> None:
        self.near, self.far = Scribe(), Scribe()

    def frame(self, t: float, direction: Direction, raw: bytes, took: float = TOOK) -> None:
        """Add a frame that passes both, the first of them at `t`."""
        self.near.frame(round(t * MS), BOTH, direction, raw)
        self.far.frame(round((t + (took if direction == C2S else -took)) * MS), BEHIND, direction, raw)

    def alone(self, t: float, direction: Direction, raw: bytes) -> None:
        """Add a frame that passes the first only."""
        self.near.frame(round(t * MS), ALONE, direction, raw)

    def connect(self) -> None:
        """Open the connections."""
        for conn, client, own in ((BOTH, "10.9.0.9:1", ADDRESS), (ALONE, "10.9.0.8:1", "10.9.0.1:4001")):
            self.near.items.append(OpenRecord(conn, MONO, {"client": client, "upstream_local": own}))
        self.far.items.append(OpenRecord(BEHIND, MONO, {"client": ADDRESS, "upstream_local": "10.9.0.2:1"}))
        self.alone(0, C2S, b"PING\r\n")

    def ask(self) -> None:
        """Requests that are answered, two of them as if they were one."""
        for way, asked in ((self.frame, QUICK), (self.alone, ONLY_NEAR)):
            for t, latency in asked.items():
                reply = b"_INBOX.quick.%d" % t
                way(t, C2S, b"PUB svc.quick %s 1\r\nq\r\n" % reply)
                way(t + latency, S2C, b"MSG %s 9 1\r\na\r\n" % reply)
        for _ in range(2):
            self.frame(55_000, C2S, b"PUB svc.piped _INBOX.piped 1\r\nq\r\n")
        for _ in range(2):
            self.frame(55_000 + PIPED, S2C, b"MSG _INBOX.piped 9 1\r\na\r\n")

    def fail(self) -> None:
        """Requests that are not, and errors."""
        for second, (asked, failed) in FAILED.items():
            for number in range(asked):
                reply, t = b"_INBOX.some.%d.%d" % (second, number), 1_000 * second + number
                self.alone(t, C2S, b"PUB svc.some %s 1\r\nq\r\n" % reply)
                if number >= failed:
                    self.alone(t + 1, S2C, b"MSG %s 9 1\r\na\r\n" % reply)
                elif second == 40:
                    self.alone(t + 1, S2C, status(reply, b"503"))
        for number in range(ERRORS):
            self.frame(45_000 + number, S2C, b"-ERR 'Slow Consumer'\r\n")

    def deliver(self) -> None:
        """Messages of a stream, and others."""
        for seq, (t, pending) in enumerate(PENDING):
            ack = b"$JS.ACK.S.C.1.%d.%d.1767225600000000000.%d" % (seq, seq, pending)
            self.alone(t, S2C, b"MSG s.a 8 %s 0\r\n\r\n" % ack)
            self.alone(t + 1, C2S, b"PUB %s 0\r\n\r\n" % ack)
        for number in range(NAMES):
            self.alone(35_000, C2S, b"PUB many.order-%d 0\r\n\r\n" % number)
        self.frame(58_000, C2S, b"PUB slowly 0\r\n\r\n", TOOK_ONCE)
        self.alone(SPAN, C2S, b"PING\r\n")


def make(folder: Path) -> list[Path]:
    """Write the captures, that of the first proxy first."""
    row = _Row()
    for part in (row.connect, row.ask, row.fail, row.deliver):
        part()
    return [write(folder / "near.ncap", row.near.items), write(folder / "far.ncap", row.far.items)]
