"""Limits on the planes: the same frames pass, and C takes from the buckets that Python takes from."""

from __future__ import annotations

import random
import socket
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from natsproxy.addresses import Address
from natsproxy.capture.read.frames import Query, read_frames
from natsproxy.capture.read.reader import open_capture
from natsproxy.config.endpoints import Listener, Server
from natsproxy.config.recording import RecordSettings
from natsproxy.config.settings import ProxySettings
from natsproxy.net.proxy import Proxy
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.engine.native_steps import NativeStep
from natsproxy.rules.file.parser import load
from natsproxy.rules.kinds import KINDS
from natsproxy.rules.model.token_buckets import OTHERS, Rate, TokenBuckets, Tokens
from natsproxy.units import HOUR, SECOND
from natsproxy.wire.ops import C2S, Direction, Op, op_mask
from natsproxy.wire.parse import frames
from natsproxy.wire.scanner import COMPILED

if not COMPILED:
    pytest.skip("there is one plane only", allow_module_level=True)

from tests.kit.servers import NatsServer
from tests.kit.stage import receive, stage
from tests.net.test_plane_rules import Owner, _decisions, always, connected, rig
from tests.net.test_plane_steps import RULES, Rig
from tests.net.test_planes import PLANES, plane, plane_first

__all__ = ["rig"]
HELLO = b'CONNECT {"verbose":false,"headers":true,"name":"app"}\r\nPING\r\n'


def limited(*steps: NativeStep, line: bytes = b"PUB a") -> Any:
    """Return the rules on the frames of a subject, as `connected` takes them."""
    made = SimpleNamespace(scanners=[], decisions=[_decisions.Decisions() for _ in Direction])
    made.decisions[C2S].put(line, b"", list(steps))
    return made


def limit(buckets: TokenBuckets, key: str, rate: Rate, *, sized: bool = False) -> NativeStep:
    return NativeStep(always(), tokens=Tokens(buckets.bucket(key), rate, sized))


def out_of(sock: socket.socket) -> bytes:
    """Return what has come, or nothing."""
    with suppress(BlockingIOError):
        return sock.recv(10_000)
    return b""


# -- what C takes


@given(
    st.integers(1, 9),
    st.integers(1, 200),
    st.lists(st.tuples(st.integers(0, 60), st.sampled_from(["c", "c", "c", "python"])), max_size=25),
)
@settings(max_examples=60)
def test_c_takes_from_all_limits_or_from_none(messages: int, size: int, sent: list[tuple[int, str]]) -> None:
    """And Python from the same buckets; the rates are too slow to matter."""
    rates = Rate(messages, 24 * HOUR, messages), Rate(size, 24 * HOUR, size)
    buckets, left = TokenBuckets(9), [messages, size]
    for key in ("messages", "bytes"):
        buckets.suspend(key, 0)  # in use from now on
    rig = Rig()
    try:
        steps = limit(buckets, "messages", rates[0]), limit(buckets, "bytes", rates[1], sized=True)
        relay, client, server = connected(rig, limited(*steps))
        for length, who in sent:
            frame = b"PUB a %d\r\n%s\r\n" % (length, b"x" * length)
            if who == "python":
                took = buckets.take("messages", 1, rates[0], time.monotonic_ns())
                assert took == (left[0] > 0)
                left[0] -= took
                continue
            fits = left[0] > 0 and left[1] >= min(len(frame), size)
            if fits:
                left = [left[0] - 1, left[1] - len(frame)]
            relay.told.clear()
            client.send(frame)
            rig.run()
            assert relay.told == ([] if fits else [(C2S, frame)])
            assert out_of(server) == (frame if fits else b"")
    finally:
        rig.close()


def test_a_frame_that_is_dropped_takes_nothing(rig: Rig) -> None:
    buckets, one = TokenBuckets(9), Rate(1, HOUR, 1)
    buckets.suspend("k", 0)
    drop = NativeStep(always(), owner=Owner(), cause="r", min_size=2)
    relay, client, server = connected(rig, limited(drop, limit(buckets, "k", one)))
    client.send(b"PUB a 2\r\nxy\r\n" * 5 + b"PUB a 1\r\nx\r\n")
    rig.run()
    assert out_of(server) == b"PUB a 1\r\nx\r\n"
    client.send(b"PUB a 1\r\nx\r\n")
    rig.run()
    assert relay.told == [RULES, (C2S, b"PUB a 1\r\nx\r\n")]


def test_more_than_c_can_count_is_pythons(rig: Rig) -> None:
    buckets, frame = TokenBuckets(9), b"PUB a %d\r\n%s\r\n"
    buckets.suspend("k", 0)
    step = limit(buckets, "k", Rate(1 << 40, 1 << 56, 1 << 40), sized=True)
    relay, client, _ = connected(rig, limited(step))
    large = 2**63 // 2**56  # bytes
    short, long = (frame % (size, b"x" * size) for size in (large - 50, large))
    client.send(short + long)
    rig.run()
    assert relay.told == [(C2S, long)]


