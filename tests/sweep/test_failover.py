"""A program that breaks wherever its connection is cut goes on behind `--failover hold`.

It runs before a proxy of its own, so the sweep cuts that one's connections to the server.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest
import trio

from natsproxy.processes.program import Tail
from natsproxy.sweep.folder import SweepFolder
from natsproxy.sweep.programs import Command, Started
from natsproxy.sweep.sweeping import Sweep, SweepOptions
from natsproxy.sweep.values import Verdict
from natsproxy.sweep.worlds import OwnServer
from tests.kit.process import ProxyProcess
from tests.sweep.programs import HERE

CUTS = SweepOptions(faults=("cut",), subjects=("shop.>", "$JS.>"), baseline=2, confirm=2)
SHOP = Command([sys.executable, str(HERE / "python" / "steady.py")], os.environ)

BROKEN = (Verdict.FAILED_LOUDLY, Verdict.WRONG, Verdict.HUNG, Verdict.DEAF)


class Held:
    """A program with a proxy of its own, which holds it."""

    name = line = "held"

    def __init__(self, program: Command) -> None:
        self._program = program

    @asynccontextmanager
    async def run(self, url: str, tail: Tail, folder: Path) -> AsyncIterator[Started]:
        with ExitStack() as stack:
            proxy = ProxyProcess(url, "--failover", "hold")
            await trio.to_thread.run_sync(stack.enter_context, proxy)
            async with self._program.run(f"nats://127.0.0.1:{proxy.port}", tail, folder) as started:
                yield started


async def verdicts(program: Command | Held, folder: Path) -> dict[tuple[str, str], Verdict]:
    """Return the verdict of each trial, by fault and place."""
    sweep = Sweep(OwnServer(), program, SweepFolder.begin(folder, {}), CUTS)
    await sweep.run()
    return {(one.trial.fault, str(one.trial.place.position)): one.judgement.verdict for one in sweep.judged}


@pytest.mark.long
@pytest.mark.server
async def test_a_program_that_breaks_wherever_it_is_cut_goes_on_behind_a_proxy(tmp_path: Path) -> None:
    alone = await verdicts(SHOP, tmp_path / "alone")
    held = await verdicts(Held(SHOP), tmp_path / "held")
    assert {fault for fault, _ in held} == {"cut", "cut-head", "cut-payload"}
    broken = [place for place, verdict in alone.items() if verdict in BROKEN]
    assert len(broken) >= 10, alone
    assert {place: held.get(place) for place in broken if held.get(place) in BROKEN} == {}
    # On a machine without time for it a run may be flaky, which says nothing.
    assert sum(held.get(place) is Verdict.PASSED for place in broken) > len(broken) / 2, held
