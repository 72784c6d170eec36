"""Random pipelines of a client under a permission map, and what is heard of them: comparable between servers.

A pipeline is what one client sends without waiting for more than it must, with JetStream, queue groups and
replies in it, and what a partner in its account does between: it makes a stream with a pull and a push
consumer, publishes, asks, and is a member of queue groups.  Client and partner of each pipeline have an
account of their own.

What chance decides on a server is made equal, or kept out by the generator
1. JetStream works beside the connection, so its messages come anywhere among the answers: they are compared
   as a bag.  Steps whose order JetStream does not keep (a publish and a pull, a pull and a SUB) stand apart:
   between them nothing is sent until nothing comes any more (`Settle`).
2. A server gives a message to any member of a queue group: the members of a group, here and at the partner,
   are compared together.  Groups keep their sids for themselves, and have no UNSUB max.
3. Neighbouring messages come in random order (`fair`), and a 503 on any subscription that matches.
4. The differences of `differences.SEEN_OTHERWISE`: a reply subject is used after its message has come, a sid
   with an UNSUB max is not used again, a partner joins no group whose messages may be denied to the client,
   and nothing is pulled that may be.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import trio

from natsproxy.protocol.subjects import collide, is_valid_strict, matches
from natsproxy.wire.frames import Frame, Need
from natsproxy.wire.interest import Clause
from natsproxy.wire.ops import ALL_OPS, S2C, Op
from natsproxy.wire.scanner import Interest, Scanner
from tests.differential.wirelog import fair, split

_ALL: Final = Interest((Clause(ALL_OPS, Need.PAYLOAD),))
GROUPED: Final = 100
"""Sids from here on are those of queue subscriptions: a sid is one group's."""
ASYNCHRONOUS: Final = ("i.>", "d.>")
"""Where answers and deliveries of JetStream go."""
BYSTANDER: Final = "bystander"
"""A user with an account of its own, who hears nothing of the others."""
TRIPS: Final = 10
"""PINGs of a bystander that the server answers, so that its other work has had its turns as well."""


# -- what is sent


@dataclass(frozen=True)
class Send:
    """Bytes of the client, in one write.  pings: the PINGs in them."""

    data: bytes
    pings: int = 0


@dataclass(frozen=True)
class Partner:
    """What the partner sends, after the server has dealt with all of the client's bytes."""

    data: bytes


@dataclass(frozen=True)
class Acknowledge:
    """The client answers all deliveries of JetStream that it has had since the last time."""

    body: bytes


@dataclass(frozen=True)
class Settle:
    """Nothing is sent until nothing comes any more (see `_settle`)."""


@dataclass
class Pipeline:
    """A program.  permissions: the map of its client.  groups: the queue of each sid from `GROUPED` on."""

    permissions: dict[str, Any]
    connect: dict[str, Any]
    witness: bool
    push: bool
    steps: list[Send | Partner | Acknowledge | Settle] = field(default_factory=list)
    groups: dict[int, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"map {json.dumps(self.permissions)}", f"connect {json.dumps(self.connect)}"]
        lines.append(f"witness {self.witness}, push consumer {self.push}")
        return "\n".join([*lines, *map(repr, self.steps)])


def subject(dice: random.Random, wild: float = 0.3) -> str:
    """Return a subject, or a pattern."""
    if dice.random() < 0.25:
        return dice.choice(["s.a", "s.b", "i.1", "p.1", "d.1"])
    tokens = [dice.choice("abc") for _ in range(dice.randint(1, 3))]
    if dice.random() < wild:
        tokens[dice.randrange(len(tokens))] = "*"
    if dice.random() < wild / 2:
        tokens[-1] = ">"
    return ".".join(tokens)


_WIDE: Final = (
    "s.>",
    "s.*",
    "i.>",
    "d.>",
    "p.>",
    "$JS.>",
    "$JS.API.>",
    "$JS.ACK.>",
    "$JS.API.CONSUMER.MSG.NEXT.>",
    ">",
    "*.*",
)
JETSTREAM: Final = ["$JS.API.>", "$JS.ACK.>", "s.>", "i.>", "d.>"]


