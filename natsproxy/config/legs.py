"""The legs of a proxy: their addresses and their TLS, for `natsproxy run` and for playbacks and tests.

Those name the options of TLS as a configuration file does: `upstream_tls_ca = "ca.pem"`.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Final

from natsproxy.config.settings import (
    HandshakeFirst,
    Listener,
    ProxySettings,
    Server,
    TlsSettings,
    UpstreamTls,
)
from natsproxy.config.tls_options import TLS_OPTIONS
from natsproxy.errors import ConfigError

_BY_KEY: Final = {option.key: option for option in TLS_OPTIONS}
TLS_KEYS: Final = frozenset(_BY_KEY)
"""The names of the options of TLS, as a configuration file has them."""


def legs(
    given: Mapping[str, Any], *, listen: Listener | None = None, upstream: Server | None = None
) -> ProxySettings:
    """Return the settings of a proxy with these legs, and defaults for the rest.

    given: options of TLS by their names, unread.  upstream: None for a proxy whose server is known later.
    Raises ConfigError that names the option.
    """
    for key in given:
        if key not in _BY_KEY:
            near = difflib.get_close_matches(key, _BY_KEY, 1)
            hint = f"; did you mean {near[0]!r}?" if near else f": there are {', '.join(sorted(_BY_KEY))}"
            raise ConfigError(f"there is no option {key!r}{hint}")
    found: dict[str, Any] = {}
    for key, option in _BY_KEY.items():
        value = option.default if given.get(key) is None else given[key]
        try:
            found[key] = None if value is None else option.read(value)
        except ValueError as error:
            raise ConfigError(f"{key} {error}") from None
    listeners, servers = (listen or Listener(),), () if upstream is None else (upstream,)
    tls, upstream_tls = tls_settings({**found, "listen": listeners, "upstream": servers})
    return ProxySettings(listen=listeners, upstream=servers, tls=tls, upstream_tls=upstream_tls)


def tls_settings(o: Mapping[str, Any]) -> tuple[TlsSettings, UpstreamTls]:
    """Return the settings of TLS, of both legs, from typed option values by `Option.key`.

    Raises ConfigError for a missing certificate, and for settings that would have no effect.
    """
    _check(o)
    return TlsSettings(
        cert=o["tls_cert"],
        key=o["tls_key"],
        ca=o["tls_ca"],
        handshake_first=o["tls_handshake_first"],
        timeout=o["tls_timeout"],
        min_version=o["tls_min_version"],
        ciphers=o["tls_ciphers"],
        allow_non_tls=o["allow_non_tls"],
    ), UpstreamTls(
        cert=o["upstream_tls_cert"],
        key=o["upstream_tls_key"],
        ca=o["upstream_tls_ca"],
        name=o["upstream_tls_name"],
        handshake_first=o["upstream_tls_handshake_first"],
        insecure=o["upstream_tls_insecure"],
    )


def _check(o: Mapping[str, Any]) -> None:
    listens = any(listener.tls for listener in o["listen"])
    if listens and o["tls_cert"] is None:
        raise ConfigError("tls-cert is missing: a tls:// listener needs a certificate")
    if not listens and any(o[name] is not None for name in ("tls_cert", "tls_key", "tls_ca")):
        raise ConfigError("tls-cert, tls-key and tls-ca are for tls:// listeners, and there is none")
    if o["allow_non_tls"] and not any(listener.scheme == "tls" for listener in o["listen"]):
        raise ConfigError("allow-non-tls is for tls:// listeners, and there is none")
    if o["allow_non_tls"] and o["tls_handshake_first"] == HandshakeFirst():
        raise ConfigError("allow-non-tls needs INFO first: make tls-handshake-first off, auto or a duration")
    if o["upstream_tls_key"] is not None and o["upstream_tls_cert"] is None:
        raise ConfigError("upstream-tls-key is given without upstream-tls-cert")
    if o["upstream_tls_handshake_first"] and not all(server.tls for server in o["upstream"]):
        raise ConfigError("upstream-tls-handshake-first is for tls:// servers only")
