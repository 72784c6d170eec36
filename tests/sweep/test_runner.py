"""One run of a program, before servers of three kinds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from natsproxy.capture.read.reader import open_capture
from natsproxy.sweep.faults import trials
from natsproxy.sweep.values import OpenConnection, Place, Position
from tests.sweep.kit import lives, python, run, shell, trial

ANSWERS = """
while line := lines.readline():
    if line == b"PING\\r\\n":
        link.sendall(b"PONG\\r\\n")
"""
SILENT = 1.8
"""Seconds in which a server says nothing by itself: its first PING comes two seconds after a CONNECT."""
DROP_FIRST = {"name": "first", "kind": "drop", "op": ["PUB"], "subject": "a", "limit": 1}


async def test_exit_code_output_and_recording(tmp_path: Path) -> None:
    done = await run(python("ask(b'SUB a 1\\r\\nPUB a 2\\r\\nhi\\r\\n'); sys.exit(3)"), tmp_path)
    assert (done.code, done.problem, done.stack, done.open) == (3, "", "", [])
    assert done.output.split() == ["MSG", "a", "1", "2", "hi"]
    assert (tmp_path / "output.txt").read_text() == done.output
    assert 0 < done.seconds < done.limit
    assert done.capture == tmp_path / "run.ncap"
    assert open_capture(done.capture).tail() is None


async def test_rules_act_and_their_firings_are_kept(tmp_path: Path) -> None:
    program = python("ask(b'SUB a 1\\r\\nPUB a 2\\r\\nhi\\r\\nPUB a 2\\r\\nyo\\r\\n')")
    done = await run(program, tmp_path, trial=trial(DROP_FIRST))
    assert done.output.split() == ["MSG", "a", "1", "2", "yo"]
    assert [(one.rule, one.key, one.m, one.subject) for one in done.firings] == [("first", "hello/1", 1, "a")]


async def test_runs_side_by_side_see_only_their_own_server(tmp_path: Path) -> None:
    program = python("ask(b'SUB a 1\\r\\nPUB a 2\\r\\nhi\\r\\n'); time.sleep(0.3); ask(b'')")
    done = {}

    async def one(name: str) -> None:
        done[name] = await run(program, tmp_path / name)

    async with trio.open_nursery() as nursery:
        for name in "abc":
            nursery.start_soon(one, name)
    assert [one.output.split() for one in done.values()] == [["MSG", "a", "1", "2", "hi"]] * 3


async def test_time_is_over(tmp_path: Path) -> None:
    program = python("ask(b'SUB a 1\\r\\nSUB b 2\\r\\nPUB a 2\\r\\nhi\\r\\n'); time.sleep(100)")
    done = await run(program, tmp_path, limit=SILENT)
    assert done.code is None
    assert SILENT <= done.seconds < 60.0  # not the 100 that it sleeps
    assert done.open == [OpenConnection("hello/1", subscriptions=2, alive=False, unread=0)]


async def test_client_that_answers(tmp_path: Path) -> None:
    done = await run(python(ANSWERS), tmp_path, limit=3.0)
    assert done.open == [OpenConnection("hello/1", alive=True, unread=0)]


@pytest.mark.parametrize(
    "rule", [{"kind": "pause", "op": ["PUB"]}, {"kind": "latency", "delay": "1h", "op": ["MSG"]}]
)
async def test_client_that_cannot_answer_is_not_asked(rule: dict[str, Any], tmp_path: Path) -> None:
    """The fault still holds frames back, and the client is not to blame."""
    program = python("link.sendall(b'SUB a 1\\r\\nPUB a 0\\r\\n\\r\\n')\n" + ANSWERS)
    done = await run(program, tmp_path, limit=3.0, trial=trial({"name": "held", **rule}))
    assert [one.alive for one in done.open] == [None]


async def test_bytes_that_a_program_does_not_read(tmp_path: Path) -> None:
    program = python("link.sendall(b'SUB a 1\\r\\nPUB a 2\\r\\nhi\\r\\n'); time.sleep(100)")
    (left,) = (await run(program, tmp_path, limit=SILENT)).open
    assert left.unread == len("MSG a 1 2\r\nhi\r\n")


async def test_processes_of_a_program_that_hangs_are_ended(tmp_path: Path) -> None:
    """Also those in a session of their own, and orphans."""
    pids = tmp_path / "pids"
    sleeper = f"sh -c 'echo $$ >> {pids}; exec sleep 100'"
    done = await run(
        shell(f"{sleeper} & setsid {sleeper} & (setsid -f {sleeper}) ; trap '' TERM; wait; sleep 100"),
        tmp_path,
        limit=3.0,
    )
    assert done.code is None
    assert len(pids.read_text().split()) == 3
    assert not [pid for pid in pids.read_text().split() if lives(pid)]


@pytest.mark.parametrize(("fault", "part"), [("reset-head", "MSG jo"), ("reset-payload", "MSG job 1 2\r\nh")])
async def test_a_connection_is_reset_inside_a_frame(fault: str, part: str, tmp_path: Path) -> None:
    """The program has a part of the message, and then an error where a cut would be an end."""
    program = python("""
    link.sendall(b"SUB job 1\\r\\nPUB job 2\\r\\nhi\\r\\n")
    got = b""
    try:
        while data := link.recv(4096):
            got += data
        print("end")
    except ConnectionResetError:
        print(repr(got))
    """)
    at = Place(Position("hello/1", "s2c", "MSG", "job", 1), "", size=2)
    (made,) = trials([at], [fault])
    done = await run(program, tmp_path, trial=made)
    assert done.code == 0
    assert done.output.startswith(f"{part.encode()!r}"[:-1])
    assert "hi" not in done.output
