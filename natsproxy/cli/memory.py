"""The memory of a process that moves bytes for a long time.

1. glibc returns freed memory to the kernel at once where there is much of it at the end of the heap.  Each
   read of 256 KiB would get fresh pages then, and they are expensive, on virtual machines above all: a
   quarter of what a leg with TLS costs.
2. Python's collector looks at all objects now and then, and serves nobody meanwhile.  Those that are there
   when the process has started stay until its end, so they need no look; and new ones are looked at in larger
   lots, because nearly all of them are gone by then.
3. The memory that glibc keeps is in fragments, more of them after each peak.  Now and then it gives back what
   it can: a process that had thousands of clients for a minute does not look like that for ever.
"""

from __future__ import annotations

import ctypes
import gc
from typing import Final

import trio

from natsproxy.units import MIB

_LOTS: Final = (10_000, 10, 10)  # new objects until a look at them; such looks until one at older ones
# The parameters of mallopt(3) and their values: both, because one alone fixes the other at 128 KiB.
_KEPT: Final = {-1: 4 * MIB, -3: MIB}  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
_EVERY: Final = 10.0  # seconds between two times that memory is given back


def tune_memory() -> None:
    """Keep some freed memory, and spare the collector the objects that are there now."""
    gc.freeze()
    gc.set_threshold(*_LOTS)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # it is glibc's
        for parameter, value in _KEPT.items():
            mallopt(parameter, value)


async def trim_memory() -> None:
    """Give freed memory back every ten seconds until cancelled; return where the C library is not glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    while trim is not None:
        await trio.sleep(_EVERY)
        await trio.to_thread.run_sync(trim, 4 * MIB)  # some milliseconds for a hundred megabytes
