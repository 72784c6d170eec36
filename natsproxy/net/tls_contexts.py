"""The TLS contexts of a proxy: certificates, keys and CAs, as the settings name them.

A connection uses the context that is current when it is set up.  `load` reads the files again, and changes
nothing if one of them is bad.  Errors name settings, never the file of a key.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final

from natsproxy.config.settings import ProxySettings
from natsproxy.config.tls import TlsSettings, UpstreamTls
from natsproxy.errors import ConfigError
from natsproxy.net.certificates import file_expiry

_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


class TlsContexts:
    """The contexts of both legs.  Raises ConfigError for files that cannot be used.

    expiries: when the certificates expire that we show (Unix seconds), by their settings.
    """

    def __init__(self, settings: ProxySettings) -> None:
        self._settings = settings
        self._client_leg: ssl.SSLContext | None = None
        self._server_leg: ssl.SSLContext | None = None
        self.expiries: dict[str, int] = {}
        self.load()

    @property
    def configured(self) -> bool:
        """True if there are files to read."""
        return self._settings.tls.cert is not None or self._settings.upstream_tls != UpstreamTls()

    def load(self) -> None:
        """Read all files.  Raises ConfigError, and keeps the current contexts."""
        client_leg = for_client_legs(self._settings.tls) if self._settings.tls.cert is not None else None
        if self._settings.upstream_tls != UpstreamTls() or self._server_leg is not None:
            self._server_leg = for_server_legs(self._settings)
        self._client_leg = client_leg
        shown = {"tls-cert": self._settings.tls.cert, "upstream-tls-cert": self._settings.upstream_tls.cert}
        found = {name: file_expiry(path) for name, path in shown.items() if path is not None}
        self.expiries = {name: time for name, time in found.items() if time is not None}

    @property
    def client_leg(self) -> ssl.SSLContext:
        """The context of tls:// listeners."""
        assert self._client_leg is not None  # the settings were checked
        return self._client_leg

    @property
    def server_leg(self) -> ssl.SSLContext:
        """The context for servers; it is made when it is needed, since the CAs of a system are many."""
        if self._server_leg is None:
            self._server_leg = for_server_legs(self._settings)
        return self._server_leg


def for_client_legs(settings: TlsSettings) -> ssl.SSLContext:
    """Return the context of tls:// listeners.  Raises ConfigError."""
    context = _context(ssl.PROTOCOL_TLS_SERVER, settings)
    context.num_tickets = 0  # NATS clients do not resume sessions, and each ticket costs a write
    context.options |= ssl.OP_NO_TICKET
    _load_chain(context, settings.cert, settings.key, "tls")
    if settings.ca is not None:
        _load_ca(context, settings.ca, "tls-ca")
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def for_server_legs(settings: ProxySettings) -> ssl.SSLContext:
    """Return the context for servers.  Raises ConfigError."""
    upstream = settings.upstream_tls
    context = _context(ssl.PROTOCOL_TLS_CLIENT, settings.tls)
    if upstream.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif upstream.ca is not None:
        _load_ca(context, upstream.ca, "upstream-tls-ca")
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    _load_chain(context, upstream.cert, upstream.key, "upstream-tls")
    return context


def _context(protocol: ssl._SSLMethod, settings: TlsSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = _VERSIONS[settings.min_version]
    context.options |= ssl.OP_NO_RENEGOTIATION
    if settings.ciphers is not None:
        try:
            context.set_ciphers(settings.ciphers)
        except ssl.SSLError:
            raise ConfigError("tls-ciphers names no cipher that OpenSSL has: see `openssl ciphers`") from None
    return context


def _load_chain(context: ssl.SSLContext, cert: Path | None, key: Path | None, option: str) -> None:
    if cert is None:
        return
    for path, name in ((cert, f"{option}-cert"), (key, f"{option}-key")):
        if path is not None:
            _check_readable(path, name)
    try:
        context.load_cert_chain(cert, key, _no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(f"{option}-key does not belong to {option}-cert") from None
        raise ConfigError(f"{option}-cert and {option}-key must be a certificate and its key, PEM") from None


def _load_ca(context: ssl.SSLContext, path: Path, option: str) -> None:
    _check_readable(path, option)
    try:
        context.load_verify_locations(path)
        # As nats-server: an intermediate CA in the file is trusted by itself.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    except ssl.SSLError:
        raise ConfigError(f"{option} must be a file of certificates, PEM") from None


def _check_readable(path: Path, option: str) -> None:
    """Raise ConfigError for a file that cannot be read: the errors of OpenSSL do not say which one."""
    try:
        path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {option}: {error.strerror}") from None


def _no_password() -> str:
    raise ConfigError("a private key with a password cannot be used: nobody could enter it at a reload")
