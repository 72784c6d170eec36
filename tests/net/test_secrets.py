"""A password on its way to a real server, cut in every way that a socket has: on no disk and in no log."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet
import pytest
import trio
from click.testing import CliRunner

from natsproxy.addresses import Address
from natsproxy.capture.format.records import Close, Frames
from natsproxy.capture.read.reader import open_capture
from natsproxy.cli import main
from natsproxy.config.settings import Listener, ProxySettings, RecordSettings, Server
from natsproxy.events import Closed, Event
from natsproxy.log import LogFile, log_event, logger
from natsproxy.net.proxy import Proxy
from natsproxy.testing import NatsServer

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
    assert any(isinstance(item, Close) for item in items)
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
