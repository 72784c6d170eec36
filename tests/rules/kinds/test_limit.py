"""limit: what is above it, by whom, and that nothing fills a bucket but time."""

from __future__ import annotations

import pytest

from natsproxy.errors import ConfigError
from natsproxy.events import WOULD_LIMIT
from natsproxy.protocol.connect import Connect
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.file.parser import load
from natsproxy.rules.kinds import KINDS
from natsproxy.rules.kinds.limit import RateLimit
from natsproxy.wire.ops import C2S
from tests.rules.kit import FakeView, S, Wire

HEAD = '[[rules]]\nname = "few"\nkind = "limit"\n'
TWO = HEAD + 'messages = 2\naction = "drop"\n'
PUB = "PUB a 0\n"


def passed(wire: Wire, *texts: str) -> list[bool]:
    return [wire.c2s(text) != b"" for text in texts]


def client(name: str = "app", address: str = "127.0.0.1:1", user: str = "") -> FakeView:
    connect = Connect(verbose=False, pedantic=False, headers=True, name=name, user=user)
    return FakeView(conn=hash((name, address, user)), address=address, connect=connect)


def second(wire: Wire, view: FakeView) -> Wire:
    """Return another connection under the same rules, at the same time."""
    other = Wire("rules = []", view=view, now=wire.now)
    other.chain, other.rules = wire.chain, wire.chain.bind(view, None, wire.now)
    return other


def test_what_is_above_it_is_dropped_until_time_has_passed() -> None:
    wire = Wire(TWO)
    assert passed(wire, PUB, PUB, PUB, "SUB a 1", "PING") == [True, True, False, True, True]
    wire.now = S // 2
    assert passed(wire, PUB, PUB) == [True, False]


@pytest.mark.parametrize(
    "text", ["pub a 0\n", "PUB   a  0\n", "PUB\ta\t0\n", "HPUB a 12 12\nNATS/1.0\n\n", "PUB a r 0\n"]
)
def test_another_form_of_a_publish_is_no_way_past_it(text: str) -> None:
    assert passed(Wire(TWO), PUB, text, text, text) == [True, True, False, False]


def test_bytes_are_those_of_the_whole_frame() -> None:
    wire = Wire(HEAD + 'bytes = "1KiB/s"\naction = "drop"\n')
    long = "PUB " + "a" * 600 + " 0\n"  # no payload at all
    assert passed(wire, long, long, PUB) == [True, False, True]


