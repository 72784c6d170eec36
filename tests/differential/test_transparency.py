"""The server is the oracle: the same client bytes, directly and through natsproxy, get the same answers.

Hand-written programs and generated ones, cut at random places, run side by side against one real server;
what comes back and whether the connection stays open must be equal, INFO's own contents apart.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import pytest
import trio

from natsproxy.net.proxy import Proxy
from tests.differential.differences import DIFFERENCES
from tests.differential.wirelog import settings_before
from tests.kit.servers import NatsServer, executable

QUIET = (0.4, 8)
"""Seconds without a byte after which the server has said what it had to say.

A busy machine may be the cause of a difference then: the program is played once more with the longer wait.
"""
PLAIN = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true,"protocol":1}\r\n'
VERBOSE = b'CONNECT {"verbose":true,"pedantic":false,"headers":true,"protocol":1}\r\n'
PEDANTIC = b'CONNECT {"verbose":false,"pedantic":true,"headers":true,"protocol":1}\r\n'

PROGRAMS = {
    "nothing": b"",
    "ping first": b"PING\r\n",
    "no connect is verbose and pedantic": b"SUB a 1\r\nPUB a 1\r\nx\r\nPING\r\n",
    "plain": PLAIN + b"PING\r\nSUB a 1\r\nPUB a 2\r\nhi\r\nPING\r\n",
    "verbose": VERBOSE + b"SUB a 1\r\nPUB a 2\r\nhi\r\nUNSUB 1\r\nUNSUB 9\r\nPING\r\n",
    "pedantic bad subject": PEDANTIC + b"PUB a..b 1\r\nx\r\nSUB > 1\r\nPUB f.* 1\r\nx\r\nPING\r\n",
    "invalid subscribe": PLAIN + b"SUB a..b 1\r\nSUB a.>.b 2\r\nPING\r\n",
    "odd spacing and case": PLAIN + b"sUb  \ta \t 1 \r\npub a\t 000000002\r\nhi\r\nping\r\n",
    "bare LF on control lines": PLAIN + b"SUB a 1\nPUB a 2\nhi\r\nPING\n",
    "bare LF after a payload": PLAIN + b"PUB a 2\r\nhi\nPING\r\n",
    "tails": PLAIN + b"PINGxyz abc\r\n+OK whatever\r\nPONG 1\r\nPING\r\n",
    "unknown op": PLAIN + b"SUB a 1\r\nPUB a 1\r\nx\r\nBOGUS\r\nPUB a 1\r\ny\r\n",
    "unknown op, one byte": PLAIN + b"PING\r\nX",
    "wrong second letter": PLAIN + b"PING\r\nPX",
    "blank line": PLAIN + b"PING\r\n\r\n",
    "leading blank": PLAIN + b" PING\r\n",
    "MSG from a client": PLAIN + b"MSG a 1 1\r\nx\r\n",
    "PUB without arguments": PLAIN + b"PUB\r\n",
    "PUB with one argument": PLAIN + b"PING\r\nPUB a\r\n",
    "PUB with four": PLAIN + b"PING\r\nPUB a b c 1\r\n",
    "PUB with ten digits": PLAIN + b"PUB a 0000000001\r\nx\r\n",
    "PUB with a negative size": PLAIN + b"PUB a -1\r\n",
    "PUB too large": PLAIN + b"PING\r\nPUB a 999999999\r\n",
    "payload longer than said": PLAIN + b"PUB a 2\r\nhixx\r\n",
    "SUB with four": PLAIN + b"SUB a b c d\r\n",
    "UNSUB without": VERBOSE + b"UNSUB\r\n",
    "UNSUB with odd max": VERBOSE + b"SUB a 1\r\nUNSUB 1 abc\r\nPUB a 1\r\nx\r\nPING\r\n",
    "UNSUB max": VERBOSE + b"SUB a 1\r\nUNSUB 1 2\r\n" + b"PUB a 1\r\nx\r\n" * 4 + b"PING\r\n",
    "HPUB": PLAIN + b"SUB a 1\r\nHPUB a 12 14\r\nNATS/1.0\r\n\r\nhi\r\nPING\r\n",
    "HPUB of zero header bytes": PLAIN + b"SUB a 1\r\nHPUB a 0 2\r\nhi\r\nPING\r\n",
    "HPUB with more header than total": PLAIN + b"PING\r\nHPUB a 5 2\r\nhi\r\n",
    "HPUB without the header option": b'CONNECT {"verbose":false,"protocol":1}\r\nPING\r\nHPUB a 12 14\r\n',
    "HPUB before CONNECT": b"HPUB a 12 14\r\nNATS/1.0\r\n\r\nhi\r\n",
    "no responders": PLAIN + b"SUB r.* 1\r\nPUB nobody r.1 0\r\n\r\nPING\r\n",
    "reserved reply": PLAIN + b"PUB a $JS.ACK.x 0\r\n\r\nPING\r\n",
    "line at the limit": PLAIN + b"SUB " + b"a" * 4094 + b" 1\r\nPING\r\n",
    "line beyond the limit": PLAIN + b"PING\r\nSUB " + b"a" * 4095 + b" 1\r\nPING\r\n",
    "unfinished line beyond the limit": PLAIN + b"PING\r\nPUB " + b"a" * 5000,
    "CONNECT that is no JSON": b"CONNECT {nope}\r\nPING\r\n",
    "CONNECT of null": b"CONNECT null\r\nPING\r\n",
    "CONNECT of an empty object": b"CONNECT {}\r\nPING\r\n",
    "CONNECT without a blank": b"CONNECT{}\r\nPING\r\n",
    "CONNECT with nothing": b"CONNECT\r\nPING\r\n",
    "CONNECT with a wrong type": b'CONNECT {"verbose":"yes"}\r\nPING\r\n',
    "CONNECT with trailing junk": b"CONNECT {} x\r\nPING\r\n",
    "CONNECT with another letter case": b'CONNECT {"VERBOSE":false,"Pedantic":false}\r\nPING\r\n',
    "CONNECT of protocol 2": b'CONNECT {"protocol":2}\r\nPING\r\n',
    "no_responders without headers": b'CONNECT {"no_responders":true}\r\nPING\r\n',
    "second CONNECT": PLAIN + b"SUB a 1\r\n" + VERBOSE + b"PUB a 1\r\nx\r\nPING\r\n",
    "account in CONNECT": b'CONNECT {"account":"x"}\r\nPING\r\n',
    "unfinished payload": PLAIN + b"PING\r\nPUB a 10\r\nabc",
    "unfinished large payload": PLAIN + b"PING\r\nPUB a 100000\r\n" + b"x" * 500,
    "wrong byte after a large payload": PLAIN + b"PUB a 90000\r\n" + b"x" * 90000 + b"zz" + b"PING\r\n",
    "no echo": b'CONNECT {"verbose":false,"echo":false,"protocol":1}\r\nSUB a 1\r\nPUB a 1\r\nx\r\nPING\r\n',
    "odd bytes in a subject": PLAIN + b"SUB > 1\r\nPUB a\xff\x00\x0b 1\r\nx\r\nPING\r\n",
}


def generated(seed: int, count: int) -> Iterator[bytes]:
    """Yield random programs of valid, odd and broken pieces."""
    rng = random.Random(seed)
    pieces = [
        b"PING\r\n",
        b"SUB g.a 1\r\n",
        b"SUB g.* 2\r\n",
        b"UNSUB 1\r\n",
        b"UNSUB 2 1\r\n",
        b"PUB g.a 2\r\nhi\r\n",
        b"pub  g.b   1 \r\nx\r\n",
        b"HPUB g.a 12 13\r\nNATS/1.0\r\n\r\nx\r\n",
        b"PONG\r\n",
        b"+OK\r\n",
        b"PUB g..b 1\r\nx\r\n",
        b"SUB g..b 3\r\n",
    ]
    broken = [
        b"PUB g.a x\r\n",
        b"NOPE\r\n",
        b"PUB g.a 1\r\nxx\r\n",
        b"SUB\r\n",
        b"MSG g 1 0\r\n",
        b"CONNECT {\r\n",
    ]
    for _ in range(count):
        program = rng.choice([b"", PLAIN, VERBOSE, PEDANTIC])
        program += b"".join(rng.choice(pieces) for _ in range(rng.randint(0, 8)))
        if rng.random() < 0.4:
            program += rng.choice(broken) + rng.choice(pieces)
        # Two wildcard subscriptions get one message in random order: keep one of them.
        yield program.replace(b"SUB g.* 2", b"SUB g.c 2")


async def outcome(port: int, program: bytes, seed: int, quiet: float) -> tuple[bytes, str]:
    """Send a program in random pieces; return what came back, INFO's contents apart, and how it ended."""
    rng = random.Random(seed)
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream:
        heard, state = await _converse(stream, program, rng, quiet)
    heard = re.sub(rb"INFO \{.*?\} ?\r\n", b"INFO\r\n", heard)
    # nats-server says this twice where TCP cuts a pedantic client's PUB inside its payload: it reads the
    # arguments again.  Through the proxy the frame arrives whole.
    return re.sub(rb"(-ERR 'Invalid Publish Subject'\r\n)+", rb"\1", heard), state


