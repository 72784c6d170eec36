"""The user's setup command, which prepares a real server: its streams and buckets, and their contents."""

from __future__ import annotations

import os
import subprocess

import trio

from natsproxy.addresses import Address
from natsproxy.processes.user_command import command_failed


async def run_setup(command: str, upstream: Address) -> None:
    """Run a shell command, which gets the server's address in NATS_URL.

    Raises ConfigError with the last line of its output if it fails.
    """
    done: subprocess.CompletedProcess[bytes] = await trio.run_process(
        ["/bin/sh", "-c", command],
        env={**os.environ, "NATS_URL": f"nats://{upstream}"},
        capture_stdout=True,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if done.returncode:
        output = done.stdout.decode(errors="replace")
        raise command_failed("setup", command, f"ended with {done.returncode}", output)
