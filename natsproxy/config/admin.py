"""The settings of the HTTP servers beside a proxy."""

from __future__ import annotations

import hashlib
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

from natsproxy.config.endpoints import HTTP, HTTP_OR_UNIX, HttpListener
from natsproxy.converters import path
from natsproxy.errors import ConfigError, Mistakes
from natsproxy.option import HOST, ValueType, optional, options_of, several
from natsproxy.protocol.secret_files import SECRET, SECRET_FILE, read_secret

ADMIN_VARIABLE: Final = "NATSPROXY_ADMIN_TOKEN"
"""The variable that is the token, for those who ask and for those who are asked."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody who uses the admin API, known by a token.

    name: for the log and for captures.  changes: they may change something, and not only read.
    """

    name: str = "admin"
    changes: bool = True


@dataclass(frozen=True, slots=True)
class AdminSettings:
    """The HTTP servers beside a proxy; None for none.

    callers: those who may use the admin API, by the SHA-256 of the token that a request must bring; empty
    where none is needed.
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
    admin_tokens: Path | None = optional(
        SECRET_FILE,
        "Further tokens of the admin API: TOML with [[tokens]] of name, role (operator, or reader, who only "
        "reads) and sha256. The log and captures say who changed something.",
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
    callers: Mapping[bytes, Caller] = field(default_factory=dict, repr=False)


ADMIN_OPTIONS: Final = {option.key: option for option in options_of(AdminSettings)}


_OF_ADMIN: Final = (
    "admin_token_file",
    "admin_tokens",
    "admin_tls_cert",
    "admin_tls_key",
    "admin_host",
    "admin_captures",
)


def with_token(given: AdminSettings) -> AdminSettings:
    """Return the settings with the tokens, and with the TLS of the admin API.

    Raises ConfigError for an admin API that strangers could use, and for settings without an effect.
    """
    if given.admin is None:
        mistakes = Mistakes()
        for name in _OF_ADMIN:
            if getattr(given, name) and not (name == "admin_host" and given.toxiproxy):
                mistakes.found.append(f"{name.replace('_', '-')} has no effect without admin")
        mistakes.refuse()
        return given
    token = admin_token(given.admin_token_file, "admin_token_file")
    first = {token_hash(token): Caller()} if token else {}
    callers = first
    if given.admin_tokens is not None:
        callers = read_secret(str(given.admin_tokens), "admin_tokens", partial(_callers, first))
    if not given.admin.local and not (callers and given.admin_tls_cert):
        raise ConfigError("admin on an address other than loopback needs admin-token-file and admin-tls-cert")
    listener = HttpListener(given.admin.address, given.admin_tls_cert, given.admin_tls_key)
    return replace(given, admin=listener, callers=callers)


def token_hash(token: str) -> bytes:
    """Return the SHA-256 of a token, which is all that is kept of it: a token is too long to be guessed."""
    return hashlib.sha256(token.encode()).digest()


_MEMBERS: Final = ("name", "role", "sha256")
_ROLES: Final = {"operator": True, "reader": False}
"""Roles of callers, and whether they may change something."""


def _callers(first: Mapping[bytes, Caller], text: str) -> dict[bytes, Caller]:
    """Return the callers of a table after the first ones.  Raises ValueError."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"is not valid TOML: {error}") from None
    tables = document.get("tokens")
    if set(document) != {"tokens"} or not isinstance(tables, list) or not tables:
        raise ValueError(f"must have [[tokens]] tables with {', '.join(_MEMBERS)}, and nothing else")
    found = dict(first)
    for number, table in enumerate(tables, 1):
        if not isinstance(table, Mapping) or set(table) != {*_MEMBERS}:
            raise ValueError(f"must have {', '.join(_MEMBERS)} in token {number}, and nothing else")
        name, role, digest = (table[member] for member in _MEMBERS)
        taken = {Caller().name, *(caller.name for caller in found.values())}
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name in taken:
            raise ValueError(f"must have a name of its own in token {number}: letters, digits and . _ @ -")
        if not isinstance(role, str) or role not in _ROLES:
            raise ValueError(f"has no valid role for {name!r}: there are {', '.join(_ROLES)}")
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest) or bytes.fromhex(digest) in found:
            raise ValueError(
                f"must have a sha256 of its own for {name!r}: 64 hexadecimal digits, as sha256sum prints them"
            )
        found[bytes.fromhex(digest)] = Caller(name, _ROLES[role])
    return found


_NAME: Final = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_DIGEST: Final = re.compile(r"[0-9a-fA-F]{64}")


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