def _entries(dice: random.Random, *, queues: bool, allow: bool) -> list[str]:
    found = []
    for _ in range(dice.randint(1, 3)):
        item = dice.choice(_WIDE) if dice.random() < (0.4 if allow else 0.15) else subject(dice, 0.5)
        if queues and dice.random() < 0.25:
            item += " " + dice.choice(["q", "r", "q.*", "*"])
        found.append(item)
    return found + (JETSTREAM if allow and dice.random() < 0.7 else [])


def _side(dice: random.Random, *, queues: bool) -> Any:
    form = dice.random()
    if form < 0.2:
        return _entries(dice, queues=queues, allow=True)
    side = {}
    if form < 0.6:
        side["allow"] = _entries(dice, queues=queues, allow=True)
    if form > 0.45:
        side["deny"] = _entries(dice, queues=queues, allow=False)
    return side


def permission_map(dice: random.Random) -> dict[str, Any]:
    """Return a permission map of nats-server."""
    found: dict[str, Any] = {}
    if dice.random() < 0.7:
        found["publish"] = _side(dice, queues=False)
    if dice.random() < 0.8:
        found["subscribe"] = _side(dice, queues=True)
    if dice.random() < 0.35:
        found["allow_responses"] = dice.choice(
            [True, {"max": 2, "expires": "1m"}, {"max": -1, "expires": "5m"}]
        )
    return found or {"subscribe": {"deny": ["s.a"]}}


def denials(permissions: dict[str, Any]) -> list[str]:
    """Return the entries of what is filtered from deliveries."""
    side = permissions.get("subscribe", {})
    return side.get("deny", []) if isinstance(side, dict) else []


_MAY_FOLLOW: Final = {
    "sub": {"sub"},
    "store": {"sub", "ask", "store"},
    "ask": {"sub", "ask", "store", "pull"},
    "pull": {"sub", "ask"},  # of two that a server has at once, either may get what there is
}
"""The steps without an answer so far that a step may follow: others would race it."""


