"""Whoever ends without ending its programs: nothing of them goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from natsproxy.processes import reaper
from natsproxy.processes.family import family, marked, new_mark
from tests.sweep.kit import lives

_SOON = 20.0  # seconds


def wait_until_gone(*pids: str) -> None:
    """Return once these processes have ended."""
    until = time.monotonic() + _SOON
    while left := [pid for pid in pids if lives(pid)]:
        assert time.monotonic() < until, f"{left} go on"
        time.sleep(0.01)


@contextmanager
def started(text: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """Start a program in Python; yield it when it has printed a line, and the words of that."""
    command = [sys.executable, "-c", textwrap.dedent(text), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        with process.stdout as lines:
            yield process, lines.readline().split()
    finally:
        process.kill()
        process.wait()


@pytest.mark.server
def test_a_server_ends_with_its_owner_and_its_folder_goes(tmp_path: Path) -> None:
    """Also where the thread that has started it has ended long before."""
    program = f"""
        import tempfile, threading, time
        tempfile.tempdir = {str(tmp_path)!r}
        from natsproxy.testing import NatsServer
        server = NatsServer(jetstream=True)
        thread = threading.Thread(target=server.__enter__)
        thread.start()
        thread.join()
        print(server._process.pid, flush=True)
        time.sleep(100)
    """
    with started(program) as (owner, (pid,)):
        assert lives(pid)
        assert list(tmp_path.glob("nats-*"))
        owner.kill()
        owner.wait(_SOON)
    wait_until_gone(pid)
    until = time.monotonic() + _SOON
    while list(tmp_path.glob("nats-*")):
        assert time.monotonic() < until, "its folder is still there"
        time.sleep(0.01)


PROGRAM = """
    import os, subprocess, sys, time
    from natsproxy.processes import reaper
    from natsproxy.processes.family import marked, new_mark
    mark = new_mark()
    reaper.guard(mark)
    shell = "setsid sleep 100 & env -i sleep 100 & echo $! $$; trap '' TERM HUP INT; wait"
    child = subprocess.Popen(
        ["/bin/sh", "-c", shell], env=marked(os.environ, mark), start_new_session=True, stdout=subprocess.PIPE
    )
    words = child.stdout.readline().decode()
    if "number" in sys.argv:
        reaper.guard(mark, child.pid)
    if "release" in sys.argv:
        reaper.release(mark)
    fork = os.fork() if "fork" in sys.argv else 0
    if "fork" in sys.argv and not fork:
        time.sleep(100)
    print(words.strip(), fork, flush=True)
    if "end" not in sys.argv:
        time.sleep(100)
"""


@pytest.mark.parametrize("how", ["SIGKILL", "end", "fork"])
def test_programs_end_with_their_owner(how: str) -> None:
    """All of them, whatever signals they ignore, and though a fork of the owner goes on."""
    with started(PROGRAM, "number", how) as (owner, (cleared, shell, fork)):
        if how != "end":
            owner.kill()
        owner.wait(_SOON)
    wait_until_gone(cleared, shell)
    if how == "fork":
        assert lives(fork)
        os.kill(int(fork), signal.SIGKILL)


def test_a_program_is_found_by_its_mark_before_its_number_is_known() -> None:
    with started(PROGRAM) as (owner, (cleared, shell, _)):
        owner.kill()
        owner.wait(_SOON)
    wait_until_gone(shell)
    if lives(cleared):  # without its environment, and without a parent: nothing tells whose it is
        os.kill(int(cleared), signal.SIGKILL)


def test_a_program_that_has_ended_well_is_left_alone() -> None:
    """Its number may be another's by now."""
    mark = new_mark()
    other = subprocess.Popen(["sleep", "100"], env=marked(os.environ, mark), start_new_session=True)
    program = f"""
        from natsproxy.processes import reaper
        reaper.guard({mark!r}, {other.pid})
        reaper.release({mark!r})
        print("ready", flush=True)
    """
    with started(program) as (owner, _):
        assert owner.wait(_SOON) == 0  # it waits for its reaper
    assert other.poll() is None
    other.kill()
    other.wait()


def test_the_family_of_a_mark() -> None:
    mark = new_mark()
    assert family((), [mark]) == set()
    process = subprocess.Popen(["sleep", "100"], env=marked(os.environ, mark))
    try:
        assert {one.pid for one in family((), [mark])} == {process.pid}
        assert family((), [new_mark()]) == set()
        reaper.reap(set(), [mark])
        assert process.wait(_SOON) == -signal.SIGKILL
    finally:
        process.kill()
        process.wait()
