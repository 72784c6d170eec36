"""CONNECT as the server reads it, and as it may be written down."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproxy.protocol.connect import DEFAULTS, SEVERAL, Connect, parse_connect, redact_connect
from natsproxy.protocol.jwt import user_of
from tests.kit.servers import NatsServer
from tests.protocol.live import Client


def test_defaults_are_verbose_pedantic_echo() -> None:
    """An empty CONNECT, and `null`, leave the server's defaults."""
    assert parse_connect(b"{}") == parse_connect(b"null") == DEFAULTS
    assert (DEFAULTS.verbose, DEFAULTS.pedantic, DEFAULTS.echo) == (True, True, True)


def test_keys_in_any_case_and_last_duplicate_wins() -> None:
    """Keys fold; the last duplicate counts; unknown keys, null and trailing blanks are nothing."""
    args = b'{"VERBOSE":true,"Verbose":false,"verbose":null,"x":[1],"pedantic":false,"protocol":1}  '
    assert parse_connect(args) == Connect(verbose=False, pedantic=False, protocol=1)


def test_a_second_connect_is_merged_over_the_first() -> None:
    """Absent keys keep the values of the first CONNECT."""
    first = parse_connect(b'{"verbose":false,"name":"a","user":"u","pass":"p","headers":true}')
    second = parse_connect(b'{"name":"b","pass":"","echo":false}', first)
    assert second == Connect(
        verbose=False, name="b", user="u", headers=True, echo=False, credentials=frozenset({"user"})
    )


@pytest.mark.parametrize(
    "args",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b"1",
        b"{} junk",
        b'{"verbose":"yes"}',
        b'{"protocol":1.0}',
        b'{"pass":1}',
        b'{"import":[]}',
    ],
)
def test_malformed_connects_are_errors(args: bytes) -> None:
    """Bad JSON, a wrong type and trailing junk are errors."""
    with pytest.raises(ValueError, match=r"."):
        parse_connect(args)


def test_a_leafnode_connect_is_recognised() -> None:
    """A leafnode's CONNECT is known by its fields."""
    assert parse_connect(b'{"remote_account":"A"}').remote
    assert parse_connect(b'{"import":{"allow":["x"]}}').remote
    assert not parse_connect(b'{"import":null,"remote_account":""}').remote


def test_no_secret_in_repr() -> None:
    """The parsed form can be logged."""
    parsed = parse_connect(
        b'{"user":"u","pass":"hunter2","auth_token":"hunter2","jwt":"hunter2","sig":"hunter2"}'
    )
    assert "hunter2" not in repr(parsed)
    assert parsed.credentials == {"user", "pass", "auth_token", "jwt", "sig"}
    named = parse_connect(b'{"name":"app SU%s","user":"u"}' % (b"A" * 56))
    assert (named.name, named.user) == ("app [withheld: seed]", "u")


def test_redact_connect() -> None:
    """Secrets go, in every duplicate; the public nkey and all other bytes stay."""
    args = b'{"user":"u","PASS": "s","pass":"t","nkey":"UPUBLIC","sig":"s","proxy_sig":"s","verbose":false}'
    assert redact_connect(args) == (
        b'{"user":"u","PASS": "[withheld: secret]","pass":"[withheld: secret]","nkey":"UPUBLIC",'
        b'"sig":"[withheld: secret]","proxy_sig":"[withheld: secret]","verbose":false}'
    )


@pytest.mark.parametrize("args", [b'{"pass":"s"', b'"s"', b"s", b'{"pass":"s"}}', b'["s"]'])
def test_unparsable_is_withheld_whole(args: bytes) -> None:
    """Nothing of a CONNECT that does not parse is written down."""
    assert json.loads(redact_connect(args)) == {
        "withheld": f"a CONNECT that does not parse, {len(args)} bytes"
    }


@given(st.dictionaries(st.sampled_from(["pass", "Pass", "JWT", "name", "x"]), st.just("hunter2") | st.none()))
def test_redaction_never_leaks(options: dict[str, str | None]) -> None:
    """Whatever the members, no value of a secret key is left and the rest parses the same."""
    redacted = json.loads(redact_connect(json.dumps(options).encode()))
    assert redacted.keys() == options.keys()
    assert all(value != "hunter2" for key, value in redacted.items() if key not in ("name", "x"))
    assert all(redacted[key] == options[key] for key in options if key in ("name", "x"))


