"""A connection that ends inside a frame, through sockets: the part arrives, then FIN or RST."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from natsproxy.capture.format.records import Flags
from natsproxy.capture.read.frames import read_frames
from natsproxy.capture.read.reader import open_capture
from natsproxy.config.endpoints import Listener
from natsproxy.config.recording import RecordSettings
from natsproxy.config.tls import TlsSettings
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.file.parser import load
from natsproxy.rules.kinds import KINDS
from natsproxy.units import SECOND
from tests.kit.authority import Authority
from tests.kit.stage import HELLO, INFO, stage

BODY = b"x" * 100_000
HEAD = b"PUB a 100000\r\n"
DELIVERY = b"MSG a 1 100000\r\n"


@pytest.fixture(params=["native", "python"])
def plane(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Use each plane in turn."""
    monkeypatch.setenv("NATSPROXY_PLANE", request.param)
    name: str = request.param
    return name


def rules(kind: str, op: str, at: str) -> RuleChain:
    """Return the rules of a test: one."""
    return RuleChain(load(f'[[rules]]\nname = "cut"\nkind = "{kind}"\nop = "{op}"\nat = "{at}"\n', KINDS))


async def all_of(stream: trio.abc.ReceiveStream) -> tuple[bytes, str]:
    """Return what a peer receives, and how its connection ends."""
    received = bytearray()
    try:
        while data := await stream.receive_some():
            received += data
    except trio.BrokenResourceError:
        return bytes(received), "reset"
    return bytes(received), "close"


@pytest.mark.parametrize("kind", ["close", "reset"])
@pytest.mark.parametrize("at", ["head", "payload", "after"])
@pytest.mark.usefixtures("plane")
async def test_both_directions(kind: str, at: str) -> None:
    for op, head in (("PUB", HEAD), ("MSG", DELIVERY)):
        frame = head + BODY + b"\r\n"
        part = {"head": head[: len(head) // 2], "payload": head + BODY[:50_000], "after": frame}[at]
        async with stage(rules(kind, op, at)) as made:
            client, server = await made.connect()
            sender, receiver = (client, server) if op == "PUB" else (server, client)
            async with client, server:
                taken = True
                try:
                    await sender.send_all(frame)
                except trio.BrokenResourceError:  # the reset came first, and is told once
                    taken = False
                assert await all_of(receiver) == (part, kind)
                assert await all_of(sender) == (b"", kind if taken else "close")
                assert taken or kind == "reset"
                await sender.aclose()
                await receiver.aclose()
                assert await made.end_of(1) == "rule"


@pytest.mark.usefixtures("plane")
async def test_a_receiver_that_does_not_read_is_reset_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its part never arrives as a whole: the wait for that has an end."""
    monkeypatch.setattr("natsproxy.net.leg.LINGER", 0.1)
    frame = b"MSG a 1 8000000\r\n" + b"x" * 8_000_000 + b"\r\n"
    async with stage(rules("reset", "MSG", "after")) as made:
        client, server = await made.connect()
        async with client, server:
            await server.send_all(frame)
            assert await made.end_of(1) == "rule"
            received, how = await all_of(client)
            assert how == "reset"
            assert len(received) < len(frame)


@pytest.mark.parametrize("kind", ["close", "reset"])
async def test_a_tls_client(kind: str, authority: Authority) -> None:
    listen, tls = (Listener(scheme="tls"),), TlsSettings(cert=authority.server(), timeout=20 * SECOND)
    async with stage(rules(kind, "MSG", "payload"), listen=listen, tls=tls) as made:
        plain = await trio.open_tcp_stream("127.0.0.1", made.proxy.listen[0].port)
        server = await made.listener.accept()
        await server.send_all(INFO)
        assert (await plain.receive_some()).startswith(b"INFO")
        client = trio.SSLStream(plain, authority.client_context(), server_hostname="localhost")
        async with plain, server:
            await client.send_all(HELLO)
            await server.receive_some()
            await server.send_all(b"PONG\r\n" + DELIVERY + BODY + b"\r\n")
            received, _ = await all_of(client)
            assert received == b"PONG\r\n" + DELIVERY + BODY[:50_000]


@pytest.mark.usefixtures("plane")
async def test_the_capture_has_what_came_and_what_went_out(tmp_path: Path) -> None:
    path = tmp_path / "cut.ncap"
    async with stage(rules("reset", "PUB", "payload"), record=RecordSettings(path)) as made:
        client, server = await made.connect()
        async with client, server:
            await client.send_all(b"PUB a 4\r\nabcd\r\n")
            assert await all_of(server) == (b"PUB a 4\r\nab", "reset")
            await made.end_of(1)
        await made.proxy.stop_recording()
    reader = open_capture(path)
    found = [one for one in read_frames(reader) if one.cause == "cut"]
    assert [(one.out_ordinal is not None, bool(one.flags & Flags.CUT)) for one in found] == [
        (False, False),
        (True, True),
    ]
