"""Programs in JavaScript, run by the machine's own Node.js with the packages that `package.json` names.

A test that needs them is skipped, with its reason, where there is no node or no npm.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

_HERE = Path(__file__).parent
_INSTALLED = Path(sys.prefix) / "node"
MISSING = "there is no Node.js with npm: apt-get install nodejs npm"


@cache
def _packages() -> Path:
    """Return the folder with the packages; install them once for all workers."""
    _INSTALLED.mkdir(exist_ok=True)
    with (_INSTALLED / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted, done = (_HERE / "package-lock.json").read_bytes(), _INSTALLED / "done"
        if not done.exists() or done.read_bytes() != wanted:
            done.unlink(missing_ok=True)
            for name in ("package.json", "package-lock.json"):
                shutil.copy(_HERE / name, _INSTALLED)
            command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]
            subprocess.run(command, cwd=_INSTALLED, check=True, timeout=180)
            done.write_bytes(wanted)
    return _INSTALLED / "node_modules"


def has_node() -> bool:
    """Tell whether this machine has Node.js with npm."""
    return shutil.which("node") is not None and shutil.which("npm") is not None


def node_path() -> str:
    """Return the NODE_PATH with which programs may `require` the packages; skip the test without Node.js."""
    if not has_node():
        pytest.skip(MISSING)
    return str(_packages())


@contextmanager
def started_node(program: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program beside the test, from its line `ready` on; it is killed at the end of the block."""
    with subprocess.Popen(
        ["node", str(program), *arguments],
        env={**os.environ, "NODE_PATH": node_path()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as node:
        try:
            assert node.stdout is not None
            assert node.stdout.readline() == "ready\n"
            yield node
        finally:
            node.kill()


def run_node(program: Path, *arguments: str, env: dict[str, str] | None = None) -> str:
    """Run a program and return its output; fail where it fails.  env: more variables."""
    done = _run(program, arguments, env)
    assert done.returncode == 0, f"{program.name}:\n{done.stdout}{done.stderr}"
    return done.stdout


def error_of_node(program: Path, *arguments: str) -> str:
    """Run a program that fails; return the error that it shows, without the places in its code."""
    done = _run(program, arguments, None)
    assert done.returncode == 1, f"{program.name}:\n{done.stdout}{done.stderr}"
    return "\n".join(line for line in done.stderr.splitlines() if not line.startswith("    at "))


def _run(
    program: Path, arguments: tuple[str, ...], env: dict[str, str] | None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["node", str(program), *arguments],
        env={**os.environ, "NODE_PATH": node_path(), **(env or {})},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
