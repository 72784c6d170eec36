"""A zoo of programs as people write them, recorded once and played back.

`python/`, `javascript/` and `go/` hold the programs, each in a file of its own: `main(url)`, the exported
function, or a program that finds the URL in NATS_URL.  `others.py` is the rest of their system, which runs
only while they are recorded.  `OPTIONS` are the options that a program cannot do without.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import trio

from natsproxy.addresses import Address
from natsproxy.replay.conversation.match_options import combine, read
from natsproxy.replay.server_playback.mismatch import Mismatch
from natsproxy.replay.server_playback.playback import ServerPlayback
from natsproxy.replay.server_playback.server import CassetteServer
from natsproxy.wire.ops import C2S
from natsproxy.wire.parse import frames
from tests.kit.go import built, has_go
from tests.kit.node import has_node, node_path
from tests.kit.servers import NatsServer
from tests.replay.kit import LIMIT, cassette, recording
from tests.replay.scripted import MS

HERE = Path(__file__).parent
PYTHON = sorted(path.stem for path in (HERE / "python").glob("*.py"))
JAVASCRIPT = sorted(path.stem for path in (HERE / "javascript").glob("*.js"))
GO = sorted(path.stem for path in (HERE / "go").glob("*.go"))
OPTIONS = {
    "beacon": read({"ignore_json": "health.* /up", "repeat": "health.*"}),
    "worker": read({"ignore_json": "jobs.done /took_ms"}),
}
Printed = dict[str, tuple[str, str]]
"""The output of each program, and the error that ended it."""


def available() -> list[str]:
    """Return the programs that this machine can run."""
    return [*PYTHON, *(JAVASCRIPT if has_node() else ()), *(GO if has_go() else ())]


async def run(urls: dict[str, str]) -> Printed:
    """Run programs side by side, those of Python and of JavaScript in one process each."""
    found: Printed = {}
    # Before their time begins: on a fresh machine it takes a minute to build and to install.
    executables = {name: built(HERE / "go" / f"{name}.go") for name in urls.keys() & set(GO)}
    packages = node_path() if urls.keys() & set(JAVASCRIPT) else ""

    async def together(names: list[str], *command: str, **environment: str) -> None:
        programs = [f"{name}={urls[name]}" for name in names if name in urls]
        if programs:
            done = await trio.run_process(
                [*command, *programs], env=os.environ | environment, capture_stdout=True
            )
            found.update(
                {name: (printed, error) for name, (printed, error) in json.loads(done.stdout).items()}
            )

    async def alone(name: str, executable: Path) -> None:
        done = await trio.run_process(
            [str(executable)],
            env=os.environ | {"NATS_URL": urls[name]},
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )
        found[name] = done.stdout.decode(), done.stderr.decode()

    with trio.move_on_after(LIMIT) as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(together, PYTHON, sys.executable, "-W", "ignore", str(HERE / "run.py"))
            if packages:
                node = partial(together, NODE_PATH=packages)
                nursery.start_soon(node, JAVASCRIPT, "node", str(HERE / "run.js"))
            for name, executable in executables.items():
                nursery.start_soon(alone, name, executable)
    assert not scope.cancelled_caught, f"no end within {LIMIT:g} s: {sorted(urls.keys() - found.keys())}"
    return found


@asynccontextmanager
async def whole_system() -> AsyncIterator[Address]:
    """Run a real server, and the services that the programs talk to."""
    with NatsServer(jetstream=True) as server:
        others = subprocess.Popen(  # noqa: ASYNC220 (it ends with the block)
            [sys.executable, str(HERE / "others.py")],
            env={**os.environ, "NATS_URL": server.url},
            stdout=subprocess.PIPE,
        )
        try:
            assert others.stdout is not None
            await trio.to_thread.run_sync(others.stdout.readline)
            yield Address("127.0.0.1", server.port)
        finally:
            others.kill()
            others.communicate()


async def record(names: Iterable[str], folder: Path) -> dict[str, str]:
    """Record programs, each to `NAME.ncap`; return what they printed."""
    async with whole_system() as server, AsyncExitStack() as stack:
        urls = {
            name: await stack.enter_async_context(recording(folder / f"{name}.ncap", server))
            for name in names
        }
        found = await run(urls)
    failed = [f"{name}: {error}" for name, (_, error) in found.items() if error]
    assert not failed, "\n".join(failed)
    return {name: printed for name, (printed, _) in found.items()}


PRINTED = "printed.json"


def recorded(base: Path) -> Path:
    """Return a folder with recordings of all programs that this machine can run; the first who asks makes it.

    base: a folder of all who ask.  What the programs printed is in `PRINTED`.
    """
    folder = base / "zoo"
    with (base / "zoo.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            fresh = Path(tempfile.mkdtemp(dir=base))
            (fresh / PRINTED).write_text(json.dumps(trio.run(record, available(), fresh)))
            fresh.rename(folder)
    return folder


Told = list[tuple[int, bytes]]
"""The frames of a program: the number of its client, and the bytes."""


@dataclass
class Played:
    """A program that was run against its capture."""

    server: CassetteServer
    told: Told
    printed: str = ""
    error: str = ""


async def play(names: Iterable[str], folder: Path) -> dict[str, Played]:
    """Run programs against their captures."""
    played: dict[str, Played] = {}
    async with AsyncExitStack() as stack:
        for name in names:
            told: Told = []
            tape = cassette(folder / f"{name}.ncap", options=OPTIONS.get(name), tap=partial(_note, told))
            played[name] = Played(await stack.enter_async_context(tape), told)
        found = await run({name: one.server.url for name, one in played.items()})
        with trio.fail_after(LIMIT):
            while any(one.server.connected for one in played.values()):  # noqa: ASYNC110 (no event tells)
                await trio.sleep(0.005)
    for name, (printed, error) in found.items():
        played[name].printed, played[name].error = printed, error
    return played


def _note(told: Told, client: int, way: str, data: bytes) -> None:
    if way == "c2s":
        told.append((client, data))


def retell(
    name: str, folder: Path, told: Told, refused: dict[int, Mismatch] | None = None, **options: Any
) -> ServerPlayback:
    """Play the frames of a program again, without the program; return the machine that heard them.

    refused: gets the mismatches, by the place of their frame.
    """
    given = combine(OPTIONS.get(name, {}), read(options))
    machine = CassetteServer(folder / f"{name}.ncap", options=given).machine
    for at, client in enumerate(dict(told)):
        machine.opened(client, ("127.0.0.1", 4222 + at))
    for at, (client, data) in enumerate(told):
        machine.received(client, list(frames(data, C2S)), at * MS)
        if refused is not None and len(machine.mismatches) > len(refused):
            refused[at] = machine.mismatches[-1]
    return machine