async def _converse(
    stream: trio.SocketStream, program: bytes, rng: random.Random, quiet: float
) -> tuple[bytes, str]:
    heard = bytearray(await _first_line(stream))
    state = "open"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_send, stream, program, rng)
        while True:
            with trio.move_on_after(quiet) as wait:
                try:
                    data = await stream.receive_some(65536)
                except trio.BrokenResourceError:
                    data = b""  # an RST: unread bytes were on their way
                if not data:
                    state = "closed"
                    break
                heard += data
            if wait.cancelled_caught:
                break
        nursery.cancel_scope.cancel()
    return bytes(heard), state


async def _first_line(stream: trio.SocketStream) -> bytes:
    line = b""
    while not line.endswith(b"\r\n"):
        line += await stream.receive_some(1)
    return line


async def _send(stream: trio.SocketStream, program: bytes, rng: random.Random) -> None:
    at = 0
    while at < len(program):
        size = rng.choice([1, 3, 17, 1000, len(program)])
        try:
            await stream.send_all(program[at : at + size])
        except trio.BrokenResourceError:
            return
        at += size


async def compare(server: NatsServer, programs: dict[str, bytes]) -> dict[str, tuple[object, object]]:
    """Run programs on both paths; return those whose outcomes differ."""
    proxy = Proxy(settings_before(server.port))
    differ: dict[str, tuple[object, object]] = {}
    limit = trio.CapacityLimiter(24)

    async def one(name: str, program: bytes, port: int, seed: int) -> None:
        async with limit:
            # Subjects are the program's own: programs run side by side on one server.
            program = re.sub(rb"\bg\.", b"g%d." % seed, program)
            for quiet in QUIET:
                direct = await outcome(server.port, program, seed, quiet)
                through = await outcome(port, program, seed + 1, quiet)
                if direct == through:
                    return
        differ[name] = (direct, through)

    async with trio.open_nursery() as nursery:
        (address,) = await nursery.start(proxy.serve)
        async with trio.open_nursery() as all_of_them:
            for seed, (name, program) in enumerate(programs.items()):
                all_of_them.start_soon(one, name, program, address.port, 2 * seed)
        nursery.cancel_scope.cancel()
    return differ


