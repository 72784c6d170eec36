"""Verdicts of rules on recordings, and what follows from them for later frames."""

from __future__ import annotations

from pathlib import Path

import pytest

from natsproxy.capture.format.records import Flags, Frames, OpenRecord
from natsproxy.rules.file.expectations import CANNOT_TELL
from natsproxy.rules.file.parser import load
from natsproxy.rules.kinds import KINDS
from natsproxy.trial.rehearsal import Rehearsal
from natsproxy.wire.ops import C2S, Op
from tests.kit.captures import MONO, write
from tests.trial.kit import judged, opened, verdicts

DENY = '[[rules]]\nname = "no"\nkind = "deny"\nsubject = "{}"\n'


def rule(kind: str, *lines: str) -> str:
    return "\n".join(["[[rules]]", 'name = "r"', f'kind = "{kind}"', *lines, ""])


def test_frames_pass_that_no_rule_is_about(tmp_path: Path) -> None:
    text = "a > SUB orders.> 1\na > PUB orders.new\n  | x\na < MSG orders.new 1\n  | x\n"
    assert verdicts(tmp_path, DENY.format("secret"), text) == [
        "1 SUB orders.>: pass",
        "1 PUB orders.new: pass",
        "1 MSG orders.new: pass",
    ]


def test_the_messages_of_a_denied_sub_would_not_come_until_its_sid_is_used_again(tmp_path: Path) -> None:
    text = (
        "a > SUB orders.> 1\na < MSG orders.new 1\n  | x\na > UNSUB 1\na < MSG orders.new 1\n  | y\n"
        "a > SUB quotes 1\na < MSG quotes 1\n  | z\n"
    )
    assert verdicts(tmp_path, rule("deny", 'subject = "orders.>"', 'op = "SUB"'), text) == [
        "1 SUB orders.>: deny",
        "1 MSG orders.new: would not come",
        "1 UNSUB : pass",
        "1 MSG orders.new: would not come",
        "1 SUB quotes: pass",
        "1 MSG quotes: pass",
    ]


REQUEST = (
    opened("b", "svc")
    + "b > SUB calc 1\na > SUB _INBOX.x.* 1\n"
    + "a > PUB calc _INBOX.x.1\n  | q\nb < MSG calc 1 _INBOX.x.1\n  | q\n"
    + "b > PUB _INBOX.x.1\n  | r\na < MSG _INBOX.x.1 1\n  | r\n"
)


@pytest.mark.parametrize(
    ("text", "stopped"),
    [
        (
            rule("deny", 'subject = "calc"', 'op = "PUB"'),
            {
                "1 PUB calc: deny",
                "2 MSG calc: would not come",
                "2 PUB _INBOX.x.1: would not come",
                "1 MSG _INBOX.x.1: would not come",
            },
        ),
        (
            rule("drop", 'subject = "calc"', 'direction = "s2c"'),
            {
                "2 MSG calc: drop",
                "2 PUB _INBOX.x.1: would not come",
                "1 MSG _INBOX.x.1: would not come",
            },
        ),
        (
            rule("deny", 'subject = "_INBOX.>"', 'op = "PUB"'),
            {"2 PUB _INBOX.x.1: deny", "1 MSG _INBOX.x.1: would not come"},
        ),
        (rule("drop", 'subject = "_INBOX.>"', 'direction = "s2c"'), {"1 MSG _INBOX.x.1: drop"}),
        (rule("deny", 'subject = "other"'), set()),
    ],
)
def test_what_does_not_arrive_is_not_answered(tmp_path: Path, text: str, stopped: set[str]) -> None:
    found = verdicts(tmp_path, text, REQUEST)
    assert {line for line in found if not line.endswith(": pass")} == stopped
    assert len(found) == 6


def test_a_request_that_passes_later_on_the_same_reply_subject_is_answered(tmp_path: Path) -> None:
    text = "a > SUB in 1\n" + "a > PUB calc in\n  | q\na < MSG in 1\n  | r\n" * 2
    rules = rule("deny", 'subject = "calc"', "limit = 1")
    assert verdicts(tmp_path, rules, text) == [
        "1 SUB in: pass",
        "1 PUB calc: deny",
        "1 MSG in: would not come",
        "1 PUB calc: pass",
        "1 MSG in: pass",
    ]


