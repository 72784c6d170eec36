"""SIGHUP and certificates: new ones for new connections, the old ones where the new are bad."""

from __future__ import annotations

import signal
import socket
import ssl
from pathlib import Path

import pytest

from tests.kit.authority import Authority
from tests.kit.process import ProxyProcess
from tests.kit.servers import NatsServer


def version(port: int, authority: Authority) -> str:
    """Return the version of TLS that a listener speaks, whose certificate the authority must have made."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as plain:
        while plain.recv(1) != b"\n":
            pass
        with authority.client_context().wrap_socket(plain, server_hostname="127.0.0.1") as secured:
            return secured.version() or ""


@pytest.mark.server
def test_certificates_are_read_anew(
    authority: Authority, stranger: Authority, tmp_path: Path, nats_server: NatsServer
) -> None:
    """The log says which of the two; neither it nor the settings' own errors name the key's file."""
    cert, key = tmp_path / "cert.pem", tmp_path / "hidden-key.pem"
    first, second = authority.server().read_bytes(), stranger.server().read_bytes()
    cert.write_bytes(first)
    key.write_bytes(first)
    options = ["--listen", "tls://127.0.0.1:0", "--tls-cert", str(cert), "--tls-key", str(key)]
    with ProxyProcess(nats_server.url, *options) as proxy:
        listening = proxy.wait_for(lambda line: line["event"] == "listening")
        port = int(listening["listen"][1].rpartition(":")[2])
        assert version(port, authority) == "TLSv1.3"
        key.write_text("half a key")
        proxy.process.send_signal(signal.SIGHUP)
        bad = proxy.wait_for(lambda line: line["event"] == "certificates not reloaded")
        assert "tls-key" in bad["reason"]
        assert version(port, authority) == "TLSv1.3"
        cert.write_bytes(second)
        key.write_bytes(second)
        proxy.process.send_signal(signal.SIGHUP)
        proxy.wait_for(lambda line: line["event"] == "certificates reloaded")
        assert version(port, stranger) == "TLSv1.3"
        with pytest.raises(ssl.SSLCertVerificationError):
            version(port, authority)
        log = proxy.log.read_text()
    assert "hidden-key" not in log
    assert "PRIVATE" not in log
