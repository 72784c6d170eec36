"""Small programs for a sweep, and runs of them."""

from __future__ import annotations

import os
import sys
import textwrap
from pathlib import Path
from typing import Any

from natsproxy.sweep.programs import Command
from natsproxy.sweep.runner import run_once
from natsproxy.sweep.values import Place, Position, ProgramRun, Trial
from natsproxy.sweep.worlds import OwnServer, World

HELLO = """
    import os, socket, sys, time
    host, port = os.environ["NATS_URL"].removeprefix("nats://").rsplit(":", 1)
    link = socket.create_connection((host, int(port)))
    lines = link.makefile("rb")
    lines.readline()
    def ask(data):
        link.sendall(data + b"PING\\r\\n")
        while (line := lines.readline()) and line != b"PONG\\r\\n":
            print(line.decode().strip(), flush=True)
    def request(subject, data=b""):
        link.sendall(b"SUB i 1\\r\\nPUB %s i %d\\r\\n%s\\r\\nUNSUB 1 1\\r\\n" % (subject, len(data), data))
        while not (line := lines.readline()).startswith(b"{"):
            assert line, "the connection has ended"
        return line.decode()
    ask(b'CONNECT {"verbose":false,"name":"hello"}\\r\\n')
"""
"""The begin of a program in Python, without a library: it has connected."""


def python(text: str, *, hello: bool = True) -> Command:
    """Return a program in Python that begins with `HELLO`."""
    code = textwrap.dedent(HELLO if hello else "") + textwrap.dedent(text)
    return Command([sys.executable, "-c", code], os.environ)


def shell(command: str) -> Command:
    """Return a shell command as a program."""
    return Command(["/bin/sh", "-c", command], os.environ)


def trial(*rules: dict[str, Any], restart: str = "") -> Trial:
    """Return a trial of these rules, at no place in particular."""
    return Trial("test", Place(Position("hello/1", "c2s", "PUB", "", 1), ""), rules, restart)


async def run(program: Command, folder: Path, *, world: World | None = None, **options: Any) -> ProgramRun:
    """Run a program once, by default before a server of its own, with ten seconds."""
    return await run_once(world or OwnServer(), program, folder, options.pop("limit", 10.0), **options)


def lives(pid: str) -> bool:
    """True if there is such a process; one that has ended and that its parent has not noted is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