def test_each_action_answers_as_it_says() -> None:
    def third(action: str, text: str = "PUB a 0\n") -> object:
        wire = Wire(HEAD + "messages = 2\n" + action, view=client())
        wire.c2s("SUB r 7")
        passed(wire, text, text)
        return wire.decide(C2S, text)

    denied = third('action = "deny"\n')
    assert denied.answer == b"-ERR 'Permissions Violation for Publish to \"a\"'\r\n"  # type: ignore[attr-defined]
    asked = third('action = "reply"\n', "PUB a r 0\n")
    assert asked.answer == b"HMSG r 7 34 34\r\nNATS/1.0 429 Too Many Requests\r\n\r\n\r\n"  # type: ignore[attr-defined]
    assert asked.out == ()  # type: ignore[attr-defined]
    unasked = third('action = "reply"\n')
    assert (unasked.answer, unasked.out) == (b"", ())  # type: ignore[attr-defined]
    closed = third('action = "close"\n')
    assert closed.close.cause == "a limit was exceeded: above 2 messages/s (burst 2) of one connection"  # type: ignore[attr-defined]
    waiting = third("")
    assert [pace(0) for pace in waiting.paces] == [S // 2]  # type: ignore[attr-defined]
    assert (waiting.out, waiting.firings[0].action) == (None, "wait")  # type: ignore[attr-defined]


def test_a_suspension_lasts_its_time() -> None:
    wire = Wire(HEAD + 'messages = 2\naction = "suspend"\nsuspend = "10s"\nper = "client"\n', view=client())
    assert passed(wire, PUB, PUB, PUB) == [True, True, False]
    other = second(wire, client(address="10.0.0.9:1"))
    for wire.now, expected in ((9 * S, False), (10 * S, True)):
        other.now = wire.now
        assert passed(other, PUB) == [expected]


def test_suspensions_are_bounded_too() -> None:
    rule = HEAD + 'messages = 1\naction = "suspend"\nsuspend = "1h"\nper = "template"\nkeys = 3\n'
    wire = Wire(rule)
    for number in range(20):
        wire.now += 2 * S  # in which a bucket is full again
        text = f"PUB {'abcdefghijklmnopqrstuv'[number]} 0\n"
        passed(wire, text, text)
    action = wire.chain.rules[0].action
    assert isinstance(action, RateLimit)
    assert len(action.buckets) == 4  # those of three keys, and of all others
    assert passed(wire, "PUB a 0\n", "PUB z 0\n") == [False, False]
    wire.now += 3600 * S
    assert passed(wire, "PUB a 0\n", "PUB z 0\n") == [True, True]


@pytest.mark.parametrize("per", ["user", "client", "address", "template", "proxy"])
def test_a_new_connection_goes_on_where_the_old_one_was(per: str) -> None:
    wire = Wire(TWO + f'per = "{per}"\n', view=client(user="u"))
    assert passed(wire, PUB, PUB) == [True, True]
    wire.rules.close(0)
    again = second(wire, client(user="u", address="127.0.0.1:2"))
    assert passed(again, PUB) == [False]
    other = second(wire, client("b", "10.0.0.9:1", "v"))
    assert passed(other, "PUB b 0\n") == [per != "proxy"]


def test_connections_have_their_own() -> None:
    wire = Wire(TWO)
    passed(wire, PUB, PUB)
    assert passed(second(wire, client("other")), PUB, PUB, PUB) == [True, True, False]


def test_a_change_of_the_rule_fills_nothing() -> None:
    wire = Wire(TWO + 'per = "proxy"\n')
    passed(wire, PUB, PUB)
    wire.rebind(TWO + 'per = "proxy"\n' + '[[rules]]\nname = "x"\nkind = "drop"\nsubject = "x"\n')
    assert passed(wire, PUB) == [False]
    wire.rebind(TWO.replace("= 2", "= 4") + 'per = "proxy"\n')
    assert passed(wire, PUB) == [False]
    wire.rebind(TWO + 'per = "client"\n')  # other keys: nothing to go on with
    assert passed(wire, PUB) == [True]


def test_acks_are_not_counted_unless_they_are_named() -> None:
    ack, flow = "PUB $JS.ACK.S.C.1.2.3.4.0 0\n", "PUB $JS.FC.S.C.x 0\n"
    wire = Wire(TWO)
    assert passed(wire, PUB, PUB, PUB, ack, flow, "PUB $JS.ACK.x 0\n") == [
        True,
        True,
        False,
        True,
        True,
        False,
    ]
    named = Wire(TWO + 'subject = "$JS.ACK.>"\n')
    assert passed(named, ack, ack, ack, PUB) == [True, True, False, True]


def test_what_another_rule_has_ended_is_not_counted() -> None:
    deny = '[[rules]]\nname = "no"\nkind = "deny"\nsubject = "b"\n'
    for text in (TWO + deny, deny + TWO):
        assert passed(Wire(text), "PUB b 0\n", "PUB b 0\n", PUB, PUB, PUB) == [
            False,
            False,
            True,
            True,
            False,
        ]


def test_keys_are_bounded_and_those_beyond_share_one() -> None:
    wire = Wire(TWO + 'per = "template"\nkeys = 2\n')
    names = [f"PUB {letter} 0\n" for letter in "abcd"]
    assert passed(wire, *names) == [True] * 4
    decision = wire.decide(C2S, "PUB e 0\n")
    assert decision is not None
    assert decision.out == ()
    assert "more than 2 of them, and the others share one limit" in decision.firings[0].detail
    assert passed(wire, names[0], names[0]) == [True, False]


def test_long_names_do_not_become_long_keys() -> None:
    wire = Wire(TWO + 'per = "template"\n')
    assert passed(wire, *[f"PUB {'a' * 4000} 0\n"] * 3, f"PUB {'a' * 3999}b 0\n") == [True, True, False, True]


def test_shadow_tells_and_passes() -> None:
    wire = Wire(TWO + 'mode = "shadow"\nper = "client"\n')
    assert passed(wire, PUB, PUB, PUB) == [True] * 3
    decision = wire.decide(C2S, PUB)
    assert decision is not None
    (firing,) = decision.firings
    assert (firing.action, firing.acted) == (WOULD_LIMIT, False)
    assert firing.detail == "above 2 messages/s (burst 2) of one client name: app"
    assert not wire.chain.guards


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "it needs one of 'messages', 'bytes', 'subscriptions', 'connections'"),
        (
            'messages = 1\nbytes = "1KiB"\n',
            "it needs one of 'messages', 'bytes', 'subscriptions', 'connections'",
        ),
        ('messages = "5/day"\n', "must be a rate by s, min or h"),
        ("messages = 0\n", "at least 1"),
        ('messages = 1\naction = "suspend"\n', "suspend belongs to action"),
        ('messages = 1\nop = "SUB"\n', "can be PUB, HPUB only"),
        ("connections = 1\nper = 'proxy'\nsubject = 'a'\n", "select clients only"),
        ("connections = 1\nper = 'account'\n", "no meaning for connections"),
        ("connections = 1\nper = 'proxy'\naction = 'wait'\n", "must be 'deny' or 'close'"),
        ("subscriptions = 1\nburst = 2\n", "burst is for messages and bytes"),
        ("messages = 1\nprobability = 0.5\n", "probability"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        load(HEAD + text, KINDS)


def test_rates_are_read_as_people_write_them() -> None:
    texts = ["messages = 5", 'messages = "5/s"', 'messages = "300/min"', 'bytes = "2MiB/h"']
    found = [RuleChain(load(HEAD + text + "\n", KINDS)).rules[0].action.describe() for text in texts]
    assert found == [
        "hold back what is above 5 messages/s (burst 5) of one connection",
        "hold back what is above 5 messages/s (burst 5) of one connection",
        "hold back what is above 300 messages/min (burst 5) of one connection",
        "hold back what is above 2097152 bytes/h (burst 582) of one connection",
    ]