class _Builder:
    """Makes one pipeline."""

    def __init__(self, dice: random.Random, permissions: dict[str, Any], user: str) -> None:
        self.dice = dice
        queued = any(" " in entry for entry in denials(permissions))
        connect = {
            "user": user,
            "pass": "p",
            "verbose": dice.random() < 0.3,
            "pedantic": dice.random() < 0.3,
            "echo": dice.random() < 0.9,
            "headers": True,
            # What cannot be told of 503s is listed in `differences.py`.
            "no_responders": not queued and "allow_responses" not in permissions and dice.random() < 0.4,
            "protocol": 1,
        }
        self.made = Pipeline(permissions, connect, dice.random() < 0.5, dice.random() < 0.6)
        self.frames: list[bytes] = []
        self.unsettled: set[str] = set()  # kinds of steps whose outcome may still be coming
        self.replies: set[str] = set()  # that may be open once their messages have come
        self.limited: set[int] = set()
        self.sids = iter(range(GROUPED, 10 * GROUPED))

    def flush(self) -> None:
        """End the writes so far."""
        data = b"".join(self.frames)
        # Cut frames: a PING is counted in the write that ends it.
        sent = 0
        for chunk in split(data, self.dice) if data else []:
            sent += len(chunk)
            pings = data[:sent].count(b"PING\r\n") - data[: sent - len(chunk)].count(b"PING\r\n")
            self.made.steps.append(Send(chunk, pings))
        self.frames.clear()

    def step(self, step: Partner | Acknowledge | Settle) -> None:
        """Add a step that waits for the answers to all before it."""
        self.flush()
        self.made.steps.append(step)
        self.replies.clear()

    def after(self, kind: str) -> None:
        """Settle where a step of this kind may not follow those whose outcome is still coming."""
        racing = self.unsettled - _MAY_FOLLOW[kind]
        if kind == "store" and self.made.push:  # a push consumer learns of a SUB or UNSUB in its own time
            racing |= self.unsettled & {"sub"}
        if racing:
            self.step(Settle())
            self.unsettled.clear()
        self.unsettled.add(kind)

    def build(self) -> Pipeline:
        """Return the pipeline."""
        dice = self.dice
        for name in ("i.*", "d.1"):
            if dice.random() < 0.7:
                self.subscribe(name)
        acts = [self.sub, self.sub, self.unsub, self.publish, self.publish, self.publish, self.ping]
        acts += [self.store, self.store, self.ask, self.acknowledge, self.partner, self.partner]
        denied = [entry.split(" ")[0].encode() for entry in denials(self.made.permissions)]
        if not any(collide(b"s.>", pattern) for pattern in denied):
            acts += [self.pull, self.pull]
        for _ in range(dice.randint(4, 30)):
            dice.choice(acts)()
        self.step(Settle())
        return self.made

    # -- core NATS

    def subscribe(self, name: str) -> None:
        self.after("sub")
        free = [sid for sid in range(1, 9) if sid not in self.limited]
        if self.dice.random() < 0.25:
            sid, queue = next(self.sids), self.dice.choice(["q", "r", "q.x"])
            self.made.groups[sid] = queue
            self.frames.append(f"SUB {name} {queue} {sid}\r\n".encode())
            denied = [entry.split(" ")[0].encode() for entry in denials(self.made.permissions)]
            # Nor one that gets deliveries of JetStream: the client acknowledges those that it gets.
            others = [*denied, *(one.encode() for one in ASYNCHRONOUS)]
            harmless = not any(collide(name.encode(), one) for one in others)
            # Nor where a reply is open to whom the message went.
            harmless = harmless and "allow_responses" not in self.made.permissions
            if is_valid_strict(name.encode()) and harmless and self.dice.random() < 0.5:
                other = next(self.sids)
                self.made.groups[other] = queue
                self.step(Partner(f"SUB {name} {queue} {other}\r\n".encode()))
        else:
            self.frames.append(f"SUB {name} {self.dice.choice(free)}\r\n".encode())

    def sub(self) -> None:
        dice = self.dice
        self.subscribe(dice.choice([subject(dice), subject(dice, 0.8), "x..y", ">", "i.*", "d.*", "s.*"]))

    def unsub(self) -> None:
        self.after("sub")
        dice = self.dice
        limit = ""
        if dice.random() < 0.5 and len(self.limited) < 5:
            # On a subscription of its own, which messages of JetStream do not count towards.
            name = subject(dice)
            sid = dice.choice([sid for sid in range(1, 9) if sid not in self.limited])
            if not any(collide(name.encode(), other.encode()) for other in ASYNCHRONOUS):
                self.frames.append(f"UNSUB {sid}\r\nSUB {name} {sid}\r\n".encode())
                limit = dice.choice([" 1", " 2", " 3", " 0"])
                self.limited.add(sid)
        else:
            sid = dice.choice([*self.made.groups, *range(1, 9)])
        self.frames.append(f"UNSUB {sid}{limit}\r\n".encode())

    def ping(self) -> None:
        self.frames.append(b"PING\r\n")

    def publish(self) -> None:
        dice = self.dice
        odd = ["a..b", "c.", "_GR_.x"] if dice.random() < 0.2 else []
        name = dice.choice([subject(dice, 0.15), subject(dice, 0), subject(dice, 0), *odd])
        reply = dice.choice([subject(dice, 0.1), "i.1", "p.1"]) if dice.random() < 0.35 else ""
        if reply.startswith("s."):  # the ack would be stored too, before or behind what follows
            reply = ""
        self.message(name, reply, b"x")

    def message(self, name: str, reply: str, body: bytes) -> None:
        if name.startswith("s.") or name in (">", "*.*", "*.a", "*.b"):
            self.after("store")
        if name in self.replies:  # it may be open only once its message has come
            self.frames.append(b"PING\r\n")
            self.step(Settle())
            self.unsettled.clear()
        names = f"{name} {reply}".rstrip().encode()
        if self.dice.random() < 0.2:
            block = b"NATS/1.0\r\nA: b\r\n\r\n"
            frame = b"HPUB %s %d %d\r\n%s%s\r\n" % (names, len(block), len(block + body), block, body)
        else:
            frame = b"PUB %s %d\r\n%s\r\n" % (names, len(body), body)
        self.frames.append(frame)
        self.replies.add(reply)

    # -- JetStream

    def store(self) -> None:
        dice = self.dice
        self.message(dice.choice(["s.a", "s.b", "s.a.b", "s.c"]), dice.choice(["", "i.1", "i.2"]), b"stored")

    def ask(self) -> None:
        self.after("ask")
        calls = ["INFO", "STREAM.INFO.S", "STREAM.NAMES", "CONSUMER.INFO.S.C", "STREAM.INFO.N"]
        what = self.dice.choice(calls)
        self.frames.append(f"PUB $JS.API.{what} i.{self.dice.randint(1, 3)} 0\r\n\r\n".encode())

    def pull(self) -> None:
        self.after("pull")
        body = json.dumps({"batch": self.dice.randint(1, 3), "no_wait": True}).encode()
        to = f"$JS.API.CONSUMER.MSG.NEXT.S.C i.{self.dice.randint(1, 3)}".encode()
        self.frames.append(b"PUB %s %d\r\n%s\r\n" % (to, len(body), body))

    def acknowledge(self) -> None:
        self.step(Settle())
        self.step(Acknowledge(self.dice.choice([b"+ACK", b"+ACK", b"", b"-NAK", b"+WPI", b"+TERM"])))
        self.step(Settle())
        self.unsettled.clear()

    # -- the partner

    def partner(self) -> None:
        dice = self.dice
        data = b""
        for _ in range(dice.randint(1, 3)):
            name = subject(dice, 0)
            if name.startswith("s."):
                self.after("store")
            reply = dice.choice(["", f" p.{dice.randint(1, 2)}", " i.1"])
            data += f"PUB {name}{reply} 2\r\nw!\r\n".encode()
        self.step(Partner(data))


