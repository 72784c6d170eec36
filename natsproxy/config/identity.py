"""The identity of a proxy from its files: its credentials, its key, and the table of its clients.

A secret is read from a file or from an environment variable (`env:NAME`), never from the command line, which
everybody on the machine can read.  No error quotes a secret, nor the name of a file that cannot be opened: it
may be the secret itself, given by mistake.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from natsproxy.errors import ConfigError
from natsproxy.protocol.credentials import read_credentials, read_seed
from natsproxy.session.identity import Identity

_T = TypeVar("_T")
_VARIABLE: Final = "env:"
# Costs and salts that bcrypt takes: with others each login would fail that meets the hash.
_HASH: Final = re.compile(r"\$2[abxy]\$(?:0[4-9]|[12][0-9]|3[01])\$[./A-Za-z0-9]{21}[.Oeu][./A-Za-z0-9]{31}")


def read_identity(o: Mapping[str, Any]) -> tuple[Identity | None, dict[str, bytes]]:
    """Return the identity of option values, None for none, and its table of users.  Raises ConfigError."""
    known = identity(o)
    by_certificate = known is not None and known.clients == "certificate"
    return known, {} if by_certificate else client_users(o["client_users"])


def identity_files(o: Mapping[str, Any]) -> tuple[Path, ...]:
    """Return the files that `read_identity` reads."""
    named = [o[key] for key in ("upstream_credentials", "proxy_key", "client_users") if o[key] is not None]
    return tuple(Path(each).expanduser() for each in named if not str(each).startswith(_VARIABLE))


def identity(o: Mapping[str, Any]) -> Identity | None:
    """Return the identity that option values (by `Option.key`) describe, None for none.

    Raises ConfigError, also where credentials would be lent to anybody.
    """
    key = _from(o, "proxy_key", read_seed)
    credentials = _from(o, "upstream_credentials", read_credentials)
    clients = o["client_auth"] or ("users" if o["client_users"] else None)
    if credentials is None:
        if clients is not None:
            raise ConfigError(
                f"{_named(o)} needs upstream_credentials: without them clients log in themselves"
            )
        return Identity(key=key) if key is not None else None
    if clients is None:
        raise ConfigError(
            "upstream_credentials lend the proxy's login to every client: "
            'say who may use it with client_users, or write client_auth = "none"'
        )
    table: Path | None = o["client_users"]
    if clients == "users" and table is None:
        raise ConfigError('client_auth = "users" needs client_users')
    if clients == "none" and table is not None:
        raise ConfigError('client_auth = "none" has no use for client_users')
    if clients == "certificate" and (o["tls_ca"] is None or not all(one.tls for one in o["listen"])):
        raise ConfigError('client_auth = "certificate" needs tls_ca, and tls:// or wss:// on all listeners')
    if o["unparsed"] == "pass":
        raise ConfigError('unparsed = "pass" is a way around upstream_credentials: make it "close"')
    by_certificate = clients == "certificate" and table is not None
    users = frozenset(client_users(table, passwords=False)) if by_certificate else None
    return Identity(credentials, clients, key, users)


def _named(o: Mapping[str, Any]) -> str:
    return "client_auth" if o["client_auth"] else "client_users"


def _from(o: Mapping[str, Any], key: str, read: Callable[[str], _T]) -> _T | None:
    return None if o[key] is None else read_secret(o[key], key, read)


def read_secret(source: str, title: str, read: Callable[[str], _T]) -> _T:
    """Return what a file, or the variable of env:NAME, says.

    title: names it in errors.  read: takes the text; raises ValueError with the end of a sentence that begins
    with the name of the file.  Raises ConfigError.
    """
    text = _text(source, title)
    try:
        return read(text)
    except ValueError as error:
        raise ConfigError(f"{title} {source} {error}") from None


def _text(source: str, title: str) -> str:
    if source.startswith(_VARIABLE):
        text = os.environ.get(source.removeprefix(_VARIABLE))
        if not text:
            raise ConfigError(f"the variable that {title} names is not set")
        return text
    try:
        return Path(source).expanduser().read_text()
    except OSError as error:
        reason = error.strerror
    except UnicodeDecodeError:
        raise ConfigError(f"{title} {source} is not text") from None
    except (ValueError, RuntimeError):  # bytes that no name has, or the home of no user
        reason = "it is no name of a file"
    raise ConfigError(f"cannot read the file that {title} names: {reason}")


def opens(source: str | Path) -> bool:
    """Tell whether there is a file that can be read, or for env:NAME a variable."""
    if str(source).startswith(_VARIABLE):
        return bool(os.environ.get(str(source).removeprefix(_VARIABLE)))
    try:
        file = Path(source).expanduser()
        return os.access(file, os.R_OK) and not file.is_dir()
    except (ValueError, RuntimeError):  # bytes that no name has, or the home of no user
        return False


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
