"""The login of a proxy at its servers, and of clients at the proxy: settings, and what their files say."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from natsproxy.errors import ConfigError
from natsproxy.option import optional, words
from natsproxy.protocol.credentials import read_credentials, read_seed
from natsproxy.protocol.secret_files import SECRET, SECRET_FILE, VARIABLE, read_secret
from natsproxy.session.values import Identity

_T = TypeVar("_T")
# Costs and salts that bcrypt takes: with others each login would fail that meets the hash.
_HASH: Final = re.compile(r"\$2[abxy]\$(?:0[4-9]|[12][0-9]|3[01])\$[./A-Za-z0-9]{21}[.Oeu][./A-Za-z0-9]{31}")


@dataclass(frozen=True, slots=True)
class LoginSettings:
    """The files with the proxy's own login, and how clients may use it."""

    upstream_credentials: str | None = optional(
        SECRET,
        "The proxy's own login: a .creds file, an nkey seed, or TOML with user and password, or token; "
        "env:NAME for a variable with that text.",
    )
    client_users: Path | None = optional(
        SECRET_FILE,
        "With upstream-credentials: the users that may use it (TOML), with bcrypt hashes, or by certificate: "
        "its e-mail, DNS name, URI or subject.",
    )
    client_auth: str | None = optional(
        words("users", "certificate", "none"),
        "With upstream-credentials: how clients authenticate.",
    )
    proxy_key: str | None = optional(
        SECRET, "Nkey seed of a trusted proxy (the server's proxies.trusted); env:NAME for a variable."
    )

    def files(self) -> tuple[Path, ...]:
        """Return the files that `read_login` reads."""
        named = (self.upstream_credentials, self.proxy_key, self.client_users)
        texts = [str(one) for one in named if one is not None]
        return tuple(Path(text).expanduser() for text in texts if not text.startswith(VARIABLE))


def read_login(login: LoginSettings) -> tuple[Identity | None, dict[str, bytes]]:
    """Return the identity of the proxy, None for none, and its table of users.

    Raises ConfigError, also where credentials would be lent to anybody.
    """
    identity = _identity(login)
    by_certificate = identity is not None and identity.clients == "certificate"
    return identity, {} if by_certificate else client_users(login.client_users)


def _identity(login: LoginSettings) -> Identity | None:
    key = _from(login.proxy_key, "proxy_key", read_seed)
    credentials = _from(login.upstream_credentials, "upstream_credentials", read_credentials)
    table = login.client_users
    clients = login.client_auth or ("users" if table else None)
    if credentials is None:
        if clients is not None:
            named = "client_auth" if login.client_auth else "client_users"
            raise ConfigError(f"{named} needs upstream_credentials: without them clients log in themselves")
        return Identity(key=key) if key is not None else None
    if clients is None:
        raise ConfigError(
            "upstream_credentials lend the proxy's login to every client: "
            'say who may use it with client_users, or write client_auth = "none"'
        )
    if clients == "users" and table is None:
        raise ConfigError('client_auth = "users" needs client_users')
    if clients == "none" and table is not None:
        raise ConfigError('client_users has no effect with client_auth = "none"')
    by_certificate = clients == "certificate" and table is not None
    users = frozenset(client_users(table, passwords=False)) if by_certificate else None
    return Identity(credentials, clients, key, users)


def _from(source: str | None, title: str, read: Callable[[str], _T]) -> _T | None:
    return None if source is None else read_secret(source, title, read)


def _toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"is not valid TOML: {error}") from None


def client_users(path: Path | None, *, passwords: bool = True) -> dict[str, bytes]:
    """Return the bcrypt hashes of a table of users by name; no file is an empty table.

    passwords: False for users that are known by their certificates: they have none.  Raises ConfigError that
    names the file and the user.
    """
    if path is None:
        return {}
    document = read_secret(str(path), "client_users", _toml)
    users, members = document.get("users"), ("user", "password") if passwords else ("user",)
    these = f"{' and '.join(members)}, and nothing else"
    if set(document) != {"users"} or not isinstance(users, list) or not users:
        raise ConfigError(f"{path}: must have [[users]] tables with {these}")
    found: dict[str, bytes] = {}
    for number, entry in enumerate(users, 1):
        if not isinstance(entry, Mapping) or set(entry) != {*members}:
            raise ConfigError(f"{path}: user {number} must have {these}")
        user, password = entry["user"], entry.get("password", "")
        if not isinstance(user, str) or not user or user in found:
            raise ConfigError(f"{path}: user {number} has no name of its own")
        if passwords and not (isinstance(password, str) and _HASH.fullmatch(password)):
            raise ConfigError(
                f"{path}: the password of {user!r} must be a bcrypt hash, as `nats server passwd` prints it"
            )
        found[user] = password.encode()
    return found
