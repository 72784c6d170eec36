"""Requests that share reply subjects, through a simulated server: what truly became of each is known."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

from natsproxy.wire.ops import C2S, S2C, Direction
from tests.kit.captures import WALL, Scribe, write

US, MS = 1_000, 1_000_000
ASKERS, FIRST, SECOND, TAP = (1, 2), 3, 4, 9
SERVER = 0
"""A responder that is not recorded: JetStream, or a client of another proxy."""
Event = tuple[int, int, int, Direction, bytes]


@dataclass
class Truth:
    """What truly became of a request; times in ns since 1970."""

    reply: str
    t1: int
    subject: str
    asker: int
    got: tuple[int, ...]
    """The clients that got it."""
    replies: list[tuple[int, int, int | None]] = field(default_factory=list)
    """Of each reply: when it reached the asker, who sent it, and how long that took (None: not recorded)."""


class Traffic:
    """The frames of a simulated conversation, and what they were about."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.events: list[Event] = []
        self.truths: list[Truth] = []

    def _add(self, t: int, conn: int, way: Direction, raw: bytes) -> None:
        self.events.append((t, len(self.events), conn, way, raw))

    def ask(
        self,
        t: int,
        reply: str,
        subject: str,
        *services: tuple[int, int],
        asker: int = ASKERS[0],
        hearing: tuple[int, ...] = (),
        answer: str = "ok",
        body: str = "?",
        tapped: bool = False,
        twice: bool = False,
    ) -> Truth:
        """A client asks; services: of each client that gets the request, how long its answer takes, or -1.

        hearing: clients besides that get the reply.  twice: the asker has two subscriptions that get it.
        """
        truth = Truth(reply, WALL + t, subject, asker, tuple(responder for responder, _ in services))
        self.truths.append(truth)
        self._add(t, asker, C2S, f"PUB {subject} {reply} {len(body)}\r\n{body}\r\n".encode())
        message = f"MSG {subject} 1 {reply} {len(body)}\r\n{body}\r\n".encode()
        if tapped:
            self._add(t + 90 * US, TAP, S2C, message)
        for responder, took in services:
            there = t + (100 + responder) * US
            if responder != SERVER:
                self._add(there, responder, S2C, message)
            if took < 0:
                continue
            if responder != SERVER:
                self._add(there + took, responder, C2S, f"PUB {reply} {len(answer)}\r\n{answer}\r\n".encode())
            for hearer in (asker, *hearing, *((TAP,) if tapped else ())):
                back = there + took + (100 + hearer) * US
                copies = 2 if twice and hearer == asker else 1
                for sid in range(7, 7 + copies):
                    self._add(back, hearer, S2C, f"MSG {reply} {sid} {len(answer)}\r\n{answer}\r\n".encode())
                if hearer == asker:
                    truth.replies.append((WALL + back, responder, None if responder == SERVER else took))
        truth.replies.sort()
        return truth

    def items(self) -> Scribe:
        """Return the frames in the order of time."""
        scribe = Scribe()
        for t, _, conn, way, raw in sorted(self.events, key=lambda event: event[:2]):
            scribe.frame(t, conn, way, raw)
        return scribe


def slow_and_fast(path: Path) -> Path:
    """Write requests to a slow and a fast service, each a client of its own, on one reply subject."""
    traffic = Traffic(0)
    for n in range(3):
        traffic.ask(n * 1000 * MS, "_INBOX.one", "slow.op", (FIRST, 500 * MS))
        traffic.ask(n * 1000 * MS + 10 * MS, "_INBOX.one", "fast.op", (SECOND, 100 * MS))
    return write(path, traffic.items().items)


KINDS = ("two services", "a group", "all", "server", "mixed", "one")


def _responders(rnd: random.Random, kind: str, chosen: int) -> tuple[int, ...]:
    """Return the clients that get one request for a service of a kind."""
    return {
        "two services": ((FIRST, SECOND)[chosen],),
        "a group": (rnd.choice((FIRST, SECOND)),),
        "all": (FIRST, SECOND),
        "mixed": ((FIRST, SERVER)[chosen],),
        "one": (FIRST,),
        "server": (SERVER,),
    }[kind]


def hostile(seed: int) -> Traffic:
    """Return 60 reply subjects, each with requests that overlap, get lost, go to many, or to the server."""
    traffic = Traffic(seed)
    rnd = traffic.random
    for number in range(60):
        kind, t = rnd.choice(KINDS), number * 7 * MS
        askers = ASKERS[: rnd.choice((1, 1, 2))]
        unique, tapped, pause = rnd.random() < 0.5, rnd.random() < 0.3, rnd.choice((2, 40, 900))
        slow, lost, twice = rnd.choice((1, 30, 400)), rnd.choice((0, 0, 0.2)), rnd.random() < 0.1
        name = f"_INBOX.{kind.replace(' ', '-')}{'.twice' * twice}.{number}"
        for _ in range(rnd.randrange(1, 9)):
            t += round(rnd.uniform(0.05, pause) * MS)
            chosen, asker = rnd.randrange(2), rnd.choice(askers)
            took = [
                (responder, -1 if rnd.random() < lost else round(rnd.uniform(0.2, slow) * MS))
                for responder in _responders(rnd, kind, chosen)
            ]
            traffic.ask(
                t,
                name,
                f"hostile.{chosen}",
                *took,
                asker=asker,
                hearing=tuple(one for one in askers if one != asker),
                answer=f"answer {rnd.random()}" if unique else "ok",
                body=rnd.choice(("?", f"{rnd.random()}")),
                tapped=tapped,
                twice=twice,
            )
    return traffic
