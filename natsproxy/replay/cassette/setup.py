"""A user's command that prepares a real server: its streams and buckets, and what is in them."""

from __future__ import annotations

import os
import subprocess
from typing import Final

import trio

from natsproxy.addresses import Address
from natsproxy.errors import ConfigError

_SHOWN: Final = 500  # characters of what a command said


async def run_setup(command: str, upstream: Address) -> None:
    """Run a shell command, which gets the server's address in NATS_URL.

    Raises ConfigError, with the command's last line, where it fails.
    """
    done: subprocess.CompletedProcess[bytes] = await trio.run_process(
        ["/bin/sh", "-c", command],
        env={**os.environ, "NATS_URL": f"nats://{upstream}"},
        capture_stdout=True,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if done.returncode:
        lines = done.stdout.decode(errors="replace").strip().splitlines()
        said = f": {lines[-1][:_SHOWN]}" if lines else ""
        raise ConfigError(f"the setup command {command!r} ended with {done.returncode}{said}")
