"""The CONNECT of a replayed client: its recorded members, with the user's credentials.

Signatures cannot be replayed and secrets are never recorded, so the user gives the credentials: user and
password, a token, or a `.creds` file (JWT and nkey seed) that signs the live nonce.  The other members of the
recorded CONNECT (name, language, verbose, echo, headers, ...) are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from natsproxy.capture.format.connection import ConnectionId
from natsproxy.protocol import gojson
from natsproxy.protocol.connect import AUTH_FIELDS
from natsproxy.protocol.credentials import Credentials

_DEFAULT: Final = {"verbose": False, "pedantic": False, "protocol": 1, "headers": True, "no_responders": True}


@dataclass(frozen=True, slots=True)
class ReplayCredentials:
    """The credentials of the replayed clients.

    own: of all but those in `users`, by recorded user name, and in `connections`, by recorded connection.
    """

    own: Credentials = field(default_factory=Credentials)
    users: Mapping[str, Credentials] = field(default_factory=dict)
    connections: Mapping[ConnectionId, Credentials] = field(default_factory=dict)

    def of(self, conn: ConnectionId) -> ReplayCredentials:
        """Return those of one connection."""
        known = self.connections.get(conn)
        return self if known is None else ReplayCredentials(known)


def from_user(text: str) -> Credentials:
    """Read `USER:PASSWORD`; text without a colon is a token."""
    user, colon, password = text.partition(":")
    return Credentials(user=user, password=password) if colon else Credentials(token=text)


def rebuild_connect(recorded: bytes, credentials: ReplayCredentials, nonce: str) -> bytes:
    """Return CONNECT arguments: the recorded ones without secrets, with the user's credentials."""
    known: dict[str, Any] = dict(_DEFAULT)
    if recorded:
        try:
            known = dict(gojson.load_pairs(recorded) or ())
        except ValueError:
            known = dict(_DEFAULT)
    user = next((str(value) for key, value in known.items() if gojson.fold(key) == "user"), "")
    kept = {key: value for key, value in known.items() if gojson.fold(key) not in AUTH_FIELDS}
    kept.pop("withheld", None)
    own = credentials.users.get(user, credentials.own)
    return gojson.dumps({**kept, **own.connect_fields(nonce)})
