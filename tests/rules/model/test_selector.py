"""Which connections and which frames."""

from __future__ import annotations

import pytest

from natsproxy.protocol.connect import Connect
from natsproxy.protocol.info import Info
from natsproxy.protocol.jwt import JwtUser
from natsproxy.rules.model.selector import ANYBODY, Peer
from tests.rules.kit import FakeView, Wire

VIEW = FakeView(
    ordinal=3,
    address="10.1.2.3:4000",
    tls_subject="CN=svc-1,O=x",
    connect=Connect(name="svc-7", user="u", lang="go", version="1.2"),
    info=Info(remote_account="ACC", server_name="n2"),
)


@pytest.mark.parametrize(
    ("peer", "yes"),
    [
        (ANYBODY, True),
        (Peer(name="svc-*"), True),
        (Peer(name="svc"), False),
        (Peer(user="u", lang="g?"), True),
        (Peer(user="u", lang="rust"), False),
        (Peer(version="1.*"), True),
        (Peer(account="ACC"), True),
        (Peer(account="OTHER"), False),
        (Peer(ordinal=3), True),
        (Peer(ordinal=4), False),
        (Peer(address="10.0.0.0/8"), True),
        (Peer(tls_subject="CN=svc-*,O=*"), True),
        (Peer(tls_subject="CN=app"), False),
        (Peer(server="n[23]"), True),
        (Peer(server="n1"), False),
        (Peer(address="10.1.2.3"), True),
        (Peer(address="192.168.0.0/16"), False),
    ],
)
def test_connections(peer: Peer, yes: bool) -> None:
    assert peer.admits(VIEW) is yes


CLAIMS = Connect(user="root", nkey="UKEY", jwt=JwtUser("UJWT", "orders", "ACC"))


@pytest.mark.parametrize(
    ("glob", "yes"),
    [("root", True), ("UKEY", True), ("UJWT", True), ("orders", True), ("ACC", False), ("", False)],
)
def test_a_user_is_any_that_the_client_names(glob: str, yes: bool) -> None:
    """Else a client with a JWT would get rid of a rule about its user by naming another one."""
    assert Peer(user=glob).admits(FakeView(connect=CLAIMS)) is yes


def test_a_client_without_a_user() -> None:
    nobody = FakeView(connect=Connect())
    assert [Peer(user=glob).admits(nobody) for glob in ("*", "", "?*")] == [True, True, False]


def test_an_ipv6_address_is_in_its_network() -> None:
    assert Peer(address="::1").admits(FakeView(address="[::1]:4000"))


def drops(*lines: str) -> Wire:
    return Wire("\n".join(["[[rules]]", 'name = "r"', 'kind = "drop"', *lines, ""]))


@pytest.mark.parametrize(
    ("lines", "frame", "yes"),
    [
        (['subject = "a.*"', 'unless = "a.x"'], "MSG a.b 1 0\n", True),
        (['subject = "a.*"', 'unless = "a.x"'], "MSG a.x 1 0\n", False),
        (['unless = "a.>"'], "MSG b 1 0\n", True),
        (['unless = "a.>"'], "MSG a.b 1 0\n", False),
        (['subject = "a"', "min_size = 2"], "MSG a 1 1\nx", False),
        (['subject = "a"', "min_size = 2"], "MSG a 1 2\nxy", True),
        (["max_size = 1"], "MSG a 1 2\nxy", False),
        (['header = { A = "b*" }'], b"HMSG a 1 19 19\r\nNATS/1.0\r\nA: bc\r\n\r\n\r\n", True),
        (['header = { A = "c*" }'], b"HMSG a 1 19 19\r\nNATS/1.0\r\nA: bc\r\n\r\n\r\n", False),
        (['header = { B = "*" }'], b"HMSG a 1 19 19\r\nNATS/1.0\r\nA: bc\r\n\r\n\r\n", False),
        (['header = { A = "*" }'], "MSG a 1 0\n", False),
        (["status = [404, 408]"], b"HMSG a 1 16 16\r\nNATS/1.0 408\r\n\r\n\r\n", True),
        (["status = 404"], b"HMSG a 1 16 16\r\nNATS/1.0 408\r\n\r\n\r\n", False),
    ],
)
def test_frames(lines: list[str], frame: str | bytes, yes: bool) -> None:
    assert drops(*lines).fired(1, frame) is yes  # type: ignore[arg-type]


def test_a_queue_is_that_of_the_subscription() -> None:
    wire = drops('queue = "q.*"')
    wire.decide(0, "SUB a q.1 1")  # type: ignore[arg-type]
    wire.decide(0, "SUB a 2")  # type: ignore[arg-type]
    assert wire.fired(1, "MSG a 1 0\n")  # type: ignore[arg-type]
    assert not wire.fired(1, "MSG a 2 0\n")  # type: ignore[arg-type]