def test_a_denied_pull_delivers_nothing(tmp_path: Path) -> None:
    pull = (
        "a > PUB $JS.API.CONSUMER.MSG.NEXT.S.c in.{0}\n  | 1\n"
        "a < MSG orders 1 $JS.ACK.S.c.1.{0}.{0}.9.0\n  | m\n"
    )
    text = "a > SUB in.* 1\n" + pull.format(1) + "a > PUB $JS.ACK.S.c.1.1.1.9.0\n  | +ACK\n" + pull.format(2)
    rules = rule("deny", 'subject = "$JS.API.CONSUMER.MSG.NEXT.>"', "limit = 1")
    assert verdicts(tmp_path, rules, text) == [
        "1 SUB in.*: pass",
        "1 PUB $JS.API.CONSUMER.MSG.NEXT.S.c: deny",
        "1 MSG orders: would not come",
        "1 PUB $JS.ACK.S.c.1.1.1.9.0: would not come",
        "1 PUB $JS.API.CONSUMER.MSG.NEXT.S.c: pass",
        "1 MSG orders: pass",
    ]


def test_a_filtered_delivery_is_denied_and_others_on_its_subscription_pass(tmp_path: Path) -> None:
    text = "a > SUB > 1\na < MSG orders.new 1\n  | x\na < MSG quotes 1\n  | x\n"
    assert verdicts(tmp_path, DENY.format("orders.>"), text) == [
        "1 SUB >: pass",
        "1 MSG orders.new: deny",
        "1 MSG quotes: pass",
    ]


def test_nothing_comes_after_a_close(tmp_path: Path) -> None:
    text = "a > PING\na > PUB last\n  | x\na > PUB more\n  | x\na < PONG\n"
    assert verdicts(tmp_path, rule("close", 'subject = "last"'), text) == [
        "1 PING : pass",
        "1 PUB last: close",
        "1 PUB more: would not come",
        "1 PONG : would not come",
    ]


def test_a_refused_client_sends_nothing_and_others_do(tmp_path: Path) -> None:
    text = opened("b", "svc") + "a > PUB x\n  | x\nb > PUB x\n  | x\n"
    assert verdicts(tmp_path, rule("refuse", "client = { ordinal = 2 }", 'how = "reset"'), text) == [
        "2  : refuse",
        "1 PUB x: pass",
        "2 PUB x: would not come",
    ]


def test_a_swallowing_link_loses_messages_for_its_time(tmp_path: Path) -> None:
    text = "a > PUB x\n  | 1\na > PUB x\n  | 2\n@ +2s\na > PUB x\n  | 3\n"
    rules = rule("swallow", 'op = "PUB"', 'direction = "c2s"', "limit = 1", 'lasts = "1s"')
    assert verdicts(tmp_path, rules, text) == ["1 PUB x: swallow", "1 PUB x: swallow", "1 PUB x: pass"]


def test_windows_are_of_the_recorded_clock(tmp_path: Path) -> None:
    text = "a > PUB x\n  | 1\n@ +2s\na > PUB x\n  | 2\n@ +2s\na > PUB x\n  | 3\n"
    rules = rule("drop", 'subject = "x"', 'between = ["1s", "3s"]')
    assert verdicts(tmp_path, rules, text) == ["1 PUB x: pass", "1 PUB x: drop", "1 PUB x: pass"]


def test_gates_count_as_in_the_proxy_and_anew_on_each_recording(tmp_path: Path) -> None:
    text = "a > PUB x\n  | 1\na > PUB x\n  | 2\na > PUB x\n  | 3\n"
    rules = rule("drop", 'subject = "x"', "every = 2", 'per = "proxy"')
    assert verdicts(tmp_path, rules, text) == ["1 PUB x: pass", "1 PUB x: drop", "1 PUB x: pass"]


def test_rules_about_a_client_act_on_that_client(tmp_path: Path) -> None:
    text = opened("b", "svc", user="u") + "a > PUB x\n  | 1\nb > PUB x\n  | 2\n"
    for client in ('name = "svc"', 'user = "u"'):
        rules = rule("drop", 'subject = "x"', f"client = {{ {client} }}")
        assert verdicts(tmp_path, rules, text) == ["1 PUB x: pass", "2 PUB x: drop"]


def test_a_rule_by_account_ends_what_was_subscribed_before_the_server_named_it(tmp_path: Path) -> None:
    info = 'a < INFO {"server_name":"s","version":"2.12.0","headers":true%s}\n'
    text = (info % "") + "a > SUB secret 1\n" + (info % ',"remote_account":"A"') + "a < MSG secret 1\n  | x\n"
    for account, verdict in (("A", "would not come"), ("B", "pass")):
        rules = rule("deny", 'subject = "secret"', 'op = "SUB"', f'client = {{ account = "{account}" }}')
        assert verdicts(tmp_path, rules, text)[-1] == f"1 MSG secret: {verdict}"


