"""The scanner alone: frames per second, and resident memory over a million distinct subjects."""

from __future__ import annotations

import resource
import time
from typing import Any

from natsproxy.wire import _interest_py, _scanner_py
from natsproxy.wire.frames import Need
from natsproxy.wire.interest import Clause
from natsproxy.wire.ops import ALL_OPS, C2S
from natsproxy.wire.scanner import COMPILED, Interest, Scanner

PAYLOAD = b" 16\r\n0123456789abcdef\r\n"


def rate(interest: Any, scanner_type: Any, buffers: list[bytes], frames: int) -> float:
    """Return the best of three, in million frames a second."""
    best = 0.0
    for _ in range(3):
        scanner = scanner_type(C2S, interest)
        began = time.perf_counter()
        for buffer in buffers:
            scanner.feed(buffer)
            while scanner.next() is not None:
                pass
        best = max(best, frames / (time.perf_counter() - began) / 1e6)
    return best


def main() -> None:
    """Print the table."""
    twins: dict[str, tuple[Any, Any]] = {"pure": (_interest_py.Interest, _scanner_py.Scanner)}
    if COMPILED:
        twins["compiled"] = (Interest, Scanner)
    one = b"PUB a.b.c" + PAYLOAD
    patterns = tuple(b"a.b.x%d.y" % n for n in range(500)) + tuple(b"a.b.w%d.*.>" % n for n in range(500))
    print(f"{'scanner, 16-byte PUBs':44}{'million frames/s':>18}{'resident MiB':>14}")
    for name, (interest, scanner) in twins.items():
        million = 2 if name == "compiled" else 1
        rows = {
            "one subject, nobody wants it": ((), [one * 2000] * (500 * million), 1_000_000 * million),
            "1,000 patterns, 1 M subjects, none wanted": (
                (Clause(ALL_OPS, Need.LINE, patterns),),
                distinct(),
                1_000_000,
            ),
            "every frame wanted": ((Clause(ALL_OPS, Need.LINE),), [one * 2000] * 50, 100_000),
        }
        for title, (clauses, buffers, frames) in rows.items():
            speed = rate(interest(clauses), scanner, buffers, frames)
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(f"{name + ': ' + title:44}{speed:>18.2f}{memory:>14.0f}")


def distinct() -> list[bytes]:
    """Return a million distinct subjects, in buffers of 2,000."""
    return [
        b"".join(b"PUB a.b.s%d.t%d" % (n, n % 97) + PAYLOAD for n in range(start, start + 2000))
        for start in range(0, 1_000_000, 2000)
    ]


if __name__ == "__main__":
    main()
