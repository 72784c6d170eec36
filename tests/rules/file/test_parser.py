"""Reading rules: each mistake is one sentence with its place."""

from __future__ import annotations

import pytest

from natsproxy.errors import ConfigError
from natsproxy.protocol.jetstream import API_VERBS, parse_api
from natsproxy.protocol.subjects import compile_pattern
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.file.parser import load, parse_rules
from natsproxy.rules.file.serialize import to_toml
from natsproxy.rules.kinds import KINDS
from natsproxy.rules.model.gate import Window
from natsproxy.wire.ops import S2C

GOOD = """
# comment
[[rules]]
name = "first"
kind = "drop"

[[rules]]
name = "second"
kind = "drop"
"""

LATENCY = '[[rules]]\nname = "a"\nkind = "latency"\ndelay = '
REWRITE = '[[rules]]\nname = "a"\nkind = "rewrite"\n'

MISTAKES = [
    ("not toml [", r"r\.toml: not valid TOML"),
    ("[rule]\n", r"there is no key 'rule' here: a rules file holds \[\[rules\]\] and"),
    ("rules = 3\n", r"each rule begins with \[\[rules\]\]"),
    ('[[rules]]\nkind = "drop"\n', r"r\.toml:1: rule 1: it needs 'name'"),
    (
        '[[rules]]\nname = "a"\nkind = "drp"\n',
        r"r\.toml:3: rule 'a': there is no kind 'drp'; did you mean 'drop'\?",
    ),
    (
        GOOD + "probabilty = 0.5\n",
        r"r\.toml:10: rule 'second': there is no key 'probabilty'; did you mean 'probability'",
    ),
    (
        GOOD + "probability = 1.2\n",
        r"r\.toml:10: rule 'second': probability must be a number from 0 to 1, not 1\.2",
    ),
    (GOOD + "probability = true\n", r"must be a number from 0 to 1"),
    (
        GOOD + 'subject = "a..b"\n',
        r"r\.toml:10: rule 'second': subject must be a valid subject, which 'a\.\.b' is not",
    ),
    (GOOD + "subject = []\n", r"must not be an empty list"),
    (GOOD + 'op = "PUSH"\n', r"op must name an operation \(PUB, "),
    (GOOD + 'op = "PING"\nsubject = "a"\n', r"r\.toml:10: .*op names an operation without a subject"),
    (GOOD + 'direction = "up"\n', r"direction must be 'c2s' or 's2c', not 'up'"),
    (GOOD + 'direction = "s2c"\nop = "PUB"\n', r"op never goes s2c"),
    (GOOD + 'role = "ak"\n', "role must be a role, which 'ak' is not: did you mean 'nak'"),
    (GOOD + 'role = "ack"\nop = "MSG"\n', r"op contradicts the role 'ack'"),
    (GOOD + 'role = "ack"\ndirection = "s2c"\n', r"direction contradicts the role 'ack'"),
    (GOOD + 'between = ["2s", "1s"]\n', r"between must end after it starts"),
    (GOOD + 'client = { nam = "x" }\n', r"client has 'nam': there is no key 'nam'; did you mean 'name'"),
    (GOOD + "client = { name = 3 }\n", r"r\.toml:10: .*client has 'name', which must be a string, not 3"),
    (GOOD + 'client = { address = "10.0.0" }\n', r"has 'address', which must be an IP address or a network"),
    (GOOD + "header = { A = 1 }\n", r"r\.toml:10: .*header has 'A', which must be a string, not 1"),
    (GOOD + 'op = "PUB"\nheader = { A = "*" }\n', r"r\.toml:11: .*header selects nothing: PUB never has"),
    (GOOD + 'op = "PUB"\nqueue = "q"\n', r"r\.toml:11: .*queue selects nothing: PUB never has a queue"),
    (GOOD + "min_size = 2\nmax_size = 1\n", r"r\.toml:11: .*max_size is below min_size, 2"),
    (GOOD + 'subject = "a.b"\nunless = "a.>"\n', r"r\.toml:11: .*unless excludes all that"),
    (GOOD + "status = 5\n", r"r\.toml:10: .*status must be a status code of three digits, not 5"),
    (
        GOOD + 'role = "ack"\nsubject = "a.>"\n',
        r"r\.toml:11: .*subject contradicts the role 'ack', which is about \$JS\.ACK\.>",
    ),
    (
        '[[rules]]\nname = "a"\nkind = "answer"\ndirection = "s2c"\nstatus_code = 503\n',
        r"r\.toml:4: .*direction is s2c, where PUB, HPUB never goes",
    ),
    (
        '[[rules]]\nname = "a"\nkind = "answer"\nrole = "publish-ack"\nstatus_code = 503\n',
        r"r\.toml:4: .*role of a rule of kind 'answer' can be PUB, HPUB only",
    ),
    (
        '[[rules]]\nname = "a"\nkind = "corrupt"\nop = "INFO"\n',
        r"r\.toml:4: .*op of a rule of kind 'corrupt' can be PUB, HPUB, MSG, HMSG only",
    ),
    ('[[rules]]\nname = "a"\nkind = "duplicate"\nop = "PING"\n', r"op of a rule of kind 'duplicate' can"),
    (GOOD + "first = 0\n", r"first must be a whole number of at least 1, not 0"),
    (GOOD.replace("second", "first"), r"r\.toml:8: there is one named 'first' already, at r\.toml:3"),
    ('[[rules]]\nname = "a"\nkind = "latency"\n', r"it needs 'delay'"),
    (LATENCY + '"5 parsecs"\n', r'r\.toml:4: .*delay must be a duration such as "250ms"'),
    (LATENCY + '{ distribution = "gauss" }\n', r"delay needs a distribution, one of constant"),
    (LATENCY + '{ distribution = "normal", mean = "1s" }\n', r"takes mean and stddev"),
    (LATENCY + '{ distribution = "uniform", min = "2s", max = "1s" }\n', r"min is above max"),
    (REWRITE + 'from = "a"\n', r"it needs 'to'"),
    (REWRITE + 'prefix = "a.*"\n', r"prefix must be a subject without wildcards"),
    (
        REWRITE + 'from = "a.*"\nto = "{{frobnicate(1)}}"\n',
        r"r\.toml:5: .*to is wrong: '{{frobnicate\(1\)}}' is not a mapping function; there are splitfromleft",
    ),
    (REWRITE + 'from = "a.*"\nto = "{{widcard(1)}}"\n', r"r\.toml:5: .*; did you mean wildcard\?"),
    (REWRITE + 'from = "a.*"\nto = "b.$2"\n', r"r\.toml:5: .*'\$2' names wildcard 2, but 'a\.\*' has 1"),
    (REWRITE + 'from = "a.>"\nto = "b"\n', r"r\.toml:5: .*must both end in > or neither"),
    (
        REWRITE + 'from = "a.*"\nto = "b"\n',
        r"r\.toml:5: .*to cannot be undone \(it does not use each wildcard",
    ),
    (REWRITE + 'from = "a.*"\nto = [{to = "b.$1", weight = 50}]\n', r"to has weights"),
    (
        REWRITE + 'prefix = "t"\nprobability = 0.5\n',
        r"probability has no meaning in a rule of kind 'rewrite'",
    ),
    (
        '[[rules]]\nname = "a"\nkind = "permissions"\n',
        r"it needs 'publish', 'subscribe' or 'allow_responses'",
    ),
    (
        '[[rules]]\nname = "a"\nkind = "permissions"\npublish = { alow = "x" }\n',
        r"r\.toml:4: rule 'a': publish has no key 'alow'",
    ),
    (
        '[[rules]]\nname = "a"\nkind = "permissions"\npublish = { deny = "a..b" }\n',
        r"r\.toml:4: rule 'a': publish\.deny: 'a\.\.b' is not a valid subject",
    ),
    ('[[rules]]\nname = "a"\nkind = "deny"\n', r"it needs 'subject'"),
]