def test_the_subscriptions_of_a_preamble_are_judged(tmp_path: Path) -> None:
    text = (
        "b preamble\n"
        '  open: {"ordinal":7,"key":"old/1","client":"127.0.0.1:1"}\n'
        '  subs: [[{"$bytes":"1"},{"$bytes":"secret"},{"$bytes":""},0,0],'
        '[{"$bytes":"2"},{"$bytes":"free"},{"$bytes":""},0,0]]\n'
        "b < MSG secret 1\n  | x\nb < MSG free 2\n  | x\n"
    )
    assert verdicts(tmp_path, rule("deny", 'subject = "secret"', 'op = "SUB"'), text) == [
        "2 SUB secret: deny",
        "2 MSG secret: would not come",
        "2 MSG free: pass",
    ]


def test_clients_are_counted_on_from_those_of_a_preamble(tmp_path: Path) -> None:
    text = 'b preamble\n  open: {"ordinal":7,"key":"old/2"}\n' + opened("c", "old") + "c > PUB x\n  | x\n"
    for key, verdict in (("old/3", "drop"), ("old/1", "pass")):
        found = verdicts(tmp_path, rule("drop", 'subject = "x"', f'only = {{ "{key}" = [1] }}'), text)
        assert found == [f"3 PUB x: {verdict}"]


def test_clients_whose_names_are_made_up_are_counted_by_what_they_share(tmp_path: Path) -> None:
    """As the proxy does; one that was there before the recording began counts too."""
    text = 'b preamble\n  open: {"ordinal":7,"key":"worker-7f3a/1"}\n' + "b > PUB x\n  | x\n"
    text += opened("c", "worker-77") + "c > PUB x\n  | x\n"
    for number, drops in ((1, ["drop", "pass"]), (2, ["pass", "drop"]), (3, ["pass", "pass"])):
        only = f'only = {{ "c2s worker-*/{number}" = [1] }}'
        found = verdicts(tmp_path, rule("drop", 'subject = "x"', only), text)
        assert [line.rpartition(" ")[2] for line in found] == drops


def test_messages_of_a_subscription_that_would_have_moved_cannot_be_told(tmp_path: Path) -> None:
    text = "a > SUB orders 1\na < MSG orders 1\n  | x\n"
    found = verdicts(tmp_path, rule("rewrite", 'prefix = "t"', 'client = { name = "app" }'), text)
    assert found == ["1 SUB orders: rewrite", "1 MSG orders: cannot tell"]


def test_a_payload_that_was_not_kept_cannot_be_told(tmp_path: Path) -> None:
    rules = rule("corrupt", 'subject = "orders"')
    whole = verdicts(tmp_path, rules, "a > PUB orders\n  | abc\n")
    assert whole == ["1 PUB orders: corrupt"]
    line = Frames(1, C2S, b"PUB orders 3\r\n", 1, Op.PUB.bit, 0, MONO, 0, MONO, None, Flags.PAYLOAD)
    path = write(tmp_path / "x.ncap", [OpenRecord(1, MONO, {}), line])
    (one,) = Rehearsal(load(rules, KINDS)).run(path)
    assert [ruling.verdict for ruling in one.rulings] == [CANNOT_TELL]


def test_hours_are_those_of_the_recording(tmp_path: Path) -> None:
    for hours, verdict in (("09:38-09:39", "drop"), ("09:39-09:38", "pass")):
        rules = rule("drop", 'subject = "x"', f'hours = "{hours}"')
        assert verdicts(tmp_path, rules, "a > PUB x\n  | y\n") == [f"1 PUB x: {verdict}"]


def test_random_numbers_are_those_of_the_seed(tmp_path: Path) -> None:
    text = "".join(f"a > PUB x\n  | {number}\n" for number in range(40))
    rules = rule("drop", 'subject = "x"', "probability = 0.5")
    one, same, other = (verdicts(tmp_path, rules, text, seed) for seed in (1, 1, 2))
    assert one == same
    assert one != other


def test_frames_that_the_proxy_made_are_not_judged(tmp_path: Path) -> None:
    text = "a < MSG x 1\n  * made here\n  | x\n"
    assert [one.op.label for one in judged(tmp_path, DENY.format("x"), text) if one.op] == ["CONNECT"]
