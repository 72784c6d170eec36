"""The CONNECT of a replayed client: its recorded members, with the user's credentials.

Signatures cannot be replayed and secrets are never recorded, so the user gives the credentials: user and
password, a token, or a `.creds` file (JWT and nkey seed) that signs the live nonce.  The other members of the
recorded CONNECT (name, language, verbose, echo, headers, ...) are kept.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from natsproxy.errors import ConfigError
from natsproxy.protocol import gojson

_SECRET: Final = {"user", "pass", "auth_token", "jwt", "sig", "nkey", "proxy_sig"}
_DEFAULT: Final = {"verbose": False, "pedantic": False, "protocol": 1, "headers": True, "no_responders": True}
_PEM: Final = re.compile(r"-{3,}BEGIN [^-]+-{3,}\s*([A-Za-z0-9_\-.=]+)\s*-{3,}END [^-]+-{3,}")


@dataclass(frozen=True, slots=True)
class Credentials:
    """Credentials of a connection.  users: by recorded user name; empty fields are not sent."""

    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    jwt: str = field(default="", repr=False)
    seed: str = field(default="", repr=False)
    users: dict[str, Credentials] = field(default_factory=dict)

    def connect_fields(self, nonce: str) -> dict[str, str]:
        """Return the members of a CONNECT that identify the user.

        Raises ConfigError where the server's nonce cannot be signed.
        """
        named = {"user": self.user, "pass": self.password, "auth_token": self.token, "jwt": self.jwt}
        if self.seed and nonce:
            named["sig"] = _sign(self.seed, nonce)
        return {key: value for key, value in named.items() if value}


def from_creds(path: Path) -> Credentials:
    """Read a `.creds` file.

    Raises ConfigError when it holds no JWT and seed.
    """
    try:
        found = _PEM.findall(path.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read the credentials {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not a credentials file: it is not text") from None
    if len(found) < 2:
        raise ConfigError(f"{path} is not a credentials file: it holds no JWT and seed")
    return Credentials(jwt=found[0], seed=found[1])


def from_user(text: str) -> Credentials:
    """Read `USER:PASSWORD`; text without a colon is a token."""
    user, colon, password = text.partition(":")
    return Credentials(user=user, password=password) if colon else Credentials(token=text)


def rebuild_connect(recorded: bytes, credentials: Credentials, nonce: str) -> bytes:
    """Return CONNECT arguments: the recorded ones without secrets, with the user's credentials."""
    known: dict[str, Any] = dict(_DEFAULT)
    if recorded:
        try:
            known = dict(gojson.load_pairs(recorded) or ())
        except ValueError:
            known = dict(_DEFAULT)
    user = next((str(value) for key, value in known.items() if gojson.fold(key) == "user"), "")
    kept = {key: value for key, value in known.items() if gojson.fold(key) not in _SECRET}
    kept.pop("withheld", None)
    return gojson.dumps({**kept, **credentials.users.get(user, credentials).connect_fields(nonce)})


def _sign(seed: str, nonce: str) -> str:
    try:
        import nkeys  # needed for nkey users only
    except ImportError:
        raise ConfigError("signing the server's nonce needs the package nkeys: pip install nkeys") from None
    pair = nkeys.from_seed(bytearray(seed.encode()))
    return base64.urlsafe_b64encode(pair.sign(nonce.encode())).rstrip(b"=").decode()
