"""Signals that come close together, or where a command only begins or is over: a good end or 130, no more."""

from __future__ import annotations

import random
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import IO

import pytest

from natsproxy.errors import Exit
from tests.kit.process import ProxyProcess
from tests.replay.scripted import hello, write

SIGNALS = (signal.SIGTERM, signal.SIGINT)
DEADLINE = 20.0  # seconds; the proxies here are given a minute to drain
ENDS = (Exit.OK, Exit.STOPPED)


def twice(process: subprocess.Popen[str], rng: random.Random) -> None:
    """Send two signals 0.2 to 3 ms apart; the process ends well, and in time."""
    process.send_signal(rng.choice(SIGNALS))
    after = time.perf_counter() + rng.uniform(0.0002, 0.003)
    while time.perf_counter() < after:  # a sleep would be longer than the gap under test
        pass
    process.send_signal(rng.choice(SIGNALS))
    assert process.wait(DEADLINE) in ENDS


def end_a_proxy(rng: random.Random, *, connected: bool) -> None:
    """End a proxy whose connection, if it has one, can only be waited for."""
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        ProxyProcess(f"nats://127.0.0.1:{silent.getsockname()[1]}", "--drain", "60s") as proxy,
    ):
        if connected:
            with (
                closing(socket.create_connection(("127.0.0.1", proxy.port))) as client,
                closing(silent.accept()[0]) as server,
            ):
                server.sendall(b'INFO {"version":"2.15.1"}\r\n')  # and then nothing: it is waited for
                client.sendall(b'CONNECT {"verbose":false}\r\nPING\r\n')
                proxy.wait_for(lambda line: line["event"] == "opened")
                twice(proxy.process, rng)
        else:
            twice(proxy.process, rng)
        log = proxy.log.read_text()
        assert all(line.startswith("{") for line in log.splitlines()), log


@pytest.mark.parametrize("connected", [False, True])
def test_two_signals_end_a_proxy(connected: bool) -> None:
    end_a_proxy(random.Random(connected), connected=connected)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
def test_two_signals_end_a_proxy_each_time(seed: int) -> None:
    """Two hundred times in all."""
    rng = random.Random(seed)
    for _ in range(5):
        end_a_proxy(rng, connected=False)
        end_a_proxy(rng, connected=True)


def begin(*words: str, stderr: IO[str]) -> subprocess.Popen[str]:
    """Start a command with its standard error in a file."""
    command = [sys.executable, "-m", "natsproxy", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)


def until(process: subprocess.Popen[str], path: Path, text: str) -> None:
    """Poll the standard error of a process for a text."""
    deadline = time.monotonic() + DEADLINE
    while text not in path.read_text():
        assert process.poll() is None, path.read_text()
        assert time.monotonic() < deadline, path.read_text()
        time.sleep(0.001)


@pytest.mark.parametrize(
    "command",
    [
        "cassette run",
        pytest.param("replay to-client", marks=pytest.mark.long),
        pytest.param("replay to-server", marks=pytest.mark.long),
    ],
)
def test_two_signals_end_what_plays(command: str, tmp_path: Path) -> None:
    capture = write(tmp_path / "x.ncap", [*hello(1, "a"), (1, ">", b"SUB a 1\r\n")])
    err = tmp_path / "err"
    with socket.create_server(("127.0.0.1", 0)) as silent, err.open("w") as stderr:
        target = f"127.0.0.1:{silent.getsockname()[1]}"
        more = {
            "replay to-client": ["--listen", "127.0.0.1:0"],
            "replay to-server": ["--to", f"nats://{target}", "--timeout", "60"],
            "cassette run": ["--", "sh", "-c", "echo playing >&2; exec sleep 60"],
        }[command]
        with begin(*command.split(), str(capture), *more, stderr=stderr) as process:
            if command == "replay to-server":
                with closing(silent.accept()[0]):
                    twice(process, random.Random(command))
            else:
                until(process, err, "playing")
                twice(process, random.Random(command))
    assert "Traceback" not in err.read_text()


PAUSED = """
import runpy, sys

class Pause:
    def find_spec(self, name, *_):
        if name.startswith("natsproxy.") and name != "natsproxy.__main__":
            print(name, flush=True)
            sys.stdin.read()

sys.meta_path.insert(0, Pause())
runpy.run_module("natsproxy", run_name="__main__", alter_sys=True)
"""
"""The program, which stops where it imports a module of its own."""


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_while_modules_are_loaded(number: int) -> None:
    """From the first one on."""
    command = [sys.executable, "-c", PAUSED, "--help"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("natsproxy.")
        process.send_signal(number)
        assert process.wait(DEADLINE) == Exit.STOPPED
        assert process.communicate() == ("", "")


@pytest.mark.parametrize("number", SIGNALS)
def test_signals_when_all_is_done(number: int, tmp_path: Path) -> None:
    """From the last line of output to the end of the process."""
    err = tmp_path / "err"
    with err.open("w") as stderr, begin("--version", stderr=stderr) as process:
        assert process.stdout is not None
        process.stdout.readline()
        while process.poll() is None:
            process.send_signal(number)
            time.sleep(0.001)
    assert (process.returncode in ENDS, err.read_text()) == (True, "")
