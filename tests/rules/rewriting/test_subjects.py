"""Rewriting in memory: every field that names a subject, and the exceptions."""

from __future__ import annotations

import json

import pytest

from natsproxy.protocol.connect import Connect
from natsproxy.wire.ops import C2S, S2C
from tests.rules.kit import FakeView, Wire


def wire(*rules: str, verbose: bool = False) -> Wire:
    text = "".join(f'[[rules]]\nname = "r{n}"\nkind = "rewrite"\n{rule}\n' for n, rule in enumerate(rules))
    return Wire(text, view=FakeView(connect=Connect(verbose=verbose, headers=True)))


TENANT = 'prefix = "t"'
SWAP = 'from = "o.*.*"\nto = "s.$2.$1"'


@pytest.mark.parametrize(
    ("sent", "out"),
    [
        ("PUB o.a.b 1\nx", b"PUB s.b.a 1\r\nx\r\n"),
        ("PUB o.a.b o.r.s 1\nx", b"PUB s.b.a s.s.r 1\r\nx\r\n"),
        ("PUB z o.r.s 1\nx", b"PUB z s.s.r 1\r\nx\r\n"),
        ("PUB o.a 1\nx", b"PUB o.a 1\r\nx\r\n"),
        ("SUB o.*.b 1", b"SUB s.b.* 1\r\n"),
        ("SUB o.a.b q 1", b"SUB s.b.a q 1\r\n"),
        ("SUB o.*.* 1", b"SUB s.*.* 1\r\n"),
    ],
)
def test_c2s(sent: str, out: bytes) -> None:
    assert wire(SWAP).c2s(sent) == out


@pytest.mark.parametrize(
    "subject", ["_INBOX.x", "$JS.API.INFO", "$JS.ACK.a.b", "$SYS.x", "$SRV.PING", "_R_.x"]
)
def test_subjects_that_carry_state_are_left_alone(subject: str) -> None:
    found = wire(TENANT)
    assert found.c2s(f"PUB {subject} {subject} 0\n") == f"PUB {subject} {subject} 0\r\n\r\n".encode()
    assert found.c2s(f"SUB {subject} 1") == f"SUB {subject} 1\r\n".encode()


def test_unless_it_is_named() -> None:
    assert wire('from = "$SRV.>"\nto = "t.$SRV.>"').c2s("PUB $SRV.PING 0\n") == b"PUB t.$SRV.PING 0\r\n\r\n"


def test_kept_subjects_are_left_alone() -> None:
    assert (
        wire(TENANT + '\nkeep = "my.inbox.>"').c2s("PUB a my.inbox.1 0\n") == b"PUB t.a my.inbox.1 0\r\n\r\n"
    )


@pytest.mark.parametrize("pattern", ["o.>", ">", "*.a.b"])
def test_a_subscription_covered_in_part_is_refused(pattern: str) -> None:
    decision = wire(SWAP).decide(C2S, f"SUB {pattern} 1")
    assert decision is not None
    assert decision.answer == f"-ERR 'Permissions Violation for Subscription to \"{pattern}\"'\r\n".encode()
    assert decision.out == ()


def test_unless_that_is_wanted() -> None:
    assert wire(SWAP + '\npartial = "pass"').c2s("SUB o.> 1") == b"SUB o.> 1\r\n"


def test_messages_come_back_by_their_sid_where_mappings_collide() -> None:
    found = wire('from = "a.*"\nto = "x.$1"', 'from = "b.*"\nto = "x.$1"')
    found.c2s("SUB a.* 1")
    found.c2s("SUB b.* 2")
    assert found.s2c("MSG x.9 1 0\n") == b"MSG a.9 1 0\r\n\r\n"
    assert found.s2c("MSG x.9 2 0\n") == b"MSG b.9 2 0\r\n\r\n"
    assert found.s2c("MSG x.9 3 x.r 0\n") == b"MSG a.9 3 a.r 0\r\n\r\n"


