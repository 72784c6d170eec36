"""Credentials of a replayed client."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import nkeys
import pytest

from natsproxy.cli.params import parse_credentials
from natsproxy.errors import ConfigError
from natsproxy.replay.client_playback.credentials import (
    ReplayCredentials,
    from_user,
    rebuild_connect,
)

RECORDED = b'{"verbose":false,"name":"n","user":"old","pass":"[redacted]","sig":"s","JWT":"j","echo":true}'
SEED = "SUAMLK2ZNL35WSMW37E7UD4VZ7ELPKW7DHC3BWBSD2GCZ7IUQQXZIORRBU"


def test_secrets_go_and_the_rest_stays() -> None:
    fields = json.loads(rebuild_connect(RECORDED, ReplayCredentials(), ""))
    assert fields == {"verbose": False, "name": "n", "echo": True}


def test_the_users_credentials_come_in_their_place() -> None:
    fields = json.loads(rebuild_connect(RECORDED, ReplayCredentials(from_user("me:pw:1")), ""))
    assert (fields["user"], fields["pass"]) == ("me", "pw:1")
    assert json.loads(rebuild_connect(b"", ReplayCredentials(from_user("tok")), ""))["auth_token"] == "tok"


def test_a_recorded_user_may_have_credentials_of_its_own() -> None:
    both = ReplayCredentials(from_user("t"), {"old": from_user("new:pw")})
    assert json.loads(rebuild_connect(RECORDED, both, ""))["user"] == "new"
    assert json.loads(rebuild_connect(b'{"user":"else"}', both, ""))["auth_token"] == "t"


def test_a_creds_file_signs_the_live_nonce(tmp_path: Path) -> None:
    path = tmp_path / "user.creds"
    path.write_text(
        f"-----BEGIN NATS USER JWT-----\naaa.bbb.ccc\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{SEED}\n------END USER NKEY SEED------\n"
    )
    fields = json.loads(rebuild_connect(RECORDED, given(path), "nonce"))
    assert fields["jwt"] == "aaa.bbb.ccc"
    signature = base64.urlsafe_b64decode(fields["sig"] + "==")
    assert nkeys.from_seed(bytearray(SEED.encode())).verify(b"nonce", signature)


def given(creds: object) -> ReplayCredentials:
    """Return the credentials of `--creds`."""
    return parse_credentials({"creds": creds, "user": None, "map_user": ()})


def test_a_variable_may_hold_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CREDS", SEED)
    assert "sig" in json.loads(rebuild_connect(RECORDED, given("env:CREDS"), "nonce"))


def test_a_file_without_seed_and_a_missing_one_are_reported(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("nothing")
    with pytest.raises(ConfigError, match=r"is not a \.creds file"):
        given(tmp_path / "x")
    with pytest.raises(ConfigError, match="cannot read the file that creds names"):
        given(tmp_path / "y")


def test_secrets_are_not_shown() -> None:
    assert "pw" not in repr(from_user("me:pw"))
