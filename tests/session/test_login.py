"""INFO and CONNECT: rewritten, checked, refused, recorded, and what else a client may begin with."""

from __future__ import annotations

import base64
import json
from typing import Any

import nkeys
import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproxy import close_reasons
from natsproxy.capture.format.records import Flags
from natsproxy.protocol import gojson
from natsproxy.protocol.connect import AUTH_FIELDS
from natsproxy.protocol.credentials import Credentials, KeyPair, read_credentials
from natsproxy.session.login import clears_subscriptions, client_info, other_protocol
from natsproxy.session.values import Certificate, Identity, SessionSettings
from natsproxy.wire.ops import C2S, Op
from tests.kit.accounts import Operator
from tests.session.playbook import CONNECT, INFO, Playbook

SEED = "SUAMLK2ZNL35WSMW37E7UD4VZ7ELPKW7DHC3BWBSD2GCZ7IUQQXZIORRBU"
KEY = KeyPair(SEED)
NONCE = "n0nce"
GREETING = INFO.replace(b'"headers"', b'"auth_required":true,"nonce":"n0nce","headers"')
OWN = Credentials(user="proxy", password="proxy-secret")
USERS = Identity(OWN, "users")
DENIED = b"-ERR 'Authorization Violation'\r\n"


def connect(**members: object) -> bytes:
    return b"CONNECT " + json.dumps(members).encode() + b"\r\n"


def members(raw: bytes) -> dict[str, Any]:
    """Return the members of one CONNECT or INFO."""
    line, _, rest = raw.partition(b"\r\n")
    assert not rest
    found: dict[str, Any] = json.loads(line.partition(b" ")[2])
    return found


def play(identity: Identity | None, **settings: Any) -> Playbook:
    """Return a session that has greeted its client."""
    return Playbook(identity=identity, **settings).server(GREETING)


def signed(sig: str) -> bool:
    raw = base64.urlsafe_b64decode(sig + "==")
    return bool(nkeys.from_seed(bytearray(SEED.encode())).verify(NONCE.encode(), raw))


# -- the bytes


def test_without_an_identity_every_byte_passes() -> None:
    """The nonce as well, which the client signs."""
    session = play(None)
    assert session.to_client == GREETING
    raw = b'connect\t{ "User":"u", "pass":"p", "proxy_sig":"its own" }  \r\n'
    assert session.client(raw).to_server == raw


@pytest.mark.parametrize(
    ("clients", "auth_required"), [("users", True), ("certificate", None), ("none", None)]
)
def test_info_says_what_the_proxy_asks_for(clients: str, auth_required: bool | None) -> None:
    """The first INFO and later ones; no client signs a nonce."""
    session = play(Identity(OWN, clients), certificate=Certificate("CN=c"))
    shown = members(session.to_client)
    assert shown.get("auth_required") is auth_required
    assert "nonce" not in shown
    session.client(connect(user="a") + b"PING\r\n").authenticated()
    session.server(b"PONG\r\n").server(GREETING)
    assert session.to_client.count(b"nonce") == 0


def test_the_clients_credentials_are_replaced() -> None:
    """Those of the proxy come in, and every other byte stays."""
    session = play(Identity(OWN))
    session.client(b'CONNECT {"name" : "a", "user":"x", "pass":"y", "jwt":"z","echo":false }\r\n')
    assert session.to_server == (
        b'CONNECT {"name" : "a","user":"proxy","pass":"proxy-secret","echo":false}\r\n'
    )


SPELLED = st.sampled_from(AUTH_FIELDS).flatmap(
    lambda name: st.lists(st.booleans(), min_size=len(name), max_size=len(name)).map(
        lambda upper: "".join(c.upper() if up else c for c, up in zip(name, upper, strict=True))
    )
)


@given(st.lists(st.tuples(SPELLED, st.one_of(st.none(), st.text(max_size=5))), max_size=8), st.booleans())
def test_no_spelling_of_a_credential_goes_through(pairs: list[tuple[str, str | None]], escaped: bool) -> None:
    """Any letter case, duplicates, null, escapes, and the two letters that Go folds to ASCII."""
    pairs += [("p\u0061\u017f\u017f", "secret"), ("n\u212aey", "secret")]
    text = ",".join(f"{json.dumps(name, ensure_ascii=escaped)}:{json.dumps(value)}" for name, value in pairs)
    session = play(Identity(Credentials(token="own")))
    session.client(f'CONNECT {{{text},"verbose":false}}\r\n'.encode())
    args = session.to_server.removeprefix(b"CONNECT ").rstrip()
    found = [(gojson.fold(key), value) for key, value in gojson.load_pairs(args) or ()]
    assert found in (
        [("auth_token", "own"), ("verbose", False)],
        [("verbose", False), ("auth_token", "own")],
    )


