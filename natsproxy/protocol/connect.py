"""CONNECT: the options of a client, read as nats-server reads them.

The server decodes the JSON over the options it has: keys in any letter case, last duplicate wins, absent and
`null` members change nothing.  So a second CONNECT is merged over the first, and an option that was never
given keeps the server's default: verbose, pedantic and echo are *true*.  A wrong type, bytes after the object
or no object at all make the server close without an -ERR.

`Connect` holds no secret: `credentials` lists the kinds that were given, not their values.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from natsproxy.protocol import gojson
from natsproxy.protocol.jwt import NOBODY, JwtUser, user_of
from natsproxy.protocol.redaction import CONNECT_SECRETS, redact_object, without_seeds


class Connect(NamedTuple):
    """The options of a connection; the defaults are those before any CONNECT (`server/client.go`).

    credentials: the names among `AUTH_FIELDS` whose values are not empty.
    jwt: who its JWT is for.
    remote: the CONNECT of a leafnode or a route (`import`, `export` or `remote_account` were given).
    """

    verbose: bool = True
    pedantic: bool = True
    echo: bool = True
    headers: bool = False
    no_responders: bool = False
    tls_required: bool = False
    protocol: int = 0
    name: str = ""
    lang: str = ""
    version: str = ""
    user: str = ""
    nkey: str = ""
    account: str = ""
    new_account: bool = False
    jwt: JwtUser = NOBODY
    credentials: frozenset[str] = frozenset()
    remote: bool = False

    @property
    def who(self) -> str:
        """The user that the client says it is, for people: its name, or a public key; "" for none."""
        return self.user or self.nkey or self.jwt.name or self.jwt.key

    @property
    def user_key(self) -> str:
        """The same for keys, where names in JWTs are not unique; one key for all that name several users.

        With a key for each combination a client would have as many as it likes.
        """
        named = [one for one in (self.user, self.nkey, self.jwt.key) if one]
        return SEVERAL if len(named) > 1 else "".join(named)

    @property
    def users(self) -> tuple[str, ...]:
        """All the users that it names, by name or by public key; the server takes one of them."""
        return tuple(filter(None, (self.user, self.nkey, self.jwt.name, self.jwt.key)))

    @property
    def claims_one_user(self) -> bool:
        """True if its credentials name one user, and not several of which the server takes one."""
        return len(self.credentials & _NAMING) == 1


DEFAULTS: Final = Connect()
SEVERAL: Final = "(several)"

_KEPT: Final[dict[str, type]] = {
    "verbose": bool,
    "pedantic": bool,
    "echo": bool,
    "headers": bool,
    "no_responders": bool,
    "tls_required": bool,
    "protocol": int,
    "name": str,
    "lang": str,
    "version": str,
    "user": str,
    "nkey": str,
    "account": str,
    "new_account": bool,
}
AUTH_FIELDS: Final[tuple[str, ...]] = ("user", "pass", "auth_token", "nkey", "jwt", "sig", "proxy_sig")
"""The members that identify and authenticate a client."""
_AUTH: Final = frozenset(AUTH_FIELDS)
_NAMING: Final = frozenset({"user", "auth_token", "nkey", "jwt"})
_REMOTE: Final[dict[str, type]] = {"import": dict, "export": dict, "remote_account": str}
_FIELDS: Final = {**_KEPT, **dict.fromkeys(AUTH_FIELDS, str), **_REMOTE}


def parse_connect(args: bytes, base: Connect = DEFAULTS) -> Connect:
    """Read the arguments of a CONNECT over `base`, the options that the connection has.

    Raises ValueError with the reason where the server would close without an -ERR.
    """
    found = gojson.fill(args, _FIELDS)
    # Without nkey seeds, since names and users reach logs and events.
    kept: dict[str, Any] = {
        name: without_seeds(value) if isinstance(value, str) else value
        for name, value in found.items()
        if name in _KEPT
    }
    if not _AUTH.isdisjoint(found):
        # As the server merges: an empty string removes a credential, an absent member keeps it.
        removed = {name for name in _AUTH & found.keys() if not found[name]}
        kept["credentials"] = (base.credentials | (_AUTH & found.keys())) - removed
    if not _REMOTE.keys().isdisjoint(found) and any(found.get(name) for name in _REMOTE):
        kept["remote"] = True
    if "jwt" in found:
        kept["jwt"] = user_of(found["jwt"])
    return base._replace(**kept)


def redact_connect(args: bytes) -> bytes:
    """Return the arguments of a CONNECT with its secrets withheld and every other byte kept.

    A CONNECT that does not parse is withheld whole, since its secrets cannot be found.
    """
    redacted = redact_object(args, CONNECT_SECRETS)
    if redacted is None:
        return gojson.dumps({"withheld": f"a CONNECT that does not parse, {len(args)} bytes"})
    return redacted
