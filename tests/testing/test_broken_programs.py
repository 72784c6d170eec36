"""Programs of the zoo whose clients compete, each broken in one place: no broken one plays."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path as File
from typing import NamedTuple

import pytest
import trio

from natsproxy.replay.server_playback.server import CassetteServer
from tests.kit.node import MISSING, node_path
from tests.replay.kit import LIMIT, cassette
from tests.testing.zoo import HERE, JAVASCRIPT, available

pytestmark = [pytest.mark.server, pytest.mark.long]
_IDLE = 5.0  # seconds


class Change(NamedTuple):
    """A change of a program: the place, and what stands there instead."""

    program: str
    title: str
    old: str
    new: str


BROKEN = [
    Change("tally", "takes a lost update for a success", "conflicts += 1", "break"),
    Change("tally", "does not look at the revision", "last=entry.revision", "last=0"),
    Change(
        "tally",
        "puts instead of updating",
        'kv.update("total", json.dumps(changed).encode(), last=entry.revision)',
        'kv.put("total", json.dumps(changed).encode())',
    ),
    Change(
        "tally",
        "tries again without reading again",
        '        while True:\n            entry = await kv.get("total")',
        '        entry = await kv.get("total")\n        while True:',
    ),
    Change("tally", "counts in twos", '["count"] + 1', '["count"] + 2'),
    Change("tally", "ends a round early", "in range(ROUNDS)", "in range(ROUNDS - 1)"),
    Change("tally", "makes no report", "await nc.publish", "(lambda *_: None)"),
    Change("tally", "leaves a client out", '("ann", "bob")', '("ann",)'),
    Change("raffle", "keeps a number that another one drew", "continue", "pass"),
    Change("raffle", "updates an earlier revision", "last=entry.revision", "last=entry.revision - 1"),
    Change("raffle", "draws one number less", "DRAWS = 3", "DRAWS = 2"),
    Change("seats", "takes a lost update for a success", "continue", "taken += 1"),
    Change("seats", "takes two seats at once", "- 1).encode()", "- 2).encode()"),
    Change("crew", "skips its acks", "await msg.ack()", "pass"),
    Change("crew", "sends jobs back", "msg.ack()", "msg.nak()"),
    Change("crew", "skips the ack of one job", "await msg.ack()", 'job["n"] == 5 or await msg.ack()'),
    Change(
        "crew",
        "makes no result of a job",
        'await js.publish("done.jobs"',
        'job["n"] == 5 or await js.publish("done.jobs"',
    ),
    Change("crew", "works wrongly", '["n"] ** 2', '["n"] ** 3'),
    Change("crew", "makes no results", 'await js.publish("done.jobs"', '(lambda *_: None)("done.jobs"'),
    Change("pullers", "skips its acks", "m.ack();", ""),
    Change("pullers", "acknowledges twice", "m.ack();", "m.ack(); nc.publish(m.reply, '+ACK');"),
    Change("pullers", "works wrongly", "job.n ** 3", "job.n ** 2"),
    Change("pullers", "gives up a job", "m.ack();", "job.n === 5 ? m.term() : m.ack();"),
    Change("consumers", "skips its acks", "m.ack();", ""),
    Change("consumers", "does not weigh", "await own.request", "await (async () => {})"),
    Change("desk", "answers wrongly", '2 * asked["n"]})', '3 * asked["n"]})'),
    Change(
        "desk",
        "keeps an answer back",
        "        await msg.respond",
        '        asked["n"] == 103 or await msg.respond',
    ),
    Change("desk", "stands in no group", ', queue="desk"', ""),
    Change("desk", "stands in another group", 'queue="desk"', 'queue="desks"'),
    Change("relief", "skips its acks", "await msgs[0].ack()", "pass"),
    Change(
        "relief",
        "acknowledges before it dies",
        "                break",
        "                await msgs[0].ack()\n                break",
    ),
    Change(
        "relief",
        "takes what came again for done",
        "await own.publish(",
        "msgs[0].metadata.num_delivered > 1 or await own.publish(",
    ),
]
ALLOWED = [
    # Frames on different subjects have no order between them, as tasks have none.
    Change(
        "relief",
        "acknowledges before the result",
        (
            '            await own.publish("relief.done", json.dumps({"job": job["n"]}).encode())\n'
            "            await msgs[0].ack()\n"
        ),
        (
            "            await msgs[0].ack()\n"
            '            await own.publish("relief.done", json.dumps({"job": job["n"]}).encode())\n'
        ),
    ),
    # Pulls may ask for other numbers of messages and for other times: the same messages come.
    Change("crew", "asks for less at once", '"slow", 3,', '"slow", 2,'),
    Change("crew", "waits less for a job", "timeout=0.3", "timeout=0.1"),
    # What a lost update tells is for the program to use.
    Change(
        "tally",
        "waits before it tries again",
        "conflicts += 1",
        "conflicts += 1\n                await asyncio.sleep(0.01)",
    ),
]


@dataclass
class Played:
    """The end of a changed program: the frames that differ, those that were not sent, its own failure."""

    mismatches: list[str]
    missed: list[bytes]
    failure: str


async def _play(change: Change, zoo: File, tmp_path: File) -> Played:
    javascript = change.program in JAVASCRIPT
    kind, suffix = ("javascript", "js") if javascript else ("python", "py")
    source = HERE / kind / f"{change.program}.{suffix}"
    program = tmp_path / source.name
    text = source.read_text()
    assert change.old in text
    program.write_text(text.replace(change.old, change.new))
    failure = ["it hangs"]
    async with cassette(zoo / f"{change.program}.ncap") as server, trio.open_nursery() as nursery:

        async def run() -> None:
            failure[0] = await _run(program, server.url)
            nursery.cancel_scope.cancel()

        nursery.start_soon(run)
        await _until_nothing_happens(server)
        nursery.cancel_scope.cancel()
    with trio.fail_after(LIMIT):
        while server.connected:  # noqa: ASYNC110 (no event tells)
            await trio.sleep(0.01)
    missed = [one.frame.line for one in server.unused()]
    return Played([str(one) for one in server.mismatches], missed, failure[0])


async def _run(program: File, url: str) -> str:
    """Run a program; return what it says of its failure."""
    javascript = program.suffix == ".js"
    command = ["node"] if javascript else [sys.executable, "-W", "ignore"]
    done = await trio.run_process(
        [*command, str(program)],
        env=os.environ | {"NATS_URL": url} | ({"NODE_PATH": node_path()} if javascript else {}),
        stdout=subprocess.DEVNULL,
        capture_stderr=True,
        check=False,
    )
    return done.stderr.decode() if done.returncode else ""


async def _until_nothing_happens(server: CassetteServer) -> None:
    """Wait until a program that has connected gets no further."""
    seen, since = 0, trio.current_time()
    while trio.current_time() < since + (_IDLE if seen else LIMIT):
        await trio.sleep(0.1)
        now = server.machine.progress.played + len(server.mismatches)
        if now != seen:
            seen, since = now, trio.current_time()


def _ids(change: Change) -> str:
    return f"{change.program} {change.title}"


@pytest.mark.parametrize("change", BROKEN, ids=_ids)
def test_a_broken_program_is_caught(change: Change, zoo: File, tmp_path: File) -> None:
    if change.program not in available():
        pytest.skip(MISSING)
    found = trio.run(_play, change, zoo, tmp_path)
    assert found.mismatches or found.missed, found.failure or "it plays"


@pytest.mark.parametrize("change", ALLOWED, ids=_ids)
def test_a_change_that_a_server_would_not_notice_plays(change: Change, zoo: File, tmp_path: File) -> None:
    found = trio.run(_play, change, zoo, tmp_path)
    assert found == Played([], [], "")
