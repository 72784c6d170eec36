"""The server's map, texts and filter; the differential tests do the rest."""

from __future__ import annotations

import pytest

from natsproxy.protocol.connect import Connect
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.file.parser import load
from natsproxy.rules.kinds import KINDS
from natsproxy.wire.ops import C2S, S2C
from tests.rules.kit import FakeView, S, Wire
from tests.session.playbook import Playbook


def wire(*lines: str, pedantic: bool = False) -> Wire:
    text = "\n".join(["[[rules]]", 'name = "r"', 'kind = "permissions"', *lines, ""])
    return Wire(text, view=FakeView(connect=Connect(verbose=False, pedantic=pedantic)))


def test_a_denied_publish_gets_the_server_s_words_only() -> None:
    decision = wire('publish = "a.*"').decide(C2S, "PUB b 1\nx")
    assert decision is not None
    assert decision.answer == b"-ERR 'Permissions Violation for Publish to \"b\"'\r\n"
    assert (decision.out, decision.ok) == ((), False)


def test_allowed_frames_stay_in_runs() -> None:
    found = wire('publish = "a.*"')
    assert not found.rules.interest[C2S].need(0, b"a.b")
    assert found.c2s("PUB a.b 0\n") == b"PUB a.b 0\r\n\r\n"


def test_a_pedantic_client_gets_the_error_of_a_bad_subject_first() -> None:
    decision = wire('publish = "a.*"', pedantic=True).decide(C2S, "PUB b. 1\nx")
    assert decision is not None
    assert decision.answer.startswith(b"-ERR 'Invalid Publish Subject'\r\n-ERR 'Permissions")


def test_a_reply_with_headers_is_one_reply() -> None:
    """It is looked at for its subject and for its headers, and counts once."""
    found = wire("allow_responses = true")
    found.s2c("MSG a 1 r.1 0\n")
    reply = "HPUB r.1 18 19\nNATS/1.0\nA: b\n\nx"
    assert found.c2s(reply) != b""
    assert found.c2s(reply) == b""


def test_a_queue_is_named_in_the_denial() -> None:
    decision = wire('subscribe = "a q"').decide(C2S, "SUB a r 1")
    assert decision is not None
    assert decision.answer.endswith(b'for Subscription to "a" using queue "r"\'\r\n')


def test_the_filter_is_armed_by_a_wider_subscription() -> None:
    found = wire('subscribe = { deny = "a.secret" }')
    assert found.s2c("MSG a.secret 9 0\n") != b""
    found.c2s("SUB a.* 1")
    assert found.s2c("MSG a.secret 1 0\n") == b""
    assert found.s2c("MSG a.open 1 0\n") != b""


def test_an_armed_filter_looks_at_the_subject_that_jetstream_s_deliveries_bear() -> None:
    found = wire('subscribe = { deny = "a.secret" }')
    found.c2s("SUB _INBOX.x 2")
    assert found.s2c("MSG a.secret 2 $JS.ACK.x 0\n") != b""
    found.c2s("SUB a.* 1")
    assert found.s2c("MSG a.secret 2 $JS.ACK.x 0\n") == b""
    found.c2s("UNSUB 1")
    assert found.s2c("MSG a.secret 2 $JS.ACK.x 0\n") == b""


@pytest.mark.parametrize("arming", ["SUB >.x 1", "SUB a.* 2", "SUB a.* 1"])
def test_a_subscription_that_is_not_taken_arms_the_filter_too(arming: str) -> None:
    """The batch of earlier messages of the same subject ends there."""
    chain = RuleChain(
        load('[[rules]]\nname = "r"\nkind = "deny"\nsubject = ["a.secret", "x.secret", "x.x"]\n', KINDS)
    )
    play = Playbook(chain).greeted()
    play.client(b"SUB in 2\r\n")
    two = b"MSG a.secret 2 0\r\n\r\n" * 2
    assert play.server(two).to_client == two
    play.client(arming.encode() + b"\r\n")
    assert play.server(two).to_client == b""


def test_a_queue_that_two_subs_differ_in_is_any_queue() -> None:
    """Which of the two SUBs the server has is not known, if it refused the first one at a limit."""
    found = Playbook(
        RuleChain(
            load('[[rules]]\nname = "r"\nkind = "permissions"\nsubscribe = { deny = "a.* q" }\n', KINDS)
        )
    ).greeted()
    found.client(b"SUB x 5\r\n").server(b"-ERR 'maximum subscriptions exceeded'\r\n")
    found.client(b"SUB > q 5\r\n").server(b"MSG a.b 5 0\r\n\r\nMSG b 5 0\r\n\r\n")
    assert found.to_client.endswith(b"MSG b 5 0\r\n\r\n")
    assert b"a.b" not in found.to_client


def test_a_reply_may_be_answered_once_and_in_time() -> None:
    found = wire('publish = "a"', 'allow_responses = { max = 1, expires = "1s" }')
    found.decide(S2C, "MSG q 1 r.1 0\n")
    found.decide(S2C, "MSG q 1 r.2 0\n")
    assert found.c2s("PUB r.1 0\n") != b""
    assert found.c2s("PUB r.1 0\n") == b""
    found.now = 2 * S
    assert found.c2s("PUB r.2 0\n") == b""


TRACED = "HPUB ok {0} {0}\n{1}\n"


def test_trace_destinations_must_be_allowed_too() -> None:
    """The server publishes traces of a message where a header says, and asks about that subject first."""
    found = wire('publish = { deny = "a.secret" }')
    for value, denied in (("a.secret", True), (" a.secret\t", True), ("a.open", False), ("a.*", False)):
        block = f"NATS/1.0\nNats-Trace-Dest:{value}\n\n"
        frame = TRACED.format(len(block.replace("\n", "\r\n")), block)
        decision = found.decide(C2S, frame[:-1])
        assert (decision is not None) is denied, value
        if decision is not None:
            assert decision.answer == b"-ERR 'Permissions Violation for Publish to \"a.secret\"'\r\n"


def test_headers_that_cannot_be_judged_end_the_connection() -> None:
    play = Playbook(
        RuleChain(load('[[rules]]\nname = "r"\nkind = "deny"\nsubject = "secret"\n', KINDS)), rule_buffer=1000
    ).greeted()
    play.client(b"HPUB ok 100000 100001\r\nNATS/1.0\r\nNats-Trace-Dest: secret\r\n" + b"x" * 50_000)
    play.server(b"PONG\r\n")
    assert b"HPUB" not in play.to_server
    assert play.end is not None
    assert play.end.detail == "permissions cannot judge headers that are larger than the rule buffer"


def test_a_sid_that_two_subs_named_hides_nothing() -> None:
    """A server that refused the first one (at max_subscriptions) has the second: its subject is not known."""
    play = Playbook(
        RuleChain(load('[[rules]]\nname = "r"\nkind = "deny"\nsubject = "a.secret"\n', KINDS))
    ).greeted()
    play.client(b"SUB x 5\r\n").server(b"-ERR 'maximum subscriptions exceeded'\r\n")
    play.client(b"SUB a.* 5\r\n")
    answer = play.to_client
    play.server(b"MSG a.secret 5 0\r\n\r\nMSG a.open 5 0\r\n\r\n")
    assert b"ERR" in answer
    assert play.to_client == b"MSG a.open 5 0\r\n\r\n"
