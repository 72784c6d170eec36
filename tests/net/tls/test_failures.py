"""TLS that does not come about: clients see what a real server shows them, and the log says why."""

from __future__ import annotations

import json
import re
import socket
import ssl
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from natsproxy import close_reasons
from natsproxy.capture.read.frames import read_frames
from natsproxy.capture.read.reader import open_capture
from natsproxy.config.tls import TlsSettings
from natsproxy.errors import ConfigError
from natsproxy.net.tls_contexts import for_client_legs
from tests.kit.authority import Authority
from tests.kit.node import error_of_node
from tests.kit.servers import NatsServer
from tests.net.test_websocket import PROGRAM
from tests.net.tls.legs import Running, between, running, settings

pytestmark = pytest.mark.server
CONNECT = b'CONNECT {"verbose":false,"user":"u","pass":"hunter2hunter2"}\r\nPING\r\n'
MS = 1_000_000
TLS12, TLS13 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3


async def read_to_end(stream: trio.SocketStream) -> bytes:
    """Return all bytes up to the end, however it comes, and close the stream."""
    got = b""
    async with stream:
        with trio.fail_after(20), suppress(trio.BrokenResourceError):
            async for data in stream:
                got += data
    return got


async def first_line(stream: trio.SocketStream) -> bytes:
    """Return the INFO."""
    line = b""
    while not line.endswith(b"\n"):
        byte = await stream.receive_some(1)
        if not byte:
            raise EOFError(line)
        line += byte
    return line


async def converse(port: int, context: ssl.SSLContext, sent: bytes = CONNECT) -> bytes | str:
    """Upgrade after INFO and log in, as clients do; return the answer, or the error as text."""
    return await trio.to_thread.run_sync(_converse, port, context, sent)


def _converse(port: int, context: ssl.SSLContext, sent: bytes) -> bytes | str:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as plain:
        while (byte := plain.recv(1)) != b"\n":
            if not byte:
                return "no INFO"
        try:
            with context.wrap_socket(plain, server_hostname="127.0.0.1") as secured:
                secured.sendall(sent)
                return secured.recv(65_536)
        except ssl.SSLError as error:
            return error.reason or str(error)
        except ConnectionError:
            return "lost"


@pytest.mark.parametrize(
    ("case", "reason", "version"),
    [
        ("no certificate", "peer did not return a certificate", TLS12),
        ("no certificate", "peer did not return a certificate", TLS13),
        ("another CA", "the peer's certificate was refused: ", TLS12),
        ("another CA", "the peer's certificate was refused: ", TLS13),
        ("expired", "the peer's certificate was refused: certificate has expired", TLS12),
        ("expired", "the peer's certificate was refused: certificate has expired", TLS13),
        ("version", "unsupported protocol", TLS12),
    ],
)
async def test_a_client_that_the_listener_refuses(
    authority: Authority, stranger: Authority, case: str, reason: str, version: ssl.TLSVersion, tmp_path: Path
) -> None:
    """As the server itself shows it, alert for alert; the reason is in the log, and no capture has a byte."""
    certificates = {"another CA": stranger.client(), "expired": authority.client(expired=True)}
    context = authority.client_context(certificates.get(case))
    context.minimum_version = context.maximum_version = version
    lowest = "1.3" if case == "version" else "1.2"
    config = authority.server_config(f'verify: true, min_version: "{lowest}"')
    with NatsServer(config) as real, NatsServer() as plain:
        made = settings(authority, "after INFO", "plain", plain.port)
        tls = replace(made.tls, ca=authority.file, min_version=lowest)
        async with running(replace(made, tls=tls), tmp_path / "x.ncap") as one:
            expected = await converse(real.port, context)
            assert await converse(one.address.port, context) == expected
            closed = await one.closed()
        assert closed.cause == close_reasons.CLIENT_PROTOCOL
        assert f"TLS handshake: {reason}" in closed.detail
        frames = [frame.data for frame in read_frames(open_capture(tmp_path / "x.ncap"))]
        assert frames
        assert all(frame.startswith(b"INFO ") for frame in frames)


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("no certificate", "certificate required"),
        ("another CA", "unable to verify the first certificate"),
        pytest.param("wrong name", "does not match certificate's altnames", marks=pytest.mark.long),
        pytest.param("expired", "certificate has expired", marks=pytest.mark.long),
    ],
)
async def test_errors_of_nats_js(authority: Authority, stranger: Authority, case: str, says: str) -> None:
    """They are those that it has with a real server."""
    certificate = {
        "wrong name": authority.server("other.example"),
        "another CA": stranger.server(),
        "expired": authority.server(expired=True),
    }.get(case, authority.server())
    verify = case == "no certificate"
    config = authority.server_config("verify: true" if verify else "", certificate)
    tls = {"cert": certificate, "ca": authority.file if verify else None}
    more = json.dumps({"tls": {"caFile": str(authority.file)}})
    with NatsServer(config) as real, NatsServer() as behind:
        async with between(authority, "after INFO", behind, "plain", tls=tls) as one:

            async def error(port: int) -> str:
                arguments = (PROGRAM, f"nats://127.0.0.1:{port}", more)
                said = await trio.to_thread.run_sync(error_of_node, *arguments)
                return re.sub(rf"[0-9A-F]{{12,}}|\b{port}\b", "", said)  # a thread's number

            theirs = await error(real.port)
            while "ECONNRESET" in theirs:  # it closes with bytes unread: its alert may get lost
                theirs = await error(real.port)
            assert await error(one.address.port) == theirs
    assert says in theirs