JSON_CASES = [
    b"{}",
    b"null",
    b"[]",
    b'"x"',
    b"1",
    b"{} x",
    b"{}  ",
    b'{"verbose":null}',
    b'{"VERBOSE":1}',
    b'{"verbose":"x"}',
    '{"verbo\u017fe":"x"}'.encode(),
    b'{"verbo\\u017fe":"x"}',
    b'{"protocol":1.0}',
    b'{"protocol":1e0}',
    b'{"name":1}',
    b'{"name":"\xff"}',
    b'{"name":"\x01"}',
    b'{"name":"\\ud800"}',
    b'{"import":[]}',
    b'{"import":{}}',
    b'{"export":"x"}',
    b'{"unknown":[{"pass":1}]}',
    b'{"a":01}',
    b'{"a":NaN}',
    b'{"a":1,}',
    b'{"a":-}',
    b"\xef\xbb\xbf{}",
    b'{"\xff":1}',
    b'{"new_account":"x"}',
    b'{"proxy_sig":5}',
    b'{"remote_account":5}',
    b'{"jwt":{}}',
    b'{"nkey":[]}',
    b"{'a':1}",
]


@pytest.mark.server
@pytest.mark.parametrize("args", JSON_CASES)
def test_parsing_accepts_exactly_the_connects_of_the_server(server: int, args: bytes) -> None:
    """A CONNECT is an error here exactly when the server closes on it."""
    with Client(server) as client:
        try:
            client.exchange(b"CONNECT " + args + b"\r\n")
            taken = True
        except (EOFError, ConnectionResetError):
            taken = False
    if taken:
        parse_connect(args)
    else:
        with pytest.raises(ValueError, match=r"."):
            parse_connect(args)


@pytest.fixture(scope="module")
def server() -> Iterator[int]:
    """One open server for this module."""
    with NatsServer() as server:
        yield server.port


def token(claims: object) -> str:
    """Return a JWT with these claims, that nobody has signed."""
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    return f"e30.{payload}.c2ln"


def test_a_jwt_says_who_its_user_is() -> None:
    """A signing key issues for its account; a later CONNECT without one keeps it, an empty one removes it."""
    claims = {"sub": "UKEY", "name": "orders", "iss": "ASIGNING", "nats": {"issuer_account": "AKEY"}}
    first = parse_connect(json.dumps({"jwt": token(claims)}).encode())
    assert (first.jwt, first.who, first.user_key) == (("UKEY", "orders", "AKEY"), "orders", "UKEY")
    assert parse_connect(b"{}", first).jwt == first.jwt
    assert parse_connect(b'{"jwt":""}', first).who == ""
    assert parse_connect(b'{"user":"ann"}', first).who == "ann"
    assert not parse_connect(b'{"user":"ann"}', first).claims_one_user
    assert {parse_connect(b'{"user":"%b"}' % name, first).user_key for name in (b"a", b"b")} == {SEVERAL}


@given(
    st.one_of(
        st.text(),
        st.recursive(
            st.none() | st.text() | st.integers(),
            lambda inside: (
                st.lists(inside)
                | st.dictionaries(st.sampled_from(("sub", "iss", "name", "nats", "issuer_account")), inside)
            ),
        ).map(token),
        st.just("." + "[" * 3000 + "."),
    )
)
def test_any_jwt_is_read(jwt: str) -> None:
    """Whatever it holds: it may only say less."""
    found = user_of(jwt)
    assert all(isinstance(text, str) and len(text) <= 256 for text in found)


def test_the_claims_of_a_jwt_are_those_that_the_server_reads() -> None:
    """Whoever signs users for one account must not be able to show another: Go compares keys without case."""
    claims = '{"sub":"UVICTIM","SUB":"UOWN","iss":"AVICTIM","Iss":"AOWN","name":"ann"}'
    payload = base64.urlsafe_b64encode(claims.encode()).decode().rstrip("=")
    assert user_of(f"e30.{payload}.c2ln") == ("UOWN", "ann", "AOWN")