def pipeline(seed: str, user: str) -> Pipeline:
    """Return the pipeline of a seed."""
    dice = random.Random(seed)
    return _Builder(dice, permission_map(dice), user).build()


# -- what is heard


class Peer:
    """A raw client that remembers all that it hears."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.heard: list[Frame] = []
        self.sent = self.pongs = 0
        self.acknowledged = 0  # of `heard`
        self.ended = False
        self.last = 0.0  # when something came, in seconds of trio's clock
        self._scanner = Scanner(S2C, _ALL)

    async def send(self, data: bytes, pings: int = 0) -> None:
        self.sent += pings
        try:
            await self.stream.send_all(data)
        except trio.BrokenResourceError:
            self.ended = True

    async def _more(self) -> None:
        try:
            data = await self.stream.receive_some(65536)
        except trio.BrokenResourceError:
            data = b""
        self.ended = self.ended or not data
        self.last = trio.current_time()
        self._scanner.feed(data)
        while (frame := self._scanner.next()) is not None:
            assert isinstance(frame, Frame), frame
            self.pongs += frame.op == Op.PONG
            if frame.op not in (Op.INFO, Op.PING):
                self.heard.append(frame)

    async def round_trip(self) -> None:
        """Wait until the server has dealt with all that was sent."""
        await self.send(b"PING\r\n", 1)
        while self.pongs < self.sent and not self.ended:
            await self._more()

    async def quiet_trip(self) -> bool:
        """Do the same, and forget that PONG; return whether anything else has come meanwhile."""
        heard, pongs = len(self.heard), self.pongs
        await self.round_trip()
        if self.pongs > pongs:  # it is the last one: those before it have been waited for
            del self.heard[max(at for at, frame in enumerate(self.heard) if frame.op == Op.PONG)]
        return len(self.heard) > heard

    async def be_quiet(self, other: Peer, quiet: float) -> None:
        """Wait until neither this one nor another has heard anything for a while."""
        while not self.ended and (left := max(self.last, other.last) + quiet - trio.current_time()) > 0:
            with trio.move_on_after(left):
                await self._more()


async def meet(port: int, connect: dict[str, Any]) -> Peer:
    """Connect and greet."""
    peer = Peer(await trio.open_tcp_stream("127.0.0.1", port))
    await peer.send(b"CONNECT " + json.dumps(connect).encode() + b"\r\n")
    await peer.round_trip()
    peer.heard.clear()
    return peer


@dataclass
class Heard:
    """What was heard of a pipeline: the client's answers in order, and bags of all else."""

    answers: list[bytes]
    jetstream: Counter[bytes]
    groups: Counter[bytes]
    partner: Counter[bytes]

    def differences(self, other: Heard) -> list[str]:
        """Return what differs from what was heard elsewhere."""
        found = []
        if self.answers != other.answers:
            at = next(
                (n for n, (a, b) in enumerate(zip(self.answers, other.answers, strict=False)) if a != b),
                min(len(self.answers), len(other.answers)),
            )
            here, there = self.answers[at : at + 6], other.answers[at : at + 6]
            found.append(f"answers from {at}:\nserver {here}\nproxy  {there}")
        for name in ("jetstream", "groups", "partner"):
            bag, another = getattr(self, name), getattr(other, name)
            if bag != another:
                found.append(f"{name}: the server alone {bag - another}, the proxy alone {another - bag}")
        return found


