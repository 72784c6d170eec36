"""Invariant: under a two-way rewrite each side sees the mapping of what the other did, and nothing else.

A conversation of two clients is generated and held twice: on one account as it stands, and on another with
the first client behind a proxy that rewrites and the second one speaking in mapped subjects.  The first
client must hear the same bytes both times; what the second hears must be the same once mapped back.  The
oracle maps tokens by their places and knows nothing of the product's mapping code.
"""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import pytest
import trio

from natsproxy.net.proxy import Proxy
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.file.parser import parse_rules
from natsproxy.rules.kinds import KINDS
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame, Need
from natsproxy.wire.interest import Clause
from natsproxy.wire.ops import ALL_OPS, S2C, Op
from natsproxy.wire.scanner import Interest, Scanner
from tests.differential.wirelog import fair, settings_before, with_accounts
from tests.kit.servers import NatsServer

DEEP = os.environ.get("NATSPROXY_TEST_PROFILE") == "deep"
CONVERSATIONS = 400 if DEEP else 30
STEPS = 16
WORDS = ("a", "b", "new", "eu-1")
USERS = {
    "PLAIN": {"users": [{"user": "plain", "password": "p"}]},
    "MAPPED": {"users": [{"user": "mapped", "password": "p"}]},
}
BLOCK = "NATS/1.0\r\nA: b\r\n\r\n"


@dataclass(frozen=True)
class Renaming:
    """A mapping by the places of tokens.  target: literals, or which wildcard of the source stands there."""

    source: tuple[str, ...]
    target: tuple[str | int, ...]
    tail: bool

    def table(self, name: str) -> dict[str, object]:
        """Return it as a rule."""
        if not self.source:
            return {"name": name, "kind": "rewrite", "prefix": str(self.target[0])}
        end = [">"] * self.tail
        target = [f"${item + 1}" if isinstance(item, int) else item for item in self.target]
        source, to = ".".join([*self.source, *end]), ".".join([*target, *end])
        return {"name": name, "kind": "rewrite", "from": source, "to": to}

    def there(self, tokens: list[str]) -> list[str] | None:
        """Map a subject or a pattern; None where it is not covered."""
        return _move(tokens, self.source, self.target, self.tail)

    def back(self, tokens: list[str]) -> list[str] | None:
        """Undo `there`."""
        order = [item for item in self.target if isinstance(item, int)]
        stars = iter(range(len(order)))
        source: list[str | int] = [
            order.index(next(stars)) if token == "*" else token for token in self.source
        ]
        target = tuple("*" if isinstance(item, int) else item for item in self.target)
        return _move(tokens, target, tuple(source), self.tail)


def _move(
    tokens: list[str], source: tuple[str, ...], target: tuple[str | int, ...], tail: bool
) -> list[str] | None:
    if len(tokens) < len(source) + tail or (len(tokens) > len(source) and not tail):
        return None
    if any(token not in ("*", found) for token, found in zip(source, tokens, strict=False)):
        return None
    wild = [found for token, found in zip(source, tokens, strict=False) if token == "*"]
    return [wild[item] if isinstance(item, int) else item for item in target] + tokens[len(source) :]


def renamings(dice: random.Random) -> list[Renaming]:
    """Return mappings whose sources and targets do not meet."""
    if dice.random() < 0.2:
        return [Renaming((), ("tenant",), True)]
    found = []
    for number in range(dice.randint(1, 3)):
        stars = dice.randint(0, 3)
        rest = ["*"] * stars + ["lit"] * dice.randint(0, 1)
        dice.shuffle(rest)
        order = list(range(stars))
        dice.shuffle(order)
        if dice.random() < 0.3:  # onto itself: the wildcards change places
            places = iter(order)
            target = [next(places) if token == "*" else token for token in rest]
            found.append(
                Renaming(
                    (f"s{number}", *rest), (f"s{number}", *target), tail=stars > 0 and dice.random() < 0.3
                )
            )
            continue
        target = [*order, *["more"] * dice.randint(0, 2)]
        dice.shuffle(target)
        found.append(Renaming((f"s{number}", *rest), (f"t{number}", *target), tail=dice.random() < 0.4))
    return found


@dataclass
class Tongue:
    """What the second client says and hears: as it is, or mapped."""

    renamings: list[Renaming]

    def _moved(self, subject: str, way: str) -> str:
        if subject.startswith("_INBOX."):
            return subject
        moves = (getattr(renaming, way)(subject.split(".")) for renaming in self.renamings)
        return ".".join(next((found for found in moves if found is not None), subject.split(".")))

    def there(self, subject: str) -> str:
        return self._moved(subject, "there")

    def back(self, raw: bytes) -> bytes:
        """Return a message as it would have been without the mapping."""
        (frame,) = _scan(raw)
        if frame.op not in (Op.MSG, Op.HMSG):
            return raw
        subject = self._moved(frame.subject.decode(), "back").encode()
        reply = self._moved(frame.reply.decode(), "back").encode() if frame.reply else b""
        return encode.with_line(frame, subject=subject, reply=reply)


