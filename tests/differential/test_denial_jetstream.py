"""Invariant: what JetStream delivers to a client with a deny entry is what a server with that map delivers.

JetStream delivers messages to subscriptions of other subjects than the messages bear.  Each form of delivery
is met with each way to arm the filter (and with none), on a server that has the map and, through the proxy,
on one that has none; the client has to get the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio

from natsproxy.net.proxy import Proxy
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.file.parser import parse_rules
from natsproxy.rules.kinds import KINDS
from natsproxy.wire.frames import Frame, Need
from natsproxy.wire.interest import Clause
from natsproxy.wire.ops import ALL_OPS, S2C, Op
from natsproxy.wire.scanner import Interest, Scanner
from tests.differential.wirelog import settings_before, with_accounts
from tests.kit.servers import NatsServer

DENIED = ["secret.>", "$KV.B.secret", "rp.secret.>"]
ALLOWED_LAST = frozenset({b"x:mid", b"x:end"})
STREAM = {"name": "S", "subjects": ["secret.>", "open.>"], "storage": "memory", "allow_direct": True}
BUCKET = {"name": "KV_B", "subjects": ["$KV.B.>"], "storage": "memory", "max_msgs_per_subject": 9}
NEXT = b"PUB $JS.API.CONSUMER.MSG.NEXT.S.C in.1 %d\r\n%s\r\n"
GET = b"PUB $JS.API.DIRECT.GET.S%s in.1 %d\r\n%s\r\n"


def pull(**request: Any) -> bytes:
    body = json.dumps(request).encode()
    return NEXT % (len(body), body)


def get(body: bytes = b"", subject: bytes = b"") -> bytes:
    return GET % (subject, len(body), body)


@dataclass(frozen=True)
class Form:
    """One way in which a message of the stream comes to the client.

    subscribe: what the client subscribes to.  consumer, others: what a second client sets up.  asks: what the
    client sends after the first and the second lot of messages.  late: what it sends between them.  answers:
    how many messages and statuses end each lot.  lasts: the bodies of these messages.  filtered: whether an
    armed filter keeps something back.
    """

    subscribe: bytes
    consumer: dict[str, Any] | None = None
    stream: dict[str, Any] = field(default_factory=lambda: STREAM)
    others: tuple[dict[str, Any], ...] = ()
    asks: tuple[bytes, bytes] = (b"", b"")
    late: bytes = b""
    answers: tuple[int, int] = (1, 1)
    lasts: frozenset[bytes] = ALLOWED_LAST
    filtered: bool = True
    arms: bool = False


PUSH = {"deliver_subject": "dd.2"}
ORDERED = {
    "deliver_subject": "_INBOX.o.1",
    "flow_control": True,
    "idle_heartbeat": 60 * 10**9,
    "max_deliver": 1,
}
MIRROR = {"name": "M", "storage": "memory", "mirror": {"name": "S"}}
SOURCED = {"name": "M", "storage": "memory", "sources": [{"name": "S"}]}
FORMS = {
    "push": Form(b"SUB dd.2 2\r\n", PUSH),
    "push to a wildcard": Form(b"SUB dd.* 2\r\nSUB dd.2 3\r\n", PUSH, answers=(2, 2)),
    "push to everything": Form(b"SUB > 2\r\nSUB dd.2 3\r\n", PUSH, answers=(3, 3), arms=True),
    "push to a group": Form(b"SUB dd.2 g 2\r\n", {**PUSH, "deliver_group": "g"}),
    "push with acks": Form(b"SUB dd.2 2\r\n", {**PUSH, "ack_policy": "explicit"}),
    "push of headers": Form(b"SUB dd.2 2\r\n", {**PUSH, "headers_only": True}),
    "push, UNSUB max": Form(b"SUB dd.2 2\r\nUNSUB 2 9\r\n", PUSH),
    "push, UNSUB max later": Form(b"SUB dd.2 2\r\n", PUSH, late=b"UNSUB 2 9\r\n"),
    "ordered consumer": Form(b"SUB _INBOX.o.1 2\r\n", ORDERED),
    "key-value watch": Form(
        b"SUB _INBOX.o.1 2\r\n",
        {**ORDERED, "deliver_policy": "last_per_subject", "filter_subject": "$KV.B.>"},
        BUCKET,
    ),
    "pull of a batch": Form(b"SUB in.1 2\r\n", {}, asks=(pull(batch=2), pull(batch=3))),
    "pull one by one": Form(b"SUB in.* 2\r\n", {}, asks=(pull(batch=1) * 2, pull(batch=1) * 3)),
    "pull of nothing": Form(
        b"SUB in.1 2\r\n",
        {"filter_subject": "open.none"},
        asks=(pull(batch=9, no_wait=True),) * 2,
        filtered=False,
    ),
    "a mirror's": Form(b"SUB $JS.M.> 2\r\n", others=(MIRROR,)),
    "a mirror's, to *.*.>": Form(b"SUB *.*.> 2\r\n", others=(MIRROR,), arms=True),
    "a source's": Form(b"SUB $JS.S.> 2\r\n", others=(SOURCED,)),
    "republished": Form(
        b"SUB rp.> 2\r\n", stream={**STREAM, "republish": {"src": ">", "dest": "rp.>"}}, arms=True
    ),
    "direct get": Form(
        b"SUB in.1 2\r\n",
        asks=(get(subject=b".secret.x"), get(b'{"last_by_subj":"secret.x"}')),
        lasts=frozenset({b"x:0", b"x:2"}),
        filtered=False,
    ),
    "direct get of a batch": Form(
        b"SUB in.1 2\r\n", asks=(get(b'{"seq":1,"batch":9}'),) * 2, answers=(2, 2), filtered=False
    ),
}
ARMS = {
    "never": (b"", b""),
    "before": (b"SUB *.armed 1\r\n", b""),
    "after": (b"", b"SUB *.armed 1\r\n"),
    "and gone": (b"SUB *.armed 1\r\nUNSUB 1\r\n", b""),
    "by a refused sid": (b"", b"SUB *.armed 2\r\n"),
    "by a queue": (b"SUB *.armed q 1\r\n", b""),
}


class Peer:
    """A raw client that remembers what it hears."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.heard: list[Frame] = []
        self._scanner = Scanner(S2C, Interest((Clause(ALL_OPS, Need.PAYLOAD),)))
        self._pongs = 0

    async def _more(self) -> None:
        data = await self.stream.receive_some(65536)
        assert data, self.heard
        self._scanner.feed(data)
        while (frame := self._scanner.next()) is not None:
            assert isinstance(frame, Frame)
            if frame.op == Op.PONG:
                self._pongs += 1
            elif frame.op not in (Op.INFO, Op.PING):
                self.heard.append(frame)

    async def send(self, data: bytes) -> None:
        """Send, and wait until the server has dealt with it."""
        pongs = self._pongs
        await self.stream.send_all(data + b"PING\r\n")
        while self._pongs == pongs:
            await self._more()

    async def hear(self, count: int, lasts: frozenset[bytes]) -> None:
        """Wait for messages that are the last of their lot, by their bodies, and for statuses."""
        while sum(is_last(frame, lasts) for frame in self.heard) < count:
            await self._more()

    async def ask(self, data: bytes) -> None:
        """Send a request of JetStream whose answer comes on `api.1`, and wait for that."""
        self.heard.clear()
        await self.send(data)
        while not self.heard:
            await self._more()
        assert b'"error"' not in self.heard[0].body, self.heard[0].body

    async def api(self, verb: str, body: dict[str, Any]) -> None:
        """Call the JetStream API."""
        data = json.dumps(body).encode()
        await self.ask(b"PUB $JS.API.%s api.1 %d\r\n%s\r\n" % (verb.encode(), len(data), data))


