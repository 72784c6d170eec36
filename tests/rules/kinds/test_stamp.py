"""Stamps: who gets one, what it says, and what no client can bring along."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from natsproxy.errors import ConfigError
from natsproxy.events import Who
from natsproxy.protocol import stamps
from natsproxy.protocol.connect import Connect
from natsproxy.protocol.credentials import KeyPair
from natsproxy.protocol.info import Info
from natsproxy.protocol.jwt import JwtUser
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.file.parser import load
from natsproxy.rules.kinds import KINDS
from natsproxy.wire import encode
from natsproxy.wire.ops import C2S
from tests.kit.accounts import seed
from tests.rules.kit import FakeView, Wire, parse

DENIED = b"-ERR 'Permissions Violation for Publish to \"s\"'\r\n"
ANN = (
    b"Nats-Sender-User: ann\r\nNats-Sender-Account: SHOP\r\n"
    b"Nats-Sender-Address: 127.0.0.1\r\nNats-Sender-By: server\r\n"
)


def rule(*lines: str) -> str:
    return "\n".join(["[[rules]]", 'name = "r"', 'kind = "stamp"', *lines, ""])


def of_ann(
    user_by: str = "server", *, headers: bool = True, max_payload: int = 1000, user: str = "ann"
) -> FakeView:
    connect = Connect(verbose=False, pedantic=False, headers=headers, user=user, name="app")
    info = Info(headers=True, max_payload=max_payload, remote_account="SHOP")
    return FakeView(connect=connect, info=info, who=Who(user_by=user_by))


def wire(*lines: str, view: FakeView | None = None) -> Wire:
    return Wire(rule(*lines), view=view or of_ann())


def hpub(block: bytes, body: bytes = b"x", subject: bytes = b"s") -> bytes:
    return b"HPUB %b %d %d\r\n%b%b\r\n" % (subject, len(block), len(block) + len(body), block, body)


def block_of(raw: bytes) -> bytes:
    return parse(C2S, raw).headers


# -- who gets one


@pytest.mark.parametrize("by", ["natsproxy", "certificate", "server"])
def test_a_verified_sender_is_named(by: str) -> None:
    out = wire(view=of_ann(by)).c2s("PUB s r 1\nx")
    whole = b"NATS/1.0\r\n" + ANN.replace(b"By: server", b"By: " + by.encode()) + b"\r\n"
    assert out == encode.pub(b"s", b"x", reply=b"r", headers=whole)


@pytest.mark.parametrize("by", ["client", ""])
def test_the_word_of_the_client_is_not_enough(by: str) -> None:
    assert wire(view=of_ann(by)).c2s("PUB s 1\nx") == b"PUB s 1\r\nx\r\n"


def test_a_witness_that_the_rule_leaves_out_does_not_count() -> None:
    assert wire('by = "natsproxy"').c2s("PUB s 1\nx") == b"PUB s 1\r\nx\r\n"


@pytest.mark.parametrize("by", ["client", ""])
def test_who_is_not_verified_can_be_denied(by: str) -> None:
    decision = wire('unverified = "deny"', view=of_ann(by)).decide(C2S, "PUB s 1\nx")
    assert decision is not None
    assert (decision.out, decision.answer) == ((), DENIED)


def test_other_subjects_have_none_but_are_stripped_as_well() -> None:
    one = wire('subject = "orders.>"')
    assert one.c2s("PUB s 1\nx") == b"PUB s 1\r\nx\r\n"
    assert one.c2s(hpub(b"NATS/1.0\r\nNats-Sender-User: root\r\nA: b\r\n\r\n")) == hpub(
        b"NATS/1.0\r\nA: b\r\n\r\n"
    )
    assert ANN in one.c2s("PUB orders.a 1\nx")


@pytest.mark.parametrize(
    "subject", ["$JS.ACK.S.C.1.1.1.1.0", "$JS.API.INFO", "$JS.hub.API.INFO", "$SYS.REQ.USER.INFO"]
)
def test_what_the_server_reads_is_left_alone_unless_it_is_named(subject: str) -> None:
    frame = f"PUB {subject} 1\nx"
    assert wire('unverified = "deny"').c2s(frame) == frame.replace("\n", "\r\n").encode() + b"\r\n"
    assert ANN in wire(f'subject = "{subject.partition(".")[0]}.>"').c2s(frame)


def test_a_client_that_logs_in_again_loses_its_stamp() -> None:
    one = wire()
    assert ANN in one.c2s("PUB s 1\nx")
    one.view.who = Who(user_by="client")
    one.view.connect = one.view.connect._replace(user="root")
    one.rebind()
    assert one.c2s("PUB s 1\nx") == b"PUB s 1\r\nx\r\n"


# -- what it says


def test_a_jwt_names_the_user_by_its_key_and_the_account_where_the_server_does_not() -> None:
    jwt = JwtUser("UKEY", "ceo", "AKEY")
    view = of_ann(user="")
    view.connect = view.connect._replace(jwt=jwt)
    view.info = Info(headers=True)
    out = wire('facts = ["user", "account"]', view=view).c2s("PUB s 1\nx")
    assert b"Nats-Sender-User: UKEY\r\nNats-Sender-Account: AKEY\r\nNats-Sender-By: server\r\n" in out
    view.who = Who(user_by="natsproxy")  # the client's own JWT is nobody's word then
    assert b"AKEY" not in wire(view=view).c2s("PUB s 1\nx")


def test_values_cannot_hold_lines() -> None:
    """Whoever makes users, or names itself, writes no header."""
    view = of_ann(user="a%b\r\nNats-Sender-Account: $SYS\r\n\u017f \ud800")
    out = wire('facts = ["user", "client"]', view=view).c2s("PUB s 1\nx")
    line = b"Nats-Sender-User: a%25b%0D%0ANats-Sender-Account:%20$SYS%0D%0A%C5%BF%20?\r\n"
    assert (
        block_of(out) == b"NATS/1.0\r\n" + line + b"Nats-Sender-Client: app\r\nNats-Sender-By: server\r\n\r\n"
    )


# -- where it cannot be


def test_a_client_without_headers_is_denied_where_it_should_have_one() -> None:
    decision = wire(view=of_ann(headers=False)).decide(C2S, "PUB s 1\nx")
    assert decision is not None
    assert (decision.out, decision.answer) == ((), DENIED)


def test_what_the_server_closes_for_is_the_servers() -> None:
    """An HPUB of a client without headers: it never becomes a PUB, which would pass."""
    raw = hpub(b"NATS/1.0\r\nNats-Sender-User: root\r\n\r\n")
    assert wire(view=of_ann(headers=False)).c2s(raw) == raw


def test_a_message_that_becomes_too_large_ends_the_connection_as_at_the_server() -> None:
    size = len(b"NATS/1.0\r\n" + ANN + b"\r\n")
    at_most = wire(view=of_ann(max_payload=size + 10))
    assert ANN in at_most.c2s("PUB s 10\n0123456789")
    decision = at_most.decide(C2S, "PUB s 11\n01234567890")
    assert decision is not None
    assert decision.close is not None
    assert decision.close.raw == b"-ERR 'Maximum Payload Violation'\r\n"


FOLDED = b"NATS/1.0\r\n" + b" a\r\n" * 65 + b"\r\n"


@pytest.mark.parametrize(
    "block", [b"A: b\r\n\r\n", b"nats/1.0\r\n\r\n", b"NATS/1.0\nA: b\n\n", b"NATS/1.0\rA: b\r\n\r\n", FOLDED]
)
def test_a_block_that_readers_disagree_on_has_none(block: bytes) -> None:
    decision = wire().decide(C2S, hpub(block))
    assert decision is not None
    assert (decision.out, decision.answer) == ((), DENIED)
    assert wire(view=of_ann("client")).c2s(hpub(block)) == hpub(block)


# -- what no client can bring along

FORGED = {
    "plain": b"Nats-Sender-User: root\r\n",
    "lower case": b"nats-sender-user: root\r\n",
    "mixed case": b"nAtS-SeNdEr-uSeR: root\r\n",
    "underscores": b"Nats_Sender_User: root\r\n",
    "repeated": b"Nats-Sender-User: root\r\n" * 3,
    "no blank": b"Nats-Sender-User:root\r\n",
    "blank before the colon": b"Nats-Sender-User : root\r\n",
    "TAB before the colon": b"Nats-Sender-User\t: root\r\n",
    "blank before the name": b" Nats-Sender-User: root\r\n",
    "control before the name": b"\x0b\x0c\x00Nats-Sender-User: root\r\n",
    "mark before the name": b"\xef\xbb\xbfNats-Sender-User: root\r\n",
    "bad UTF-8 before the name": b"\xff\xc0Nats-Sender-User: root\r\n",
    "folded": b"A: b\r\n Nats-Sender-User: root\r\n",
    "folded value": b"Nats-Sender-User:\r\n root\r\n",
    "behind a lone CR": b"A: b\rNats-Sender-User: root\r\n",
    "behind a lone LF": b"A: b\nNats-Sender-User: root\r\n",
    "behind CR CR LF": b"A: b\r\r\nNats-Sender-User: root\r\r\n",
    "behind a blank line": b"A: b\r\n\r\nNats-Sender-User: root\r\n",
    "behind a line separator": b"A: b\xe2\x80\xa8Nats-Sender-User: root\r\n",
    "behind a next line": b"A: b\xc2\x85Nats-Sender-User: root\r\n",
    "no line end": b"Nats-Sender-User: root",
    "no colon": b"Nats-Sender-User\r\n",
    "another name": b"Nats-Sender-Signature: x\r\nNats-Sender-New: y\r\n",
    "in a value": b"A: Nats-Sender-User: root\r\n",
}
"""Lines with which a client says who it is."""
REFUSED = {
    "the long s": "Nat\u017f-\u017fender-User: root\r\n".encode(),
    "one long s": "Nats-\u017fender-User: root\r\n".encode(),
    "more than are taken apart": b"Nats-Sender-User: root\r\n" * 65,
}


@pytest.mark.parametrize("by", ["server", "client"])
@pytest.mark.parametrize("name", FORGED)
def test_every_forged_line_goes(name: str, by: str) -> None:
    """Verified or not; what stands beside it stays, and a real stamp is the only one."""
    raw = hpub(b"NATS/1.0\r\n" + FORGED[name] + b"Z: z\r\n\r\n")
    out = wire(view=of_ann(by)).c2s(raw)
    expected = ANN.lower().count(b"nats-sender-") if by == "server" else 0
    assert out.translate(stamps._FOLD).count(b"nats-sender-") == expected
    assert b"root" not in block_of(out) or name == "folded value"
    assert out.endswith(b"x\r\n")
    if name != "no line end":
        assert b"Z: z\r\n" in out


@pytest.mark.parametrize("by", ["server", "client"])
@pytest.mark.parametrize(
    "lines", [*REFUSED.values(), b" Nats-Sender-User: root"], ids=[*REFUSED, "in the first line"]
)
def test_what_is_not_taken_apart_does_not_pass(lines: bytes, by: str) -> None:
    first = b"NATS/1.0" if lines[:1] == b" " else b"NATS/1.0\r\n"
    decision = wire(view=of_ann(by)).decide(C2S, hpub(first + lines + b"\r\n\r\n"))
    assert decision is not None
    assert (decision.out, decision.answer) == ((), DENIED)


@pytest.mark.parametrize("by", ["server", "client"])
def test_a_block_without_a_version_line(by: str) -> None:
    decision = wire(view=of_ann(by)).decide(C2S, hpub(b"Nats-Sender-User: root\r\n\r\n"))
    assert decision is not None
    assert decision.out == ()


def test_no_line_is_added_to_the_value_of_a_stamp() -> None:
    """Readers of mail add a line that begins with a blank to the one before."""
    out = wire('facts = "user"').c2s(hpub(b"NATS/1.0\r\n evil\r\n\tmore\r\nA: b\r\n\r\n"))
    assert block_of(out) == b"NATS/1.0\r\nNats-Sender-User: ann\r\nNats-Sender-By: server\r\nA: b\r\n\r\n"
    out = wire('facts = "user"').c2s(hpub(b"NATS/1.0\r\nNats-Sender-User: x\r\n evil\r\n\r\n"))
    assert block_of(out) == b"NATS/1.0\r\nNats-Sender-User: ann\r\nNats-Sender-By: server\r\n\r\n"


@pytest.mark.parametrize("size", [0, 1, 5, 11, 14, 24])
def test_a_header_size_that_lies(size: int) -> None:
    """The block is what the size says, wherever that cuts it; the rest is payload, and stays."""
    payload = b"NATS/1.0\r\nNats-Sender-User: root\r\n\r\nx"
    raw = b"HPUB s %d %d\r\n%b\r\n" % (size, len(payload), payload)
    decision = wire(view=of_ann("client")).decide(C2S, raw)
    out = raw if decision is None or decision.out is None else b"".join(decision.out)
    assert out == b"" or b"nats-sender" not in block_of(out).lower()
    assert out == b"" or parse(C2S, out).body == payload[size:]


def test_a_stamp_alone_leaves_a_plain_frame() -> None:
    raw = hpub(b"NATS/1.0\r\nNats-Sender-User: root\r\n\r\n")
    assert wire(view=of_ann("client")).c2s(raw) == b"PUB s 1\r\nx\r\n"


def test_an_empty_hpub_and_an_empty_block() -> None:
    assert ANN in wire().c2s(b"HPUB s 0 1\r\nx\r\n")
    assert ANN in wire().c2s(hpub(b"NATS/1.0\r\n\r\n", b""))
    assert wire(view=of_ann("client")).c2s(b"HPUB s 0 1\r\nx\r\n") == b"HPUB s 0 1\r\nx\r\n"


def test_a_status_line_is_kept() -> None:
    out = wire('facts = "user"').c2s(hpub(b"NATS/1.0 503 No Responders\r\nA: b\r\n\r\n"))
    assert block_of(out).startswith(b"NATS/1.0 503 No Responders\r\nNats-Sender-User: ann\r\n")


def test_a_firing_says_what_happened() -> None:
    forged = hpub(b"NATS/1.0\r\nNats-Sender-User: root\r\n\r\n")

    def fired(one: Wire, raw: bytes | str) -> list[tuple[str, str]]:
        decision = one.decide(C2S, raw)
        return [] if decision is None else [(firing.action, firing.detail) for firing in decision.firings]

    assert fired(wire(), "PUB s 1\nx") == [("stamp", "ann")]
    assert fired(wire(), forged) == [("strip", "headers of stamps were removed; ann")]
    nobody = of_ann("client")
    assert fired(wire(view=nobody), forged) == [("strip", "headers of stamps were removed; it has no stamp")]
    assert fired(wire(view=nobody), "PUB s 1\nx") == []
    denying = wire('unverified = "deny"', view=nobody)
    assert fired(denying, "PUB s 1\nx") == [("deny", "nobody has verified its sender")]
    (closing,) = fired(wire(view=of_ann(max_payload=5)), "PUB s 1\nx")
    assert closing == ("close", "it would be larger than the server's max_payload")


def test_other_rules_come_first() -> None:
    """A rule that sets such a header is as little the proxy's word as a client is."""
    other = '[[rules]]\nname = "h"\nkind = "headers"\nset = { "Nats-Sender-User" = "root", A = "b" }\n'
    for text in (other + rule('facts = "user"'), rule('facts = "user"') + other):
        assert block_of(Wire(text, view=of_ann()).c2s("PUB s 1\nx")) == (
            b"NATS/1.0\r\nNats-Sender-User: ann\r\nNats-Sender-By: server\r\nA: b\r\n\r\n"
        )


