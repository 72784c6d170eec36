"""`natsproxy cert`: a CA and certificates for trying out TLS, made by trustme."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from natsproxy.errors import ConfigError

if TYPE_CHECKING:
    from trustme import LeafCert

_NAMES: Final = ("localhost", "127.0.0.1", "::1")
_MISSING: Final = "certificates are made by trustme: pip install 'natsproxy[cert]'"


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="HOST",
    help="A host name or address of the server.  (repeatable)",
)
@click.option("--client", default="client", metavar="NAME", help="The client's name.  [client]")
def cert(folder: Path, names: tuple[str, ...], client: str) -> None:
    """Make a CA and certificates for trying out TLS.

    Writes ca.pem, server.pem, client.pem and the keys server-key.pem and client-key.pem.  The CA's own key is
    not kept.  Without --name the server is localhost.

    \b
    natsproxy cert certs
    natsproxy cert certs --name nats.example.com --name 10.0.0.7 --client ann
    """
    try:
        import trustme
    except ImportError:
        raise ConfigError(_MISSING) from None
    ca = trustme.CA(organization_name="natsproxy cert", organization_unit_name="for trying out")
    try:
        server = ca.issue_cert(*(names or _NAMES), common_name=(names or _NAMES)[0])
        user = ca.issue_cert(f"{client}@localhost", common_name=client)
    except ValueError as error:
        raise ConfigError(f"a name is not valid in a certificate: {error}") from None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder / "ca.pem", [ca.cert_pem.bytes()], secret=False)
        for title, made in (("server", server), ("client", user)):
            _write_both(folder, title, made)
    except OSError as error:
        raise ConfigError(f"cannot write {error.filename}: {error.strerror}") from None


def _write_both(folder: Path, title: str, made: LeafCert) -> None:
    chain = [part.bytes() for part in made.cert_chain_pems]
    _write(folder / f"{title}.pem", chain, secret=False)
    _write(folder / f"{title}-key.pem", [made.private_key_pem.bytes()], secret=True)


def _write(path: Path, parts: list[bytes], *, secret: bool) -> None:
    """Write a new file, and print its name; a file that exists may be in use, and stays."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644)
    with os.fdopen(fd, "wb") as file:
        file.write(b"".join(parts))
    click.echo(path)
