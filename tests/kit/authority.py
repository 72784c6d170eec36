"""A CA with certificates for tests, as files."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import trustme


@dataclass
class Authority:
    """A CA of its own, and the folder for its files."""

    folder: Path
    ca: trustme.CA = field(default_factory=trustme.CA)

    @property
    def file(self) -> Path:
        """The CA's certificate."""
        path = self.folder / "ca.pem"
        if not path.exists():
            self.ca.cert_pem.write_to_path(path)
        return path

    def server(self, *names: str, expired: bool = False) -> Path:
        """Return a file with key and certificate of a server; by default of the loopback."""
        names = names or ("127.0.0.1", "localhost")
        return self._write(f"server-{names[0]}-{expired}", self.ca.issue_cert(*names, **_times(expired)))

    def client(self, name: str = "alice", *others: str, expired: bool = False) -> Path:
        """Return a file with key and certificate of a client, with the e-mail address NAME@example.com.

        others: more names.
        """
        made = self.ca.issue_cert(f"{name}@example.com", *others, common_name=name, **_times(expired))
        return self._write(f"client-{name}-{expired}-{len(others)}", made)

    def _write(self, name: str, made: trustme.LeafCert) -> Path:
        path = self.folder / f"{name}.pem"
        made.private_key_and_cert_chain_pem.write_to_path(path)
        return path

    def client_context(self, certificate: Path | None = None) -> ssl.SSLContext:
        """Return the context of a client that trusts this CA."""
        context = ssl.create_default_context(cafile=str(self.file))
        if certificate is not None:
            context.load_cert_chain(certificate)
        return context

    def server_config(self, more: str = "", certificate: Path | None = None) -> str:
        """Return the `tls` block of a nats-server."""
        path = certificate or self.server()
        return f'tls {{ cert_file: "{path}", key_file: "{path}", ca_file: "{self.file}", {more} }}\n'


def _times(expired: bool) -> dict[str, Any]:
    if not expired:
        return {}
    return {"not_before": datetime(2000, 1, 1, tzinfo=UTC), "not_after": datetime(2001, 1, 1, tzinfo=UTC)}