@pytest.mark.parametrize(("text", "expected"), MISTAKES)
def test_a_mistake_is_one_sentence_with_its_place(text: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected) as caught:
        load(text, KINDS, source="r.toml")
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("r.toml")


@pytest.mark.parametrize("text", ["", "\n\n", "# [[rules]]\n# name = 'a'\n"])
def test_a_file_without_rules_needs_an_explicit_empty_list(text: str) -> None:
    """Half of a file that is being written looks like an empty one."""
    with pytest.raises(ConfigError, match=r"r\.toml: there are no rules in it: write `rules = \[\]` if"):
        load(text, KINDS, source="r.toml")
    assert load(text + "rules = []\n", KINDS) == load(to_toml([]), KINDS) == ()


@pytest.mark.parametrize("verb", API_VERBS)
def test_api_selects_the_calls_of_a_verb(verb: str) -> None:
    """In every domain, and no call of another verb, whose name may begin alike."""
    rule = f'[[rules]]\nname = "a"\nkind = "deny"\napi = "{verb}"\n'
    (one,) = load(rule, KINDS)
    matches = [compile_pattern(pattern) for pattern in one.selector.subjects or ()]
    for other in API_VERBS:
        calls = [f"{other}{rest}" for rest in ("", ".S", ".S.C", ".S.C.f.g")]
        for call in calls:
            for prefix in ("$JS.API.", "$JS.hub.API."):
                parsed = parse_api(f"{prefix}{call}".encode())
                selected = any(match(f"{prefix}{call}".encode()) for match in matches)
                assert selected >= (parsed is not None and parsed.verb == verb.encode()), call
                assert not selected or other == verb or call.startswith(f"{verb}."), call
        assert not any(match(f"$JS.hub.x.API.{other}.S".encode()) for match in matches)


