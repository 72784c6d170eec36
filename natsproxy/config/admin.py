"""The settings of the HTTP servers beside a proxy."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from natsproxy.config.endpoints import HTTP, HTTP_OR_UNIX, HttpListener
from natsproxy.config.secret_files import SECRET, SECRET_FILE, read_secret
from natsproxy.converters import path
from natsproxy.errors import ConfigError, Mistakes
from natsproxy.option import HOST, ValueType, optional, options_of, several

ADMIN_VARIABLE: Final = "NATSPROXY_ADMIN_TOKEN"
"""The variable that is the token, for those who ask and for those who are asked."""


@dataclass(frozen=True, slots=True)
class AdminSettings:
    """The HTTP servers beside a proxy; None for none.

    token: that requests to the admin API must bring, "" for none.
    """

    monitor: HttpListener | None = optional(
        HTTP, "Serve monitoring by HTTP as nats-server does: /varz, /connz, /healthz, and /metrics."
    )
    admin: HttpListener | None = optional(
        HTTP_OR_UNIX,
        "Serve the admin API by HTTP: on loopback or a unix socket, or else with a token and TLS.",
    )
    admin_token_file: str | None = optional(
        SECRET,
        f"File with the token of the admin API, or env:NAME; default: the token in {ADMIN_VARIABLE}, if set.",
    )
    admin_tls_cert: Path | None = optional(SECRET_FILE, "Certificate (chain) of the admin API, PEM.")
    admin_tls_key: Path | None = optional(SECRET_FILE, "Its private key; default: in the same file.")
    admin_host: tuple[str, ...] = several(HOST, "A further host name of the admin API, or of Toxiproxy's.")
    admin_captures: Path | None = optional(
        ValueType(path, "DIR"),
        "Folder for captures that the admin API starts; without it, it starts none.",
    )
    toxiproxy: HttpListener | None = optional(
        HTTP, "Serve Toxiproxy's API by HTTP, without authentication; it makes relaying slower."
    )
    token: str = field(default="", repr=False)


ADMIN_OPTIONS: Final = {option.key: option for option in options_of(AdminSettings)}


def with_token(given: AdminSettings) -> AdminSettings:
    """Return the settings with the token, and with the TLS of the admin API.

    Raises ConfigError for an admin API that strangers could use, and for settings without an effect.
    """
    if given.admin is None:
        mistakes = Mistakes()
        for name in ("admin_token_file", "admin_tls_cert", "admin_tls_key", "admin_host", "admin_captures"):
            if getattr(given, name) and not (name == "admin_host" and given.toxiproxy):
                mistakes.found.append(f"{name.replace('_', '-')} has no effect without admin")
        mistakes.refuse()
        return given
    token = admin_token(given.admin_token_file, "admin_token_file")
    if not given.admin.local and not (token and given.admin_tls_cert):
        raise ConfigError("admin on an address other than loopback needs admin-token-file and admin-tls-cert")
    listener = HttpListener(given.admin.address, given.admin_tls_cert, given.admin_tls_key)
    return replace(given, admin=listener, token=token)


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
        raise ValueError("must hold one word of at least 16 printable ASCII characters")
    return token
