"""The programs by which the sweep is judged do what the catalogue says, under one rule each and no sweep.

So a fault that the sweep does not find is a miss of the sweep.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from natsproxy.testing import NatsServer, SeenFrame, TestProxy
from tests.sweep.programs import SOUND, TWINS, VICTIMS, ZOO, Program

pytestmark = pytest.mark.server
_ENDS = 60.0  # seconds, for a machine that is busy with other work
_HANGS = 2.5  # seconds after its rules acted; a reconnect takes 0.2
_HANGS_LONG = 35.0  # longer than any timer of a client under test
Rule = dict[str, Any]


def _once(kind: str, **settings: Any) -> Rule:
    return {"name": f"one {kind}", "kind": kind, "per": "proxy", "limit": 1, **settings}


_LOST_PUBLISH = [
    [_once("drop", role="publish-ack", after=2)],
    [_once("drop", op="PUB", subject="import.*", after=2)],
    [_once("reset", role="publish-ack", after=2)],
]
FAULTS: dict[str, list[list[Rule]]] = {
    "flush": [
        [_once("latency", op="PONG", after=1, delay="700ms")],
        [_once("drop", op="PONG", after=1)],
    ],
    "publish_async": _LOST_PUBLISH,
    "upload": [
        [
            # The first connection is half open: neither end hears anything more.
            {"name": "up", "kind": "pause", "op": "PUB", "subject": "upload.>", "client": {"ordinal": 1}},
            {"name": "down", "kind": "pause", "op": "INFO", "after": 1, "client": {"ordinal": 1}},
        ]
    ],
    "push-3.3.1": [[_once("drop", role="flow-reply")]],
    "import": _LOST_PUBLISH,
    "ordered-forever": [[_once("reset", role="delivery")]],
    "objects": [[_once("reset", role="delivery")]],
    "js-ordered": [
        [_once("reset", role="delivery")],
        [_once("drop", role="delivery", after=11)],
    ],
    "go-ordered": [[_once("reset", role="delivery")], [_once("drop", role="delivery")]],
}
"""The rules under which each victim that hangs does so."""
_CUT_IN_PAYLOAD = [_once("close", at="payload", direction="s2c", op="MSG", subject="orders.new", after=1)]
_TWIN_OF = {victim: twin for victim in VICTIMS for twin in (*TWINS, *SOUND) if victim.source == twin.source}
_HANGING = [(victim, rules) for victim in VICTIMS for rules in FAULTS.get(victim.name, ())]
_TITLES = [f"{victim.name}-{rules[0]['kind']}-{at}" for at, (victim, rules) in enumerate(_HANGING)]
_QUICK = {"flush", "push-3.3.1", "import"}
"""The victim of each language that hangs soonest."""
_QUICK_ONES = [
    pytest.param(
        victim,
        rules,
        marks=() if victim.name in _QUICK and rules is FAULTS[victim.name][0] else pytest.mark.long,
    )
    for victim, rules in _HANGING
]


class Ended(NamedTuple):
    """A run that ended, or was ended: then its code is None."""

    code: int | None
    output: str
    frames: list[SeenFrame]
    fired: int


@contextmanager
def _world(program: Program, rules: list[Rule]) -> Iterator[TestProxy]:
    """A fresh server, filled for a program, behind a proxy."""
    if program.missing:
        pytest.skip(program.missing)
    with NatsServer(jetstream=True) as server:
        if program.setup:
            subprocess.run(program.setup_command(), env=program.environment(server.url), check=True)
        with TestProxy(server.url, rules=rules) as proxy:
            yield proxy


def _run(program: Program, rules: list[Rule], limit: float, printed: Path) -> Ended:
    with _world(program, rules) as proxy, printed.open("w") as output:
        command, environment = program.command(), program.environment(proxy.url)
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = _code(process, proxy, rules, limit)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return Ended(code, printed.read_text(), list(proxy.frames()), len(proxy.firings))


def _code(process: subprocess.Popen[bytes], proxy: TestProxy, rules: list[Rule], limit: float) -> int | None:
    """Return the exit code; None where there is none `limit` seconds after the last rule acted."""
    deadline = time.monotonic() + _ENDS
    while rules and len({one.rule for one in proxy.firings}) < len(rules) and time.monotonic() < deadline:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(0.02)
    with suppress(subprocess.TimeoutExpired):
        return process.wait(limit)
    return None


def _named(program: Program) -> str:
    return program.name


_ALL = [*SOUND, *VICTIMS, *TWINS, *ZOO]
_FIRST_OF_LANGUAGE = {program.language: program.name for program in reversed(_ALL)}


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(one, marks=() if one.name in _FIRST_OF_LANGUAGE.values() else pytest.mark.long)
        for one in _ALL
    ],
    ids=_named,
)
def test_a_program_ends_well_without_a_fault(program: Program, tmp_path: Path) -> None:
    ended = _run(program, [], _ENDS, tmp_path / "output")
    assert ended.code == 0, ended.output


@pytest.mark.parametrize(("victim", "rules"), _QUICK_ONES, ids=_TITLES)
def test_a_victim_hangs_and_its_twin_does_not(victim: Program, rules: list[Rule], tmp_path: Path) -> None:
    twin = _TWIN_OF[victim]
    hung = _run(victim, rules, _HANGS, tmp_path / "victim")
    assert hung.code is None, hung.output
    assert hung.fired
    ended = _run(twin, rules, _ENDS, tmp_path / "twin")
    assert ended.code in (0, 1), ended.output
    assert ended.fired


@pytest.mark.long
@pytest.mark.parametrize(("victim", "rules"), _HANGING, ids=_TITLES)
def test_a_victim_hangs_longer_than_any_timer(victim: Program, rules: list[Rule], tmp_path: Path) -> None:
    hung = _run(victim, rules, _HANGS_LONG, tmp_path / "output")
    assert hung.code is None, hung.output
    assert hung.fired


def _handed_on_wrongly(ended: Ended) -> list[bytes]:
    sent = [frame for frame in ended.frames if frame.direction == "c2s"]
    return [
        frame.payload for frame in sent if frame.subject == "orders.handed_on" and b"INFO" in frame.payload
    ]


def test_libuv_gets_the_next_greeting_as_the_end_of_a_payload_and_threads_do_not(tmp_path: Path) -> None:
    """libnats 3.4.1, nats.c#1007."""
    victim = next(program for program in VICTIMS if program.name == "echo")
    wrong = _run(victim, _CUT_IN_PAYLOAD, _ENDS, tmp_path / "victim")
    assert (wrong.code, wrong.fired) == (0, 1), wrong.output
    assert len(_handed_on_wrongly(wrong)) == 1
    assert _handed_on_wrongly(wrong)[0].startswith(b"2 0000")
    right = _run(_TWIN_OF[victim], _CUT_IN_PAYLOAD, _ENDS, tmp_path / "twin")
    assert (right.code, right.fired) == (0, 1), right.output
    assert not _handed_on_wrongly(right)


def test_an_ordered_consumer_of_go_misses_any_message_but_the_first(tmp_path: Path) -> None:
    victim = next(program for program in VICTIMS if program.name == "go-ordered")
    ended = _run(victim, [_once("reset", role="delivery", after=1)], _ENDS, tmp_path / "output")
    assert (ended.code, ended.fired) == (0, 1), ended.output


def test_every_victim_has_a_fault_and_a_twin() -> None:
    assert [victim.name for victim in VICTIMS] == [*FAULTS, "echo"]
    assert list(_TWIN_OF) == list(VICTIMS)
