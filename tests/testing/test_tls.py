"""Test proxies and cassettes with TLS to the server, to the client under test, or both; and WebSocket."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import nats
import pytest

from natsproxy.capture.read.frames import read_frames
from natsproxy.capture.read.reader import open_capture
from natsproxy.errors import ConfigError, NatsproxyError
from natsproxy.replay.errors import ReplayError
from natsproxy.testing import TestProxy, cassette, drop
from tests.kit.authority import Authority
from tests.kit.servers import NatsServer

pytestmark = [
    pytest.mark.server,
    pytest.mark.filterwarnings("ignore:parameter 'timeout' of type 'float'"),  # nats-py's own call
]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Give a CA that both sides trust."""
    return Authority(tmp_path_factory.mktemp("ca"))


def echo(url: str, authority: Authority, text: bytes = b"hello") -> bytes:
    """Return a message that a nats-py client sent to itself."""

    async def program() -> bytes:
        context = authority.client_context() if url.startswith("tls:") else None
        client = await nats.connect(url, allow_reconnect=False, tls=context)
        try:
            subscription = await client.subscribe("e")
            await client.publish("e", b"first")
            await client.publish("e", text)
            found = b""
            while found != text:
                found = (await subscription.next_msg(timeout=10)).data
            return found
        finally:
            await client.close()

    return asyncio.run(asyncio.wait_for(program(), 30))


def tls_url(server: NatsServer) -> str:
    """Return the URL of a server with TLS."""
    return server.url.replace("nats:", "tls:")


def listening(authority: Authority) -> dict[str, Any]:
    """Return the options of a listener with TLS."""
    return {"listen": "tls://127.0.0.1:0", "tls_cert": str(authority.server())}


def test_a_proxy(authority: Authority, tmp_path: Path) -> None:
    """With faults and frames as without TLS."""
    capture = tmp_path / "x.ncap"
    more: dict[str, Any] = {"upstream_tls_ca": authority.file, **listening(authority)}
    with (
        NatsServer(authority.server_config()) as server,
        TestProxy(tls_url(server), record=capture, **more) as proxy,
    ):
        with proxy.fault(drop(first=1), subject="e", op="PUB"):
            assert echo(proxy.url, authority) == b"hello"
        assert [firing.action for firing in proxy.firings] == ["drop"]
        assert [frame.payload for frame in proxy.frames("e", op="MSG")] == [b"hello"]
        assert f"proxy before {tls_url(server)}" in proxy.failure_report()
    assert any(frame.data.startswith(b"PUB e ") for frame in read_frames(open_capture(capture)))


def test_a_proxy_for_clients_of_websocket(nats_server: NatsServer, authority: Authority) -> None:
    with TestProxy(nats_server.url, listen="ws://127.0.0.1:0") as proxy:
        assert proxy.url.startswith("ws://")
        assert echo(proxy.url, authority) == b"hello"
        assert len(proxy.frames("e", op="PUB")) == 2


@pytest.mark.parametrize("mode", ["once", "new_episodes"])
def test_a_cassette(authority: Authority, tmp_path: Path, mode: str) -> None:
    """Recorded from a server with TLS, and played to a client that wants TLS."""
    path, to_server = tmp_path / "x.ncap", dict[str, Any](upstream_tls_ca=authority.file)
    with NatsServer(authority.server_config()) as server:
        with cassette(path, "once", upstream=tls_url(server), **to_server) as tape:
            assert tape.recording
            assert echo(tape.url, authority) == b"hello"
        more = {**to_server, **listening(authority)}
        with cassette(path, mode, upstream=tls_url(server), **more) as tape:
            assert tape.url.startswith("tls://")
            assert echo(tape.url, authority) == b"hello"
            if mode == "new_episodes":
                assert echo(tape.url, authority, b"something else") == b"something else"
        assert (tape.added > 0) == (mode == "new_episodes")
    with cassette(path, strict=False, **listening(authority)) as tape:  # without the server, and less of it
        assert echo(tape.url, authority) == b"hello"


def test_the_ca_of_the_environment(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an option; also for a server whose URL says nothing of TLS."""
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    with NatsServer(authority.server_config()) as server:
        for url in (tls_url(server), server.url):
            with TestProxy(url) as proxy:
                assert echo(proxy.url, authority) == b"hello"


def test_a_server_that_cannot_be_trusted(authority: Authority, tmp_path: Path) -> None:
    """A recording does not begin, and the error says why."""
    stranger = Authority(tmp_path)
    with NatsServer(stranger.server_config()) as server:
        path = tmp_path / "x.ncap"
        tape = cassette(path, "once", upstream=tls_url(server), upstream_tls_ca=authority.file)
        with pytest.raises(NatsproxyError, match="the peer's certificate was refused"), tape:
            pass
    assert not path.exists()


def test_a_server_that_cannot_be_trusted_with_new_episodes(authority: Authority, tmp_path: Path) -> None:
    """It is dialled when something new comes, and the end of the cassette says why that went nowhere."""
    stranger, path = Authority(tmp_path), tmp_path / "x.ncap"
    with NatsServer(stranger.server_config()) as server:
        with cassette(path, "once", upstream=tls_url(server), upstream_tls_ca=stranger.file) as tape:
            echo(tape.url, authority)
        tape = cassette(path, "new_episodes", upstream=tls_url(server), upstream_tls_ca=authority.file)
        tape.__enter__()
        assert echo(tape.url, authority) == b"hello"
        with pytest.raises(nats.errors.Error):
            echo(tape.url, authority, b"something else")
        with pytest.raises(ReplayError, match="the peer's certificate was refused"):
            tape.close()


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"upstream_tls_cas": "x"}, "did you mean 'upstream_tls_ca'?"),
        ({"upstream_tls_name": "a..b"}, "upstream_tls_name must be a host name"),
        ({"listen": "tls://127.0.0.1:0"}, "tls-cert is missing"),
        ({"listen": "nowhere"}, "listen must be HOST:PORT"),
    ],
)
def test_mistakes(more: dict[str, Any], sentence: str) -> None:
    """In one sentence, before anything runs."""
    with pytest.raises(ConfigError) as caught:
        TestProxy("tls://127.0.0.1:4222", **more)
    assert sentence in str(caught.value)