def is_last(frame: Frame, lasts: frozenset[bytes]) -> bool:
    status = frame.headers.startswith(b"NATS/1.0 ")
    size_only = b"Nats-Msg-Size:" in frame.headers and frame.subject == b"open.x"
    return status or size_only or frame.body in lasts


@asynccontextmanager
async def meet(port: int, user: str) -> AsyncIterator[Peer]:
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        peer = Peer(stream)
        told = {"user": user, "pass": "p", "verbose": False, "pedantic": False, "headers": True}
        await peer.send(b"CONNECT " + json.dumps(told).encode() + b"\r\n")
        yield peer


def lot(*bodies: bytes, bucket: bool) -> bytes:
    """Return publishes of a denied subject, and last of an allowed one, which is acknowledged."""
    denied, allowed = (b"$KV.B.secret", b"$KV.B.open") if bucket else (b"secret.x", b"open.x")
    head = b"NATS/1.0\r\nA: b\r\n\r\n"
    *first, last = bodies
    found = [
        b"HPUB %s %d %d\r\n%s%s\r\n" % (denied, len(head), len(head + body), head, body) for body in first[1:]
    ]
    found.insert(0, b"PUB %s %d\r\n%s\r\n" % (denied, len(first[0]), first[0]))
    return b"".join([*found, b"PUB %s api.1 %d\r\n%s\r\n" % (allowed, len(last), last)])


