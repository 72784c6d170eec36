"""Tools of the replay tests: a real server, recordings of programs, cassettes to run programs against."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from natsproxy.addresses import Address
from natsproxy.config.endpoints import Listener, Server
from natsproxy.config.recording import RecordSettings
from natsproxy.config.settings import ProxySettings
from natsproxy.net.proxy import Proxy
from natsproxy.replay.errors import Stalled
from natsproxy.replay.server_playback.server import CassetteServer
from tests.kit.servers import NatsServer

PROGRAMS = Path(__file__).parent / "programs"
_USUAL = {"core", "keyvalue", "pull", "reconnect"}
NAMES = [
    pytest.param(name, marks=() if name in _USUAL else pytest.mark.long)
    for name in sorted(path.stem for path in PROGRAMS.glob("*.py"))
]
"""The programs in Python, as parameters of tests; those that are much like another one are long."""
LIMIT = 60.0


@asynccontextmanager
async def nats_server() -> AsyncIterator[Address]:
    """Run a real server with JetStream on a free port; ends with the block."""
    with NatsServer(jetstream=True) as server:
        yield Address("127.0.0.1", server.port)


# nats-py imports aiohttp where it is installed, for WebSocket; that takes longer than most of the programs.
_RUN = """
import runpy, sys
sys.modules["aiohttp"] = None
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


async def run_program(program: Path, url: str, *arguments: str, env: Mapping[str, str] | None = None) -> str:
    """Run a program in a fresh process and return what it printed.  env: more variables."""
    environment = {**os.environ, "NATS_URL": url, **(env or {})}
    with trio.fail_after(LIMIT):
        done = await trio.run_process(
            [sys.executable, "-W", "ignore", "-c", _RUN, str(program), *arguments],
            env=environment,
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr.decode()[-3000:] + done.stdout.decode()
    return done.stdout.decode()


@asynccontextmanager
async def recording(capture: Path, upstream: Address) -> AsyncIterator[str]:
    """Run a recording proxy before a server; yields its URL; the capture is whole after the block."""
    settings = ProxySettings(
        listen=(Listener(),),
        upstream=(Server(upstream),),
        record=RecordSettings(capture),
        drain=10**9,
    )
    proxy = Proxy(settings)
    async with trio.open_nursery() as nursery:
        addresses = await nursery.start(proxy.serve)
        yield f"nats://{addresses[0]}"
        with trio.move_on_after(5):
            while proxy.relays:  # noqa: ASYNC110 (connections tell nobody that they left)
                await trio.sleep(0.01)
        await proxy.drain(5)


async def record_program(program: Path, capture: Path) -> str:
    """Record a program's conversation with a fresh server; return what it printed."""
    async with nats_server() as server, recording(capture, server) as url:
        return await run_program(program, url)


@asynccontextmanager
async def cassette(capture: Path, **options: object) -> AsyncIterator[CassetteServer]:
    """Play a capture's server."""
    server = CassetteServer(capture, **options)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve)
        yield server
        nursery.cancel_scope.cancel()


async def stalls(server: CassetteServer, what: str) -> None:
    """Wait until a cassette waits for `what` and nothing else happens."""
    with trio.fail_after(LIMIT):
        while True:
            try:
                await server.finished(0.05)
            except Stalled as stalled:
                if what in str(stalled):
                    return
