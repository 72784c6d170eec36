"""Invariant: no trick gets a frame past a denial that the server itself would not let pass.

Each row is what a hostile client sends.  It is played to a server whose user has the permission map, and
through the proxy, with the map as a rule, to a server whose user has none: what the client hears back and
what a witness who hears everything hears must be the same.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import pytest
import trio

from natsproxy.net.proxy import Proxy
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.file.parser import parse_rules
from natsproxy.rules.kinds import KINDS
from tests.differential.wirelog import fair, play, settings_before, with_accounts
from tests.kit.servers import NatsServer

MAP = {
    "publish": {"allow": [">"], "deny": ["secret.>", "secret"]},
    "subscribe": {"deny": ["secret.>", "secret", "work.* crew"]},
    "allow_responses": {"max": 1, "expires": "1m"},
}


def traced(
    *lines: bytes, subject: bytes = b"ok", head: bytes = b"NATS/1.0", end: bytes = b"\r\n\r\n"
) -> bytes:
    block = b"\r\n".join([head, *lines]) + end
    return b"HPUB %s %d %d\r\n%sx\r\n" % (subject, len(block), len(block) + 1, block)


TRICKS: dict[str, bytes] = {
    "letter case": b"pUb secret.x 1\r\nx\r\npub\tsecret.x\t1\r\nx\r\nSuB secret.x 9\r\n",
    "blanks": b"PUB   secret.x \t 1  \r\nx\r\nSUB \t secret.x   9 \r\n",
    "LF alone ends the line": b"PUB secret.x 1\nx\r\nSUB secret.x 9\n",
    "leading zeros": b"PUB secret.x 000000001\r\nx\r\n",
    "ten digits": b"PUB secret.x 0000000001\r\nx\r\n",
    "a signed number": b"PUB secret.x +1\r\nx\r\n",
    "a frame in the payload": b"PUB ok 18\r\nPUB secret.x 1\r\nx\r\n\r\n",
    "a payload longer than said": b"PUB ok 1\r\nxx\r\nPUB secret.x 1\r\nx\r\n",
    "no payload": b"PUB secret.x 0\r\n\r\n",
    "trailing dots": b"PUB secret.x. 1\r\nx\r\nPUB secret. 1\r\nx\r\nPUB .secret 1\r\nx\r\nSUB secret. 9\r\n",
    "empty tokens": b"PUB secret..x 1\r\nx\r\nSUB secret..x 9\r\n",
    "wildcards in a publish": b"PUB secret.* 1\r\nx\r\nPUB secret.> 1\r\nx\r\nPUB > 1\r\nx\r\n",
    "wildcards inside tokens": b"PUB secre* 1\r\nx\r\nSUB secre* 9\r\nSUB *ecret 8\r\nSUB secret.x* 7\r\n",
    "a prefix is no token": b"PUB secretx 1\r\nx\r\nPUB secret\x00 1\r\nx\r\nSUB secretx 9\r\n",
    "other bytes": b"PUB secret.\xff 1\r\nx\r\nPUB secret.\x00 1\r\nx\r\nPUB secret.\x0b 1\r\nx\r\n",
    "headers": traced(b"A: b", subject=b"secret.x"),
    "header sizes": b"HPUB secret.x 0 1\r\nx\r\nHPUB secret.x 00012 00013\r\nNATS/1.0\r\n\r\nx\r\n",
    "headers longer than all": b"HPUB secret.x 14 12\r\nNATS/1.0\r\n\r\n\r\n",
    "a reply": b"PUB ok secret.x 1\r\nx\r\nPUB secret.x ok 1\r\nx\r\n",
    "a queue": b"SUB secret.x q 9\r\nSUB work.x crew 8\r\nSUB work.x other 7\r\nSUB work.* crew 6\r\n",
    "a wider queue": b"SUB *.x q 9\r\nPUB work.x 1\r\nx\r\n",
    "a sid that is live": b"SUB ok 9\r\nSUB secret.x 9\r\nPUB ok 1\r\nx\r\n",
    "a sid that was free": b"SUB ok 9\r\nUNSUB 9\r\nSUB *.x 9\r\nPUB work.x 1\r\nx\r\n",
    "traced to": traced(b"Nats-Trace-Dest: secret.t"),
    "traced to, no blank": traced(b"Nats-Trace-Dest:secret.t", b"Nats-Trace-Only: true"),
    "traced to, blanks": traced(b"Nats-Trace-Dest:  \t secret.t \t "),
    "traced to, odd blanks": traced(b"Nats-Trace-Dest: \xc2\xa0secret.t\xc2\x85"),
    "traced to, first of two": traced(b"Nats-Trace-Dest: secret.t", b"Nats-Trace-Dest: ok.t"),
    "traced to, another case": traced(b"nats-trace-dest: secret.t"),
    "traced to, a wildcard": traced(b"Nats-Trace-Dest: secret.>"),
    "traced to, behind the end": traced(b"A: b", b"", b"Nats-Trace-Dest: secret.t"),
    "traced to, LF alone": traced(b"A: b\nNats-Trace-Dest: secret.t"),
    "traced to from a denied subject": traced(b"Nats-Trace-Dest: secret.t", subject=b"secret.x"),
    "traced to, second of two": traced(b"Nats-Trace-Dest: ", b"Nats-Trace-Dest: secret.t"),
    "traced to, third of three": traced(
        b"Nats-Trace-Dest:", b"Nats-Trace-Dest:\t", b"Nats-Trace-Dest: secret.t"
    ),
    "traced to, behind a line without a colon": traced(b"junk", b"Nats-Trace-Dest: secret.t"),
    "traced to, behind an empty value": traced(b"A:", b"Nats-Trace-Dest: secret.t"),
    "traced to, behind an empty name": traced(b": b", b"Nats-Trace-Dest: secret.t"),
    "traced to, a blank before the colon": traced(b"Nats-Trace-Dest : secret.t"),
    "traced to, a blank before the name": traced(b" Nats-Trace-Dest: secret.t"),
    "traced to, in a value": traced(b"A: b:\nNats-Trace-Dest: secret.t"),
    "traced to, no last line": traced(b"Nats-Trace-Dest: secret.t", end=b"\r\n"),
    "traced to, nothing behind": traced(b"Nats-Trace-Dest: secret.t", end=b""),
    "traced to, another version": traced(b"Nats-Trace-Dest: secret.t", head=b"NATS/1.1"),
    "traced to, a status": traced(b"Nats-Trace-Dest: secret.t", head=b"NATS/1.0 503"),
    "traced to, a blank behind the version": traced(b"Nats-Trace-Dest: secret.t", head=b"NATS/1.0 "),
    "traced to, no version": traced(b"Nats-Trace-Dest: secret.t", head=b""),
    "traced to, a space inside": traced(b"Nats-Trace-Dest: secret.a b"),
    "traced to, a TAB inside": traced(b"Nats-Trace-Dest: secret.a\tb"),
    "traced to, a CR inside": traced(b"Nats-Trace-Dest: secret.a\rb"),
    "traced to, an LF inside": traced(b"Nats-Trace-Dest: secret.a\nb"),
    "traced to, a form feed inside": traced(b"Nats-Trace-Dest: secret.a\x0cb"),
    "traced to, a vertical TAB inside": traced(b"Nats-Trace-Dest: secret.a\x0bb"),
    "traced to, a blank alone": traced(b"Nats-Trace-Dest: secret.\x0c"),
    "traced to, empty tokens": traced(b"Nats-Trace-Dest: secret..b"),
    "traced to, tracing disabled": traced(b"Nats-Trace-Dest: trace disabled"),
    "traced to, first one no subject": traced(b"Nats-Trace-Dest: a b", b"Nats-Trace-Dest: secret.t"),
    "neighbours": b"PUB ok 1\r\nx\r\nPUB secret.x 1\r\nx\r\nPUB ok r 1\r\nx\r\nPUB secret 0\r\n\r\n" * 3,
    "neighbours with headers": (
        traced(b"A: b")
        + traced(b"Nats-Trace-Dest: secret.t")
        + traced(b"A: b", subject=b"secret.x")
        + traced(b"A: c")
    )
    * 3,
    "UNSUB and a number": b"SUB *.x 9\r\nUNSUB 9 1\r\nPUB work.x 1\r\nx\r\nSUB secret.x 9\r\n",
    "CONNECT again": b'CONNECT {"verbose":true,"name":"other"}\r\nPUB secret.x 1\r\nx\r\nSUB secret.x 9\r\n',
    "an operation of servers": b"MSG secret.x 1 1\r\nx\r\n",
    "an account's operation": b"LS+ acc secret.x\r\n",
}


def config(*, secured: bool) -> str:
    user: dict[str, object] = {"user": "u", "password": "p"}
    witness = {"user": "w", "password": "p"}
    return with_accounts({"A": {"users": [{**user, "permissions": MAP} if secured else user, witness]}})


def connect(user: str, **flags: bool) -> bytes:
    told = {"user": user, "pass": "p", "verbose": False, "pedantic": False, "headers": True, **flags}
    return b"CONNECT " + json.dumps(told).encode() + b"\r\n"


@dataclass
class Witness:
    """Hears everything at a server: subjects alone, since what is traced tells times."""

    stream: trio.SocketStream

    async def heard(self) -> list[bytes]:
        # The server sends traces from a queue of their own: behind this one, all others have come.
        await self.stream.send_all(traced(b"Nats-Trace-Dest: witness.end", subject=b"witness.ask"))
        data = b""
        while b" witness.end " not in data:
            data += await self.stream.receive_some(65536)
        subjects = [line.split(b" ")[1] for line in data.split(b"\r\n") if line[:4] in (b"MSG ", b"HMSG")]
        return sorted(subject for subject in subjects if not subject.startswith(b"witness."))


@asynccontextmanager
async def meet(port: int) -> AsyncIterator[Witness]:
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(connect("w") + b"SUB > 1\r\n")
        witness = Witness(stream)
        await witness.heard()
        yield witness


async def published(port: int) -> None:
    """A third party publishes what the client must not hear."""
    data = b"".join(b"PUB %s 5\r\nthird\r\n" % name for name in (b"secret.x", b"secret", b"secret.x.y"))
    assert await play(port, [connect("w") + data + b"PING\r\n"], 1) == [b"PONG\r\n"]


TOO_LARGE: dict[str, bytes] = {
    "with a payload": b"PUB secret.x 2000000\r\nxxxx",
    "with what looks like frames": b"PUB secret.x 999999999\r\nPING\r\nPUB secret.x 1\r\nx\r\nPING\r\n",
    "whole": b"PUB secret.x 1048577\r\n" + b"x" * 1048577 + b"\r\n",
    "not denied": b"PUB ok 2000000\r\nxxxx",
    "the largest": b"PUB secret.x 1048576\r\n" + b"x" * 1048576 + b"\r\nPUB secret.x 1048577\r\nxx",
    "with headers": b"HPUB secret.x 30 2000000\r\nNATS/1.0\r\n",
    "with headers, none of them here": b"HPUB ok 30 2000000\r\n",
    "with headers beyond the rule buffer": b"HPUB ok 99999999 999999999\r\nNATS/1.0\r\nNats-Trace",
    "behind a denial": b"PUB secret.x 1\r\nx\r\nSUB secret.x 1\r\nPUB secret.x 2000000\r\nx",
}

Outcome = tuple[list[bytes], list[bytes]]


async def outcome(port: int, server: int, witness: Witness, chunks: list[bytes]) -> Outcome:
    """Return what a client with a trick hears, and what its server's witness hears of it.

    Of one that is thrown out only that counts: whether its -ERR outruns the RST is chance.
    """
    heard = b""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:

        async def pongs(count: int) -> None:
            nonlocal heard
            while heard.count(b"PONG\r\n") < count and (more := await stream.receive_some(65536)):
                heard += more

        await stream.send_all(connect("u") + b"PING\r\n")
        await pongs(1)
        with suppress(trio.BrokenResourceError):
            for chunk in [*chunks, b"PING\r\n"]:
                await stream.send_all(chunk)
            await pongs(2)
        await published(server)
        with suppress(trio.BrokenResourceError):
            await stream.send_all(b"PING\r\n")
            await pongs(3)
    lines = [line for line in heard.split(b"\r\n") if not line.startswith(b"INFO ")]
    through = heard.count(b"PONG\r\n") == 3
    return fair([line + b"\r\n" for line in lines]) if through else [b"thrown out"], await witness.heard()


@pytest.mark.server
@pytest.mark.parametrize("cut", [pytest.param(4096, marks=pytest.mark.long), 3])
async def test_no_trick_gets_past_a_denial(cut: int) -> None:
    rules = parse_rules([{"name": "map", "kind": "permissions", "client": {"user": "u"}, **MAP}], KINDS)
    wrong = []
    with NatsServer(config(secured=True)) as secured, NatsServer(config(secured=False)) as open_:
        proxy = Proxy(settings_before(open_.port), RuleChain(rules))
        async with trio.open_nursery() as nursery:
            (address,) = await nursery.start(proxy.serve)
            async with meet(secured.port) as here, meet(open_.port) as there:
                for name, trick in TRICKS.items():
                    chunks = [trick[at : at + cut] for at in range(0, len(trick), cut)]
                    with trio.fail_after(20):
                        expected = await outcome(secured.port, secured.port, here, chunks)
                        found = await outcome(address.port, open_.port, there, chunks)
                    if expected != found:
                        wrong.append(f"{name}\nserver {expected}\nproxy  {found}")
            nursery.cancel_scope.cancel()
    assert not wrong, "\n".join(wrong)


@pytest.mark.server
@pytest.mark.parametrize("verbose", [False, True])
async def test_a_payload_that_is_too_large_is_said_at_its_line(verbose: bool) -> None:
    """Denied or not: the server looks at the size first, and at nothing behind it."""
    rules = parse_rules([{"name": "map", "kind": "permissions", "client": {"user": "u"}, **MAP}], KINDS)
    wrong = []
    with NatsServer(config(secured=True)) as secured, NatsServer(config(secured=False)) as open_:
        proxy = Proxy(settings_before(open_.port), RuleChain(rules))
        async with trio.open_nursery() as nursery:
            (address,) = await nursery.start(proxy.serve)
            for name, frames in TOO_LARGE.items():
                data = connect("u", verbose=verbose) + b"PING\r\n" + frames
                for cut in (len(data), 7 if len(data) < 500 else 300_001):
                    chunks = [data[at : at + cut] for at in range(0, len(data), cut)]
                    expected = await play(secured.port, chunks, 9)
                    found = await play(address.port, chunks, 9)
                    if expected != found:
                        wrong.append(f"{name}\nserver {expected}\nproxy  {found}")
            nursery.cancel_scope.cancel()
    assert not wrong, "\n".join(wrong)


@pytest.mark.server
async def test_a_reply_opens_once_its_message_has_come() -> None:
    """A client that answers what it has not got yet is denied, which the server would not do."""
    rules = parse_rules([{"name": "map", "kind": "permissions", "client": {"user": "u"}, **MAP}], KINDS)
    asked = connect("u") + b"SUB ok 1\r\nPUB ok secret.r 0\r\n\r\n"
    answer = b"PUB secret.r 0\r\n\r\nPING\r\n"
    denial = b"-ERR 'Permissions Violation for Publish to \"secret.r\"'\r\n"
    request = b"MSG ok 1 secret.r 0\r\n\r\n"
    with NatsServer(config(secured=True)) as secured, NatsServer(config(secured=False)) as open_:
        proxy = Proxy(settings_before(open_.port), RuleChain(rules))
        async with trio.open_nursery() as nursery:
            (address,) = await nursery.start(proxy.serve)
            assert await play(secured.port, [asked + answer], 1) == [request, b"PONG\r\n"]
            assert await play(address.port, [asked + answer], 1) == [request, denial, b"PONG\r\n"]
            for port in (secured.port, address.port):
                assert await play(port, [answer], 1, greeting=asked + b"PING\r\n") == [b"PONG\r\n"]
                found = await play(port, [answer + answer], 2, greeting=asked + b"PING\r\n")
                assert found == [b"PONG\r\n", denial, b"PONG\r\n"]
            nursery.cancel_scope.cancel()


OUT_OF_A_TENANT = {
    **TRICKS,
    "everything": b"SUB > 9\r\nSUB *.x 8\r\nSUB *.> 7\r\nSUB *.*.* 6\r\n",
    "the prefix itself": b"PUB tenant 1\r\nx\r\nPUB tenant.x 1\r\nx\r\nSUB tenant.> 9\r\nSUB tenant 8\r\n",
    "a sid that moves": b"SUB a 9\r\nUNSUB 9 1\r\nPUB a 0\r\n\r\nSUB secret.x 9\r\nSUB secret.> 9\r\n",
    "a wildcard in the middle": b"PUB a.>.b 1\r\nx\r\nPUB >.a 1\r\nx\r\nSUB >.a 9\r\nSUB a.>.b 9\r\n",
    "an empty subject": b"PUB . 1\r\nx\r\nPUB .. 1\r\nx\r\nSUB . 9\r\nPUB .a 1\r\nx\r\n",
    "an expected sequence": traced(b"Nats-Expected-Last-Subject-Sequence-Subject: secret.x"),
}


@pytest.mark.server
@pytest.mark.parametrize("cut", [pytest.param(4096, marks=pytest.mark.long), 3])
async def test_no_trick_leaves_a_tenant(cut: int) -> None:
    """Under a prefix nothing goes out or comes in but under the prefix."""
    tenant = {"name": "tenant", "kind": "rewrite", "client": {"user": "u"}, "prefix": "tenant"}
    seen: list[bytes] = []
    with NatsServer(config(secured=False)) as server:
        proxy = Proxy(settings_before(server.port), RuleChain(parse_rules([tenant], KINDS)))
        async with trio.open_nursery() as nursery:
            (address,) = await nursery.start(proxy.serve)
            async with meet(server.port) as witness:
                for name, trick in OUT_OF_A_TENANT.items():
                    chunks = [trick[at : at + cut] for at in range(0, len(trick), cut)]
                    with trio.fail_after(20):
                        heard, went = await outcome(address.port, server.port, witness, chunks)
                    for subject in (b"secret", b"secret.x", b"secret.x.y"):
                        went.remove(subject)  # the third party's
                    assert all(subject.startswith(b"tenant.") for subject in went), name
                    assert b"third\r\n" not in heard, name
                    seen += went
            nursery.cancel_scope.cancel()
    assert {b"tenant.secret.t", b"tenant.secret.x", b"tenant.tenant.x"} <= set(seen)
