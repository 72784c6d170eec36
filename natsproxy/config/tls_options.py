"""The options of TLS, on both legs: rows of the table in `options.py`, with nats-server's words."""

from __future__ import annotations

from typing import Any, Final

from natsproxy.config.option import duration, host, path, secret_file
from natsproxy.config.row import Option
from natsproxy.config.settings import AUTO_FALLBACK, HandshakeFirst
from natsproxy.rules.file import values


def handshake_first(value: Any) -> HandshakeFirst | None:
    """Return the meaning of off, on, auto or a duration; None for off."""
    if isinstance(value, bool):
        return HandshakeFirst() if value else None
    words = {"off": None, "on": HandshakeFirst(), "auto": HandshakeFirst(AUTO_FALLBACK)}
    if value in words:
        return words[value]
    fallback = duration(value)
    if not fallback:
        raise ValueError("must be off, on, auto or a duration above zero")
    return HandshakeFirst(fallback)


TLS_OPTIONS: Final = (
    Option(
        "tls-cert",
        secret_file,
        None,
        "The certificate (chain) of tls:// listeners, PEM.",
        metavar="FILE",
        secret=True,
    ),
    Option(
        "tls-key",
        secret_file,
        None,
        "Its private key; without it, in the same file.",
        metavar="FILE",
        secret=True,
    ),
    Option("tls-ca", path, None, "Clients must have a certificate that this CA signed.", metavar="FILE"),
    Option(
        "tls-handshake-first",
        handshake_first,
        "off",
        "Expect TLS before INFO; auto (50ms) or a duration: INFO goes first to clients that wait so long.",
        metavar="off|on|auto|DURATION",
    ),
    Option("tls-timeout", duration, "2s", "The longest TLS handshake of a client.", metavar="DURATION"),
    Option(
        "tls-min-version",
        values.one_of("1.2", "1.3"),
        "1.2",
        "The lowest version of TLS, on both legs.",
        metavar="1.2|1.3",
    ),
    Option(
        "tls-ciphers",
        values.line,
        None,
        "The ciphers of TLS 1.2 on both legs, as OpenSSL writes them.",
        metavar="LIST",
    ),
    Option(
        "allow-non-tls",
        values.boolean,
        False,
        "Clients of tls:// listeners may do without TLS, as nats-server's allow_non_tls.",
    ),
    Option("upstream-tls-ca", path, None, "The CA of servers; without it, the system's.", metavar="FILE"),
    Option(
        "upstream-tls-cert",
        secret_file,
        None,
        "Our certificate for servers that want one.",
        metavar="FILE",
        secret=True,
    ),
    Option(
        "upstream-tls-key",
        secret_file,
        None,
        "Its private key; without it, in the same file.",
        metavar="FILE",
        secret=True,
    ),
    Option(
        "upstream-tls-name",
        host,
        None,
        "The name in the server's certificate; without it, the upstream's host.",
        metavar="HOST",
    ),
    Option("upstream-tls-handshake-first", values.boolean, False, "TLS before INFO, with tls:// servers."),
    Option("upstream-tls-insecure", values.boolean, False, "Trust any server: for tests."),
)
