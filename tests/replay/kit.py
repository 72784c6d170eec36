"""What replay tests need: a real server, recordings of programs, cassettes to run programs against."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from natsproxy.config.settings import Address, ProxySettings, RecordSettings
from natsproxy.net.proxy import Proxy
from natsproxy.replay.cassette import CassetteServer
from natsproxy.replay.errors import Stalled

PROGRAMS = Path(__file__).parent / "programs"
SERVER = Path(sys.executable).parent / "nats-server"
LIMIT = 60.0


@asynccontextmanager
async def nats_server(folder: Path, *, jetstream: bool = True) -> AsyncIterator[Address]:
    """Run a real server on a free port; ends with the block."""
    ports = folder / "ports"
    ports.mkdir(parents=True, exist_ok=True)
    arguments = [str(SERVER), "-a", "127.0.0.1", "-p", "-1", "--ports_file_dir", str(ports)]
    if jetstream:
        arguments += ["-js", "-sd", str(folder / "store")]
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(arguments, stdout=log, stderr=log)  # noqa: ASYNC220 (returns at once)
        try:
            yield await _port(process, ports)
        finally:
            process.terminate()
            process.wait()


async def _port(process: subprocess.Popen[bytes], folder: Path) -> Address:
    with trio.fail_after(20):
        while True:
            for file in folder.glob("*.ports"):  # noqa: ASYNC240
                text = file.read_text()
                if text.strip().endswith("}"):
                    url = json.loads(text)["nats"][0]
                    return Address("127.0.0.1", int(url.rsplit(":", 1)[1]))
            assert process.poll() is None, "nats-server did not start"
            await trio.sleep(0.02)


async def run_program(program: Path, url: str, *arguments: str) -> str:
    """Run a program in a fresh process and return what it printed."""
    environment = {**os.environ, "NATS_URL": url}
    with trio.fail_after(LIMIT):
        done = await trio.run_process(
            [sys.executable, "-X", "dev", "-W", "ignore", str(program), *arguments],
            env=environment, capture_stdout=True, capture_stderr=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()[-3000:] + done.stdout.decode()
    return done.stdout.decode()


@asynccontextmanager
async def recording(capture: Path, upstream: Address) -> AsyncIterator[str]:
    """Run a recording proxy before a server; yields its URL; the capture is whole after the block."""
    settings = ProxySettings(
        listen=(Address("127.0.0.1", 0),), upstream=upstream, record=RecordSettings(capture), drain=10**9
    )
    proxy = Proxy(settings)
    async with trio.open_nursery() as nursery:
        addresses = await nursery.start(proxy.serve)
        yield f"nats://{addresses[0]}"
        with trio.move_on_after(5):
            while proxy.relays:  # noqa: ASYNC110 (connections tell nobody that they left)
                await trio.sleep(0.01)
        await proxy.drain(5)


async def record_program(program: Path, capture: Path, folder: Path) -> str:
    """Record a program's conversation with a fresh server; return what it printed."""
    folder.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240
    async with nats_server(folder) as server, recording(capture, server) as url:
        printed = await run_program(program, url)
    shutil.rmtree(folder, ignore_errors=True)
    return printed


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