@pytest.mark.parametrize("args", [b"{}", b"null", b" { } "])
def test_a_connect_without_members(args: bytes) -> None:
    session = play(Identity(OWN)).client(b"CONNECT" + args + b"\r\n")
    assert members(session.to_server) == {"user": "proxy", "pass": "proxy-secret"}


def test_an_nkey_and_a_jwt_sign_the_servers_nonce() -> None:
    """Only its first INFO has one; a second CONNECT is signed with it as well."""
    session = play(Identity(Credentials(key=KEY)))
    for _ in range(2):
        sent = members(session.client(connect(name="a")).to_server)
        assert set(sent) == {"name", "nkey", "sig"}
        assert (sent["nkey"], signed(sent["sig"])) == (KEY.public, True)
        session.server(INFO)
    sent = members(play(Identity(Credentials(jwt="j", key=KEY))).client(connect(nkey="x")).to_server)
    assert set(sent) == {"jwt", "sig"}


def test_a_trusted_proxy_signs_and_leaves_the_rest() -> None:
    """The client's own signature over the same nonce stays; a `proxy_sig` of its own does not."""
    session = play(Identity(key=KEY))
    assert session.to_client == GREETING
    sent = members(session.client(connect(nkey="U", sig="s", PROXY_SIG="forged", jwt="j")).to_server)
    assert signed(sent.pop("PROXY_SIG"))
    assert sent == {"nkey": "U", "sig": "s", "jwt": "j"}


def test_without_a_nonce_there_is_nothing_to_sign() -> None:
    """A server without `proxies` has none."""
    session = Playbook(identity=Identity(key=KEY)).server(INFO)
    assert session.to_client == INFO
    assert session.client(CONNECT).to_server == CONNECT


# -- clients that must prove who they are


def test_a_right_password_lets_the_client_in() -> None:
    """What it sent behind its CONNECT waits for the check, and then goes on."""
    session = play(USERS)
    session.client(connect(user="ann", **{"pass": "pw"}, name="app") + b"PING\r\nPUB a 2\r\nhi\r\n")
    assert session.asked == [("ann", "pw")]
    assert session.session.pipes[C2S].full
    assert session.to_server == b""
    session.client(b"PUB b 2\r\nho\r\n")
    assert session.to_server == b""
    sent, _, rest = session.authenticated().to_server.partition(b"\r\n")
    assert members(sent + b"\r\n") == {"user": "proxy", "pass": "proxy-secret", "name": "app"}
    assert rest == b"PING\r\nPUB a 2\r\nhi\r\nPUB b 2\r\nho\r\n"
    assert session.session.connect.user == "ann"
    assert not session.session.pipes[C2S].full


def test_a_wrong_password_gets_the_servers_own_answer() -> None:
    """Nothing of the client reaches the server; the log has the reason and the client does not."""
    session = play(USERS)
    session.to_client  # noqa: B018
    session.client(connect(user="ann", name="app") + b"PUB a 2\r\nhi\r\n").authenticated("a wrong password")
    assert (session.to_server, session.to_client) == (b"", DENIED)
    assert session.end is not None
    assert (session.end.cause, session.end.detail) == (close_reasons.UNAUTHORIZED, "a wrong password")
    assert (session.session.connect.user, session.session.connect.name) == ("", "app")


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"PING\r\n", DENIED),
        (b"PUB a 2\r\nhi\r\n" + CONNECT, DENIED),
        (b"SUB > 1\r\n", DENIED),
        (b"+OK\r\n", DENIED),
        (b"GARBAGE\r\n", DENIED),
        (b"CONNEXT\r\n", b"-ERR 'Unknown Protocol Operation'\r\n"),
        (b"CONNECT {" + b"x" * 5000, b"-ERR 'maximum control line exceeded'\r\n"),
        (b"CONNECT {\r\n", b""),
        (b'CONNECT {"user":1}\r\n', b""),
    ],
)
def test_nothing_goes_before_connect(sent: bytes, answer: bytes) -> None:
    """As at a server that requires authentication."""
    session = play(USERS, unparsed="pass")
    session.to_client  # noqa: B018
    session.client(sent)
    assert (session.to_server, session.to_client) == (b"", answer)
    assert session.end is not None
    assert session.asked == []


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_the_connect_may_come_in_pieces(cut: int) -> None:
    stream = connect(user="ann", **{"pass": "pw"}, name="application") + b"PING\r\n"
    session = play(USERS).client(stream[:cut])
    session.client(stream[cut:]).authenticated()
    assert session.to_server.endswith(b"PING\r\n")
    assert session.asked == [("ann", "pw")]


