"""The holders of permissions in a file: users and accounts of a configuration, or the user of a JWT."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from natsproxy.errors import ConfigError
from natsproxy.permissions.formats import GLOBAL_ACCOUNT
from natsproxy.permissions.uses import By
from natsproxy.protocol.credentials import read_claims
from natsproxy.protocol.permissions import Permissions, parse_permissions
from natsproxy.protocol.server_config import parse_server_config

_LIMITS: Final = ("subs", "data", "payload")
"""Limits of a user's JWT; -1 for none."""


class Holder(NamedTuple):
    """A user, or the users of an account without permissions of their own.

    table: the permission map as it is written, None without one.  limits: of a JWT.
    """

    user: str
    account: str
    table: Mapping[str, Any] | None
    permissions: Permissions
    limits: Mapping[str, int] = {}

    def label(self, by: By) -> str:
        """Return the label of the clients that it stands for."""
        return self.account if by == By.ACCOUNT else self.user


def read_holders(path: Path, by: By) -> list[Holder]:
    """Return the holders in a configuration, a `.creds` file or a JWT; by account those of the defaults.

    Raises ConfigError.
    """
    text = path.read_text(encoding="utf-8", errors="surrogateescape")
    try:
        claims = read_claims(text)
    except ValueError as error:
        raise ConfigError(f"{path} {error}") from None
    if claims is not None:
        return [_of_claims(claims, path)]
    try:
        config = parse_server_config(text, lambda name: (path.parent / name).read_text(encoding="utf-8"))
        found = list(_of_config(config, by))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    if not found:
        raise ConfigError(f"{path} has no {'accounts' if by == By.ACCOUNT else 'users'}")
    return found


def _of_claims(claims: Mapping[str, Any], path: Path) -> Holder:
    nats = claims.get("nats")
    if not isinstance(nats, dict):
        raise ConfigError(f"{path} holds the JWT of no user")
    table = {name: nats[key] for key, name in (("pub", "publish"), ("sub", "subscribe")) if nats.get(key)}
    responses = nats.get("resp")
    if isinstance(responses, dict):
        table["allow_responses"] = {
            "max": responses.get("max", 0),
            "expires": f"{responses.get('ttl', 0)}ns",
        }
    limits = {name: nats[name] for name in _LIMITS if isinstance(nats.get(name), int) and nats[name] >= 0}
    user = str(claims.get("name") or claims.get("sub") or "")
    return Holder(user, "", table or None, parse_permissions(table or None, where=str(path)), limits)


def _of_config(config: Mapping[str, Any], by: By) -> Iterator[Holder]:
    found = _lowered(config)
    places = [(GLOBAL_ACCOUNT, _map(found.get("authorization")))]
    places += [(name, _map(one)) for name, one in dict(found.get("accounts") or {}).items()]
    for account, place in places:
        defaults = place.get("default_permissions", place.get("permissions"))
        if by == By.ACCOUNT:
            if place:
                yield Holder("", account, defaults, parse_permissions(defaults, where=account))
            continue
        users = place.get("users") or ([place] if "user" in place else [])
        for user in map(_map, users):
            table = user.get("permissions", user.get("permission", defaults))
            name = str(user.get("user") or user.get("username") or user.get("nkey") or "")
            yield Holder(name, account, table, parse_permissions(table, where=name))


def _map(value: Any) -> dict[str, Any]:
    return _lowered(value) if isinstance(value, Mapping) else {}


def _lowered(value: Mapping[str, Any]) -> dict[str, Any]:
    return {key.lower(): one for key, one in value.items()}
