"""Chains: stages, counts, composition and swapping of all rules together."""

from __future__ import annotations

import gc
import weakref

import pytest

from natsproxy.errors import ConfigError
from natsproxy.protocol.info import Info
from natsproxy.wire.ops import C2S, S2C
from tests.rules.kit import MS, FakeView, Wire


def rule(name: str, kind: str, *lines: str) -> str:
    return "\n".join(["[[rules]]", f'name = "{name}"', f'kind = "{kind}"', *lines, ""])


def test_a_frame_that_no_rule_wants_is_left_alone() -> None:
    wire = Wire(rule("d", "drop", 'subject = "a.>"'))
    assert wire.decide(C2S, "PUB b 1\nx") is None
    assert wire.c2s("PUB a.b 1\nx") == b""


def test_delays_add_up_and_a_drop_ends_it() -> None:
    slow = rule("one", "latency", 'delay = "100ms"', 'op = "PUB"') + rule(
        "two", "latency", 'delay = "50ms"', 'op = "PUB"'
    )
    decision = Wire(slow).decide(C2S, "PUB a 1\nx")
    assert decision is not None
    assert decision.until == 150 * MS
    assert [firing.delay for firing in decision.firings] == [100 * MS, 50 * MS]
    dropped = Wire(rule("gone", "drop", 'op = "PUB"') + slow).decide(C2S, "PUB a 1\nx")
    assert dropped is not None
    assert (dropped.out, dropped.ok, dropped.until) == ((), True, None)
    assert [firing.rule for firing in dropped.firings] == ["gone"]


def test_a_gate_counts_what_another_rule_dropped() -> None:
    wire = Wire(
        rule("all", "drop", 'op = "PUB"', "first = 2")
        + rule("third", "latency", 'op = "PUB"', 'delay = "1s"', "after = 2")
    )
    found = [wire.decide(C2S, "PUB a 1\nx") for _ in range(3)]
    assert [[firing.rule for firing in decision.firings] for decision in found if decision] == [
        ["all"],
        ["all"],
        ["third"],
    ]
    assert [firing.m for firing in found[2].firings] == [3]  # type: ignore[union-attr]


def test_c2s_faults_come_before_permissions_in_any_file_order() -> None:
    text = rule("no", "deny", 'subject = "a"') + rule("lost", "drop", 'subject = "a"', 'op = "PUB"')
    decision = Wire(text).decide(C2S, "PUB a 1\nx")
    assert decision is not None
    assert (decision.answer, decision.ok) == (b"", True)


def test_s2c_selectors_see_the_client_s_subjects() -> None:
    text = rule("move", "rewrite", 'prefix = "t"') + rule(
        "lost", "drop", 'subject = "a.>"', 'direction = "s2c"'
    )
    wire = Wire(text)
    assert wire.c2s("SUB a.* 1") == b"SUB t.a.* 1\r\n"
    assert wire.s2c("MSG t.a.b 1 1\nx") == b""
    assert wire.s2c("MSG t.b 1 1\nx") == b"MSG b 1 1\r\nx\r\n"


def test_the_server_s_side_can_be_meant() -> None:
    text = rule("move", "rewrite", 'from = "a"', 'to = "z"') + rule(
        "lost", "drop", 'subject = "z"', 'side = "server"'
    )
    wire = Wire(text)
    assert wire.c2s("PUB a 1\nx") == b""
    assert wire.c2s("PUB b 1\nx") == b"PUB b 1\r\nx\r\n"
    assert wire.s2c("MSG z 1 1\nx") == b""


def test_same_seed_same_verdicts_whatever_other_rules_exist() -> None:
    lossy = rule("lossy", "drop", 'op = "PUB"', "probability = 0.3")
    alone, others = (
        Wire(lossy, seed=7),
        Wire(rule("x", "latency", 'delay = "1s"', "probability = 0.5") + lossy, seed=7),
    )
    first = [alone.c2s("PUB a 1\nx") == b"" for _ in range(200)]
    assert first == [others.c2s("PUB a 1\nx") == b"" for _ in range(200)]
    assert 30 < sum(first) < 90
    assert first != [Wire(lossy, seed=8).c2s("PUB a 1\nx") == b"" for _ in range(200)]


def test_a_rule_that_stays_keeps_its_count_when_the_chain_is_swapped() -> None:
    second = rule("second", "drop", 'op = "PUB"', "after = 1")
    wire = Wire(second)
    assert wire.c2s("PUB a 0\n") != b""
    wire.rebind(rule("new", "latency", 'delay = "1ms"', 'op = "PING"') + second)
    assert wire.c2s("PUB a 0\n") == b""
    wire.rebind(rule("second", "drop", 'op = "PUB"', "after = 2"))
    assert wire.c2s("PUB a 0\n") != b""


