"""Programs recorded with one version of a client library play with another one.

`upgrades/PROGRAM.LIBRARY-VERSION.nats.txt` are recordings of the programs beside them, made once with that
version before a real server: libraries write other members of a stream's or a consumer's configuration.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from natsproxy.replay.server_playback.server import CassetteServer
from tests.kit.node import node_path
from tests.replay.kit import LIMIT, cassette, run_program

HERE = Path(__file__).parent / "upgrades"
PYTHON = sorted(path.name for path in HERE.glob("*.nats-py-*.txt"))
JAVASCRIPT = [(ours, theirs) for ours in "23" for theirs in "23"]


def _check(server: CassetteServer) -> None:
    assert [mismatch.summary for mismatch in server.mismatches] == []
    assert [exchange.frame.line for exchange in server.unused()] == []


@pytest.mark.parametrize("recorded", PYTHON)
async def test_a_recording_of_an_older_nats_py_plays(recorded: str) -> None:
    program = HERE / f"{recorded.partition('.')[0]}.py"
    async with cassette(HERE / recorded) as server:
        assert await run_program(program, server.url)
        _check(server)


@pytest.mark.parametrize(("recorded", "live"), JAVASCRIPT)
async def test_recordings_of_nats_js_2_and_3_play_with_the_other_one(recorded: str, live: str) -> None:
    packages = node_path()
    async with cassette(HERE / f"orders.nats.js-{recorded}.nats.txt") as server:
        with trio.fail_after(LIMIT):
            await trio.run_process(
                ["node", str(HERE / "orders.js"), live],
                env=os.environ | {"NATS_URL": server.url, "NODE_PATH": packages},
                capture_stdout=True,
            )
        _check(server)
