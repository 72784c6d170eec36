"""The HTTP servers beside a proxy: rows of the table in `options.py`, and their settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from natsproxy.addresses import parse_address
from natsproxy.config.identity import read_secret
from natsproxy.config.option import host, path, secret, secret_file
from natsproxy.config.row import Option
from natsproxy.config.settings import AdminSettings, HttpListener
from natsproxy.errors import ConfigError
from natsproxy.rules.file import values

ADMIN_VARIABLE: Final = "NATSPROXY_ADMIN_TOKEN"
"""The variable that is the token, for those who ask and for those who are asked."""
_UNIX: Final = "unix:"


def http_listener(value: Any) -> HttpListener:
    """Return the listener of HOST:PORT, with loopback for no host, or of unix:PATH."""
    text = values.line(value)
    if text.startswith(_UNIX):
        return HttpListener(path(text.removeprefix(_UNIX)))
    return HttpListener(parse_address(text, host="127.0.0.1", port=None, schemes=("http",)))


ADMIN_HOST: Final = Option(
    "admin-host",
    host,
    None,
    "A further name under which the admin API, or Toxiproxy's, is reached.",
    many=True,
    metavar="HOST",
)
ADMIN_TOKEN_FILE: Final = Option(
    "admin-token-file",
    secret,
    None,
    f"The file of the token that the admin API asks for, or env:NAME; without it, {ADMIN_VARIABLE}, if set, "
    "is the token.",
    metavar="FILE",
    secret=True,
)
ADMIN_OPTIONS: Final = (
    Option(
        "monitor",
        http_listener,
        None,
        "Monitoring by HTTP, as nats-server's: /varz, /connz, /healthz, and /metrics.",
        metavar="HOST:PORT",
    ),
    Option(
        "admin",
        http_listener,
        None,
        "The admin API by HTTP: on loopback or a unix socket, or else with a token and TLS.",
        metavar="HOST:PORT|unix:PATH",
    ),
    ADMIN_TOKEN_FILE,
    Option(
        "admin-tls-cert",
        secret_file,
        None,
        "The certificate (chain) of the admin API, PEM.",
        metavar="FILE",
        secret=True,
    ),
    Option(
        "admin-tls-key",
        secret_file,
        None,
        "Its private key; without it, in the same file.",
        metavar="FILE",
        secret=True,
    ),
    ADMIN_HOST,
    Option(
        "admin-captures",
        path,
        None,
        "The folder for captures that the admin API begins; without it, it begins none.",
        metavar="DIR",
    ),
    Option(
        "toxiproxy",
        http_listener,
        None,
        "Toxiproxy's API by HTTP, without authentication; clients' bytes take a slower way for it.",
        metavar="HOST:PORT",
    ),
)


def admin_settings(o: Mapping[str, Any]) -> AdminSettings:
    """Return the settings of the HTTP servers from typed option values by `Option.key`.

    Raises ConfigError for an admin API that strangers could use.
    """
    admin: HttpListener | None = o["admin"]
    token = ""
    if admin is None:
        for name in ("admin_token_file", "admin_tls_cert", "admin_tls_key", "admin_host", "admin_captures"):
            if o[name] and not (name == "admin_host" and o["toxiproxy"]):
                raise ConfigError(f"{name.replace('_', '-')} is for the admin API: it needs admin")
    else:
        token = admin_token(o["admin_token_file"], "admin_token_file")
        if not admin.local and not (token and o["admin_tls_cert"]):
            raise ConfigError("admin beyond loopback needs admin-token-file and admin-tls-cert")
        admin = HttpListener(admin.address, o["admin_tls_cert"], o["admin_tls_key"])
    return AdminSettings(
        o["monitor"], admin, token, tuple(o["admin_host"] or ()), o["admin_captures"], o["toxiproxy"]
    )


def admin_token(file: str | None, title: str) -> str:
    """Return the token in a file, or else in its variable, "" for neither.

    title: names the file's option in errors.  Raises ConfigError.
    """
    if file is not None:
        return read_secret(file, title, _token)
    try:
        return _token(os.environ.get(ADMIN_VARIABLE, "")) if ADMIN_VARIABLE in os.environ else ""
    except ValueError as error:
        raise ConfigError(f"{ADMIN_VARIABLE} {error}") from None


def _token(text: str) -> str:
    token = text.strip()
    if len(token) < 16 or not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError("must hold one word of at least 16 letters, digits and signs")
    return token
