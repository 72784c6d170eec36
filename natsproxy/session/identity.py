"""The identity of the proxy: its own login at the server, and how it authenticates clients then.

Theory
1. Without one, a client logs in at the server itself: its credentials and the server's nonce pass unchanged.
2. With credentials of its own the proxy takes the client's out of each CONNECT and puts its own in.  Clients
   see no nonce, and `auth_required` says what the proxy asks for.
3. Independently, the key of a trusted proxy signs the nonce (`proxy_sig`, ADR-55).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from natsproxy.protocol import gojson
from natsproxy.protocol.connect import AUTH_FIELDS
from natsproxy.protocol.credentials import Credentials, KeyPair


class Certificate(NamedTuple):
    """The verified certificate of a client.

    subject: as nats-server writes it, "" without a certificate.  names: those that may identify a user.
    """

    subject: str = ""
    names: tuple[str, ...] = ()


NO_CERTIFICATE: Final = Certificate()


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of the proxy.

    credentials: its own; None: clients log in with theirs.  clients: how it authenticates clients otherwise:
    "users" (a table of passwords), "certificate" (one that the listener has verified) or "none".  users:
    those that certificates may identify; None: any certificate will do.  key: of a trusted proxy, or None.
    """

    credentials: Credentials | None = None
    clients: str = "none"
    key: KeyPair | None = field(default=None, repr=False)
    users: frozenset[str] | None = None

    @property
    def logs_in(self) -> bool:
        """True if the proxy logs in at the server in place of its clients."""
        return self.credentials is not None

    @property
    def asks(self) -> bool:
        """True if clients must authenticate to the proxy."""
        return self.logs_in and self.clients != "none"

    def user_of(self, certificate: Certificate) -> str:
        """Return the user that a certificate identifies: the first of its names that is one; "" for none."""
        return next((name for name in certificate.names if name in (self.users or ())), "")

    def rewritten(self, args: bytes, nonce: str) -> bytes:
        """Return the arguments of a client's CONNECT as the server gets them.

        nonce: of the server's first INFO, or "".  Raises ValueError where `args` is not an object.
        """
        own: dict[str, str] = {}
        remove: set[str] = set()
        if self.credentials is not None:
            own = self.credentials.connect_fields(nonce)
            remove = set(AUTH_FIELDS).difference(own)
        if self.key is not None and nonce:
            own["proxy_sig"] = self.key.sign(nonce)
        return gojson.rewrite(args, remove=remove.difference(own), set=own)


def info_edits(clients: str | None) -> tuple[set[str], dict[str, Any]]:
    """Return the members of INFO that clients do not get, and those that they get changed.

    clients: how they log in (see `Identity`); None where they do so at the server.
    """
    if clients is None:
        return set(), {}
    if clients == "users":
        return {"nonce"}, {"auth_required": True}
    return {"nonce", "auth_required"}, {}
