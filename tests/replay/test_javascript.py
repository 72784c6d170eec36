"""Programs of another language, with the client from the npm registry, through `natsproxy cassette run`."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
import trio

from tests.replay.kit import PROGRAMS, nats_server

TIMES = 20
NATSPROXY = str(Path(sys.executable).parent / "natsproxy")


async def _run(command: list[str], folder: Path) -> str:
    with trio.fail_after(120):
        done = await trio.run_process(
            command, cwd=folder, capture_stdout=True, capture_stderr=True, check=False, env=dict(os.environ)
        )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


async def _play(command: list[str], folder: Path, printed: str, times: int) -> None:
    for _ in range(times):
        assert await _run(command, folder) == printed


@pytest.mark.server
@pytest.mark.long
@pytest.mark.skipif(not shutil.which("npm"), reason="needs node and npm")
async def test_javascript_programs_run_the_same_without_a_server(tmp_path: Path) -> None:
    """Twenty times each, in fresh processes, both programs at once."""
    await _run(["npm", "install", "--no-audit", "--no-fund", "nats@2"], tmp_path)
    cassette = [NATSPROXY, "cassette", "run", "--strict"]
    async with trio.open_nursery() as nursery:
        for name in ("core", "jetstream"):
            shutil.copy(PROGRAMS / f"{name}.js", tmp_path)
            program = [f"{name}.ncap", "--", "node", f"{name}.js"]
            async with nats_server(tmp_path / f"server-{name}") as server:
                record = [*cassette, "--mode", "once", "--upstream", f"nats://{server}", *program]
                printed = await _run(record, tmp_path)
            assert printed
            nursery.start_soon(_play, [*cassette, *program], tmp_path, printed, TIMES)
