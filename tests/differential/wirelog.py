"""What a raw client gets back for the bytes it sends: comparable between a server and a proxy before it."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import trio

from natsproxy.addresses import Address
from natsproxy.config.endpoints import Listener, Server
from natsproxy.config.settings import ProxySettings
from natsproxy.wire.frames import Frame, Need
from natsproxy.wire.interest import Clause
from natsproxy.wire.ops import ALL_OPS, S2C, Op
from natsproxy.wire.scanner import Interest, Scanner

_ALL = Interest((Clause(ALL_OPS, Need.PAYLOAD),))


def settings_before(port: int) -> ProxySettings:
    """Return the settings of a proxy before a server on this machine.

    Without a time limit for the first frame: a server has none for users without a password, and a busy
    machine may take longer than the default.
    """
    server = Server(Address("127.0.0.1", port))
    return ProxySettings(listen=(Listener(),), upstream=(server,), auth_timeout=0)


def with_accounts(accounts: dict[str, Any]) -> str:
    """Return the configuration of a server with accounts.

    A client may take a minute to log in: a busy machine may take longer than the default of two seconds.
    """
    return "authorization { timeout: 60 }\naccounts " + json.dumps(accounts)


def split(data: bytes, dice: random.Random) -> list[bytes]:
    """Cut bytes at random places."""
    cuts = (
        sorted(dice.sample(range(1, len(data)), min(len(data) - 1, dice.randrange(4))))
        if len(data) > 1
        else []
    )
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


async def play(port: int, chunks: Sequence[bytes | int], pongs: int, *, greeting: bytes = b"") -> list[bytes]:
    """Send chunks; return what came back (INFO apart) up to the last of `pongs`, or to the end.

    chunks: a number among them is how many PONGs are awaited before the next chunk.
    greeting: a CONNECT and a PING whose PONG is awaited first (a server knows the account's mappings only for
    what it reads after the CONNECT).
    """
    scanner = Scanner(S2C, _ALL)
    heard: list[bytes] = []
    stream = await trio.open_tcp_stream("127.0.0.1", port)

    async def hear(count: int) -> None:
        while heard.count(b"PONG\r\n") < count and b"EOF" not in heard:
            try:
                data = await stream.receive_some(65536)
            except trio.BrokenResourceError:  # RST behind an -ERR
                data = b""
            if not data:
                heard.append(b"EOF")
            scanner.feed(data)
            while (frame := scanner.next()) is not None:
                assert isinstance(frame, Frame), frame
                if frame.op != Op.INFO:
                    heard.append(frame.raw)

    async with stream:
        with trio.fail_after(20):
            if greeting:
                await stream.send_all(greeting)
                line = b""
                while b"PONG\r\n" not in line:
                    line += await stream.receive_some(65536)
            for chunk in chunks:
                if isinstance(chunk, int):
                    await hear(chunk)
                    continue
                try:
                    await stream.send_all(chunk)
                except trio.BrokenResourceError:
                    break
            await hear(pongs)
    return heard


_PEDANTIC = b"-ERR 'Invalid Publish Subject'\r\n"


def fair(heard: list[bytes]) -> list[bytes]:
    """Return what was heard without what chance decides on a server.

    Neighbouring messages are sorted, since fan-out is in random order.  A pedantic complaint counts once,
    since a server reads a PUB twice when its payload comes in parts (`clonePubArg`), and complains twice.
    """
    result: list[bytes] = []
    heard = [raw for place, raw in enumerate(heard) if raw != _PEDANTIC or heard[place - 1 : place] != [raw]]
    start = 0
    for place, raw in enumerate([*heard, b""]):
        if raw[:4] in (b"MSG ", b"HMSG"):
            continue
        result += [*sorted(heard[start:place]), raw]
        start = place + 1
    return result[:-1]