_HOUR: Final = 3_600_000_000_000
_PARTNER: Final = {"pass": "p", "verbose": False, "headers": True, "protocol": 1}
_CHANCE: Final = re.compile(rb"(\$JS\.ACK\.S\.\w+\.\d+\.\d+\.\d+)\.\d+\.\d+")
_NOBODY: Final = re.compile(rb"NATS/1\.0 503\r\nNats-Subject: (.*?)\r\n")


def _plain(raw: bytes) -> bytes:
    """Return bytes without times and without counts that are a matter of time.

    A pull that finds nothing is told 404 or 408, by whether another one is still waiting.
    """
    raw = re.sub(rb"NATS/1\.0 (404 No Messages|408 Requests Pending)", b"NATS/1.0 nothing", raw)
    return _CHANCE.sub(rb"\1", raw)


def _of_jetstream(frame: Frame) -> bool:
    body = frame.body
    return (
        frame.reply.startswith(b"$JS.ACK.")
        or body.startswith((b'{"stream":', b'{"type":"io.nats.jetstream', b'{"error":'))
        or frame.headers.startswith((b"NATS/1.0 1", b"NATS/1.0 4"))
    )


def _body(frame: Frame) -> bytes:
    """Return a payload, or what is no chance of one of JetStream's."""
    body = frame.body
    if body.startswith(b'{"type":"io.nats.jetstream'):
        found = json.loads(body)
        return json.dumps([found["type"], found.get("error")]).encode()
    return body


def _bag(frame: Frame, place: bytes) -> bytes:
    parts = (frame.op.label.encode(), place, frame.subject, frame.reply, frame.headers, _body(frame))
    return _plain(b" | ".join(parts))


def _grouped(frame: Frame, groups: dict[int, str]) -> str | None:
    return groups.get(int(frame.sid)) if frame.sid.isdigit() else None


def _advisory(frame: Frame) -> bool:
    return frame.subject.startswith(b"$JS.EVENT.")


def heard(client: Iterable[Frame], partner: Iterable[Frame], made: Pipeline) -> Heard:
    """Return what is comparable."""
    found = Heard([], Counter(), Counter(), Counter())
    denied = [entry.encode() for entry in denials(made.permissions)]
    for frame in client:
        if frame.op not in (Op.MSG, Op.HMSG):
            found.answers.append(_plain(frame.raw))
            continue
        group = _grouped(frame, made.groups)
        nobody = _NOBODY.match(frame.headers)
        if _advisory(frame):
            continue
        if nobody is not None:
            about = (frame.subject, nobody[1])
            if not any(matches(pattern, name) for pattern in denied for name in about):
                found.answers.append(b"HMSG 503 on %s for %s" % about)
        elif _of_jetstream(frame):
            found.jetstream[_bag(frame, frame.sid if group is None else group.encode())] += 1
        elif group is not None:
            found.groups[_bag(frame, group.encode())] += 1
        else:
            found.answers.append(_plain(frame.raw))
    found.answers = fair(found.answers)
    for frame in partner:
        group = _grouped(frame, made.groups)
        if frame.op in (Op.MSG, Op.HMSG) and not _advisory(frame) and b" 503\r\n" not in frame.headers:
            shared = found.jetstream if _of_jetstream(frame) else found.groups
            bag = found.partner if group is None else shared
            bag[_bag(frame, frame.sid if group is None else group.encode())] += 1
    return found