@pytest.mark.parametrize("case", ["wrong name", "another CA", "expired"])
async def test_a_listener_that_the_client_refuses(
    authority: Authority, stranger: Authority, case: str
) -> None:
    """The client knows why, as with the server itself; its alert is the reason in the log."""
    certificate = {
        "wrong name": authority.server("other.example"),
        "another CA": stranger.server(),
        "expired": authority.server(expired=True),
    }[case]
    context = authority.client_context()
    with NatsServer(authority.server_config("", certificate)) as real, NatsServer() as plain:
        async with between(authority, "after INFO", plain, "plain", tls={"cert": certificate}) as one:
            expected = await converse(real.port, context)
            assert await converse(one.address.port, context) == expected == "CERTIFICATE_VERIFY_FAILED"
            closed = await one.closed()
    assert closed.cause == close_reasons.CLIENT_PROTOCOL
    assert closed.detail.startswith("TLS handshake: the peer refused: ")


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("wrong name", "certificate is not valid for '127.0.0.1'"),
        ("another CA", "the peer's certificate was refused: unable to get local issuer certificate"),
        ("expired", "the peer's certificate was refused: certificate has expired"),
    ],
)
@pytest.mark.parametrize("leg", ["after INFO", "before INFO"])
async def test_a_server_that_we_refuse(
    authority: Authority, stranger: Authority, case: str, reason: str, leg: str
) -> None:
    """The upstream cannot be used: nothing goes to it, and its client is closed."""
    certificate = {
        "wrong name": authority.server("other.example"),
        "another CA": stranger.server(),
        "expired": authority.server(expired=True),
    }[case]
    first = "handshake_first: true" if leg == "before INFO" else ""
    with NatsServer(authority.server_config(first, certificate)) as server:
        async with between(authority, "plain", server, leg) as one:
            stream = await trio.open_tcp_stream("127.0.0.1", one.address.port)
            assert await read_to_end(stream) == b""
            assert (await one.closed()).cause == close_reasons.UPSTREAM_DOWN
            assert any(reason in text for text in one.warnings)