def test_a_second_connect_is_checked_too() -> None:
    """Merged over the first, as the server merges it; what follows it waits."""
    session = play(USERS).client(connect(user="ann", **{"pass": "pw"}) + b"PING\r\n").authenticated()
    session.server(b"PONG\r\n")
    session.to_server, session.to_client  # noqa: B018
    session.client(b"PUB a 1\r\nx\r\n" + connect(user="bob") + b"PUB b 1\r\ny\r\n")
    assert session.asked == [("ann", "pw"), ("bob", "pw")]
    assert session.to_server == b"PUB a 1\r\nx\r\n"
    assert session.session.connect.user == "ann"  # rules go by whom the proxy knows
    session.server(b"MSG a 1 1\r\nz\r\n")
    assert session.to_client == b"MSG a 1 1\r\nz\r\n"
    session.authenticated("a wrong password")
    assert session.to_server == b"PING\r\n"  # the answer comes in the server's order
    assert session.server(b"PONG\r\n").to_client == DENIED
    assert session.end is not None


def test_a_certificate_is_enough_where_it_is_asked_for() -> None:
    """And a client without one is refused."""
    identity = Identity(OWN, "certificate")
    sent = play(identity, certificate=Certificate("CN=ann")).client(connect(user="x")).to_server
    assert members(sent) == {"user": "proxy", "pass": "proxy-secret"}
    refused = play(identity)
    refused.to_client  # noqa: B018
    assert refused.client(connect(user="x")).to_client == DENIED
    assert refused.to_server == b""


def test_a_certificate_stands_for_the_first_of_its_names_that_is_a_user() -> None:
    """Rules and the log go by it, and not by what the client says; without a user it is refused."""
    identity = Identity(OWN, "certificate", users=frozenset({"svc", "CN=ann"}))
    for names, user in (("ann@example.com", "svc", "CN=ann"), "svc"), (("CN=ann",), "CN=ann"):
        session = play(identity, certificate=Certificate("CN=ann", names)).client(connect(user="x"))
        assert session.session.connect.user == user
        assert members(session.to_server) == {"user": "proxy", "pass": "proxy-secret"}
    session = play(identity, certificate=Certificate("CN=eve", ("CN=eve",)))
    session.to_client  # noqa: B018
    assert session.client(connect(user="svc")).to_client == DENIED
    assert session.to_server == b""
    assert session.end
    assert session.end.detail == "the client's certificate stands for no user"


@pytest.mark.parametrize("clients", ["certificate", "none"])
def test_a_user_that_nobody_checks_is_nobody(clients: str) -> None:
    """Neither the proxy nor the server sees to it, so rules and the log must not go by it."""
    session = play(Identity(OWN, clients), certificate=Certificate("CN=ann")).client(
        connect(user="admin", nkey="U", jwt=read_credentials(Operator().creds("admin")).jwt)
    )
    assert session.to_server
    assert session.session.connect.users == ()
    assert session.session.who.user == ""


def test_a_client_that_goes_during_its_check_sends_nothing() -> None:
    """Neither its CONNECT nor its last bytes; the answer of the check comes too late."""
    session = play(USERS).client(connect(user="ann", name="app") + b"PUB a 2\r\nhi\r\nPU")
    session.eof(C2S)
    session.do(session.session.closed(session.now))
    session.authenticated()
    assert session.to_server == b""
    assert session.end is not None
    assert session.end.cause == close_reasons.CLIENT_CLOSED
    (came,) = [record for record in session.records if record.ops == Op.CONNECT.bit]
    assert (came.in_first, came.out_first, came.cause) == (0, None, "unsent")


def test_a_drain_ends_a_client_that_is_being_checked() -> None:
    """The server is asked nothing."""
    session = play(USERS).client(connect(user="ann"))
    passed: list[int] = []
    session.do(session.session.fence(passed.append, session.now))
    session.session.drain(session.now)
    session.do(session.session.take_actions())
    assert passed
    assert session.to_server == b""
    assert session.end is not None
    assert session.end.cause == close_reasons.DRAINED


# -- captures