@pytest.mark.server
@pytest.mark.parametrize("version", ["2.15"])
async def test_hand_written_programs(version: str) -> None:
    """Valid, odd and malformed input gets what the server gives."""
    with NatsServer(executable=executable(version)) as server:
        # One at a time on their subjects: `SUB >` would hear the others.
        apart = {name: p for name, p in PROGRAMS.items() if b"SUB > " in p}
        together = {name: p for name, p in PROGRAMS.items() if name not in apart}
        together = {
            name: re.sub(rb"(SUB|PUB|sUb  \t|pub) (a)\b", rb"\1 a%d" % number, program)
            if name not in ("line at the limit", "line beyond the limit", "unfinished line beyond the limit")
            else program
            for number, (name, program) in enumerate(together.items())
        }
        differ = await compare(server, together)
        for name, program in apart.items():
            differ |= await compare(server, {name: program})

    assert differ == {}


@pytest.mark.server
@pytest.mark.parametrize("count", [50, pytest.param(1000, marks=pytest.mark.long)])
async def test_generated_programs(nats_server: NatsServer, count: int) -> None:
    """Random programs get what the server gives."""
    programs = {f"{number}: {program!r}": program for number, program in enumerate(generated(7, count))}

    assert await compare(nats_server, programs) == {}


@pytest.mark.server
@pytest.mark.long
@pytest.mark.parametrize("version", ["2.10", "2.12"])
async def test_other_versions(version: str) -> None:
    """The same on older servers, from their wheels."""
    with NatsServer(executable=executable(version)) as server:
        programs = {f"{number}: {program!r}": program for number, program in enumerate(generated(8, 150))}
        assert await compare(server, programs) == {}


@pytest.mark.server
@pytest.mark.parametrize("name", DIFFERENCES)
async def test_intended_differences_are_closed_with_an_error(nats_server: NatsServer, name: str) -> None:
    """What the list names is refused, whatever the server would do."""
    program, _ = DIFFERENCES[name]
    proxy = Proxy(settings_before(nats_server.port))
    async with trio.open_nursery() as nursery:
        (address,) = await nursery.start(proxy.serve)
        heard, state = await outcome(address.port, PLAIN + program, 1, QUIET[1])
        nursery.cancel_scope.cancel()

    assert state == "closed"
    assert heard.endswith(b"-ERR 'Unknown Protocol Operation'\r\n")
