"""A password on its way to a real server, cut in every way that a socket has: on no disk and in no log."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow.parquet
import pytest
import trio
from click.testing import CliRunner

from natsproxy.addresses import Address
from natsproxy.capture.filter.filters import Filters
from natsproxy.capture.filter.recording_filter import Selection
from natsproxy.capture.format.records import CloseRecord, Flags, Frames
from natsproxy.capture.read.reader import open_capture
from natsproxy.cli import main
from natsproxy.config.endpoints import Listener, Server
from natsproxy.config.recording import RecordSettings
from natsproxy.config.settings import ProxySettings
from natsproxy.events import Closed, Event
from natsproxy.log import LogFile, log_event, logger
from natsproxy.net.proxy import Proxy
from natsproxy.protocol.places import parse_pointer
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.file.parser import load
from natsproxy.rules.kinds import KINDS
from natsproxy.testing import NatsServer
from natsproxy.wire import encode
from natsproxy.wire.ops import C2S, S2C, Direction
from tests.kit.stage import receive, stage

SECRET = "hunter2hunter2hunter2"
CONNECT = f'CONNECT {{"user":"u","pass":"{SECRET}","jwt":"{SECRET}","verbose":false}}'.encode()
CONFIG = f'authorization {{ user: "u", password: "{SECRET}", timeout: 0.4 }}'


def _reset(stream: trio.SocketStream) -> None:
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.socket.close()


def _wait(stream: trio.SocketStream) -> None:
    """Do nothing: somebody else ends the connection."""


ENDS: list[tuple[str, bytes, Callable[[trio.SocketStream], None]]] = [
    ("FIN", CONNECT[:-9], lambda stream: stream.socket.close()),
    ("FIN", CONNECT + b"\r", lambda stream: stream.socket.close()),
    ("RST", CONNECT, _reset),
    ("RST", CONNECT.replace(b"CONNECT ", b"cOnNeCt\t\t"), _reset),
    ("auth time-out", CONNECT, _wait),
    ("shutdown", CONNECT, _wait),
    ("wrong JSON", CONNECT[:-1] + b"\r\n", _wait),
    ("wrong password", CONNECT.replace(b"user", b"User").replace(b'"u"', b'"v"') + b"\r\nPING\r\n", _wait),
]


@pytest.mark.server
@pytest.mark.parametrize(("why", "sent", "end"), ENDS)
async def test_a_password_is_nowhere(
    why: str, sent: bytes, end: Callable[[trio.SocketStream], None], tmp_path: Path
) -> None:
    """No secret is in the blocks of the capture, its exports or the log."""
    path, lines = tmp_path / "x.ncap", tmp_path / "log"
    with NatsServer(CONFIG) as server:
        record = RecordSettings(path, compression="zstd")
        proxy = Proxy(
            ProxySettings(
                listen=(Listener(),), upstream=(Server(Address("127.0.0.1", server.port)),), record=record
            )
        )
        with LogFile(lines) as file:
            log = logger(file, "json", "debug")
            gone = trio.Event()

            def note(event: Event) -> None:
                log_event(log, event)
                if isinstance(event, Closed):
                    gone.set()

            proxy.subscribe(note)
            async with trio.open_nursery() as nursery:
                (address,) = await nursery.start(proxy.serve)
                stream = await trio.open_tcp_stream(address.host, address.port)
                assert (await stream.receive_some(5)).startswith(b"INFO")
                await stream.send_all(sent)
                with trio.fail_after(10):
                    await _arrived(proxy, len(sent))
                    end(stream)
                    if why != "shutdown":
                        await gone.wait()
                    await proxy.drain(0)
                await stream.aclose()
    _assert_nowhere(path, lines, tmp_path)


async def _arrived(proxy: Proxy, size: int) -> None:
    """Wait until the proxy has read so much of the client, or has ended the connection."""
    while any(relay.session.pipes[0].in_bytes < size for relay in proxy.relays.values()):
        await trio.lowlevel.checkpoint()


def _assert_nowhere(path: Path, lines: Path, folder: Path) -> None:
    items = [item for _, item in open_capture(path).items()]
    assert any(isinstance(item, CloseRecord) for item in items)
    assert any(isinstance(item, Frames) and bytes(item.data)[:7].upper() == b"CONNECT" for item in items)
    texts = [path.read_bytes().decode("latin-1"), repr(items), lines.read_text()]
    for form in ("jsonl", "pcapng"):
        out = folder / form
        assert (
            CliRunner().invoke(main, ["capture", "export", str(path), f"--{form}", str(out)]).exit_code == 0
        )
        texts.append(out.read_bytes().decode("latin-1"))
    out = folder / "parquet"
    assert CliRunner().invoke(main, ["capture", "export", str(path), "--parquet", str(out)]).exit_code == 0
    texts.append(repr(pyarrow.parquet.read_table(out).to_pylist()))
    for words in (["cat"], ["cat", "--json"], ["info"]):
        done = CliRunner().invoke(main, ["capture", *words, str(path)])
        assert done.exit_code == 0
        texts.append(done.output)
    for text in texts:
        assert SECRET[:8] not in text


APPLICATION = Filters(
    headers=("authorization",), json=(parse_pointer("/card"),), subjects=(b"customers.*.orders",)
)


def _order(size: int) -> bytes:
    body = b'{"n":1,"card":"%b","more":"%b"}' % (SECRET.encode(), b"x" * size)
    head = b"NATS/1.0\r\nA: b\r\nAuthorization: Bearer %b\r\n\r\n" % SECRET.encode()
    return encode.pub(b"customers.%b.orders" % SECRET.encode(), body, headers=head)


@pytest.mark.server
async def test_secrets_of_an_application_are_nowhere(tmp_path: Path) -> None:
    """Publishes that are whole, delivered, too long for the capture, and cut after each few bytes."""
    path, lines = tmp_path / "x.ncap", tmp_path / "log"
    record = RecordSettings(
        path, compression="zstd", frame_max=4096, selection=Selection(filters=APPLICATION)
    )
    hello = b'CONNECT {"verbose":false,"headers":true}\r\n'
    orders = _order(1) * 3 + _order(8000) + b"SUB customers.%b.orders 2\r\n" % SECRET.encode()
    with NatsServer() as server, LogFile(lines) as file:
        upstream = Server(Address("127.0.0.1", server.port))
        proxy = Proxy(ProxySettings(listen=(Listener(),), upstream=(upstream,), record=record))
        proxy.subscribe(partial(log_event, logger(file, "json", "debug")))
        async with trio.open_nursery() as nursery:
            (address,) = await nursery.start(proxy.serve)
            async with await trio.open_tcp_stream(address.host, address.port) as stream:
                await stream.send_all(hello + b"SUB customers.*.orders 1\r\n" + orders + b"PING\r\n")
                received = b""
                with trio.fail_after(10):
                    while b"PONG" not in received:
                        received += await stream.receive_some()
                assert received.count(SECRET.encode()) == 12  # the traffic itself is as it was
            for at in range(1, len(_order(1)), 5):
                stream = await trio.open_tcp_stream(address.host, address.port)
                assert (await stream.receive_some()).startswith(b"INFO")  # there is a relay
                await stream.send_all(hello + _order(1)[:at])
                await _arrived(proxy, len(hello) + at)
                (stream.socket.close if at % 2 else partial(_reset, stream))()
            with trio.fail_after(10):
                while proxy.relays:
                    await trio.lowlevel.checkpoint()
            await proxy.drain(0)
    _assert_nowhere(path, lines, tmp_path)
    cut = [
        item for _, item in open_capture(path).items() if isinstance(item, Frames) and item.flags & Flags.CUT
    ]
    assert len(cut) > 20


PLAIN = b"PUB a 1\r\n!\r\n"
CALLOUT = b"$SYS.REQ.USER.AUTH"
ASKED = b"MSG %b 7 _R_.abc 21\r\n%b\r\n" % (CALLOUT, SECRET.encode())
ASKING = b"PUB %b _INBOX.x 21\r\n%b\r\n" % (CALLOUT, SECRET.encode())
RENAMED = b"PUB ask 21\r\n%b\r\n" % SECRET.encode()


@pytest.mark.parametrize("plane", ["native", "python"])
@pytest.mark.parametrize("late", [False, True], ids=["recorded", "recorded from the middle"])
@pytest.mark.parametrize(
    ("steps", "rename"),
    [
        ([(C2S, PLAIN + ASKING + PLAIN), (S2C, b"MSG _INBOX.x 1 21\r\n%b\r\n" % SECRET.encode())], False),
        ([(S2C, ASKED), (C2S, PLAIN + b"PUB _R_.abc 21\r\n%b\r\n" % SECRET.encode())], False),
        ([(C2S, RENAMED)] * 3, True),
        (
            [
                (C2S, b"SUB ask 7\r\n"),
                (S2C, ASKED.replace(b" _R_.abc", b"")),
                (S2C, ASKED),
                (C2S, b"PUB _R_.abc 21\r\n%b\r\n" % SECRET.encode()),
            ],
            True,
        ),
    ],
    ids=["a client asks", "a client answers", "a rule renames", "a rule renames back"],
)
async def test_a_callout_is_nowhere(
    steps: list[tuple[Direction, bytes]],
    rename: bool,
    late: bool,
    plane: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Frames that nobody wants, in the middle of others."""
    monkeypatch.setenv("NATSPROXY_PLANE", plane)
    rule = '[[rules]]\nname = "r"\nkind = "rewrite"\nfrom = "ask"\nto = "$SYS.REQ.USER.AUTH"\n'
    chain = RuleChain(load(rule, KINDS), seed=1) if rename else None
    async with stage(chain) as made:
        client, server = await made.connect()
        for number, (direction, data) in enumerate(steps):
            if number == late * (len(steps) - 1):
                made.proxy.start_recording(RecordSettings(tmp_path / "x.ncap"))
            source, target = (server, client) if direction == S2C else (client, server)
            await source.send_all(data)
            if rename:
                data = data.replace(CALLOUT, b"ask") if direction == S2C else data.replace(b"ask", CALLOUT)
            assert await receive(target, len(data)) == data
        await client.send_all(PLAIN)
        assert await receive(server, len(PLAIN)) == PLAIN
        await made.proxy.stop_recording()
        await client.aclose()
        await server.aclose()
    raw = _all_of(tmp_path)
    assert PLAIN in raw
    assert SECRET.encode() not in raw


def _all_of(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.glob("*.ncap"))


@pytest.mark.server
async def test_a_preamble_holds_no_secret(tmp_path: Path) -> None:
    """A capture that begins in mid-conversation tells who was there, and not with which password."""
    path = tmp_path / "x.ncap"
    with NatsServer(CONFIG) as server:
        proxy = Proxy(
            ProxySettings(listen=(Listener(),), upstream=(Server(Address("127.0.0.1", server.port)),))
        )
        async with trio.open_nursery() as nursery:
            (address,) = await nursery.start(proxy.serve)
            async with await trio.open_tcp_stream(address.host, address.port) as stream:
                await stream.send_all(CONNECT.replace(b"jwt", b"sig") + b"\r\nPING\r\n")
                received = b""
                with trio.fail_after(10):
                    while b"PONG" not in received:
                        received += await stream.receive_some()
                proxy.start_recording(RecordSettings(path))
                proxy.rotate()
                await proxy.stop_recording()
                await proxy.drain(0)
    raw = _all_of(tmp_path)
    assert json.dumps("[withheld: secret]").encode() in raw
    assert SECRET.encode() not in raw
