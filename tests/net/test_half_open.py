"""A half-open link, through sockets: from one frame on neither end hears anything, and both stay."""

from __future__ import annotations

import pytest
import trio

from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.file.parser import load
from natsproxy.rules.kinds import KINDS
from tests.kit.stage import Stage, receive, stage

FRAMES = {"PUB": b"PUB a 1\r\nx\r\n", "MSG": b"MSG a 1 1\r\nx\r\n"}
PING = b"PING\r\n"


async def held(made: Stage) -> None:
    """Wait until the proxy holds bytes of both directions back."""
    (relay,) = made.proxy.relays.values()
    while not all(pipe.outbox.bytes for pipe in relay.session.pipes):  # noqa: ASYNC110 (no event for it)
        await trio.sleep(0.001)


def has_nothing(stream: trio.SocketStream) -> bool:
    """Tell whether nothing is there to receive, the end neither."""
    try:
        stream.socket._sock.recv(1)  # type: ignore[attr-defined]
    except BlockingIOError:
        return True
    return False


@pytest.mark.parametrize("plane", ["native", "python"])
@pytest.mark.parametrize("op", FRAMES)
async def test_neither_end_hears_anything(plane: str, op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NATSPROXY_PLANE", plane)
    rule = f'[[rules]]\nname = "r"\nkind = "pause"\nop = "{op}"\nafter = 1\nlimit = 1\nboth = true\n'
    async with stage(RuleChain(load(rule, KINDS))) as made:
        client, server = await made.connect()
        sender, receiver = (client, server) if op == "PUB" else (server, client)
        async with client, server:
            await sender.send_all(FRAMES[op] * 2)
            assert await receive(receiver, len(FRAMES[op])) == FRAMES[op]
            await client.send_all(PING)
            await server.send_all(PING)
            await held(made)
            assert (has_nothing(client), has_nothing(server)) == (True, True)
            assert made.ends == {}
            # Nothing is lost where the link comes back.
            made.proxy.swap(RuleChain(()))
            for stream in (client, server):
                wanted = (FRAMES[op] if stream is receiver else b"") + PING
                assert await receive(stream, len(wanted)) == wanted