@pytest.mark.parametrize("leg", ["after INFO", "before INFO"])
async def test_a_server_that_refuses_us(authority: Authority, stranger: Authority, leg: str) -> None:
    """Under TLS 1.3 its refusal comes after our side of the handshake: it is the reason all the same."""
    first = "handshake_first: true, " if leg == "before INFO" else ""
    ours = {"cert": stranger.client()}
    with NatsServer(authority.server_config(f"{first} verify: true")) as server:
        async with between(authority, "plain", server, leg, upstream_tls=ours) as one:
            stream = await trio.open_tcp_stream("127.0.0.1", one.address.port)
            with suppress(trio.BrokenResourceError):
                await stream.send_all(CONNECT)
            got = await read_to_end(stream)
            closed = await one.closed()
            assert got == b""
            assert closed.cause == close_reasons.UPSTREAM_DOWN
            assert any("TLS: the peer refused: " in text for text in one.warnings), one.warnings


@pytest.mark.parametrize("leg", ["after INFO", "before INFO"])
async def test_plain_text_where_tls_should_begin(authority: Authority, leg: str) -> None:
    """The client sees what a real server shows it: INFO or nothing, and the end."""
    first = "handshake_first: true" if leg == "before INFO" else ""
    with NatsServer(authority.server_config(first)) as real, NatsServer() as plain:
        async with between(authority, leg, plain, "plain") as one:
            got = []
            for port in (real.port, one.address.port):
                stream = await trio.open_tcp_stream("127.0.0.1", port)
                head = b"" if first else await first_line(stream)
                await stream.send_all(CONNECT)
                got.append((head[:5], await read_to_end(stream)))
            assert got[0] == got[1] == (b"" if first else b"INFO ", b"")
            closed = await one.closed()
    assert closed.detail == "TLS handshake: the peer speaks no TLS"
    assert closed.cause == close_reasons.CLIENT_PROTOCOL


@pytest.mark.parametrize("users", ["", 'authorization { user: "u", password: "hunter2hunter2" }'])
async def test_tls_on_a_plain_listener(authority: Authority, users: str) -> None:
    """The client sees what a real server shows it; the reason in the log names the remedy."""
    context, hello = authority.client_context(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), hello, server_hostname="127.0.0.1").do_handshake()
    sent, said = hello.read(), []
    with NatsServer(users) as plain:
        async with between(authority, "plain", plain, "plain") as one:
            expected = await converse(plain.port, context)
            assert await converse(one.address.port, context) == expected == "WRONG_VERSION_NUMBER"
            closed = await one.closed()
            for port in (plain.port, one.address.port):
                stream = await trio.open_tcp_stream("127.0.0.1", port)
                await first_line(stream)
                await stream.send_all(sent)
                said.append(await read_to_end(stream))
    error = b"Authorization Violation" if users else b"Unknown Protocol Operation"
    assert said[0] == said[1] == b"-ERR '%b'\r\n" % error
    assert closed.cause == close_reasons.CLIENT_PROTOCOL
    assert "a TLS ClientHello: the listener is a plain one" in closed.detail


async def test_an_upstream_that_has_no_tls(authority: Authority) -> None:
    """tls:// means TLS: without it nothing is sent."""
    with NatsServer() as plain:
        for leg, reason in (("after INFO", "does not offer TLS"), ("before INFO", "the peer speaks no TLS")):
            async with between(authority, "plain", plain, leg) as one:
                stream = await trio.open_tcp_stream("127.0.0.1", one.address.port)
                assert await read_to_end(stream) == b""
                assert any(reason in text for text in one.warnings)


@pytest.mark.parametrize("leg", ["after INFO", "before INFO"])
@pytest.mark.parametrize("sent", [b"", b"\x16", b"\x16\x03\x01\x00\xc8\x01\x00"])
async def test_a_client_that_stalls_in_its_handshake(authority: Authority, leg: str, sent: bytes) -> None:
    """It is closed at the time-out, without a word, as by the server."""
    first = ", handshake_first: true" if leg == "before INFO" else ""
    with NatsServer(authority.server_config("timeout: 0.1" + first)) as real, NatsServer() as plain:
        async with between(authority, leg, plain, "plain", tls={"timeout": 100 * MS}) as one:
            for port in (real.port, one.address.port):
                stream = await trio.open_tcp_stream("127.0.0.1", port)
                if leg == "after INFO":
                    assert (await first_line(stream)).startswith(b"INFO ")
                await stream.send_all(sent or b"")
                assert await read_to_end(stream) == b""
            closed = await one.closed()
    assert closed.detail == "TLS handshake: not completed in 100ms"


