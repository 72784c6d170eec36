"""Invariant: before an open server, rules with a permission map answer as a server that has the map itself.

Maps and programs are generated; each program is played to a server whose users have the maps, and through the
proxy to one whose users have none.  Each map has an account of its own, so that programs do not meet.  What
only the server can do (see `rules explain`) is kept out by the generator: subscriptions of one queue group
have one member, clients do not ask for 503s, a sid that has an auto-unsubscribe count is not used again
(under a delivery filter that count is the proxy's, so the server frees the sid later), and a client answers
only what it has got (the server opens a reply subject as it delivers, the proxy as the delivery passes).
"""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
import trio

from natsproxy.net.proxy import Proxy
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.file.parser import parse_rules
from natsproxy.rules.kinds import KINDS
from tests.differential.wirelog import fair, play, settings_before, split, with_accounts
from tests.kit.servers import NatsServer

MAPS = 100


def subject(dice: random.Random, wild: float = 0.3) -> str:
    length = dice.randint(1, 3)
    tokens = [dice.choice("abc") for _ in range(length)]
    if dice.random() < wild:
        tokens[dice.randrange(length)] = "*"
    if dice.random() < wild / 2:
        tokens[-1] = ">"
    return ".".join(tokens)


def entries(dice: random.Random, queues: bool) -> Any:
    found = []
    for _ in range(dice.randint(1, 3)):
        item = subject(dice, 0.5)
        if queues and dice.random() < 0.25:
            item += " " + dice.choice(["q", "r", "q.*", "*"])
        found.append(item)
    return found if dice.random() < 0.9 else found[0]


def side(dice: random.Random, queues: bool) -> Any:
    form = dice.random()
    if form < 0.3:
        return entries(dice, queues)
    result = {}
    if form < 0.75:
        result["allow"] = entries(dice, queues)
    if form > 0.5:
        result["deny"] = entries(dice, queues)
    return result


def permission_map(dice: random.Random) -> dict[str, Any]:
    result: dict[str, Any] = {}
    if dice.random() < 0.7:
        result["publish"] = side(dice, False)
    if dice.random() < 0.7:
        result["subscribe"] = side(dice, True)
    if dice.random() < 0.3:
        result["allow_responses"] = dice.choice(
            [True, {"max": 2, "expires": "1m"}, {"max": -1, "expires": "5m"}]
        )
    return result or {"publish": {"deny": ["a.>"]}}


def publication(dice: random.Random) -> tuple[str, str, bytes]:
    """Return subject, reply subject and frame."""
    name = dice.choice(
        [subject(dice, 0.15), subject(dice, 0.0), subject(dice, 0.0), "a..b", "c.", "_GR_.x"][
            : 4 + dice.randrange(3)
        ]
    )
    reply = subject(dice, 0.1) if dice.random() < 0.3 else ""
    names = f"{name} {reply}".rstrip()
    if dice.random() < 0.2:
        block, body = b"NATS/1.0\r\nA: b\r\n\r\n", b"y"
        frame = f"HPUB {names} {len(block)} {len(block) + 1}\r\n".encode() + block + body + b"\r\n"
        return name, reply, frame
    return name, reply, f"PUB {names} 1\r\nx\r\n".encode()


