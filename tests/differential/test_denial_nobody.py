"""Invariant: under a permission map, the 503s of requests come as and where a server with that map says them.

Pipelined programs with requests, denied frames between them and every mode run beside a server that has the
map.  Each has an account of its own on both servers, since a subscription of an earlier program that is still
ending would be a responder.  What `differences.py` lists about 503s is left out of the comparison, and pinned
below it.
"""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest
import trio

from natsproxy.net.proxy import Proxy
from natsproxy.protocol.subjects import matches
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.file.parser import parse_rules
from natsproxy.rules.kinds import KINDS
from tests.differential.differences import SEEN_OTHERWISE
from tests.differential.test_denial import config, permission_map, subject
from tests.differential.wirelog import fair, play, settings_before, split
from tests.kit.servers import NatsServer

_NOBODY = re.compile(rb"HMSG (\S+) \d+ \d+ \d+\r\nNATS/1\.0 503\r\nNats-Subject: (.*?)\r\n")


def connect(user: str, verbose: bool = False, pedantic: bool = False, echo: bool = True) -> bytes:
    told = {
        "user": user,
        "pass": "p",
        "verbose": verbose,
        "pedantic": pedantic,
        "echo": echo,
        "headers": True,
        "no_responders": True,
        "protocol": 1,
    }
    return b"CONNECT " + json.dumps(told).encode() + b"\r\n"


def program(dice: random.Random, user: str) -> tuple[list[bytes], int]:
    """Return what a client sends, write by write, and how many PONGs end it."""
    frames = [connect(user, dice.random() < 0.5, dice.random() < 0.5, dice.random() < 0.9)]
    pings = 1
    for _ in range(dice.randint(3, 30)):
        roll = dice.random()
        if roll < 0.3:
            name = dice.choice([subject(dice), subject(dice, 0.8), "r.*", "r.1", ">", "r.>"])
            frames.append(f"SUB {name} {dice.randint(1, 7)}\r\n".encode())
        elif roll < 0.4:
            frames.append(f"UNSUB {dice.randint(1, 7)}\r\n".encode())
        elif roll < 0.5:
            frames.append(b"PING\r\n")
            pings += 1
        else:
            name = dice.choice(["nobody", subject(dice, 0), subject(dice, 0)])
            reply = dice.choice([" r.1", " r.2", " " + subject(dice, 0), ""])
            frames.append(f"PUB {name}{reply} 1\r\nx\r\n".encode())
    return split(b"".join([*frames, b"PING\r\n"]), dice), pings


def comparable(heard: list[bytes], denied: list[str]) -> list[bytes]:
    """Return what was heard without the 503s that are listed as differences, and without their sids.

    A server puts a 503 on any of the subscriptions that match.
    """
    found = []
    for raw in heard:
        nobody = _NOBODY.match(raw)
        if nobody is None:
            found.append(raw)
        elif not any(matches(pattern.encode(), name) for pattern in denied for name in nobody.groups()):
            found.append(b"503 on %s for %s" % nobody.groups())
    return fair(found)


def denials(permissions: dict[str, Any]) -> list[str]:
    """Return the patterns of what is filtered from deliveries."""
    side = permissions.get("subscribe", {})
    found = side.get("deny", []) if isinstance(side, dict) else []
    return [found] if isinstance(found, str) else found


def chain(maps: list[dict[str, Any]]) -> RuleChain:
    tables = [
        {"name": f"map {n}", "kind": "permissions", "client": {"user": f"u{n}"}, **found}
        for n, found in enumerate(maps)
    ]
    return RuleChain(parse_rules(tables, KINDS))


@pytest.mark.server
@pytest.mark.parametrize("programs", [50, pytest.param(1000, marks=pytest.mark.long)])
async def test_503s_come_as_and_where_the_server_says_them(programs: int) -> None:
    dice = random.Random(10)
    maps: list[dict[str, Any]] = []
    while len(maps) < programs:
        found = permission_map(dice)
        if "allow_responses" not in found and not any(" " in entry for entry in denials(found)):
            maps.append(found)
    wrong, asked = [], 0
    with (
        NatsServer(config(maps, secured=True)) as secured,
        NatsServer(config(maps, secured=False)) as open_,
    ):
        proxy = Proxy(settings_before(open_.port), chain(maps))
        async with trio.open_nursery() as nursery:
            (address,) = await nursery.start(proxy.serve)
            for number, found in enumerate(maps):
                chunks, pongs = program(random.Random(f"10 {number}"), f"u{number}")
                expected = comparable(await play(secured.port, chunks, pongs), denials(found))
                heard = comparable(await play(address.port, chunks, pongs), denials(found))
                asked += sum(line.startswith(b"503") for line in expected)
                if expected != heard:
                    text = b"".join(chunks).decode()
                    wrong.append(f"{json.dumps(found)}\n{text}\nserver {expected}\nproxy  {heard}")
            nursery.cancel_scope.cancel()
    assert not wrong, f"{len(wrong)} of {programs}\n" + "\n\n".join(wrong[:3])
    assert asked > programs // 5


DIFFERENT = {
    "a 503 on a reply subject that is denied": (b"SUB *.r 1\r\n", b"PUB nobody secret.r 0\r\n\r\n"),
    "a 503 where all receivers were filtered": (b"SUB r.1 1\r\nSUB *.x 2\r\n", b"PUB secret.x r.1 0\r\n\r\n"),
    "a 503 where the last receiver has reached its UNSUB max": (
        b"SUB r.1 1\r\nSUB a 2\r\nUNSUB 2 1\r\n",
        b"PUB a 0\r\n\r\nPUB a r.1 0\r\n\r\n",
    ),
}
"""What `differences.py` lists: what a client subscribes to, and what it publishes then in one write."""


@pytest.mark.server
async def test_a_503_that_is_not_the_proxy_s_to_tell() -> None:
    assert set(DIFFERENT) <= set(SEEN_OTHERWISE)
    permissions = {"subscribe": {"deny": ["secret.>"]}}
    maps = [permissions] * len(DIFFERENT)
    with (
        NatsServer(config(maps, secured=True)) as secured,
        NatsServer(config(maps, secured=False)) as open_,
    ):
        proxy = Proxy(settings_before(open_.port), chain(maps))
        async with trio.open_nursery() as nursery:
            (address,) = await nursery.start(proxy.serve)
            for number, (name, (before, after)) in enumerate(DIFFERENT.items()):
                greeting = connect(f"u{number}", echo=True) + before + b"PING\r\n"
                expected = await play(secured.port, [after + b"PING\r\n"], 1, greeting=greeting)
                found = await play(address.port, [after + b"PING\r\n"], 1, greeting=greeting)
                assert sum(b" 503\r\n" in raw for raw in expected) == 1, name
                assert found == [raw for raw in expected if b" 503\r\n" not in raw], name
            nursery.cancel_scope.cancel()