async def outcome(port: int, server: int, form: Form, arm: tuple[bytes, bytes]) -> list[tuple[bytes, ...]]:
    """Play a form; return what the client heard."""
    bucket = form.stream is BUCKET
    async with meet(server, "w") as other, meet(port, "u") as client:
        await other.send(b"SUB api.1 1\r\n")
        await other.api(f"STREAM.CREATE.{form.stream['name']}", form.stream)
        await client.send(arm[0] + form.subscribe)
        if form.consumer is not None:
            config = {"name": "C", "ack_policy": "none", "mem_storage": True, **form.consumer}
            name = form.stream["name"]
            await other.api(f"CONSUMER.CREATE.{name}.C", {"stream_name": name, "config": config})
        for stream in form.others:
            await other.api(f"STREAM.CREATE.{stream['name']}", stream)
        await other.ask(lot(b"x:0", b"x:mid", bucket=bucket))
        await client.send(form.asks[0])
        await client.hear(form.answers[0], form.lasts)
        await client.send(arm[1] + form.late)
        await other.ask(lot(b"x:1", b"x:2", b"x:end", bucket=bucket))
        await client.send(form.asks[1])
        await client.hear(sum(form.answers), form.lasts)
        for name in ("M", form.stream["name"])[not form.others :]:
            await other.api(f"STREAM.DELETE.{name}", {})
        await client.send(b"")
    return sorted(told(frame) for frame in client.heard if is_ours(frame))


def is_ours(frame: Frame) -> bool:
    """Tell whether it is none of what the server says to itself or to everybody, or when time has passed."""
    if frame.headers.startswith(b"NATS/1.0 100 Idle Heartbeat"):
        return False
    return frame.body.startswith(b"x:") or (bool(frame.headers) and not frame.body)


def told(frame: Frame) -> tuple[bytes, ...]:
    """Return what is not chance about a message: no times, no counts of what is pending."""
    headers = re.sub(rb"(Time-Stamp|Num-Pending|UpTo-Sequence):[^\r]*", rb"\1", frame.headers)
    return frame.op.label.encode(), frame.sid, frame.subject, frame.reply[:7], headers, frame.body


def config(*, secured: bool) -> str:
    user: dict[str, Any] = {"user": "u", "password": "p"}
    if secured:
        user["permissions"] = {"subscribe": {"deny": DENIED}}
    return with_accounts({"A": {"jetstream": "enabled", "users": [user, {"user": "w", "password": "p"}]}})


@pytest.mark.long
@pytest.mark.server
async def test_what_jetstream_delivers_is_filtered_as_the_server_does() -> None:
    table = {"name": "map", "kind": "permissions", "client": {"user": "u"}, "subscribe": {"deny": DENIED}}
    wrong = []
    with (
        NatsServer(config(secured=True), jetstream=True) as secured,
        NatsServer(config(secured=False), jetstream=True) as open_,
    ):
        proxy = Proxy(settings_before(open_.port), RuleChain(parse_rules([table], KINDS)))
        async with trio.open_nursery() as nursery:
            (address,) = await nursery.start(proxy.serve)
            for name, form in FORMS.items():
                for arming, arm in ARMS.items():
                    with trio.fail_after(20):
                        expected = await outcome(secured.port, secured.port, form, arm)
                        found = await outcome(address.port, open_.port, form, arm)
                    denied = any(b"A: b" in headers for *_, headers, _ in expected)
                    if expected != found:
                        wrong.append(f"{name}, armed {arming}\nserver {expected}\nproxy  {found}")
                    elif form.filtered and (form.arms or arming != "never") == denied:
                        wrong.append(f"{name}, armed {arming}: the server delivers {expected}")
            nursery.cancel_scope.cancel()
    assert not wrong, f"{len(wrong)}\n" + "\n".join(wrong)
