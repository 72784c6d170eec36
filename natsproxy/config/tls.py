"""The settings of TLS, on both legs, with nats-server's words.

Light: the pytest plugin imports it in every run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from natsproxy import converters
from natsproxy.config.endpoints import Listener, Server
from natsproxy.option import DURATION, FILE, FLAG, HOST, ValueType, optional, setting, words
from natsproxy.protocol.secret_files import SECRET_FILE
from natsproxy.units import MILLISECOND, format_duration

AUTO_FALLBACK: Final = 50 * MILLISECOND
"""The fallback delay of `handshake_first: auto`."""


@dataclass(frozen=True, slots=True)
class HandshakeFirst:
    """TLS before INFO.  fallback: the time (ns) after which INFO goes to a silent client; 0 for never."""

    fallback: int = 0

    def __str__(self) -> str:
        return format_duration(self.fallback) if self.fallback else "on"


def _handshake_first(value: Any) -> HandshakeFirst | None:
    """Return the meaning of off, on, auto or a duration; None for off."""
    if isinstance(value, bool):
        return HandshakeFirst() if value else None
    meanings = {"off": None, "on": HandshakeFirst(), "auto": HandshakeFirst(AUTO_FALLBACK)}
    if value in meanings:
        return meanings[value]
    fallback = converters.duration_or_seconds(value)
    if not fallback:
        raise ValueError("must be off, on, auto or a duration above zero")
    return HandshakeFirst(fallback)


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """The settings of TLS with clients; `min_version` and `ciphers` are for both legs.

    ca: of the certificates that clients must have; None where they need none.  handshake_first: None for TLS
    after INFO.  timeout: of a client's handshake (ns).
    """

    cert: Path | None = optional(SECRET_FILE, "Certificate (chain) of tls:// listeners, PEM.")
    key: Path | None = optional(SECRET_FILE, "Its private key; default: in the same file.")
    ca: Path | None = optional(FILE, "Require client certificates that this CA signed.")
    handshake_first: HandshakeFirst | None = setting(
        ValueType(_handshake_first, "off|on|auto|DURATION"),
        "off",
        "TLS before INFO; auto (50ms) or a duration: a client that is silent for so long gets INFO first.",
    )
    timeout: int = setting(DURATION, "2s", "Timeout for a client's TLS handshake.")
    min_version: str = setting(words("1.2", "1.3"), "1.2", "Minimum TLS version, on both legs.")
    ciphers: str | None = optional(
        ValueType(converters.line, "LIST"), "Cipher list of TLS 1.2, on both legs, in OpenSSL's format."
    )
    allow_non_tls: bool = setting(
        FLAG,
        False,
        "Accept clients without TLS on tls:// listeners, as nats-server's allow_non_tls.",
        name="allow-non-tls",
    )


@dataclass(frozen=True, slots=True)
class UpstreamTls:
    """The settings of TLS with servers."""

    ca: Path | None = optional(FILE, "CA of the servers' certificates; default: the system's.")
    cert: Path | None = optional(SECRET_FILE, "Client certificate for servers that require one, PEM.")
    key: Path | None = optional(SECRET_FILE, "Its private key; default: in the same file.")
    name: str | None = optional(
        HOST, "Name expected in the server's certificate; default: the upstream's host."
    )
    handshake_first: bool = setting(FLAG, False, "TLS handshake before INFO, with tls:// servers.")
    insecure: bool = setting(FLAG, False, "Do not verify server certificates: for tests only.")


def wrong_tls(
    tls: TlsSettings, upstream_tls: UpstreamTls, listen: Sequence[Listener], upstream: Sequence[Server]
) -> Iterator[str]:
    """Yield a sentence for a missing certificate, and for each setting that would have no effect."""
    listens = any(listener.tls for listener in listen)
    if listens and tls.cert is None:
        yield "tls-cert is missing: a tls:// listener needs a certificate"
    if not listens and any(file is not None for file in (tls.cert, tls.key, tls.ca)):
        yield "tls-cert, tls-key and tls-ca need a tls:// listener, and there is none"
    if tls.allow_non_tls and not any(listener.scheme == "tls" for listener in listen):
        yield "allow-non-tls needs a tls:// listener, and there is none"
    if tls.allow_non_tls and tls.handshake_first == HandshakeFirst():
        yield "allow-non-tls needs INFO first: set tls-handshake-first to off, auto or a duration"
    if upstream_tls.key is not None and upstream_tls.cert is None:
        yield "upstream-tls-key is given without upstream-tls-cert"
    if upstream_tls.handshake_first and not all(server.tls for server in upstream):
        yield "upstream-tls-handshake-first is for tls:// servers only"