PIECES = st.sampled_from(
    [
        *(b"Nats-Sender-User", b"nats_sender_By", b"NATS-SENDER-", b"NATS/1.0", b"\r", b"\n", b"\r\n"),
        *(b"\r\n\r\n", b" ", b"\t", b":", b": root", b"A: b", b"\x00", b"\xc5\xbf", b"Nats-", b"Sender-"),
        *(b"\xff", b"503"),
    ]
)


@settings(max_examples=300)
@given(st.lists(PIECES, max_size=20).map(b"".join), st.booleans())
def test_whatever_is_sent_only_the_proxy_writes_stamps(block: bytes, verified: bool) -> None:
    """And all of the payload arrives."""
    raw = hpub(b"NATS/1.0\r\n" + block, b"payload")
    decision = Wire(rule(), view=of_ann("server" if verified else "client")).decide(C2S, raw)
    if decision is None or decision.out is None:
        out = raw
    elif decision.out:
        (out,) = decision.out
    else:
        return
    found = block_of(out)
    if verified:
        head, own, rest = found.partition(ANN)
        assert own
        assert head.startswith(b"NATS/1.0")
        assert head.count(b"\n") == 1
        assert rest[:1] not in (b" ", b"\t")
        found = head + rest
    folded = found.replace("\u017f".encode(), b"s").translate(stamps._FOLD)
    assert b"nats-sender-" not in folded
    assert parse(C2S, out).body == b"payload"


