"""Programs and commands that cannot be swept: a sentence each, and nothing is left behind."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from natsproxy.sweep import runner
from natsproxy.sweep.programs import Command
from tests.sweep.kit import lives, python, run, shell, trial


def running_with(text: str) -> list[Path]:
    """Return the processes that have a text in their command lines."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            if text.encode() in path.read_bytes():
                found.append(path)
    return found


async def test_command_that_is_not_there(tmp_path: Path) -> None:
    done = await run(Command(["/nowhere/program"], os.environ), tmp_path)
    assert (done.problem, done.code) == ("cannot run /nowhere/program: No such file or directory", None)


async def test_command_that_may_not_run(tmp_path: Path) -> None:
    (tmp_path / "program").write_text("")
    done = await run(Command([str(tmp_path / "program")], os.environ), tmp_path)
    assert done.problem.endswith("program: Permission denied")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (
            "echo using localhost; exit 1",
            "ended with 1 and no client connected to NATS_URL=nats://127.0.0.1:",
        ),
        ("echo using localhost; sleep 100", "did not end within 3 s and no client connected to NATS_URL"),
    ],
)
async def test_program_that_does_not_use_the_url(command: str, said: str, tmp_path: Path) -> None:
    done = await run(shell(command), tmp_path, limit=3.0)
    assert said in done.problem
    assert done.problem.endswith("it must connect there; it printed: using localhost")


async def test_program_that_needs_a_terminal(tmp_path: Path) -> None:
    """It has none, not even where the sweep has one, and nothing to read."""
    for text in ("input()", "open('/dev/tty')", "os.get_terminal_size(0)"):
        done = await run(python(text), tmp_path)
        assert (done.code, "it needs a terminal or an input, and has none" in done.problem) == (1, True), text
    closed = await run(python("raise EOFError('the link is closed')"), tmp_path)
    assert (closed.code, closed.problem) == (1, "")
    loud = await run(python("input()"), tmp_path, trial=trial({"name": "r", "kind": "drop", "op": ["PUB"]}))
    assert (loud.code, loud.problem) == (1, "")


async def test_program_that_leaves_children(tmp_path: Path) -> None:
    """They are ended, and a baseline says so: they may be what should be swept."""
    program = python(f"""
        import subprocess
        sleep = [{sys.executable!r}, "-c", "import time; time.sleep(100)"]
        left = subprocess.Popen(sleep, start_new_session=True)
        open("{tmp_path}/pid", "w").write(str(left.pid))
    """)
    done = await run(program, tmp_path)
    assert done.code == 0
    assert "ended and left 1 running, now ended: " in done.problem
    assert done.problem.endswith("time.sleep(100): it must run in the foreground")
    assert not lives((tmp_path / "pid").read_text())
    faulty = await run(program, tmp_path, trial=trial({"name": "r", "kind": "drop", "op": ["PUB"]}))
    assert (faulty.problem, "left 1 running" in faulty.output) == ("", True)


async def test_children_that_end_soon_are_not_left(tmp_path: Path) -> None:
    done = await run(python("os.spawnlp(os.P_NOWAIT, 'sleep', 'sleep', '0.1')"), tmp_path)
    assert (done.code, done.problem) == (0, "")


async def test_check_without_an_end(tmp_path: Path) -> None:
    done = await run(python(""), tmp_path, check="echo begins; sleep 100", check_limit=2.0)
    assert (done.check_code, done.check_output) == (None, "begins\n")
    assert done.problem == "the check command 'echo begins; sleep 100' did not end within 2 s: begins"


async def test_output_without_an_end(tmp_path: Path) -> None:
    """Its end is kept."""
    done = await run(python("print('x' * 300_000); print('the end')"), tmp_path)
    assert done.code == 0
    assert done.output.endswith("xxx\nthe end\n")
    assert len(done.output) == 64 << 10


async def test_output_on_a_full_disk(tmp_path: Path) -> None:
    (tmp_path / runner.OUTPUT).symlink_to("/dev/full")
    done = await run(python("print('the end')"), tmp_path)
    assert done.problem == f"cannot write into {tmp_path}: No space left on device"


async def test_cancelled(tmp_path: Path) -> None:
    """Neither the program nor its children nor the server go on, whenever it comes."""
    program = python(f"""
        child = os.spawnlp(os.P_NOWAIT, "setsid", "setsid", "sleep", "100")
        open("{tmp_path}/pids.new", "w").write(f"{{os.getpid()}} {{child}}")
        os.rename("{tmp_path}/pids.new", "{tmp_path}/pids")
        time.sleep(100)
    """)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, program, tmp_path)
        with trio.fail_after(10):
            while not await trio.Path(tmp_path / "pids").exists():
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert not [pid for pid in (tmp_path / "pids").read_text().split() if lives(pid)]


@pytest.mark.parametrize("after", [0.0, 0.01, 0.02, 0.05])
async def test_cancelled_at_the_begin(after: float, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with trio.move_on_after(after):
        await run(shell(f": {mark}; sleep 100"), tmp_path / "run")
    assert not running_with(str(mark))