@pytest.mark.parametrize("leg", ["after INFO", "before INFO"])
async def test_a_server_that_stalls_in_its_handshake(authority: Authority, leg: str) -> None:
    """The attempt ends with the time to connect, and its reason is TLS."""

    async def serve(stream: trio.SocketStream) -> None:
        if leg == "after INFO":
            await stream.send_all(b'INFO {"tls_required":true,"headers":true,"proto":1} \r\n')
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        port = listener.socket.getsockname()[1]
        made = replace(settings(authority, "plain", leg, port), connect_timeout=100 * MS)
        async with running(made) as one:
            client = await trio.open_tcp_stream("127.0.0.1", one.address.port)
            assert await read_to_end(client) == b""
            (text,) = one.warnings
        nursery.cancel_scope.cancel()
    assert "did not complete the TLS handshake in 100ms" in text


async def test_a_server_with_too_many_connections(authority: Authority) -> None:
    """It says so in plain text, after INFO: that is the reason, and no password goes there."""
    with NatsServer(authority.server_config() + "max_connections: 1\n") as server:
        async with between(authority, "plain", server, "after INFO") as one:
            held = await trio.open_tcp_stream("127.0.0.1", one.address.port)
            await first_line(held)
            await held.send_all(CONNECT)
            stream = await trio.open_tcp_stream("127.0.0.1", one.address.port)
            await read_to_end(stream)
            assert any("maximum connections exceeded" in text for text in one.warnings)
            await held.aclose()


async def test_a_stream_that_is_cut_off(authority: Authority) -> None:
    """An end without close_notify is a lost connection; one with it is a closed one."""
    with NatsServer() as plain:
        for notify, cause in ((False, close_reasons.CLIENT_LOST), (True, close_reasons.CLIENT_CLOSED)):
            async with between(authority, "after INFO", plain, "plain") as one:
                stream = await connected(one, authority, notify=notify)
                await stream.send_all(CONNECT)
                assert await stream.receive_some()
                if notify:
                    await stream.aclose()
                else:
                    await stream.transport_stream.aclose()
                assert (await one.closed()).cause == cause


async def connected(
    one: Running, authority: Authority, *, notify: bool = True
) -> trio.SSLStream[trio.SocketStream]:
    """Return a client's stream after the upgrade."""
    plain = await trio.open_tcp_stream("127.0.0.1", one.address.port)
    await first_line(plain)
    context = authority.client_context()
    stream = trio.SSLStream(plain, context, server_hostname="127.0.0.1", https_compatible=not notify)
    await stream.do_handshake()
    return stream


async def test_a_client_that_only_looks_is_a_probe(authority: Authority) -> None:
    """It has said nothing: a load balancer that checks the port must not fill the log."""
    with NatsServer() as plain:
        async with between(authority, "after INFO", plain, "plain") as one:
            stream = await trio.open_tcp_stream("127.0.0.1", one.address.port)
            await first_line(stream)
            await stream.aclose()
            closed = await one.closed()
    assert (closed.cause, closed.c2s_bytes, closed.detail) == (close_reasons.CLIENT_CLOSED, 0, "")