# -- signatures


@pytest.fixture
def key(tmp_path: Path) -> tuple[str, str]:
    """Give the lines of a rule with a key, and its public key."""
    secret = seed("account")
    (tmp_path / "stamp.nk").write_text(secret)
    return f'key = "{tmp_path / "stamp.nk"}"\nsign_headers = ["Nats-Msg-Id"]', KeyPair(secret).public


def signed(key: tuple[str, str], raw: bytes | str = "PUB s 1\nx") -> tuple[bytes, bytes]:
    """Return header block and payload of a message that was signed."""
    frame = parse(C2S, wire(key[0]).c2s(raw))
    return frame.headers, frame.body


def test_a_signature_is_valid_and_says_when(key: tuple[str, str]) -> None:
    block, body = signed(key)
    found = stamps.check(b"s", block, body, {key[1]})
    assert found.state == "valid"
    assert (found.user, found.stamp["Nats-Sender-Key"]) == ("ann", key[1])
    assert found.stamp["Nats-Sender-Time"] == "1970-01-01T00:00:00.000Z"


def test_what_a_signature_covers(key: tuple[str, str]) -> None:
    """Each part that another hand changes makes it invalid; what it does not cover may change."""
    raw = hpub(b"NATS/1.0\r\nNats-Msg-Id: 7\r\nA: b\r\n\r\n")
    block, body = signed(key, raw)

    def state(subject: bytes | None = b"s", new: bytes = block, body: bytes = body) -> str:
        return stamps.check(subject, new, body, {key[1]}).state

    assert state() == "valid"
    assert state(None) == "valid"
    assert state(b"t") == state(body=b"y") == "invalid"
    for was, then in (
        (b"User: ann", b"User: bob"),
        (b"Account: SHOP", b"Account: $SYS"),
        (b"By: server", b"By: natsproxy"),
        (b"Subject: s", b"Subject: t"),
        (b"Time: 1970", b"Time: 1971"),
        (b"Headers: Nats-Msg-Id", b"Headers: A"),
        (b"Msg-Id: 7", b"Msg-Id: 8"),
        (b"Nats-Msg-Id: 7\r\n", b""),
        (b"Nats-Sender-Account: SHOP\r\n", b""),
        (b"A: b", b"Nats-Sender-Client: b"),
        (b"A: b", b"nats-sender-user: ann"),
        (b"A: b", b"Nats-Msg-Id: 7"),
    ):
        assert was in block
        assert state(new=block.replace(was, then)) == "invalid", then
    assert state(new=block.replace(b"A: b", b"A: c")) == "valid"
    assert state(new=block.replace(b"Nats-Sender-Signature", b"X")) == "unsigned"