def test_both_forms_are_recorded_without_secrets() -> None:
    """The client's as it came, the proxy's as it went, tied by the ordinal."""
    session = play(Identity(Credentials(jwt="own-secret", key=KEY), "users", KEY))
    session.client(connect(user="ann", Pass="secret", jwt="secret", name="app")).authenticated()
    came, went = (record for record in session.records if record.ops == Op.CONNECT.bit)
    assert b"secret" in session.to_server
    assert (came.in_first, came.out_first, went.in_first, went.out_first) == (0, None, None, 0)
    assert went.extra == {"of": 0}
    assert (came.cause, went.cause) == ("proxy", "proxy")
    withheld = "[withheld: secret]"
    assert members(bytes(came.data)) == {"user": "ann", "Pass": withheld, "jwt": withheld, "name": "app"}
    assert members(bytes(went.data)) == dict.fromkeys(("jwt", "sig", "proxy_sig"), withheld) | {"name": "app"}
    assert came.flags & went.flags & Flags.REDACTED
    assert b"secret" not in b"".join(
        bytes(record.data).replace(b"[withheld: secret]", b"") for record in session.records
    )
    shown = session.session.snapshot()["connect"]
    assert b"ann" in shown
    assert b"own-secret" not in shown


def test_a_refused_connect_is_recorded() -> None:
    session = play(USERS).client(connect(user="ann", **{"pass": "secret"})).authenticated("no")
    (came,) = [record for record in session.records if record.ops == Op.CONNECT.bit]
    assert (came.in_first, came.out_first, came.cause) == (0, None, "proxy")
    assert members(bytes(came.data))["pass"] == "[withheld: secret]"


# -- the greeting of the server


ADDRESSES = (
    b'{"host":"10.0.0.1","port":4222,"connect_urls":["10.0.0.1:4222"],"ws_connect_urls":["10.0.0.1:80"]}'
)


@pytest.mark.parametrize(
    ("advertise", "kept"),
    [
        ("pass", {**json.loads(ADDRESSES)}),
        ("strip", {"host": "proxy", "port": 1}),
        ("self", {"host": "proxy", "port": 1, "connect_urls": ["proxy:1"]}),
    ],
)
def test_the_client_learns_the_addresses_that_are_for_it(advertise: str, kept: dict[str, object]) -> None:
    settings = SessionSettings(advertise=advertise, self_host="proxy", self_port=1, self_urls=("proxy:1",))
    assert json.loads(client_info(ADDRESSES, settings)) == kept


def test_an_info_without_changes_is_the_very_same() -> None:
    args = b'{ "server_id" : "S" }'
    assert client_info(args, SessionSettings(advertise="pass")) is args


@pytest.mark.parametrize(
    ("version", "clears"),
    [
        ("2.11.16", False),
        ("2.11.17", True),
        ("2.12.7", False),
        ("2.12.8", True),
        ("2.13.0", False),
        ("2.14.0", True),
        ("3.0.0", True),
        ("", False),
    ],
)
def test_a_second_connect_clears_the_subscriptions_of_some_servers(version: str, clears: bool) -> None:
    assert clears_subscriptions(version) is clears
    play = Playbook().server(INFO.replace(b"2.15.1", version.encode()))
    play.client(CONNECT + b"SUB a 1\r\n" + CONNECT)
    assert bool(play.session.subs) is not clears


@pytest.mark.parametrize("head", [b"\x16\x03\x01", b"GET / HTTP/1.1\r\n", b"PROXY TCP4", b"\x10\x0c"])
def test_a_client_of_another_protocol_is_told(head: bytes) -> None:
    play = Playbook().server(INFO).client(head)
    assert play.to_client == INFO + b"-ERR 'Unknown Protocol Operation'\r\n"
    assert play.to_server == b""
    assert play.end is not None
    assert (play.end.cause, play.end.detail) == (
        close_reasons.CLIENT_PROTOCOL,
        f"the client sent {other_protocol(head)}",
    )


def test_news_that_come_before_the_first_pong_wait_for_it_the_latest_of_many() -> None:
    """Each tells the whole state of the server's cluster."""
    play = Playbook().server(INFO).client(CONNECT + b"PING\r\n")
    news = [b'INFO {"connect_urls":["h:%d"]} \r\n' % number for number in range(20)]
    play.server(b"".join(news))
    assert play.to_client == INFO
    play.server(b"PONG\r\n")
    assert play.to_client == b"PONG\r\n" + b"".join(news[4:])