async def test_nothing_of_a_handshake_or_a_key_is_in_a_log_or_a_capture(
    authority: Authority, tmp_path: Path
) -> None:
    """A capture has the traffic as it is inside of TLS, without its secrets."""
    with NatsServer('authorization { user: "u", password: "hunter2hunter2" }') as plain:
        made = settings(authority, "after INFO", "plain", plain.port)
        async with running(made, tmp_path / "x.ncap") as one:
            stream = await connected(one, authority)
            await stream.send_all(CONNECT + b"PUB secret.subject 5\r\nhello\r\n")
            assert await stream.receive_some()
            await stream.aclose()
            await one.closed()
            said = repr(one.events)
    raw = (tmp_path / "x.ncap").read_bytes()
    ops = {frame.data.split()[0] for frame in read_frames(open_capture(tmp_path / "x.ncap"))}
    assert ops == {b"INFO", b"CONNECT", b"PING", b"PUB", b"PONG"}
    assert b"PUB secret.subject 5" in raw
    for secret in (b"hunter2", b"PRIVATE KEY", bytes(str(authority.server()), "ascii"), b"\x16\x03\x01"):
        assert secret not in raw
        assert secret.decode("latin-1") not in said


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"cert": "missing"}, "cannot read tls-cert: No such file"),
        ({"key": "missing"}, "cannot read tls-key: No such file"),
        ({"key": "other"}, "tls-key does not belong to tls-cert"),
        ({"cert": "text"}, "must be a certificate and its key"),
        ({"ca": "text"}, "tls-ca must be a file of certificates"),
        ({"ciphers": "NONSENSE"}, "tls-ciphers names no cipher"),
    ],
)
async def test_files_that_cannot_be_used(
    authority: Authority, stranger: Authority, tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    """The error names the setting; at a reload the old certificates stay."""
    (tmp_path / "text").write_text("nothing of the kind")
    files = {"missing": tmp_path / "missing", "other": stranger.server(), "text": tmp_path / "text"}
    change = {name: files.get(value, value) for name, value in change.items()}
    with pytest.raises(ConfigError) as failed:
        for_client_legs(replace(TlsSettings(cert=authority.server()), **change))
    assert reason in str(failed.value)
    assert str(tmp_path) not in str(failed.value)


async def test_certificates_are_read_anew(authority: Authority, stranger: Authority, tmp_path: Path) -> None:
    """For new connections; a bad file changes nothing, and open connections go on."""
    path = tmp_path / "cert.pem"
    path.write_bytes(authority.server().read_bytes())
    with NatsServer() as plain:
        async with between(authority, "after INFO", plain, "plain", tls={"cert": path}) as one:
            before = await connected(one, authority)
            path.write_text("half a file")
            with pytest.raises(ConfigError):
                one.proxy.load_certificates()
            await (await connected(one, authority)).aclose()
            path.write_bytes(stranger.server().read_bytes())
            assert one.proxy.load_certificates()
            await (await connected(one, stranger)).aclose()
            await before.send_all(CONNECT)
            assert await before.receive_some() == b"PONG\r\n"
            await before.aclose()


async def test_the_subject_of_a_clients_certificate_is_known(authority: Authority) -> None:
    """As nats-server writes it, whenever the handshake comes."""
    context = authority.client_context(authority.client("ann"))
    for leg in ("after INFO", "before INFO"):
        with NatsServer() as plain:
            async with between(authority, leg, plain, "plain", tls={"ca": authority.file}) as one:
                stream = await trio.open_tcp_stream("127.0.0.1", one.address.port)
                if leg == "after INFO":
                    await first_line(stream)
                secured = trio.SSLStream(stream, context, server_hostname="127.0.0.1")
                await secured.send_all(CONNECT)
                assert await secured.receive_some()
                await secured.aclose()
                closed = await one.closed()
        assert closed.who.tls_subject.startswith("CN=ann,")


async def test_a_client_too_many(authority: Authority) -> None:
    """It gets INFO and the reason in plain text, as from the server: there was no time for a handshake."""
    config = authority.server_config() + "max_connections: 1\n"
    with NatsServer(config) as real, NatsServer() as plain:
        made = replace(settings(authority, "after INFO", "plain", plain.port), max_connections=1)
        async with running(made) as one:
            said = []
            for port in (real.port, one.address.port):
                held = await trio.open_tcp_stream("127.0.0.1", port)
                secured = trio.SSLStream(held, authority.client_context(), server_hostname="127.0.0.1")
                assert (await first_line(held)).startswith(b"INFO ")
                await secured.send_all(CONNECT)
                assert await secured.receive_some()
                stream = await trio.open_tcp_stream("127.0.0.1", port)
                said.append((await read_to_end(stream)).split(b"\r\n")[1:])
                await held.aclose()
            assert said[0] == said[1] == [b"-ERR 'maximum connections exceeded'", b""]