def test_a_bucket_without_an_entry_is_pythons_to_find(rig: Rig) -> None:
    """Another key has its place: C takes nothing until Python has given it one again."""
    buckets, fast, now = TokenBuckets(1), Rate(1000, SECOND, 5), time.monotonic_ns()
    frame = b"PUB a 1\r\nx\r\n"
    relay, client, server = connected(rig, limited(limit(buckets, "k", fast)))
    assert buckets.known("k", now) == "k"
    assert buckets.take("k", 1, fast, now)

    def went() -> bool:
        relay.told.clear()
        client.send(frame)
        rig.run()
        assert relay.told == ([] if out_of(server) else [(C2S, frame)])
        return not relay.told

    assert went()
    later = time.monotonic_ns() + SECOND
    assert buckets.known("other", later) == "other"
    assert buckets.take("other", 1, fast, later)
    assert not went()
    assert buckets.known("k", later) == OTHERS
    assert buckets.known("k", later + SECOND) == "k"
    assert buckets.take("k", 1, fast, 0)
    assert went()
    buckets.suspend("k", later + HOUR)
    assert not went()


# -- on all planes


class Passed(NamedTuple):
    """A message of a recorded flood: its connection, time (ns), bytes, and whether the server got it."""

    conn: object
    t: int
    size: int
    went: bool


FRAME = b"PUB a 5\r\nhello\r\n"
FLOOD = 30_000


async def flood(port: int, count: int) -> None:
    """Publish as fast as it goes, as a client of the name "app", up to the PONG."""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(HELLO)
        for _ in range(0, count, 1000):
            await stream.send_all(FRAME * 1000)
        await stream.send_all(b"PING\r\n")
        pongs = b""
        while pongs.count(b"PONG") < 2:
            pongs += await stream.receive_some()


async def flooded(rule: str, capture: Path, clients: int, count: int = FLOOD) -> list[Passed]:
    """Let clients flood a real server through a proxy; return their messages, as many as have come."""
    came, whole = bytearray(), trio.Event()

    async def listen(stream: trio.SocketStream) -> None:
        while not came.endswith(b"mark\r\n"):
            came.extend(await stream.receive_some())
        whole.set()

    with NatsServer() as server:
        proxy = Proxy(
            ProxySettings(
                listen=(Listener(),),
                upstream=(Server(Address("127.0.0.1", server.port)),),
                record=RecordSettings(capture),
            ),
            RuleChain(load(f'[[rules]]\nname = "few"\nkind = "limit"\n{rule}', KINDS)),
        )
        async with (
            await trio.open_tcp_stream("127.0.0.1", server.port) as listener,
            trio.open_nursery() as nursery,
        ):
            (address,) = await nursery.start(proxy.serve)
            await listener.send_all(b'CONNECT {"verbose":false}\r\nSUB a 1\r\nPING\r\n')
            while not came.endswith(b"PONG\r\n"):  # the server knows the subscription
                came.extend(await listener.receive_some())
            nursery.start_soon(listen, listener)
            with trio.fail_after(60):
                async with trio.open_nursery() as floods:
                    for _ in range(clients):
                        floods.start_soon(flood, address.port, count)
                await listener.send_all(b"PUB a 4\r\nmark\r\n")
                await whole.wait()
            nursery.cancel_scope.cancel()
    found = [
        Passed(one.conn, one.t, len(one.data), one.out_ordinal is not None)
        for one in read_frames(open_capture(capture), Query(ops=op_mask(Op.PUB), direction=C2S))
    ]
    assert len(found) == clients * count
    assert came.count(b"MSG a 1 5\r\n") == sum(one.went for one in found)
    return found


def replayed(found: list[Passed], amount: int, burst: int, *, sized: bool) -> list[bool]:
    """Return which of them a bucket lets through: it gets `amount` units a second."""
    filled, at, went = burst * SECOND, found[0].t, []
    for one in found:
        cost = (one.size if sized else 1) * SECOND
        filled, at = min(burst * SECOND, filled + (one.t - at) * amount), one.t
        went.append(filled >= cost)
        filled -= cost * went[-1]
    return went


