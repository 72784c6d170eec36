"""The claims of NATS JWTs, as far as they say who somebody is.  Signatures are the server's to check."""

from __future__ import annotations

import base64
import json
import re
from typing import Any, Final, NamedTuple

from natsproxy.protocol import gojson
from natsproxy.protocol.redaction import without_seeds

_ACCOUNT_KEY: Final = re.compile(r"A[A-Z2-7]{55}")
_READ: Final[dict[str, type]] = {"sub": str, "name": str, "iss": str, "nats": dict}
_MOST: Final = 256  # characters of a claim that are kept: names reach logs


class JwtUser(NamedTuple):
    """The user that a JWT is for.  key, account: public keys.  name: as its issuer calls the user."""

    key: str = ""
    name: str = ""
    account: str = ""

    def names_account(self, account: str) -> bool:
        """Tell whether `account` is its account, by its public key: names are for anybody to give."""
        return account == self.account and _ACCOUNT_KEY.fullmatch(account) is not None


NOBODY: Final = JwtUser()


def claims_of(token: str) -> dict[str, Any]:
    """Return the claims of a JWT, whose signature is not checked.  Raises ValueError where it has none."""
    try:
        claims = json.loads(_payload(token))
    except (ValueError, RecursionError):
        raise ValueError("a JWT that cannot be decoded") from None
    if not isinstance(claims, dict):
        raise ValueError("a JWT that cannot be decoded")
    return claims


def user_of(token: str) -> JwtUser:
    """Return who a user's JWT is for, as the server reads it; empty texts where it does not say so."""
    try:
        claims = gojson.fill(_payload(token), _READ)
        nats = gojson.fill_pairs(claims.get("nats", ()), {"issuer_account": str})
    except ValueError:
        return NOBODY
    issuer = nats.get("issuer_account") or claims.get("iss")  # the former where a signing key is the issuer
    return JwtUser(_text(claims.get("sub")), _text(claims.get("name")), _text(issuer))


def _payload(token: str) -> bytes:
    _, payload, _ = token.split(".")
    return base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4))


def _text(claim: object) -> str:
    return without_seeds(claim[:_MOST]) if isinstance(claim, str) else ""
