"""`natsproxy cert`: certificates that TLS accepts, and files that are not overwritten."""

from __future__ import annotations

import ssl
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from natsproxy.cli import main


def made(*arguments: str) -> tuple[int, str]:
    """Run the command; return its exit code and output."""
    done = CliRunner().invoke(main, ["cert", *arguments])
    return done.exit_code, done.output


@pytest.mark.parametrize(("names", "host"), [((), "127.0.0.1"), (("a.example", "10.0.0.7"), "a.example")])
def test_both_sides_trust_each_other(tmp_path: Path, names: tuple[str, ...], host: str) -> None:
    """The server under each of its names, and the client."""
    folder = tmp_path / "new" / "certs"
    code, output = made(
        str(folder), *(word for name in names for word in ("--name", name)), "--client", "ann"
    )
    assert code == 0
    assert sorted(output.split()) == sorted(str(path) for path in folder.iterdir())
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    for context, name in ((server, "server"), (client, "client")):
        context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}-key.pem")
    server.verify_mode = ssl.CERT_REQUIRED
    server.load_verify_locations(folder / "ca.pem")
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(back, there, server_hostname=host)
    other = server.wrap_bio(there, back, server_side=True)
    for side in (one, other, one, other):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    certificate = other.getpeercert()
    assert certificate is not None
    assert ((("commonName", "ann"),)) in certificate["subject"]


def test_keys_are_for_their_owner_only(tmp_path: Path) -> None:
    made(str(tmp_path))
    for path in tmp_path.glob("*-key.pem"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(list(tmp_path.glob("*-key.pem"))) == 2


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    """Another CA under the same name would break all that is in use."""
    assert made(str(tmp_path))[0] == 0
    before = (tmp_path / "ca.pem").read_bytes()
    code, output = made(str(tmp_path))
    assert (code, "File exists" in output) == (2, True)
    assert (tmp_path / "ca.pem").read_bytes() == before


def test_a_name_that_is_none(tmp_path: Path) -> None:
    code, output = made(str(tmp_path), "--name", "no good name")
    assert (code, "is not valid in a certificate" in output) == (2, True)
    assert list(tmp_path.iterdir()) == []
