"""Credentials of a NATS client: user and password, a token, an nkey, or a JWT with its nkey.

They come as the text of a file: a `.creds` file (JWT and seed), the seed of an nkey, or TOML with `user` and
`password`, or with `token`.  Nothing here shows a secret: neither an error nor a `repr` quotes one.
"""

from __future__ import annotations

import base64
import binascii
import re
import tomllib
from dataclasses import dataclass, field
from typing import Any, Final

from natsproxy.errors import ConfigError
from natsproxy.protocol.jwt import claims_of
from natsproxy.protocol.redaction import SEED

_PEM: Final = re.compile(r"-{3,}BEGIN [^-]+-{3,}\s*([A-Za-z0-9_\-.=]+)\s*-{3,}END [^-]+-{3,}")
_JWT: Final = re.compile(r"[A-Za-z0-9_\-]+\.[A-Za-z0-9_\-]+\.[A-Za-z0-9_\-]+")
_PUBLIC: Final = re.compile(r"[A-Z2-7]{56}")
_NEEDS_NKEYS: Final = "signatures need the package nkeys: pip install 'natsproxy[identity]'"
_FORMS: Final = "a .creds file, an nkey seed, or TOML with user and password, or with token"


class KeyPair:
    """An nkey that signs: nonces of servers, and the stamps of messages.

    public: its public key.  Raises ValueError for an invalid seed, and ConfigError where the package nkeys
    is missing.
    """

    def __init__(self, seed: str) -> None:
        try:
            import nkeys  # optional: only signing needs it
        except ImportError:
            raise ConfigError(_NEEDS_NKEYS) from None
        try:
            raw = base64.b32decode(seed + "=" * (-len(seed) % 8))
            if binascii.crc_hqx(raw[:-2], 0) != int.from_bytes(raw[-2:], "little"):  # nkeys does not check it
                raise ValueError("a wrong checksum")
            self._pair = nkeys.from_seed(bytearray(seed.encode()))
            self.public: str = self._pair.public_key.decode()
        except Exception:  # errors of several libraries, which may quote the seed
            raise ValueError("holds an nkey seed that is damaged") from None

    def sign(self, data: str | bytes) -> str:
        """Return the signature of a nonce, or of other data, in URL-safe base64 without padding."""
        raw = data.encode() if isinstance(data, str) else data
        return base64.urlsafe_b64encode(self._pair.sign(raw)).rstrip(b"=").decode()


def is_signed_by(public: str, data: bytes, signature: str) -> bool:
    """Tell whether a signature, as `KeyPair.sign` returns it, is that of the nkey `public` on some data.

    Raises ValueError where `public` is not the public key of an nkey, and ConfigError where the package nkeys
    is missing.
    """
    try:
        from nacl.exceptions import CryptoError  # nkeys brings it
        from nacl.signing import VerifyKey
    except ImportError:
        raise ConfigError(_NEEDS_NKEYS) from None
    key = VerifyKey(raw_key(public))
    try:
        key.verify(data, base64.b64decode(signature + "=" * (-len(signature) % 4), b"-_", validate=True))
    except (CryptoError, ValueError):  # the latter for what is no signature
        return False
    return True


def raw_key(public: str) -> bytes:
    """Return the 32 bytes of the public key of an nkey.  Raises ValueError for anything else."""
    if _PUBLIC.fullmatch(public) is not None:
        raw = base64.b32decode(public)
        if binascii.crc_hqx(raw[:-2], 0) == int.from_bytes(raw[-2:], "little"):
            return raw[1:-2]
    raise ValueError(f"{public!r} is not the public key of an nkey")


@dataclass(frozen=True, slots=True)
class Credentials:
    """Credentials of one user; empty fields are not sent."""

    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    jwt: str = field(default="", repr=False)
    key: KeyPair | None = field(default=None, repr=False)

    def connect_fields(self, nonce: str) -> dict[str, str]:
        """Return the members of a CONNECT that identify the user.  nonce: of the server's INFO, or ""."""
        named = {"user": self.user, "pass": self.password, "auth_token": self.token, "jwt": self.jwt}
        if self.key is not None and nonce:
            named["nkey"] = "" if self.jwt else self.key.public
            named["sig"] = self.key.sign(nonce)
        return {name: value for name, value in named.items() if value}


def read_credentials(text: str) -> Credentials:
    """Read the text of a file of credentials.

    Raises ValueError with a message that follows the name of the file.
    """
    decorated = _PEM.findall(text)
    seeds = [value for value in decorated if SEED.fullmatch(value)]
    jwts = [value for value in decorated if value.count(".") == 2]
    if seeds and jwts:
        return Credentials(jwt=jwts[0], key=KeyPair(seeds[0]))
    if decorated and not seeds:
        raise ValueError("holds no nkey seed")
    if seeds or _seed_line(text):
        return Credentials(key=read_seed(text))
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError:  # its text may quote a secret
        raise ValueError(f"is not {_FORMS}") from None
    return _from_table(document)


def read_claims(text: str) -> dict[str, Any] | None:
    """Return the claims of the JWT in the text of a `.creds` file, or of a JWT alone; None without one.

    The signature is not checked.  Raises ValueError with a message that follows the name of the file.
    """
    found = [value for value in (*_PEM.findall(text), text.strip()) if _JWT.fullmatch(value)]
    if not found:
        return None
    try:
        return claims_of(found[0])
    except ValueError as error:
        raise ValueError(f"holds {error}") from None


def read_seed(text: str) -> KeyPair:
    """Read the text of a file with an nkey seed, plain or between BEGIN and END lines.

    Raises ValueError with a message that follows the name of the file.
    """
    found = [value for value in _PEM.findall(text) if SEED.fullmatch(value)] or _seed_line(text)
    if not found:
        raise ValueError("holds no nkey seed")
    return KeyPair(found[0])


def _seed_line(text: str) -> list[str]:
    return [line for line in map(str.strip, text.splitlines()) if SEED.fullmatch(line)]


def _from_table(document: dict[str, Any]) -> Credentials:
    names = set(document)
    if names not in ({"user", "password"}, {"token"}):
        raise ValueError(f"is not {_FORMS}")
    if not all(isinstance(value, str) and value for value in document.values()):
        raise ValueError("has a value that is empty or not a string")
    return Credentials(**document)
