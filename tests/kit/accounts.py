"""Keys and JWTs for servers of an operator: made here, since nsc is not at hand."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import time
from typing import Any

import nkeys

from natsproxy.protocol.credentials import KeyPair


def seed(kind: str = "user") -> str:
    """Return a new nkey seed; kind: "user", "account", "operator" or "server"."""
    prefix = getattr(nkeys, f"PREFIX_BYTE_{kind.upper()}")
    return str(nkeys.encode_seed(secrets.token_bytes(32), prefix), "ascii")


class Operator:
    """An operator with one account.

    config: of a server that trusts it.
    """

    def __init__(self) -> None:
        self._operator, self._account = KeyPair(seed("operator")), KeyPair(seed("account"))
        operator = _jwt(self._operator, self._operator.public, "operator", {})
        unlimited = {
            "subs": -1,
            "data": -1,
            "payload": -1,
            "conn": -1,
            "leaf": -1,
            "imports": -1,
            "exports": -1,
        }
        limits = {"limits": {**unlimited, "wildcards": True}}
        account = _jwt(self._operator, self._account.public, "account", limits)
        self.config = (
            f"operator: {operator}\nresolver: MEMORY\n"
            f'resolver_preload: {{ {self._account.public}: "{account}" }}\n'
        )

    @property
    def account(self) -> str:
        """The public key of the account."""
        return self._account.public

    def creds(self, name: str, **claims: Any) -> str:
        """Return the text of a `.creds` file of a new user; claims: more members of its `nats` claims."""
        user = seed()
        nats = {"subs": -1, "data": -1, "payload": -1, "pub": {}, "sub": {}, **claims}
        jwt = _jwt(self._account, KeyPair(user).public, "user", nats, name=name)
        return (
            f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{user}\n------END USER NKEY SEED------\n"
        )


def _jwt(issuer: KeyPair, subject: str, kind: str, nats: dict[str, Any], name: str = "") -> str:
    claims: dict[str, Any] = {
        "iat": int(time.time()),
        "iss": issuer.public,
        "name": name or kind,
        "sub": subject,
        "nats": {**nats, "type": kind, "version": 2},
    }
    digest = hashlib.new("sha512_256", json.dumps(claims).encode()).digest()
    claims["jti"] = base64.b32encode(digest).rstrip(b"=").decode()
    head = {"typ": "JWT", "alg": "ed25519-nkey"}
    text = ".".join(_encoded(json.dumps(part).encode()) for part in (head, claims))
    return f"{text}.{issuer.sign(text)}"


def _encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
