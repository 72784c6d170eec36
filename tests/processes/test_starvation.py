"""What a busy machine takes from a program is given back to it."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
import trio
import trio.testing

from natsproxy.processes.starvation import lost_by, wait_for

BUSY = "import os; os.sched_setaffinity(0, {int(os.environ['CPU'])})\nwhile True: pass"


@pytest.mark.parametrize(
    ("takes", "loses", "found"),
    [
        (8.0, 0.0, (7, 10.0)),
        (12.0, 0.0, (None, 10.0)),
        (12.0, 0.005, (None, 10.0)),
        (12.0, 0.05, (None, 10.5)),
        (12.0, 0.3, (7, 13.0)),
        (99.0, 0.3, (None, 14.2)),
        (29.0, 5.0, (7, 30.0)),
        (31.0, 5.0, (None, 30.0)),
    ],
)
async def test_a_program_has_its_time_and_what_it_lost(
    takes: float, loses: float, found: tuple[int | None, float], autojump_clock: trio.testing.MockClock
) -> None:
    """What it loses of that counts too, as long as it is worth it; nobody has more than three times."""
    began = trio.current_time()

    async def end() -> int:
        await trio.sleep(takes - (trio.current_time() - began))
        return 7

    async def lost() -> float:
        return loses * (trio.current_time() - began)

    code, had = await wait_for(end, 10.0, lost)
    assert code == found[0]
    assert had == pytest.approx(found[1], abs=0.1)
    assert trio.current_time() - began == pytest.approx(takes if found[0] else had)


@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="this system does not tell")  # noqa: PTH110
def test_two_programs_on_one_processor_wait_for_each_other() -> None:
    """One that sleeps, and one that has ended, wait for nothing."""
    environment = {**os.environ, "CPU": str(min(os.sched_getaffinity(0)))}
    command = [sys.executable, "-S", "-c", BUSY]
    busy = [subprocess.Popen(command, env=environment) for _ in range(2)]
    with subprocess.Popen(["sleep", "100"]) as idle:
        try:
            until = time.monotonic() + 20
            while not all(lost_by(one.pid) > 0.3 for one in busy):
                assert time.monotonic() < until
                time.sleep(0.02)
            assert lost_by(busy[0].pid, busy[0].pid) > 0.3
        finally:
            for one in (*busy, idle):
                one.kill()
                one.wait()
    assert lost_by(busy[0].pid) == 0
