"""A shell command of the user's: it prepares a server or looks at one, and leaves no process behind."""

from __future__ import annotations

import os
from typing import Final

import trio

from natsproxy.errors import ConfigError
from natsproxy.processes.program import Tail, running

LIMIT: Final = 60.0
"""The seconds that a command has."""
_SHOWN: Final = 500  # characters of what a command said


async def run_shell(command: str, url: str, limit: float = LIMIT) -> tuple[int | None, str]:
    """Run a shell command, which gets the server's URL in NATS_URL.

    Returns its exit code, None where its time (`limit`, seconds) was over, and the end of its output.
    """
    tail = Tail()
    code = None
    with trio.move_on_after(limit):
        environment = {**os.environ, "NATS_URL": url}
        async with running(["/bin/sh", "-c", command], environment, tail, grace=0) as shell:
            code = await shell.wait()
    return code, tail.text()


async def run_user_command(name: str, command: str, url: str, limit: float = LIMIT) -> None:
    """Run a shell command that must succeed.

    name: of its option.  limit: seconds that it has.  Raises ConfigError, with the command's last line, where
    it fails.
    """
    code, output = await run_shell(command, url, limit)
    if code != 0:
        how = f"did not end within {limit:g} s" if code is None else f"ended with {code}"
        raise command_failed(name, command, how, output)


def command_failed(name: str, command: str, how: str, output: str) -> ConfigError:
    """Return the error about a command of the user's.  how: it has failed."""
    lines = output.strip().splitlines()
    said = f": {lines[-1][:_SHOWN]}" if lines else ""
    return ConfigError(f"the {name} command {command!r} {how}{said}")
