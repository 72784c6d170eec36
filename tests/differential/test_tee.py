"""Without rules the proxy is transparent: a tee on each of its legs sees the same bytes, INFO apart."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import nats
import pytest
import trio

from natsproxy.capture.read.reader import open_capture
from natsproxy.config.recording import RecordSettings
from natsproxy.events import Closed
from natsproxy.net.proxy import Proxy
from tests.differential.wirelog import settings_before
from tests.kit.captures import legs
from tests.kit.servers import NatsServer
from tests.kit.tee import Tee

pytestmark = pytest.mark.server
CONNECT = b'CONNECT {"verbose":%s,"pedantic":false,"headers":true,"no_responders":true,"protocol":1}\r\n'


@asynccontextmanager
async def between_tees(server: NatsServer, record: Path) -> AsyncIterator[tuple[Tee, Tee, trio.Event]]:
    """Give client -> tee -> proxy (recording) -> tee -> server; the event: a connection has closed."""
    inner = Tee("127.0.0.1", server.port)
    closed = trio.Event()
    async with trio.open_nursery() as nursery:
        port = await nursery.start(inner.serve)
        proxy = Proxy(replace(settings_before(port), record=RecordSettings(record)))
        proxy.subscribe(lambda event: closed.set() if isinstance(event, Closed) else None)
        (address,) = await nursery.start(proxy.serve)
        outer = Tee(address.host, address.port)
        await nursery.start(outer.serve)
        yield outer, inner, closed
        await proxy.drain(5)
        nursery.cancel_scope.cancel()


def without_info(data: bytes | bytearray) -> bytes:
    """Return a server's bytes with the contents of INFO taken out."""
    return re.sub(rb"INFO \{[^\r\n]*\} ?\r\n", b"INFO\r\n", data)


def check(outer: Tee, inner: Tee, record: Path) -> None:
    """All four taps agree, and the capture with them."""
    for conn, (near, far) in enumerate(zip(outer.conns, inner.conns, strict=True), start=1):
        assert near[0] == far[0]
        assert without_info(near[1]) == without_info(far[1])
        taps = legs(open_capture(record), conn)
        # CONNECT has no secrets here, so nothing of it is withheld.
        assert taps["client->proxy"] == near[0]
        assert taps["proxy->server"] == far[0]
        assert without_info(taps["proxy->client"]) == without_info(near[1])


def conversation(rng: random.Random) -> bytes:
    """Return valid client bytes in all their spellings: letter case, blanks, zeros, many sizes."""

    def blank() -> bytes:
        return rng.choice([b" ", b"\t", b"  ", b" \t "])

    def case(op: bytes) -> bytes:
        return rng.choice([op, op.lower(), op.title()])

    out = [CONNECT % rng.choice([b"true", b"false"])]
    for number in range(rng.randint(5, 60)):
        size = rng.choice([0, 1, 7, 100, 5_000, 70_000, 300_000] if rng.random() < 0.1 else [0, 1, 16, 200])
        payload = rng.randbytes(size)
        subject = b"t.%d" % rng.randint(0, 3)
        end = rng.choice([b"\r\n", b"\r\n", b" \r\n", b"\n"])
        kind = rng.random()
        if kind < 0.15:
            out.append(case(b"SUB") + blank() + subject + blank() + b"%d" % number + end)
        elif kind < 0.2:
            out.append(case(b"UNSUB") + blank() + b"%d" % rng.randint(0, number + 1) + end)
        elif kind < 0.3:
            out.append(rng.choice([b"PING\r\n", b"ping\r\n", b"PONG\r\n"]))
        elif kind < 0.5:
            head = b"NATS/1.0\r\nA: %d\r\n\r\n" % number
            sizes = b"%d" % len(head) + blank() + b"%d" % (len(head) + size)
            out.append(case(b"HPUB") + blank() + subject + blank() + sizes + end + head + payload + b"\r\n")
        else:
            zeros = b"0" * rng.choice([0, 0, 3])
            out.append(
                case(b"PUB") + blank() + subject + blank() + zeros + b"%d" % size + end + payload + b"\r\n"
            )
    return b"".join(out) + b"PING\r\n"


async def speak(port: int, data: bytes, rng: random.Random) -> None:
    """Send bytes in random pieces while reading; half-close; read to the end."""
    stream = await trio.open_tcp_stream("127.0.0.1", port)

    async def send() -> None:
        at = 0
        while at < len(data):
            size = rng.choice([1, 3, 17, 500, 65_536, 1_000_000])
            await stream.send_all(data[at : at + size])
            await trio.lowlevel.checkpoint()
            at += size
        await stream.send_eof()

    async with stream, trio.open_nursery() as nursery:
        nursery.start_soon(send)
        while await stream.receive_some(rng.choice([10, 1_000, 65_536])):
            pass


@pytest.mark.parametrize("seed", range(8))
async def test_raw_clients(seed: int, nats_server: NatsServer, tmp_path: Path) -> None:
    """Valid bytes in any spelling, cut anywhere, both directions at once, three clients at a time."""
    rng = random.Random(seed)
    sent = [conversation(rng) for _ in range(3)]
    async with between_tees(nats_server, tmp_path / "x.ncap") as (outer, inner, _):
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for number, data in enumerate(sent):
                    nursery.start_soon(speak, outer.port, data, random.Random(number))
                    while len(inner.conns) <= number:  # so that both tees number them alike
                        await trio.lowlevel.checkpoint()
    assert [bytes(near) for near, _ in outer.conns] == sent
    check(outer, inner, tmp_path / "x.ncap")


async def test_nats_py(nats_server: NatsServer, tmp_path: Path) -> None:
    """A client library's conversation: requests, JetStream, a payload of 700,000 bytes."""

    async def program(url: str) -> None:
        nc = await nats.connect(url)
        try:

            async def answer(message: Any) -> None:
                await message.respond(message.data)

            await nc.subscribe("tee.echo", cb=answer)
            for size in (0, 1, 5_000, 700_000):
                assert (await nc.request("tee.echo", bytes(size), timeout=10)).data == bytes(size)
            js = nc.jetstream()
            await js.add_stream(name="TEE", subjects=["tee.js.>"])
            for number in range(50):
                await js.publish("tee.js.x", b"%d" % number, headers={"N": str(number)})
            pull = await js.pull_subscribe("tee.js.>", "puller")
            for message in await pull.fetch(50, timeout=10):
                await message.ack()
            await js.delete_stream("TEE")
        finally:
            await nc.close()

    async with between_tees(nats_server, tmp_path / "x.ncap") as (outer, inner, closed):
        await trio.to_thread.run_sync(lambda: asyncio.run(program(f"nats://127.0.0.1:{outer.port}")))
        with trio.fail_after(10):
            await closed.wait()
    check(outer, inner, tmp_path / "x.ncap")