def test_the_server_s_errors_name_the_client_s_subjects() -> None:
    text = '-ERR \'Permissions Violation for Subscription to "t.a.>" using queue "q"\''
    assert wire(TENANT).s2c(text) == text.replace("t.a", "a").encode() + b"\r\n"
    assert wire(TENANT).s2c("-ERR 'Stale Connection'") == b"-ERR 'Stale Connection'\r\n"


def test_a_503_names_the_client_s_subject() -> None:
    block = b"NATS/1.0 503\r\nNats-Subject: t.a\r\n\r\n"
    out = wire(TENANT).s2c(b"HMSG _INBOX.1 1 %d %d\r\n%s\r\n" % (len(block), len(block), block))
    block = block.replace(b"t.a", b"a")
    assert out == b"HMSG _INBOX.1 1 %d %d\r\n%s\r\n" % (len(block), len(block), block)


def test_the_first_mapping_decides_and_decides_once() -> None:
    found = wire('from = "a.x"\nto = "b.x"', 'from = "a.*"\nto = "c.$1"', 'from = "b.*"\nto = "d.$1"')
    assert found.c2s("PUB a.x 0\n") == b"PUB b.x 0\r\n\r\n"
    assert found.c2s("PUB a.y 0\n") == b"PUB c.y 0\r\n\r\n"


def test_one_way_rules_map_publishes_only() -> None:
    found = wire('from = "a.*"\nto = "{{left(1,1)}}"\ntwo_way = false')
    assert found.c2s("PUB a.xyz a.r 0\n") == b"PUB x a.r 0\r\n\r\n"
    assert found.c2s("SUB a.b 1") == b"SUB a.b 1\r\n"
    assert found.s2c("MSG x 1 0\n") == b"MSG x 1 0\r\n\r\n"


def test_a_share_that_is_lost_still_earns_its_ok() -> None:
    found = wire('from = "a"\nto = [{ to = "a", weight = 0 }]\ntwo_way = false')
    decision = found.decide(C2S, "PUB a 0\n")
    assert decision is not None
    assert (decision.out, decision.ok) == ((), True)


def test_the_jetstream_api_is_translated_both_ways() -> None:
    found = wire(TENANT + "\njetstream = true")
    body = json.dumps({"name": "S", "subjects": ["a.>", "b"]})
    out = found.c2s(f"PUB $JS.API.STREAM.CREATE.S _INBOX.1 {len(body)}\n{body}")
    assert json.loads(out.split(b"\r\n")[1])["subjects"] == ["t.a.>", "t.b"]
    answer = json.dumps({"type": "x", "config": {"subjects": ["t.a.>"]}, "state": {"subjects": {"t.a.1": 3}}})
    back = found.s2c(f"MSG _INBOX.1 1 {len(answer)}\n{answer}")
    translated = json.loads(back.split(b"\r\n")[1])
    assert (translated["config"]["subjects"], translated["state"]["subjects"]) == (["a.>"], {"a.1": 3})
    assert found.c2s("PUB $JS.API.CONSUMER.CREATE.S.C.a.> _INBOX.2 2\n{}").startswith(
        b"PUB $JS.API.CONSUMER.CREATE.S.C.t.a.> "
    )
    assert found.c2s("PUB $JS.API.DIRECT.GET.S.a.b _INBOX.3 0\n").startswith(
        b"PUB $JS.API.DIRECT.GET.S.t.a.b "
    )


def test_odd_spacing_survives_where_nothing_changes() -> None:
    raw = b"pub  _INBOX.a   1\r\nx\r\n"
    assert wire(TENANT).c2s(raw) == raw


def test_both_sides_are_wanted_at_the_need_of_the_hungriest_rule() -> None:
    text = '[[rules]]\nname = "t"\nkind = "rewrite"\nprefix = "t"\n'
    text += '[[rules]]\nname = "c"\nkind = "corrupt"\nsubject = "a"\n'
    found = Wire(text)
    assert found.rules.interest[S2C].need(4, b"t.a") == 3
