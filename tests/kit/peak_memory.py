"""The most memory that a command had: what `wait4` says of a child is at least what its parent has."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

_PROGRAM: Final = """
import atexit, re, sys
from pathlib import Path

def tell():
    print(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1], file=sys.stderr)

atexit.register(tell)
from natsproxy.__main__ import start
start()
"""


def start(*arguments: object) -> subprocess.Popen[str]:
    """Start a natsproxy command that tells its peak at its end; what it prints is thrown away."""
    whole = [sys.executable, "-c", _PROGRAM, *map(str, arguments)]
    return subprocess.Popen(whole, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def peak(process: subprocess.Popen[str]) -> int:
    """Wait for a command to end well; return the most memory that it had, in bytes."""
    _, stderr = process.communicate()
    assert process.returncode == 0, stderr
    return int(stderr.split()[-1]) << 10
