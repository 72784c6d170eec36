"""Invariant: a rewrite rule sends a publish where the same mapping in a server's configuration sends it.

Mappings and subjects are generated; each mapping has an account of its own.  Sources do not overlap, since
among those that do a server chooses at random.  Where chance decides, sets and shares are compared.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pytest
import trio

from natsproxy.net.proxy import Proxy
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.file.parser import parse_rules
from natsproxy.rules.kinds import KINDS
from natsproxy.wire.ops import S2C
from natsproxy.wire.parse import frames
from tests.differential.wirelog import fair, play, settings_before, with_accounts
from tests.kit.servers import NatsServer

SUBJECTS = 20
WORDS = ("a", "b-c", "abcdef", "12345", "x-y-z", "q", "lo-ng-er-token")


def function(dice: random.Random, stars: int) -> str:
    n = dice.randint(1, stars)
    forms = [
        f"${n}",
        f"{{{{wildcard({n})}}}}",
        f"{{{{ Wildcard( {n} ) }}}}",
        f"{{{{partition({dice.randint(1, 9)},{n})}}}}",
        f"{{{{partition({dice.randint(1, 9)},{','.join(map(str, range(1, stars + 1)))})}}}}",
        f"{{{{partition({dice.randint(1, 9)})}}}}",
        f"{{{{split({n},-)}}}}",
        f"{{{{splitfromleft({n},{dice.randint(1, 4)})}}}}",
        f"{{{{SplitFromRight({n},{dice.randint(1, 4)})}}}}",
        f"{{{{slicefromleft({n},{dice.randint(1, 4)})}}}}",
        f"{{{{slicefromright({n},{dice.randint(1, 4)})}}}}",
        f"{{{{left({n},{dice.randint(1, 4)})}}}}",
        f"{{{{right({n},{dice.randint(1, 4)})}}}}",
    ]
    return dice.choice(forms)


def mapping(dice: random.Random, number: int) -> tuple[str, str]:
    """Return a source that no other one overlaps, and a destination."""
    stars = dice.randint(0, 3)
    tokens = [f"s{number}"] + ["*"] * stars + [dice.choice(["end", "fin"])] * dice.randint(0, 1)
    head, *rest = tokens
    dice.shuffle(rest)
    tail = dice.random() < 0.3
    to = ["to", *(function(dice, stars) if stars else "lit" for _ in range(dice.randint(1, 3)))]
    return ".".join([head, *rest] + [">"] * tail), ".".join(to + [">"] * tail)


def subjects(dice: random.Random, source: str) -> list[str]:
    found = []
    for _ in range(SUBJECTS):
        tokens = [dice.choice(WORDS) if token in "*>" else token for token in source.split(".")]
        if source.endswith(">"):
            tokens += dice.sample(WORDS, dice.randint(0, 2))
        if dice.random() < 0.2:
            tokens = tokens[:-1] or ["none"]
        found.append(".".join(tokens))
    return found


def accounts(mappings: list[dict[str, Any]] | None, count: int) -> str:
    config: dict[str, dict[str, Any]] = {}
    for number in range(count):
        config[f"A{number}"] = {"users": [{"user": f"u{number}", "password": "p"}]}
        if mappings is not None:
            config[f"A{number}"]["mappings"] = mappings[number]
    return with_accounts(config)


async def destinations(port: int, user: int, published: list[str]) -> list[bytes]:
    """Publish subjects as a user; return what a subscription to everything hears."""
    connect = {"user": f"u{user}", "pass": "p", "verbose": False, "pedantic": False}
    greeting = b"CONNECT " + json.dumps(connect).encode() + b"\r\nSUB > 1\r\nPING\r\n"
    data = b"".join(f"PUB {name} 4\r\n{n:04}\r\n".encode() for n, name in enumerate(published)) + b"PING\r\n"
    return fair(await play(port, [data], 1, greeting=greeting))


@pytest.mark.server
@pytest.mark.parametrize("mappings", [50, pytest.param(500, marks=pytest.mark.long)])
async def test_a_publish_goes_where_the_server_s_mapping_sends_it(mappings: int) -> None:
    dice = random.Random(8)
    listed = [mapping(dice, number) for number in range(mappings)]
    rules = parse_rules(
        [
            {
                "name": source,
                "kind": "rewrite",
                "client": {"user": f"u{n}"},
                "from": source,
                "to": to,
                "two_way": False,
            }
            for n, (source, to) in enumerate(listed)
        ],
        KINDS,
    )
    wrong = []
    mapped = [{source: to} for source, to in listed]
    with NatsServer(accounts(mapped, mappings)) as server, NatsServer(accounts(None, mappings)) as open_:
        proxy = Proxy(settings_before(open_.port), RuleChain(rules))
        async with trio.open_nursery() as nursery:
            (address,) = await nursery.start(proxy.serve)
            for number, (source, to) in enumerate(listed):
                published = subjects(dice, source)
                expected = await destinations(server.port, number, published)
                found = await destinations(address.port, number, published)
                if expected != found:
                    wrong.append(f"{source} -> {to}\nserver {expected}\nproxy  {found}")
            nursery.cancel_scope.cancel()
    assert not wrong, "\n".join(wrong[:3])


@pytest.mark.server
async def test_where_chance_decides_sets_and_shares_agree() -> None:
    weighted = [{"destination": "w.$1", "weight": 30}, {"destination": "v.$1", "weight": 20}]
    to = [{"to": item["destination"], "weight": item["weight"]} for item in weighted]
    mapped: list[dict[str, Any]] = [{"s0.*": weighted}, {"s1.*": "r.{{random(3)}}.$1"}]
    tables: list[dict[str, Any]] = [
        {"name": "weighted", "client": {"user": "u0"}, "from": "s0.*", "to": to},
        {"name": "random", "client": {"user": "u1"}, "from": "s1.*", "to": "r.{{random(3)}}.$1"},
    ]
    rules = parse_rules([{**table, "kind": "rewrite", "two_way": False} for table in tables], KINDS)
    shares: list[list[Counter[bytes]]] = []
    with NatsServer(accounts(mapped, 2)) as server, NatsServer(accounts(None, 2)) as open_:
        proxy = Proxy(settings_before(open_.port), RuleChain(rules, seed=5))
        async with trio.open_nursery() as nursery:
            (address,) = await nursery.start(proxy.serve)
            for number in range(2):
                published = [f"s{number}.x"] * 3000
                sides = [await destinations(port, number, published) for port in (server.port, address.port)]
                shares.append([Counter(next(frames(raw, S2C)).subject for raw in side) for side in sides])
            nursery.cancel_scope.cancel()
    for expected, found in shares:
        assert set(expected) == set(found)
        assert all(abs(expected[name] - found[name]) < 250 for name in expected)