@pytest.mark.server
@pytest.mark.parametrize("sort", ["messages", pytest.param("bytes", marks=pytest.mark.long)])
@pytest.mark.parametrize("name", plane_first("native"))
async def test_a_flood_passes_as_far_as_the_bucket_goes(name: str, sort: str, tmp_path: Path) -> None:
    """By the times at which its frames came, which the capture has: no frame more, and none less."""
    amount = 5_000 if sort == "messages" else 80_000
    rule = f'subject = "a"\n{sort} = {amount}\nburst = {amount // 10}\naction = "drop"\n'
    with plane(name):
        found = await flooded(rule, tmp_path / "x.ncap", 1)
    assert [one.went for one in found] == replayed(found, amount, amount // 10, sized=sort == "bytes")
    assert any(one.went for one in found)
    assert not all(one.went for one in found)


@pytest.mark.server
@pytest.mark.parametrize("name", plane_first("native"))
async def test_connections_share_a_bucket(name: str, tmp_path: Path) -> None:
    """In no time, from any frame to any later one, more than the burst and the rate pass."""
    rule = 'subject = "a"\nmessages = 1000\nburst = 1000\nper = "client"\naction = "drop"\n'
    with plane(name):
        found = await flooded(rule, tmp_path / "x.ncap", 3, 6000)
    assert len({one.conn for one in found}) == 3
    times = sorted(one.t for one in found if one.went)
    # Of the tokens left at each, `number - rate * time` is what the window from the least one on has taken.
    least = 0.0
    for number, t in enumerate(times):
        due = number - (t - times[0]) * 1000 / SECOND
        least = min(least, due)
        assert due - least < 1000 + 1
    assert 1000 <= len(times) < 3 * 6000
    found.sort(key=lambda one: one.t)
    assert len(times) >= 0.9 * sum(replayed(found, 1000, 1000, sized=False))


@pytest.mark.server
@pytest.mark.parametrize("name", plane_first("threads"))
async def test_no_token_is_taken_twice_or_lost(name: str, tmp_path: Path) -> None:
    """Where several threads take from one bucket at the same time."""
    rule = 'subject = "a"\nmessages = "1/h"\nburst = 45000\nper = "client"\naction = "drop"\n'
    with plane(name):
        found = await flooded(rule, tmp_path / "x.ncap", 3, 17_000)
    assert sum(one.went for one in found) == 45_000


@pytest.mark.parametrize("per", ["client", "connection", "template", "proxy"])
@pytest.mark.parametrize("name", PLANES)
async def test_tokens_stay_taken_behind_a_reload_and_over_connections(name: str, per: str) -> None:
    """On the native plane C takes most of them."""
    head = f'[[rules]]\nname = "few"\nkind = "limit"\nsubject = "x.*"\naction = "drop"\nper = "{per}"\n'
    text = head + 'messages = "1/h"\nburst = 40\n'
    other = '[[rules]]\nname = "other"\nkind = "drop"\nsubject = "y"\n'
    chain = RuleChain(load(text, KINDS))
    asked, mark, passed = b"PUB x.a 0\r\n\r\nPUB x.b 0\r\n\r\n", b"PUB z 0\r\n\r\n", Counter[bytes]()
    with plane(name):
        async with stage(chain) as made:
            for rules in (text, text + other, text.replace("40", "41")):
                chain = RuleChain(load(rules, KINDS), previous=chain)
                made.proxy.swap(chain)
                await made.proxy.rules_in_force()
                pairs = [await made.connect() for _ in range(2)]
                for client, server in pairs * 7:
                    await client.send_all(asked + mark)
                    came = b""
                    while not came.endswith(mark):
                        came += await receive(server, 1)
                    passed.update(came.split()[1::3])
                for stream in (stream for pair in pairs for stream in pair):
                    await stream.aclose()
    # 42 of each subject: the last rule lets 41 pass, of which 40 or 28 have passed before.
    expected = {"connection": 84, "template": 82, "client": 41, "proxy": 41}
    assert passed[b"x.a"] + passed[b"x.b"] == expected[per]


SPELLINGS = (
    b"PUB a.b 0\r\n\r\n",
    b"PUB a.b 2\r\nhi\r\n",
    b"pUb \t a.b \t 000 \r\n\r\n",
    b"PUB a.b 0\n\r\n",
    b"HPUB a.b 12 12\r\nNATS/1.0\r\n\r\n\r\n",
    b"PUB a.b r 0\r\n\r\n",
    b"HPUB a.b r 18 18\r\nNATS/1.0\r\nA: b\r\n\r\n\r\n",
)


@pytest.mark.parametrize("name", PLANES)
async def test_no_spelling_gets_past_a_limit_that_c_counts(name: str) -> None:
    """However frames are written, and wherever their bytes are cut; over connections, too."""
    rule = 'subject = "a.>"\nmessages = "1/h"\nburst = 90\nper = "client"\naction = "drop"\n'
    chain = RuleChain(load(f'[[rules]]\nname = "few"\nkind = "limit"\n{rule}', KINDS))
    dice, came = random.Random(1), 0
    with plane(name):
        async with stage(chain) as made:
            for _ in range(3):
                client, server = await made.connect()
                data = (
                    b"".join(dice.choices(SPELLINGS, weights=[4, 4, 1, 1, 4, 4, 4], k=50))
                    + b"PUB z 0\r\n\r\n"
                )
                while data:
                    cut = dice.choice([3, 20, 100])
                    await client.send_all(data[:cut])
                    await trio.lowlevel.checkpoint()
                    data = data[cut:]
                got = b""
                while not got.endswith(b"PUB z 0\r\n\r\n"):
                    more = await server.receive_some()
                    assert more, got
                    got += more
                came += sum(frame.subject == b"a.b" for frame in frames(got, C2S))
                await client.aclose()
                await server.aclose()
    assert came == 90