def test_api_stands_in_place_of_a_subject() -> None:
    rule = '[[rules]]\nname = "a"\nkind = "deny"\nsubject = "x"\napi = "INFO"\n'
    with pytest.raises(ConfigError, match=":5: rule 'a': api stands in place of 'subject'"):
        load(rule, KINDS)
    with pytest.raises(ConfigError, match=r"there is no call 'STREAM.DELET'; did you mean 'STREAM.DELETE'"):
        load('[[rules]]\nname = "a"\nkind = "deny"\napi = "STREAM.DELET"\n', KINDS)


def test_json_tables_have_no_lines() -> None:
    with pytest.raises(ConfigError, match=r"rules, rule 1: rule 'a': probability must be"):
        parse_rules([{"name": "a", "kind": "drop", "probability": 2}], KINDS)
    with pytest.raises(ConfigError, match=r"rule 1 must be a table, not 3"):
        parse_rules([3], KINDS)


def test_a_rewrite_that_another_hides_is_refused() -> None:
    text = """
[[rules]]
name = "wide"
kind = "rewrite"
from = "a.>"
to = "b.>"
[[rules]]
name = "narrow"
kind = "rewrite"
from = "a.x"
to = "c"
"""
    with pytest.raises(ConfigError, match=r"r:7: rule 'narrow' can never act, since 'wide' before it"):
        RuleChain(load(text, KINDS, source="r"))


def test_all_keys_are_read() -> None:
    (rule,) = load(
        """
[[rules]]
name = "r"
kind = "drop"
direction = "s2c"
op = ["msg", "HMSG"]
subject = ["a.>", "b"]
unless = "a.x"
queue = "q*"
header = { X = "1", Y = "*" }
min_size = "1KiB"
max_size = 4096
client = { name = "n", ordinal = 3 }
probability = 0.5
every = 2
first = 3
after = 4
limit = 5
between = ["1s"]
only = { app = [1, 2] }
per = "proxy"
""",
        KINDS,
    )
    selector, gate = rule.selector, rule.gate
    assert selector.directions == (S2C,)
    assert selector.subjects == (b"a.>", b"b")
    assert (selector.min_size, selector.max_size) == (1024, 4096)
    assert selector.headers == ((b"X", "1"), (b"Y", None))
    assert (selector.peer.name, selector.peer.ordinal) == ("n", 3)
    assert (gate.probability, gate.every, gate.first, gate.after, gate.limit) == (0.5, 2, 3, 4, 5)
    assert (gate.between, gate.per_proxy) == (Window(10**9, None), True)
    assert gate.only == {"app": frozenset({1, 2})}


def test_directions_follow_from_the_ops() -> None:
    (rule,) = load('[[rules]]\nname = "r"\nkind = "drop"\nop = "MSG"\n', KINDS)
    assert rule.selector.directions == (S2C,)
