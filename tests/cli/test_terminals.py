"""What commands write to terminals of several kinds, in several environments, and to pipes."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys

import pytest

from tests.kit.documents import ROOT

RECORDING = str(ROOT / "recordings" / "core-v1.1.ncap")
COMMANDS = (["capture", "cat", RECORDING], ["capture", "info", RECORDING])
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def command(words: list[str], environment: dict[str, str], output: int) -> subprocess.Popen[bytes]:
    """Start a command in an environment that has nothing else but the PATH."""
    return subprocess.Popen(
        [sys.executable, "-m", "natsproxy", *words],
        env={"PATH": os.environ["PATH"], **environment},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
    )


def on_a_terminal(words: list[str], environment: dict[str, str]) -> bytes:
    """Return what a command writes to a terminal; it must do its work."""
    ours, its = pty.openpty()
    try:
        with command(words, environment, its) as process:
            os.close(its)
            written = b""
            while data := _read(ours):
                written += data
        assert process.returncode == 0, written
        return written
    finally:
        os.close(ours)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:  # the last process has closed its side
        return b""


@pytest.mark.parametrize(
    "words",
    [COMMANDS[0], pytest.param(COMMANDS[1], marks=pytest.mark.long)],
    ids=lambda words: words[1],
)
@pytest.mark.parametrize(
    ("environment", "coloured"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "dumb"}, False),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        pytest.param({}, True, marks=pytest.mark.long),
        pytest.param({"TERM": "dumb", "FORCE_COLOR": "1"}, False, marks=pytest.mark.long),
        pytest.param({"TERM": "xterm", "LANG": "C"}, True, marks=pytest.mark.long),
        (ASCII, True),
    ],
)
def test_colours_are_for_terminals_that_have_them(
    words: list[str], environment: dict[str, str], coloured: bool
) -> None:
    written = on_a_terminal(words, environment)
    assert (b"\x1b[" in written) is coloured
    assert b"Traceback" not in written


@pytest.mark.parametrize(
    "environment",
    [
        {"FORCE_COLOR": "1"},
        *(pytest.param(one, marks=pytest.mark.long) for one in ({}, {"TZ": "Pacific/Auckland"}, ASCII)),
    ],
)
def test_json_in_a_pipe_is_json(environment: dict[str, str]) -> None:
    """One object for each line of `cat`, one of `info`."""
    for words, lines in zip(COMMANDS, (True, False), strict=True):
        with command([*words, "--json"], environment, subprocess.PIPE) as process:
            written, _ = process.communicate(timeout=60)
        assert process.returncode == 0, written
        for text in written.splitlines() if lines else [written]:
            assert json.loads(text)
