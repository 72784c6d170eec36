"""Write a corpus to begin with: every stream of the wire's table, alone and cut, for both directions.

python -m tests.fuzz.seeds FOLDER
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from natsproxy.wire.ops import C2S
from tests.fuzz.choice import RECORDING, SELECTIONS, WANTS
from tests.wire.cases import BAD, GOOD


def seeds() -> Iterator[bytes]:
    """Yield inputs."""
    streams = [(case.direction, case.raw) for case in GOOD] + [(C2S, case.raw) for case in BAD]
    for number, (direction, raw) in enumerate(streams):
        choice = int(direction) | (number & 1) << 1 | (number % len(WANTS)) << 2
        recording = RECORDING | (number % len(SELECTIONS)) << 5
        for first in (choice, choice | recording):
            yield bytes([first, 0]) + raw
            yield bytes([first, 2, 0, 7, 0, len(raw) % 256]) + raw * 2


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(seeds()):
        (folder / f"seed-{number}").write_bytes(data)
