"""Credentials in the forms that files have."""

from __future__ import annotations

import base64

import nkeys
import pytest

from natsproxy.protocol.credentials import Credentials, KeyPair, read_credentials, read_seed

SEED = "SUAMLK2ZNL35WSMW37E7UD4VZ7ELPKW7DHC3BWBSD2GCZ7IUQQXZIORRBU"
PEM = f"-----BEGIN USER NKEY SEED-----\n{SEED}\n------END USER NKEY SEED------\n"
CREDS = f"-----BEGIN NATS USER JWT-----\naaa.bbb.ccc\n------END NATS USER JWT------\n\n# why\n{PEM}"


def verified(sig: str, nonce: str) -> bool:
    assert "=" not in sig
    raw = base64.urlsafe_b64decode(sig + "=" * (-len(sig) % 4))
    return bool(nkeys.from_seed(bytearray(SEED.encode())).verify(nonce.encode(), raw))


def test_a_creds_file() -> None:
    """The JWT says who the user is; its nkey is not sent."""
    fields = read_credentials(CREDS).connect_fields("nonce")
    assert set(fields) == {"jwt", "sig"}
    assert fields["jwt"] == "aaa.bbb.ccc"
    assert verified(fields["sig"], "nonce")


@pytest.mark.parametrize("text", [SEED, f"# a comment\n  {SEED}\n", PEM])
def test_a_seed(text: str) -> None:
    """Plain, with comments or decorated; the public key goes with the signature."""
    fields = read_credentials(text).connect_fields("nonce")
    assert fields["nkey"].startswith("U")
    assert verified(fields["sig"], "nonce")
    assert read_credentials(text).connect_fields("") == {}
    assert read_seed(text).public == fields["nkey"]


def test_user_and_password_or_a_token() -> None:
    """As TOML; both are taken as they are."""
    text = 'user = "me"\npassword = "p:w"  # a comment'
    assert read_credentials(text).connect_fields("n") == {"user": "me", "pass": "p:w"}
    assert read_credentials('token = "t"').connect_fields("") == {"auth_token": "t"}


@pytest.mark.parametrize(
    ("text", "clause"),
    [
        ("hunter2", "is not a .creds file"),
        ('user = "hunter2"', "is not a .creds file"),
        ('user = "hunter2"\ntoken = "x"', "is not a .creds file"),
        ('user = "u"\npassword = "hunter2"\nnkey = "x"', "is not a .creds file"),
        ('user = "hunter2"\npassword = 1', "not a string"),
        ('token = ""', "empty"),
        (CREDS.replace(SEED, "hunter2"), "no nkey seed"),
        (SEED.replace("LK2", "LK3"), "damaged"),
        ("", "is not a .creds file"),
    ],
)
def test_other_texts_are_refused_without_quoting_them(text: str, clause: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        read_credentials(text)
    assert clause in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert SEED[:9] not in str(caught.value)


def test_secrets_are_not_shown() -> None:
    """Neither by the credentials nor by the key."""
    shown = repr(Credentials("u", "hunter2", "hunter2", "hunter2", KeyPair(SEED))) + repr(KeyPair(SEED))
    assert "hunter2" not in shown
    assert SEED not in shown