def test_only_keys_that_are_given_count(key: tuple[str, str]) -> None:
    block, body = signed(key)
    assert stamps.check(b"s", block, body, {KeyPair(seed()).public}).state == "invalid"
    assert stamps.check(b"s", b"NATS/1.0\r\nA: b\r\n\r\n", body, {key[1]}).state == "none"


def test_a_subject_of_any_bytes_is_signed(key: tuple[str, str]) -> None:
    subject = "a.%\u00e9\u017f".encode()
    block, body = signed(key, hpub(b"NATS/1.0\r\n\r\n", subject=subject))
    assert stamps.check(subject, block, body, {key[1]}).state == "valid"


def test_another_key_in_the_file_is_another_rule(key: tuple[str, str], tmp_path: Path) -> None:
    one = wire(key[0])
    (rule_before,) = one.chain.rules
    again = load(rule(key[0]), KINDS)
    assert RuleChain(again, previous=one.chain).rules == (rule_before,)
    (tmp_path / "stamp.nk").write_text(secret := seed())
    one.rebind(rule(key[0]))
    assert KeyPair(secret).public.encode() in one.c2s("PUB s 1\nx")
    assert key[1].encode() not in one.c2s("PUB s 1\nx")


def test_the_seed_is_in_nothing_that_is_shown(key: tuple[str, str], tmp_path: Path) -> None:
    secret = (tmp_path / "stamp.nk").read_text()
    one = wire(key[0])
    (loaded,) = one.chain.rules
    decision = one.decide(C2S, "PUB s 1\nx")
    shown = (
        one.chain.text,
        loaded.content,
        repr(loaded),
        loaded.action.describe(),
        repr(decision),
        repr(loaded.action),
    )
    assert not any(secret[2:] in text for text in shown)


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ('sign_headers = "A"', "sign_headers needs a key"),
        ('key = "/nowhere"\nsign_headers = "A,B"', "sign_headers is wrong: 'A,B'"),
        ('key = "/nowhere"\nsign_headers = "nats-sender-user"', "sign_headers is wrong"),
        ('key = "/nowhere"\nsign_headers = "A b"', "sign_headers is wrong: .* is not a header name"),
        ('key = "/nowhere"', "cannot read the file that key names: No such file"),
        ('facts = "shoe"', "facts must be 'user' or 'account'"),
        ('client = { name = "a" }', "client has no meaning in a rule of kind 'stamp'"),
        ('op = "MSG"', "op has no meaning"),
    ],
)
def test_wrong_rules_are_refused(lines: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        wire(lines)
    assert "SU" not in str(caught.value)


def test_a_second_rule_is_refused() -> None:
    """It would take the stamps of the first for forged ones."""
    with pytest.raises(ConfigError, match="rule 's' is a second one of kind 'stamp', beside 'r'"):
        Wire(rule() + rule().replace('"r"', '"s"'))


def test_a_seed_in_the_rule_itself_is_refused_and_not_quoted() -> None:
    secret = seed()
    with pytest.raises(ConfigError, match="must be a file or env:NAME, not the secret itself") as caught:
        wire(f'key = "{secret}"')
    assert secret[2:] not in str(caught.value)


def test_a_file_without_a_seed_is_not_quoted(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("SUAM-hunter2")
    with pytest.raises(ConfigError, match="holds no nkey seed") as caught:
        wire(f'key = "{tmp_path / "x"}"')
    assert "hunter2" not in str(caught.value)