def subject(dice: random.Random, listed: list[Renaming], wild: float = 0.0) -> str:
    """Return a client's subject or pattern, covered mostly."""
    roll = dice.random()
    if roll < 0.15:
        return f"_INBOX.x.{dice.choice('ab')}"
    if roll < 0.25 or not listed[0].source:
        return ".".join(["free", dice.choice(WORDS)])
    renaming = dice.choice(listed)
    tokens = [dice.choice(WORDS) if token == "*" else token for token in renaming.source]
    tokens = [
        "*" if at == "*" and dice.random() < wild else token
        for at, token in zip(renaming.source, tokens, strict=True)
    ]
    if renaming.tail:
        tokens += dice.choices(WORDS, k=dice.randint(1, 2))
        if dice.random() < wild:
            tokens[-1] = ">" if dice.random() < 0.5 else "*"
    return ".".join(tokens)


Step = tuple[int, str, tuple[str, ...], str]
"""Who speaks, what (a format with the places of subjects), those subjects, the payload."""


def conversation(dice: random.Random, listed: list[Renaming]) -> list[Step]:
    steps: list[Step] = []
    sids: list[list[int]] = [[], []]
    for number in range(STEPS):
        who, roll = dice.randint(0, 1), dice.random()
        if roll < 0.35 or not sids[who]:
            queue = f" q{number}" if dice.random() < 0.3 else ""  # one member each: no chance in who gets it
            steps.append((who, "SUB {}" + f"{queue} {number}\r\n", (subject(dice, listed, 0.5),), ""))
            sids[who].append(number)
        elif roll < 0.45:
            limit = dice.choice(["", " 1", " 2", " 9"])
            steps.append((who, f"UNSUB {dice.choice(sids[who])}{limit}\r\n", (), ""))
        else:
            names = [subject(dice, listed)] + [subject(dice, listed)] * (dice.random() < 0.4)
            body = f"{number} " + "x" * dice.choice([0, 0, 0, 0, 70_000])
            if dice.random() < 0.3:
                sizes, body = f"{len(BLOCK)} {len(BLOCK) + len(body)}", BLOCK + body
                head = "HPUB " + "{} " * len(names) + sizes
            else:
                head = "PUB " + "{} " * len(names) + str(len(body))
            steps.append((who, head + "\r\n", tuple(names), body + "\r\n"))
    return steps


def _scan(data: bytes, scanner: Scanner | None = None) -> list[Frame]:
    scanner = scanner or Scanner(S2C, Interest((Clause(ALL_OPS, Need.PAYLOAD),)))
    scanner.feed(data)
    found = []
    while (frame := scanner.next()) is not None:
        assert isinstance(frame, Frame)
        found.append(frame)
    return found


@dataclass
class Client:
    """A raw client; `heard` is what came, INFO and PONG apart."""

    stream: trio.SocketStream
    heard: list[bytes] = field(default_factory=list)
    scanner: Scanner = field(default_factory=lambda: Scanner(S2C, Interest((Clause(ALL_OPS, Need.PAYLOAD),))))

    async def say(self, data: bytes) -> None:
        """Send, and take in all that was there when the server had read it."""
        await self.stream.send_all(data + b"PING\r\n")
        while True:
            for frame in _scan(await self.stream.receive_some(1 << 20), self.scanner):
                if frame.op == Op.PONG:
                    return
                if frame.op != Op.INFO:
                    self.heard.append(frame.raw)


@asynccontextmanager
async def client(port: int, user: str, responders: bool) -> AsyncIterator[Client]:
    told = str(responders).lower()
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        made = Client(stream)
        await made.say(
            f'CONNECT {{"user":"{user}","pass":"p","verbose":false,"pedantic":false,"headers":true,'
            f'"no_responders":{told},"protocol":1}}\r\n'.encode()
        )
        yield made


def nobody(raw: bytes) -> bytes:
    """Return a 503 without its sid: of several that match the reply subject a server takes any."""
    (frame,) = _scan(raw)
    return raw.replace(b" %s " % frame.sid, b" ", 1) if frame.no_responders else raw


async def hold(ports: tuple[int, int], user: str, steps: list[Step], tongue: Tongue) -> list[list[bytes]]:
    """Hold a conversation; return what both heard, step by step in a form that chance leaves alone."""
    heard: list[list[bytes]] = [[], []]
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(client(port, user, number == 0))
            for number, port in enumerate(ports)
        ]
        for who, head, names, body in steps:
            spoken = [tongue.there(name) for name in names] if who else names
            await clients[who].say((head.format(*spoken) + body).encode())
            await clients[1 - who].say(b"")
            for number, one in enumerate(clients):
                heard[number] += fair([tongue.back(raw) if number else nobody(raw) for raw in one.heard])
                one.heard.clear()
    return heard


@pytest.mark.server
async def test_each_side_sees_the_mapping_of_what_the_other_did() -> None:
    dice = random.Random(31)
    said = 0
    with NatsServer(with_accounts(USERS)) as server, trio.fail_after(120):
        proxy = Proxy(settings_before(server.port))
        async with trio.open_nursery() as nursery:
            (address,) = await nursery.start(proxy.serve)
            for _ in range(CONVERSATIONS):
                listed = renamings(dice)
                steps = conversation(dice, listed)
                tables = [renaming.table(f"r{number}") for number, renaming in enumerate(listed)]
                proxy.swap(RuleChain(parse_rules(tables, KINDS)))
                plain = await hold((server.port, server.port), "plain", steps, Tongue([]))
                mapped = await hold((address.port, server.port), "mapped", steps, Tongue(listed))
                told = "\n".join(str((who, head, names)) for who, head, names, _ in steps)
                assert mapped == plain, f"{tables}\n{told}"
                said += sum(map(len, plain))
            nursery.cancel_scope.cancel()
    assert said > CONVERSATIONS  # they did hear each other
