"""The version, the cipher and the name that each leg agrees on: settings take effect."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from threading import Thread
from typing import Any

import pytest
import trio

from natsproxy import close_reasons
from natsproxy.addresses import Address
from natsproxy.config.endpoints import Server
from natsproxy.config.settings import ProxySettings
from tests.kit.authority import Authority
from tests.kit.servers import NatsServer
from tests.net.tls.legs import between, running, settings
from tests.net.tls.test_failures import CONNECT, TLS12, TLS13, first_line

WEAK, STRONG = "ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384"
INFO = b'INFO {"server_id":"S","tls_required":true,"headers":true,"proto":1,"max_payload":1048576} \r\n'


def narrowed(context: ssl.SSLContext, offer: ssl.TLSVersion | str) -> ssl.SSLContext:
    """Let a context offer one version, or one cipher of TLS 1.2."""
    version = offer if isinstance(offer, ssl.TLSVersion) else TLS12
    context.minimum_version = context.maximum_version = version
    if isinstance(offer, str):
        context.set_ciphers(offer)
    return context


def agreed(port: int, context: ssl.SSLContext) -> tuple[str, str] | str:
    """Return the version and the cipher that a listener agrees to, or why there are none."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as plain:
        while plain.recv(1) != b"\n":
            pass
        try:
            with context.wrap_socket(plain, server_hostname="127.0.0.1") as secured:
                return secured.version() or "", (secured.cipher() or ("",))[0]
        except ssl.SSLError as error:
            return error.reason or str(error)


@pytest.mark.server
@pytest.mark.parametrize(
    ("change", "offer", "expected"),
    [
        ({"min_version": "1.2"}, TLS12, "TLSv1.2"),
        ({"min_version": "1.3"}, TLS12, "protocol version"),
        ({"min_version": "1.3"}, TLS13, "TLSv1.3"),
        ({"ciphers": WEAK}, WEAK, WEAK),
        ({"ciphers": WEAK}, f"{STRONG}:{WEAK}", WEAK),
        ({"ciphers": WEAK}, STRONG, "handshake failure"),
        ({}, STRONG, STRONG),
    ],
)
async def test_the_client_leg(
    authority: Authority, change: dict[str, Any], offer: ssl.TLSVersion | str, expected: str
) -> None:
    """A client that offers nothing that the listener takes is refused, and the log says so."""
    context = narrowed(authority.client_context(), offer)
    with NatsServer() as plain:
        async with between(authority, "after INFO", plain, "plain", tls=change) as one:
            found = await trio.to_thread.run_sync(agreed, one.address.port, context)
            closed = await one.closed()
    if isinstance(found, tuple):
        assert expected in found
        return
    assert expected in found.lower().replace("_", " ")
    assert closed.cause == close_reasons.CLIENT_PROTOCOL
    assert closed.detail.startswith("TLS handshake: ")


class TlsServer:
    """A server of Python's ssl.  names: those that clients asked for.  agreed: the version and the cipher."""

    def __init__(self, authority: Authority, offer: ssl.TLSVersion | str, *, first: bool = False) -> None:
        self.names: list[str | None] = []
        self.agreed: list[tuple[str, str]] = []
        self._first = first
        self._context = narrowed(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), offer)
        self._context.load_cert_chain(authority.server("localhost", "127.0.0.1", "nats.example"))
        self._context.sni_callback = lambda _, name, context: self.names.append(name)

    @contextmanager
    def listening(self) -> Iterator[int]:
        """Listen; give the port."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            thread = Thread(target=self._accept, args=(listener,))
            thread.start()
            try:
                yield listener.getsockname()[1]
            finally:
                listener.shutdown(socket.SHUT_RDWR)
                thread.join()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):  # the end of the test
            while True:
                plain, _ = listener.accept()
                with plain, suppress(OSError):  # the proxy refuses, or is refused
                    plain.settimeout(20)
                    self._serve(plain)

    def _serve(self, plain: socket.socket) -> None:
        """Greet, and answer what the tests ask."""
        if not self._first:
            plain.sendall(INFO)
        with self._context.wrap_socket(plain, server_side=True) as secured:
            self.agreed.append((secured.version() or "", (secured.cipher() or ("",))[0]))
            if self._first:
                secured.sendall(INFO)
            while (data := secured.recv(65_536)) and b"PING" not in data:
                pass
            secured.sendall(b"PONG\r\n")


async def answer(made: ProxySettings) -> tuple[bytes, list[str]]:
    """Return what a client gets after its CONNECT, b"" without a server, and the warnings of the proxy."""
    async with running(made) as one:
        stream = await trio.open_tcp_stream("127.0.0.1", one.address.port)
        with trio.fail_after(20):
            async with stream:
                if not await stream.receive_some(1):
                    return b"", one.warnings
                await first_line(stream)
                await stream.send_all(CONNECT)
                return await stream.receive_some(), one.warnings


@pytest.mark.parametrize("leg", ["after INFO", "before INFO"])
@pytest.mark.parametrize(
    ("change", "offer", "expected"),
    [
        ({"min_version": "1.2"}, TLS12, "TLSv1.2"),
        ({"min_version": "1.3"}, TLS12, "protocol version"),
        ({"ciphers": WEAK}, WEAK, WEAK),
        ({"ciphers": WEAK}, f"{STRONG}:{WEAK}", WEAK),
        ({"ciphers": WEAK}, STRONG, "handshake failure"),
    ],
)
async def test_the_server_leg(
    authority: Authority, leg: str, change: dict[str, Any], offer: ssl.TLSVersion | str, expected: str
) -> None:
    """A server that has nothing that we take gets nothing, and the log says why."""
    server = TlsServer(authority, offer, first=leg == "before INFO")
    with server.listening() as port:
        made = settings(authority, "plain", leg, port)
        got, warnings = await answer(replace(made, tls=replace(made.tls, **change)))
    if server.agreed:
        assert got == b"PONG\r\n"
        assert expected in server.agreed[0]
        return
    assert got == b""
    (text,) = warnings
    assert expected in text


@pytest.mark.parametrize("leg", ["after INFO", "before INFO"])
@pytest.mark.parametrize(
    ("host", "of_cluster", "setting", "expected"),
    [
        ("localhost", "", None, "localhost"),
        ("127.0.0.1", "", None, None),  # an IP address is no name: RFC 6066
        ("127.0.0.1", "localhost", None, "localhost"),
        ("localhost", "", "nats.example", "nats.example"),
    ],
)
async def test_the_name_that_a_server_is_asked_for(
    authority: Authority, leg: str, host: str, of_cluster: str, setting: str | None, expected: str | None
) -> None:
    """A server behind a router of names needs it (SNI)."""
    server = TlsServer(authority, TLS13, first=leg == "before INFO")
    with server.listening() as port:
        made = settings(authority, "plain", leg, port)
        upstream = (Server(Address(host, port), "tls", of_cluster),)
        tls = replace(made.upstream_tls, name=setting)
        got, _ = await answer(replace(made, upstream=upstream, upstream_tls=tls))
    assert got == b"PONG\r\n"
    assert server.names == [expected]
