"""The memory of the process of `natsproxy run`."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

# Buffers as of a busy leg with TLS come and go; it prints the pages that the kernel gave for them.
PROGRAM = """
import gc, resource
from natsproxy.cli.memory import tune_memory
if {settled}:
    tune_memory()
for round in range(101):
    if round == 1:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    buffers = [b"x" * 262_144 for _ in range(4)]
    del buffers
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before, gc.get_freeze_count())
"""

# Buffers of many sizes are freed, and what is left between them keeps the heap from shrinking.
FRAGMENTS = """
import trio, trio.testing
from pathlib import Path
from natsproxy.cli.memory import tune_memory, trim_memory
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1])
async def one_round():
    with trio.move_on_after(11):
        await trim_memory()
tune_memory()
buffers = [b"x" * (100_000 + 1_000 * number) for number in range(300)]
between = [buffers.pop(place) + b"y" for place in range(0, 150, 5)]
full = resident()
buffers.clear()
freed = resident()
trio.run(one_round, clock=trio.testing.MockClock(autojump_threshold=0))
print(full, freed, resident())
"""
GLIBC = pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library is not glibc")


def run(*, settled: bool) -> tuple[int, int]:
    """Return the pages that the buffers took, and the objects that the collector is spared."""
    program = PROGRAM.format(settled=settled)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    pages, frozen = map(int, done.stdout.split())
    return pages, frozen


@GLIBC
def test_buffers_that_come_and_go_take_no_fresh_pages() -> None:
    (without, _), (pages, frozen) = run(settled=False), run(settled=True)
    assert pages < without / 10
    assert frozen > 1_000


@GLIBC
def test_freed_memory_is_given_back_after_a_while() -> None:
    done = subprocess.run([sys.executable, "-c", FRAGMENTS], capture_output=True, text=True, check=True)
    full, freed, trimmed = map(int, done.stdout.split())
    assert freed > full / 2
    assert trimmed < full / 2
