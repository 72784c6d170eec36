"""Programs in Go, built by the machine's own compiler with Debian's package of the NATS client.

Debian builds them from its folder of sources, without any module proxy.  A test that needs them is skipped,
with its reason, where one of the two is missing.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Final

_SOURCES: Final = Path("/usr/share/gocode")
_BUILT: Final = Path(sys.prefix) / "go"
MISSING: Final = (
    "there is no Go with its NATS client: apt-get install golang-go golang-github-nats-io-go-nats-dev"
)


def has_go() -> bool:
    """Tell whether this machine has Go and the client."""
    return shutil.which("go") is not None and (_SOURCES / "src/github.com/nats-io/nats.go").is_dir()


@cache
def built(source: Path) -> Path:
    """Return the executable of a program; build it once for all workers."""
    _BUILT.mkdir(exist_ok=True)
    target = _BUILT / f"{source.stem}-{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}"
    with (_BUILT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            environment = {"GO111MODULE": "off", "GOPATH": str(_SOURCES), "GOCACHE": str(_BUILT / "cache")}
            command = ["go", "build", "-o", str(target), str(source)]
            subprocess.run(command, env={**os.environ, "GOFLAGS": "", **environment}, check=True, timeout=240)
    return target
