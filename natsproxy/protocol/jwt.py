"""The claims of NATS JWTs, as far as they say who somebody is.  Signatures are the server's to check."""

from __future__ import annotations

import base64
import json
from typing import Any, Final, NamedTuple

from natsproxy.protocol.redaction import without_seeds

_MOST: Final = 256  # characters of a claim that are kept: names reach logs


class JwtUser(NamedTuple):
    """The user that a JWT is for.  key, account: public keys.  name: as its issuer calls the user."""

    key: str = ""
    name: str = ""
    account: str = ""


NOBODY: Final = JwtUser()


def claims_of(token: str) -> dict[str, Any]:
    """Return the claims of a JWT, whose signature is not checked.  Raises ValueError where it has none."""
    try:
        _, payload, _ = token.split(".")
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (ValueError, RecursionError):
        raise ValueError("a JWT that is damaged") from None
    if not isinstance(claims, dict):
        raise ValueError("a JWT that is damaged")
    return claims


def user_of(token: str) -> JwtUser:
    """Return who a user's JWT is for; empty texts where it does not say so."""
    try:
        claims = claims_of(token)
    except ValueError:
        return NOBODY
    nats = claims.get("nats")
    issuer = nats.get("issuer_account") if isinstance(nats, dict) else None  # of a signing key
    return JwtUser(_text(claims.get("sub")), _text(claims.get("name")), _text(issuer or claims.get("iss")))


def _text(claim: object) -> str:
    return without_seeds(claim[:_MOST]) if isinstance(claim, str) else ""
