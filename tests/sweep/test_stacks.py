"""The place where a program hangs, of each runtime that tells."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
import trio

from natsproxy.processes.program import Tail
from natsproxy.sweep import stacks
from natsproxy.sweep.programs import Command
from tests.kit import go, node
from tests.sweep.kit import python, run, shell

HERE = Path(__file__).parent


async def stack_of(program: Command, folder: Path, limit: float = 3.0) -> str:
    """Return the stack of a program that does not end, which then stands in no output."""
    done = await run(program, folder, limit=limit)
    assert done.code is None
    assert not done.problem
    assert sorted(path.name for path in folder.iterdir()) == ["output.txt", "run.ncap"]  # noqa: ASYNC240
    return done.stack


async def test_threads_of_python(tmp_path: Path) -> None:
    stack = await stack_of(
        python("""
            import threading
            def waits_too():
                threading.Event().wait()
            def waits_forever():
                while True:
                    lines.readline()
            threading.Thread(target=waits_too).start()
            waits_forever()
        """),
        tmp_path,
    )
    assert " in waits_forever\n" in stack
    assert " in waits_too\n" in stack
    assert "Task" not in stack


@pytest.mark.parametrize(
    ("library", "begin", "sleep"),
    [("asyncio", "asyncio.run(main())", "sleep(100)"), ("trio", "trio.run(main)", "sleep_forever()")],
)
async def test_tasks_of_python(library: str, begin: str, sleep: str, tmp_path: Path) -> None:
    stack = await stack_of(
        python(f"""
            import {library}
            async def waits_forever():
                await {library}.{sleep}
            async def main():
                await waits_forever()
            {begin}
        """),
        tmp_path,
        limit=6.0,
    )
    assert "Task" in stack
    assert stack.index(" in main\n") < stack.index(" in waits_forever\n") < stack.index("Current thread")


async def test_python_that_uses_the_signals_itself(tmp_path: Path) -> None:
    """Its tasks are not told then, and nothing else is lost."""
    stack = await stack_of(
        python("""
            import signal
            signal.signal(signal.SIGUSR2, signal.SIG_DFL)
            def waits_forever():
                time.sleep(100)
            waits_forever()
        """),
        tmp_path,
    )
    assert " in waits_forever\n" in stack


async def test_tasks_of_a_test_that_hangs(tmp_path: Path) -> None:
    """pytest keeps what is printed to itself."""
    (tmp_path / "test_it.py").write_text(
        "import asyncio, os\n"
        "from urllib.parse import urlsplit\n"
        "async def waits_forever(): await asyncio.Event().wait()\n"
        "async def main():\n"
        "    url = urlsplit(os.environ['NATS_URL'])\n"
        "    link = await asyncio.open_connection(url.hostname, url.port)\n"
        "    await waits_forever()\n"
        "def test_it(): asyncio.run(main())\n"
    )
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"{tmp_path}/test_it.py"]
    stack = await stack_of(Command(command, environment), tmp_path / "run", limit=10.0)
    assert stack.index(" in main\n") < stack.index(" in waits_forever\n") < stack.index(" in test_it\n")


async def test_sitecustomize_of_the_user_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.customized = True\n")
    program = Command(
        [sys.executable, "-c", "print(customized)"], {**os.environ, "PYTHONPATH": str(tmp_path)}
    )
    assert (await run(program, tmp_path / "run")).output == "True\n"


async def test_child_of_a_shell(tmp_path: Path) -> None:
    code = (
        "import os, socket, time\nfrom urllib.parse import urlsplit\nu = urlsplit(os.environ['NATS_URL'])\n"
    )
    code += "link = socket.create_connection((u.hostname, u.port))\ndef waits(): time.sleep(100)\nwaits()\n"
    (tmp_path / "waits.py").write_text(code)
    stack = await stack_of(shell(f"{sys.executable} {tmp_path}/waits.py; true"), tmp_path / "run")
    assert f'File "{tmp_path}/waits.py", line 5 in waits\n' in stack


@pytest.mark.skipif(not node.has_node(), reason=node.MISSING)
@pytest.mark.parametrize(
    ("end", "longest", "expected"),
    [
        ("setInterval(() => 0, 1e6);", 30.0, "waits for: timer\n"),
        (
            "async function waitsForever() { await new Promise(() => 0); } waitsForever();"
            "setInterval(() => 0, 1e6);",
            30.0,
            "at waitsForever (",
        ),
        ("for (;;) ;", 1.0, "it does not answer: its loop does not turn\n"),
    ],
)
async def test_node(
    end: str, longest: float, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it waits for; while it computes it does not answer.  It is asked when it says that it waits."""
    monkeypatch.setattr(stacks, "_LONGEST", longest)
    (tmp_path / "program.js").write_text(f"setImmediate(() => {{ console.log('ready'); {end} }});")
    program, tail = Command(["node", f"{tmp_path}/program.js"], os.environ, tmp_path), Tail()
    async with program.run("nats://127.0.0.1:1", tail, tmp_path) as started:
        while "ready\n" not in tail.text():  # noqa: ASYNC110 - a tail has no event
            await trio.sleep(0.02)
        stack = await started.stack()
    assert expected in stack
    assert "Node.js report" not in stack
    assert [path.name for path in tmp_path.iterdir()] == ["program.js"]  # noqa: ASYNC240


@pytest.mark.skipif(not go.has_go(), reason=go.MISSING)
async def test_go(tmp_path: Path) -> None:
    program = Command([str(go.built(HERE / "hang.go"))], os.environ)
    stack = await stack_of(program, tmp_path)
    assert "main.waitsForever(" in stack


@pytest.mark.long
@pytest.mark.skipif(shutil.which("java") is None, reason="there is no Java")
async def test_java(tmp_path: Path) -> None:
    program = Command(["java", str(HERE / "Hang.java")], os.environ)
    stack = await stack_of(program, tmp_path, limit=8.0)
    assert "at Hang.waitsForever(" in stack


async def test_a_runtime_that_tells_nothing(tmp_path: Path) -> None:
    done = await run(shell("sleep 100"), tmp_path, limit=3.0)
    assert (done.code, done.stack) == (None, "")
