"""A recorded run with 5 % loss becomes exact rules that lose the very same frames."""

from __future__ import annotations

import asyncio
import tomllib
from pathlib import Path
from typing import Any

import nats
import pytest
from click.testing import CliRunner

from natsproxy.cli.rules import rules as rules_command
from natsproxy.testing import TestProxy, drop
from tests.kit.clients import settle
from tests.kit.servers import NatsServer

pytestmark = pytest.mark.server
MESSAGES = 400
LOSSY = [
    {"name": "lost on the way", "kind": "drop", "op": "PUB", "subject": "work.*", "probability": 0.05},
    {"name": "lost on the way back", "kind": "drop", "op": "MSG", "subject": "work.*", "probability": 0.05},
]
Outcome = tuple[list[bytes], list[bytes]]


async def taken(sub: Any) -> list[bytes]:
    return [(await sub.next_msg(1)).data for _ in range(sub.pending_msgs)]


async def work(url: str, direct: str) -> Outcome:
    """Publish numbers; return those that a second client got at the server, and those that came back."""
    nc, witness = await nats.connect(url, name="app"), await nats.connect(direct)
    try:
        seen, own = await witness.subscribe("work.*"), await nc.subscribe("work.*")
        end, own_end = await witness.subscribe("end"), await nc.subscribe("end")
        await settle(witness)
        for number in range(MESSAGES):
            await nc.publish(f"work.{number % 3}", b"%d" % number)
        await nc.publish("end", b"")
        for last in (end, own_end):
            await last.next_msg(10)
        return await taken(seen), await taken(own)
    finally:
        await nc.close()
        await witness.close()


def run(server: NatsServer, rules: list[dict[str, Any]], seed: int, record: Path | None = None) -> Outcome:
    with TestProxy(server.url, rules=rules, record=record, seed=seed) as proxy:
        return asyncio.run(work(proxy.url, server.url))


def exact_rules(capture: Path) -> str:
    result = CliRunner().invoke(rules_command, ["from-capture", str(capture)])
    assert result.exit_code == 0, result.output
    return result.output


def test_the_same_frames_are_lost_again(nats_server: NatsServer, tmp_path: Path) -> None:
    capture = tmp_path / "chaos.ncap"
    seen, received = run(nats_server, LOSSY, 5, capture)
    assert MESSAGES * 0.9 < len(seen) < MESSAGES - 5
    assert len(seen) * 0.9 < len(received) < len(seen) - 5
    text = exact_rules(capture)
    assert f"# {MESSAGES - len(received)} firings recorded; to repeat them: --seed 5" in text
    exact = tomllib.loads(text)["rules"]
    assert [sorted(table) for table in exact] == [["kind", "name", "only", "op", "subject"]] * 2
    assert run(nats_server, exact, seed=99) == (seen, received)
    assert run(nats_server, [], seed=5)[0] != seen


def test_a_fault_of_a_test_is_in_the_script_too(nats_server: NatsServer, tmp_path: Path) -> None:
    capture = tmp_path / "fault.ncap"
    with (
        TestProxy(nats_server.url, record=capture) as proxy,
        proxy.fault(drop(first=2), subject="work.*", op="PUB", name="two"),
    ):
        seen, _ = asyncio.run(work(proxy.url, nats_server.url))
    text = exact_rules(capture)
    assert "# 'two' came into force during the recording and counts from there" in text
    assert run(nats_server, tomllib.loads(text)["rules"], seed=99)[0] == seen
    assert seen[0] == b"2"