def test_rules_about_a_client_wait_for_its_connect() -> None:
    view = FakeView()
    wire = Wire(rule("d", "drop", 'op = "PUB"', 'client = { name = "other*" }'), view=view)
    assert not wire.rules.interest[C2S].clauses
    view.connect = type(view.connect)(name="other-1")
    wire.rebind()
    assert wire.c2s("PUB a 0\n") == b""


def test_an_old_server_does_not_name_the_account() -> None:
    view = FakeView(info=Info(version="2.11.4"))
    with pytest.raises(ConfigError, match=r"selects by account, which nats-server 2\.11\.4 does not tell"):
        Wire(rule("d", "drop", 'client = { account = "A" }'), view=view)


def test_publish_acks_are_found_by_the_publish() -> None:
    wire = Wire(rule("lost", "drop", 'role = "publish-ack"', 'subject = "orders.>"', "first = 1"))
    assert wire.c2s("PUB orders.1 _INBOX.x.1 0\n") == b"PUB orders.1 _INBOX.x.1 0\r\n\r\n"
    assert wire.view.watched
    ack = 'MSG _INBOX.x.1 1 22\n{"stream":"S","seq":1}'
    assert wire.s2c(ack) == b""
    assert wire.s2c(ack) != b""
    wire.c2s("PUB other _INBOX.x.2 0\n")
    assert wire.s2c(ack.replace("x.1", "x.2")) != b""
    wire.rules.close(0)
    assert not wire.view.watched


def test_every_firing_names_rule_action_and_frame() -> None:
    decision = Wire(rule("r", "drop", 'op = "PUB"')).decide(C2S, "PUB a.b 0\n")
    assert decision is not None
    (firing,) = decision.firings
    assert (firing.rule, firing.kind, firing.direction, firing.m, firing.action) == (
        "r",
        "drop",
        "c2s",
        1,
        "drop",
    )
    assert (firing.key, firing.subject) == ("app", "a.b")


def test_s2c_permissions_come_before_faults() -> None:
    text = rule("late", "latency", 'op = "MSG"', 'delay = "1s"') + rule("no", "deny", 'subject = "a.secret"')
    wire = Wire(text)
    assert wire.c2s("SUB a.* 1") == b"SUB a.* 1\r\n"
    decision = wire.decide(S2C, "MSG a.secret 1 0\n")
    assert decision is not None
    assert decision.out == ()
    assert [firing.rule for firing in decision.firings] == ["no"]


def test_rules_that_were_replaced_are_freed_without_the_collector() -> None:
    """A reload tells the collector to spare what it has made: a cycle would stay for ever."""
    gc.collect()
    gc.disable()
    try:
        wire = Wire(rule("d", "deny", 'subject = "x"') + rule("r", "rewrite", 'prefix = "t"'))
        wire.c2s("SUB > 1")
        left: list[weakref.ref[object]] = [
            weakref.ref(wire.rules),
            weakref.ref(wire.chain),
            weakref.ref(wire.chain.rules[0].action),
        ]
        del wire
        assert [one() for one in left] == [None, None, None]
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("source", "to", "refused"),
    [
        ("admin.>", "$JS.API.>", True),
        ("admin.>", "$JS.hub.API.STREAM.>", True),
        ("drop.*", "$JS.API.STREAM.DELETE.$1", True),
        ("*.>", "{{wildcard(1)}}.>", True),
        ("a.*", "{{split(1,-)}}", True),
        ("x.*.*.*.*.*", "$1.$2.$3.$4.$5", True),
        ("admin.>", "$JS.API.CONSUMER.>", False),
        ("admin.*", "$JS.API.STREAM.$1", False),
        ("$JS.hub.API.>", "$JS.API.>", False),
        ("a.>", "b.>", False),
        (">", "tenant.>", False),
    ],
)
def test_a_rewrite_that_leads_around_a_denied_call_is_refused(source: str, to: str, refused: bool) -> None:
    """The denial sees the client's subject; one by that subject, or a fault, may stand beside it."""
    rewrite = rule("m", "rewrite", f'from = "{source}"', f'to = "{to}"', "two_way = false")
    deny = rule("keep", "deny", 'api = "STREAM.DELETE"')
    if refused:
        with pytest.raises(
            ConfigError, match="rule 'm' leads to calls of the JetStream API that 'keep' denies"
        ):
            Wire(rewrite + deny)
    else:
        Wire(rewrite + deny)
    Wire(rewrite + rule("lost", "drop", 'api = "STREAM.DELETE"'))
    Wire(rewrite + rule("keep", "deny", 'subject = "$JS.API.STREAM.DELETE.>"'))
