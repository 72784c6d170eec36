"""Programs of another language through `natsproxy cassette run`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import trio

from tests.kit.node import node_path
from tests.replay.kit import PROGRAMS, nats_server

TIMES = 20
NATSPROXY = str(Path(sys.executable).parent / "natsproxy")


async def _run(command: list[str], folder: Path) -> str:
    env = {**os.environ, "NODE_PATH": node_path()}
    with trio.fail_after(120):
        done = await trio.run_process(
            command, cwd=folder, capture_stdout=True, capture_stderr=True, check=False, env=env
        )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


async def _play(command: list[str], folder: Path, printed: str, times: int) -> None:
    for _ in range(times):
        assert await _run(command, folder) == printed


@pytest.mark.server
@pytest.mark.long
async def test_javascript_programs_run_the_same_without_a_server(tmp_path: Path) -> None:
    """Twenty times each, in fresh processes, all programs at once; two recordings of one say the same."""
    cassette = [NATSPROXY, "cassette", "run", "--strict"]
    async with trio.open_nursery() as nursery:
        for name in ("core", "jetstream", "views"):
            program = ["--", "node", str(PROGRAMS / f"{name}.js")]
            captures = [f"{name}.ncap", f"{name}-again.ncap"]
            for capture in captures:
                async with nats_server() as server:
                    record = [*cassette, "--mode", "once", "--upstream", f"nats://{server}"]
                    printed = await _run([*record, capture, *program], tmp_path)
                assert printed
            assert "the same" in await _run([NATSPROXY, "capture", "diff", *captures], tmp_path)
            nursery.start_soon(_play, [*cassette, captures[0], *program], tmp_path, printed, TIMES)
