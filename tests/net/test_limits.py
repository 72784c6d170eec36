"""Memory is bounded by configuration: two hundred peers that never finish, and everybody else unaffected."""

from __future__ import annotations

import asyncio
import random
import socket
from pathlib import Path

import nats
import pytest

from natsproxy.capture.format.records import Flags
from natsproxy.capture.read.frames import read_frames
from natsproxy.capture.read.reader import open_capture
from tests.kit.process import ProxyProcess
from tests.kit.servers import NatsServer

MIB = 1 << 20
PEERS = 200
CONNECT = b'CONNECT {"verbose":false,"headers":true}\r\n'
RULES = """
[[rules]]
name = "reads whole payloads"
kind = "corrupt"
subject = "slow.*"
probability = 0.5

[[rules]]
name = "holds"
kind = "latency"
subject = "late.*"
delay = "1h"
"""


def slow(port: int, number: int, rng: random.Random) -> socket.socket:
    """Connect, say part of something, and never go on; return the open connection."""
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setblocking(False)
    parts = [
        CONNECT + b"PUB a 1000000\r\n" + bytes(700_000),  # streams through
        CONNECT + b"PUB slow.a 1000000\r\n" + bytes(700_000),  # a rule wants it whole
        CONNECT + b"HPUB a 12 1000000\r\nNATS/1.0\r\n\r\n" + bytes(700_000),
        CONNECT + b"PUB late.a 600000\r\n" + bytes(600_000) + b"\r\nPING\r\n",  # held for an hour
        CONNECT + b"SUB " + b"x" * 3000,  # half a line
        b"CONN",
    ]
    data = parts[number % len(parts)]
    while data:
        try:
            sent = sock.send(data[: rng.choice([1, 10, 100_000])])
        except BlockingIOError:
            break  # the proxy does not read it now: back-pressure is an answer too
        data = data[sent:]
    return sock


async def ordinary(url: str) -> None:
    """A client that wants its work done meanwhile."""
    nc = await nats.connect(url)
    try:
        received: list[bytes] = []
        every = asyncio.Event()

        async def on_message(message: object) -> None:
            received.append(message.data)  # type: ignore[attr-defined]
            if len(received) == 300:
                every.set()

        await nc.subscribe("fine", cb=on_message)
        for number in range(300):
            await nc.publish("fine", b"%d" % number)
        await asyncio.wait_for(every.wait(), 20)
        assert received == [b"%d" % number for number in range(300)]
    finally:
        await nc.close()


@pytest.mark.long
@pytest.mark.server
def test_slow_peers_cost_no_more_than_the_budget(nats_server: NatsServer, tmp_path: Path) -> None:
    """200 peers that leave more than 80 MB unfinished; 16 MiB of buffers, recording."""
    rules, path = tmp_path / "rules.toml", tmp_path / "x.ncap"
    rules.write_text(RULES)
    options = ["--rules", str(rules), "--record", str(path), "--buffers", "16MiB"]
    rng = random.Random(1)
    peers: list[socket.socket] = []
    with ProxyProcess(nats_server.url, *options) as proxy:
        try:
            peers.append(slow(proxy.port, 5, rng))
            before = proxy.memory()
            peers += [slow(proxy.port, number, rng) for number in range(PEERS)]
            asyncio.run(ordinary(f"nats://127.0.0.1:{proxy.port}"))
            most = proxy.memory("VmHWM")
        finally:
            for peer in peers:
                peer.close()
        asyncio.run(ordinary(f"nats://127.0.0.1:{proxy.port}"))
        assert proxy.drain() == 0
    # The budget, the recorder's queue and its blocks, 200 sockets with their reads, the allocator's share.

    assert most - before < 80 * MIB
    cut = [one for one in read_frames(open_capture(path)) if one.flags & Flags.CUT]
    assert len(cut) > PEERS // 3
