"""Programs in C, built by the machine's own compiler with Debian's packages of the NATS client and of libuv.

A test that needs them is skipped, with its reason, where one of them is missing.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Final

_BUILT: Final = Path(sys.prefix) / "c"
MISSING: Final = (
    "there is no C compiler with the NATS client: apt-get install gcc pkg-config libnats-dev libuv1-dev"
)


@cache
def _flags() -> list[str] | None:
    """Return what the compiler needs for the two libraries; None where they are missing."""
    if not (shutil.which("gcc") and shutil.which("pkg-config")):
        return None
    command = ["pkg-config", "--cflags", "--libs", "libnats", "libuv"]
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    return asked.stdout.split() if asked.returncode == 0 else None


def has_c() -> bool:
    """Tell whether this machine has a compiler and the two libraries."""
    return _flags() is not None


@cache
def built(source: Path) -> Path:
    """Return the executable of a program; build it once for all workers."""
    flags = _flags()
    assert flags is not None, MISSING
    _BUILT.mkdir(exist_ok=True)
    target = _BUILT / f"{source.stem}-{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}"
    with (_BUILT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            command = ["gcc", "-O1", "-o", str(target), str(source), *flags]
            subprocess.run(command, check=True, timeout=120)
    return target
