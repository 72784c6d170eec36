"""Invariant: a client under a permission map hears the same from a server with the map, and from one without.

The second one stands behind a proxy with the map as a rule.  The pipelines are random: see `pipelines.py`.
"""

from __future__ import annotations

import random
import re
import time
from typing import Any

import pytest
import trio

from natsproxy.net.proxy import Proxy
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.file.parser import parse_rules
from natsproxy.rules.kinds import KINDS
from tests.differential.differences import SEEN_OTHERWISE
from tests.differential.pipelines import BYSTANDER, Partner, Pipeline, Send, Settle, pipeline, play
from tests.differential.wirelog import settings_before, with_accounts
from tests.kit.servers import NatsServer

AT_ONCE = 24
BATCH = 200
QUIET, PATIENT = 0.06, 0.8
"""Seconds without a message: a pipeline that differs is played once more, alone, with the longer wait."""


def config(made: list[Pipeline], *, secured: bool) -> str:
    """Return the configuration of a server: an account for each pipeline, with its client and its partner."""
    accounts: dict[str, Any] = {"B": {"users": [{"user": BYSTANDER, "password": "p"}]}}
    for number, one in enumerate(made):
        user: dict[str, Any] = {"user": f"u{number}", "password": "p"}
        if secured:
            user["permissions"] = one.permissions
        partner = {"user": f"wu{number}", "password": "p"}
        accounts[f"A{number}"] = {"jetstream": "enabled", "users": [user, partner]}
    return with_accounts(accounts)


async def compare(made: dict[str, Pipeline], quiet: float, at_once: int) -> dict[str, str]:
    """Play pipelines to both; return the differences by their names.  The n-th is that of the user `u<n>`."""
    programs = list(made.values())
    tables = [
        {"name": f"map {n}", "kind": "permissions", "client": {"user": f"u{n}"}, **one.permissions}
        for n, one in enumerate(programs)
    ]
    wrong: dict[str, str] = {}
    limit = trio.CapacityLimiter(at_once)
    with (
        NatsServer(config(programs, secured=True), jetstream=True) as secured,
        NatsServer(config(programs, secured=False), jetstream=True) as open_,
    ):
        proxy = Proxy(settings_before(open_.port), RuleChain(parse_rules(tables, KINDS)))

        async def one(name: str, program: Pipeline, port: int) -> None:
            async with limit:
                expected = await play(secured.port, secured.port, program, quiet)
                found = await play(port, open_.port, program, quiet)
                if differences := expected.differences(found):
                    wrong[name] = "\n".join([name, str(program), *differences])

        async with trio.open_nursery() as nursery:
            (address,) = await nursery.start(proxy.serve)
            async with trio.open_nursery() as clients:
                for name, program in made.items():
                    clients.start_soon(one, name, program, address.port)
            nursery.cancel_scope.cancel()
    return wrong


async def differing(seeds: list[str]) -> dict[str, str]:
    """Return the pipelines that differ whenever they are played again, alone and with more patience."""
    wrong = await compare(made_of(seeds), QUIET, AT_ONCE)
    for _ in range(3):  # on a busy machine a server may stand still for longer than that
        wrong = await compare(made_of(list(wrong)), PATIENT, 1) if wrong else {}
    return wrong


def made_of(seeds: list[str]) -> dict[str, Pipeline]:
    """Return the pipelines of seeds, by these."""
    return {seed: pipeline(seed, f"u{number}") for number, seed in enumerate(seeds)}


@pytest.mark.server
async def test_a_pipeline_is_answered_as_by_a_server_with_the_map() -> None:
    wrong = await differing([f"19 {number}" for number in range(40)])
    assert not wrong, "\n\n".join(wrong.values())


PULL = b'PUB $JS.API.CONSUMER.MSG.NEXT.S.C i.1 29\r\n{"batch": 1, "no_wait": true}\r\n'


@pytest.mark.server
async def test_a_denied_message_that_is_pulled_stays_pulled() -> None:
    """As `differences.py` lists it: the second pull gets what the server's would get at no time."""
    assert "a denied message that is pulled" in SEEN_OTHERWISE
    connect = {"user": "u0", "pass": "p", "verbose": False, "headers": True}
    made = Pipeline({"subscribe": {"deny": ["s.a"]}}, connect, witness=False, push=False)
    made.steps += [Send(b"SUB *.a 1\r\nSUB i.1 2\r\n"), Partner(b"PUB s.a 1\r\nx\r\nPUB s.b 1\r\nx\r\n")]
    made.steps += [Settle(), Send(PULL), Settle(), Send(PULL), Settle()]
    wrong = await compare({"pulled": made}, PATIENT / 2, 1)
    (found,) = re.findall(r"\njetstream: the server alone (.*), the proxy alone (.*)", wrong["pulled"])
    assert found[0] == "Counter()"
    assert "MSG | 2 | s.b | $JS.ACK.S.C.1.2.2 |  | x" in found[1]


@pytest.mark.long
@pytest.mark.server
async def test_ten_thousand_pipelines() -> None:
    """Others in each run, for half an hour at most."""
    start, ends, played = random.randrange(1 << 32), time.monotonic() + 1800, 0
    wrong: dict[str, str] = {}
    while played < 10_000 and time.monotonic() < ends:
        wrong |= await differing([f"{start} {number}" for number in range(played, played + BATCH)])
        played += BATCH
    print(f"{played} pipelines from the seed {start}")
    assert not wrong, f"{len(wrong)} of {played}\n" + "\n\n".join(list(wrong.values())[:5])