async def _prepare(partner: Peer, made: Pipeline) -> None:
    """Make the stream and its consumers."""
    await partner.send(b"SUB w.answers 1\r\n")
    calls: list[tuple[str, dict[str, Any]]] = [
        ("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"], "storage": "memory"}),
    ]
    consumers = {"C": {"ack_policy": "explicit"}}
    if made.push:
        consumers["P"] = {"ack_policy": "none", "deliver_subject": "d.1"}
    common = {"mem_storage": True, "ack_wait": _HOUR}
    for name, config in consumers.items():
        body = {
            "stream_name": "S",
            "config": {"name": name, **common, **config},
        }
        calls.append((f"CONSUMER.CREATE.S.{name}", body))
    for call, body in calls:
        data = json.dumps(body).encode()
        await partner.send(b"PUB $JS.API.%s w.answers %d\r\n%s\r\n" % (call.encode(), len(data), data))
        while not partner.heard:
            await partner._more()
        assert b'"error"' not in partner.heard[0].body, partner.heard[0].body
        partner.heard.clear()
    await partner.send(b"UNSUB 1\r\n" + (b"SUB > 1\r\n" if made.witness else b"SUB p.* 1\r\n"))
    await partner.round_trip()
    partner.heard.clear()


async def play(port: int, server: int, made: Pipeline, quiet: float) -> Heard:
    """Play a pipeline: the client at one port, its partner at another.

    quiet: seconds without anything after which JetStream has said what it had to say, if the server works.
    """
    with trio.fail_after(60):
        partner = await meet(server, {**_PARTNER, "user": f"w{made.connect['user']}"})
        bystander = await meet(server, {**_PARTNER, "user": BYSTANDER})
        async with partner.stream, bystander.stream:
            await _prepare(partner, made)
            client = await meet(port, made.connect)
            async with client.stream:
                for step in made.steps:
                    if isinstance(step, Settle):
                        await _settle(client, partner, bystander, quiet)
                    else:
                        await _play_step(step, client, partner)
                await partner.round_trip()
                return heard(client.heard, partner.heard, made)


async def _settle(client: Peer, partner: Peer, bystander: Peer, quiet: float) -> None:
    """Return once client and partner have heard all that is due to them.

    A quiet while alone does not say so: a busy machine may let the server, or the proxy, stand still for as
    long.  So a bystander on the server must get answers behind it, and after those the two others.
    """
    await client.round_trip()
    more = True
    while more:
        client.last = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.be_quiet, partner, quiet)
            nursery.start_soon(partner.be_quiet, client, quiet)
        for _ in range(TRIPS):
            await bystander.round_trip()
        more = False
        for one in (client, partner):
            more |= not one.ended and await one.quiet_trip()


async def _play_step(step: Send | Partner | Acknowledge, client: Peer, partner: Peer) -> None:
    if isinstance(step, Send):
        await client.send(step.data, step.pings)
        return
    await client.round_trip()
    if isinstance(step, Partner):
        await partner.send(step.data)
        await partner.round_trip()
        await client.round_trip()
    else:
        replies = [one.reply for one in client.heard[client.acknowledged :] if one.reply[:8] == b"$JS.ACK."]
        client.acknowledged = len(client.heard)
        data = b"".join(b"PUB %s %d\r\n%s\r\n" % (reply, len(step.body), step.body) for reply in replies)
        await client.send(data)
        await client.round_trip()