def program(dice: random.Random, user: str) -> tuple[list[bytes | int], int]:
    """Return what a client sends, write by write (see `play`), and how many PONGs end it."""
    mode = dice.choice([(False, False), (True, False), (False, True), (True, True)])
    connect = {
        "user": user,
        "pass": "p",
        "verbose": mode[0],
        "pedantic": mode[1],
        "headers": True,
        "protocol": 1,
    }
    frames = [b"CONNECT " + json.dumps(connect).encode() + b"\r\n"]
    chunks: list[bytes | int] = []
    sent = pings = 0
    replies: set[str] = set()
    limited: set[int] = set()
    for number in range(dice.randint(3, 25)):
        roll = dice.random()
        sid = dice.choice([sid for sid in range(1, 8) if sid not in limited])
        if roll < 0.3:
            queue = (
                f" q{number}"
                if dice.random() < 0.1
                else dice.choice([" q", " r", " q.x"])
                if dice.random() < 0.1
                else ""
            )
            if queue in (" q", " r", " q.x") and any(queue.encode() + b" " in frame for frame in frames):
                queue = ""  # a second member of a group: which one gets a message is the server's choice
            name = dice.choice([subject(dice), subject(dice, 0.8), "x..y", ">"])
            frames.append(f"SUB {name}{queue} {sid}\r\n".encode())
        elif roll < 0.4:
            limit = dice.choice(["", "", " 1", " 2", " 3", " 0"])
            if len(limited) == 5:
                limit = ""
            if limit:
                limited.add(sid)
            frames.append(f"UNSUB {sid}{limit}\r\n".encode())
        elif roll < 0.5:
            frames.append(b"PING\r\n")
            pings += 1
        else:
            name, reply, frame = publication(dice)
            if name in replies:
                frames.append(b"PING\r\n")
                pings += 1
                chunks += [*split(b"".join(frames[sent:]), dice), pings]
                sent = len(frames)
            frames.append(frame)
            replies.add(reply)
    ends = dice.random()
    if ends < 0.1:
        frames.append(dice.choice([b"FOO\r\n", b"PUB a\r\n", b"PUB a 2\r\nxyz\r\n"]))
    else:
        frames.append(b"PING\r\n")
    return [*chunks, *split(b"".join(frames[sent:]), dice)], pings + 1


def config(maps: list[dict[str, Any]], *, secured: bool) -> str:
    accounts = {}
    for number, permissions in enumerate(maps):
        user: dict[str, Any] = {"user": f"u{number}", "password": "p"}
        if secured:
            user["permissions"] = permissions
        accounts[f"A{number}"] = {"users": [user]}
    return with_accounts(accounts)


async def compare(maps: list[dict[str, Any]], per_map: int, seed: int) -> list[str]:
    """Play programs to both; return the differences."""
    rules = parse_rules(
        [
            {"name": f"map {n}", "kind": "permissions", "client": {"user": f"u{n}"}, **found}
            for n, found in enumerate(maps)
        ],
        KINDS,
    )
    wrong: list[str] = []
    with NatsServer(config(maps, secured=True)) as secured, NatsServer(config(maps, secured=False)) as open_:
        proxy = Proxy(settings_before(open_.port), RuleChain(rules))
        limit = trio.CapacityLimiter(4)

        async def one(number: int, port: int) -> None:
            async with limit:
                for turn in range(per_map):
                    dice = random.Random(f"{seed} {number} {turn}")
                    chunks, pongs = program(dice, f"u{number}")
                    expected, found = await play(secured.port, chunks, pongs), await play(port, chunks, pongs)
                    if fair(expected) != fair(found):
                        wrong.append(
                            f"map {number} turn {turn}: {json.dumps(maps[number])}\n"
                            f"{b''.join(chunk for chunk in chunks if isinstance(chunk, bytes)).decode()}\n"
                            f"server {expected}\nproxy  {found}"
                        )

        async with trio.open_nursery() as nursery:
            (address,) = await nursery.start(proxy.serve)
            async with trio.open_nursery() as programs:
                for number in range(len(maps)):
                    programs.start_soon(one, number, address.port)
            nursery.cancel_scope.cancel()
    return wrong


@pytest.mark.server
@pytest.mark.parametrize("programs", [2, pytest.param(40, marks=pytest.mark.long)])
async def test_a_permission_map_as_rules_is_the_server_s_own(programs: int) -> None:
    dice = random.Random(20)
    maps = [permission_map(dice) for _ in range(MAPS)]
    wrong = await compare(maps, programs, 20)
    assert not wrong, f"{len(wrong)} of {MAPS * programs}\n" + "\n\n".join(wrong[:3])
