"""When certificates expire: of files, of servers, and in /metrics."""

from __future__ import annotations

import socket
import ssl
from datetime import UTC, datetime
from pathlib import Path
from urllib.request import urlopen

import pytest
import trustme

from natsproxy.net.certificates import expiry, file_expiry
from tests.kit.authority import Authority
from tests.kit.process import ProxyProcess
from tests.kit.servers import NatsServer

AUTHORITY_ENDS = int(datetime(2001, 1, 1, tzinfo=UTC).timestamp())


def told(pem: Path) -> int:
    """Return what OpenSSL says of the first certificate of a file."""
    decoded = ssl._ssl._test_decode_cert(str(pem))  # type: ignore[attr-defined]
    return int(ssl.cert_time_to_seconds(decoded["notAfter"]))


def test_a_file_expires_with_the_first_of_its_certificates(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    good, old = authority.server(), authority.server(expired=True)
    assert file_expiry(good) == told(good)
    assert file_expiry(old) == told(old) == AUTHORITY_ENDS
    both = tmp_path / "both.pem"
    both.write_text(good.read_text() + old.read_text())
    assert file_expiry(both) == AUTHORITY_ENDS
    both.write_text("nothing")
    assert file_expiry(both) is None


def test_times_have_two_forms_and_bytes_may_be_no_certificate() -> None:
    late = datetime(2060, 2, 3, 4, 5, 6, tzinfo=UTC)
    made = trustme.CA().issue_cert("a", not_before=datetime(2000, 1, 1, tzinfo=UTC), not_after=late)
    der = ssl.PEM_cert_to_DER_cert(made.cert_chain_pems[0].bytes().decode())
    assert expiry(der) == int(late.timestamp())
    assert {expiry(der[:size]) for size in range(len(der))} == {None}
    for place in range(200):
        expiry(der[:place] + b"\xff" + der[place + 1 :])  # raises nothing


@pytest.mark.server
def test_metrics_have_the_certificates_of_the_proxy_and_of_its_servers(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    mine, theirs = authority.server("127.0.0.1"), authority.server("localhost", "127.0.0.1")
    options = ["--listen", "tls://127.0.0.1:0", "--tls-cert", str(mine), "--monitor", "127.0.0.1:0"]
    options += ["--upstream-tls-ca", str(authority.file)]
    with (
        NatsServer(config=authority.server_config(certificate=theirs)) as server,
        ProxyProcess(f"tls://localhost:{server.port}", *options) as proxy,
    ):
        with socket.create_connection(("127.0.0.1", proxy.port), 10) as client:
            assert client.recv(4) == b"INFO"  # so there was a server
        monitor = proxy.wait_for(lambda line: line["event"] == "monitor listens")["url"]
        with urlopen(f"{monitor}/metrics", timeout=10) as answer:
            text = answer.read().decode()
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    found = {name: float(value) for name, _, value in lines}
    assert found['natsproxy_certificate_expiry_seconds{certificate="tls-cert"}'] == told(mine)
    (server_expiry,) = (
        value for name, value in found.items() if name.startswith("natsproxy_server_certificate_expiry")
    )
    assert server_expiry == told(theirs)
