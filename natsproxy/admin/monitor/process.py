"""The CPU and memory use of this process."""

from __future__ import annotations

import os
import resource
import sys
import time
from pathlib import Path
from typing import Final

_STATM: Final = Path("/proc/self/statm")
_LEAST: Final = 0.2  # seconds between two measurements: less would be noise


class ProcessUsage:
    """The CPU use of the process between calls."""

    def __init__(self) -> None:
        self._looked = time.monotonic()
        self._used = time.process_time()
        self._percent = 0.0

    def cpu(self) -> float:
        """Return the CPU time since the last measurement, in percent of one CPU."""
        now, used = time.monotonic(), time.process_time()
        if now - self._looked >= _LEAST:
            self._percent = round((used - self._used) / (now - self._looked) * 100, 1)
            self._looked, self._used = now, used
        return self._percent


def resident_bytes() -> int:
    """Return the resident memory of the process, in bytes."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # not Linux: the peak
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
