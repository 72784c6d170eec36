"""`natsproxy rules` as a person meets it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from natsproxy.cli import main
from natsproxy.rules.file.keys import GATE, SELECTOR
from natsproxy.rules.file.parser import load
from natsproxy.rules.kinds import KINDS
from natsproxy.rules.model.roles import ROLES

TEXT = """
[[rules]]
name = "slow"
kind = "latency"
subject = "orders.>"
probability = 0.5
delay = "250ms"

[[rules]]
name = "no admin"
kind = "deny"
subject = "admin.*"

[[rules]]
name = "split"
kind = "rewrite"
client = { name = "canary*" }
from = "pay.*"
to = [{ to = "new.$1", weight = 10 }]
two_way = false
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "rules.toml"
    path.write_text(TEXT)
    return str(path)


def run(*args: str) -> Result:
    return CliRunner().invoke(main, ["rules", *args])


def test_check_names_every_rule(file: str) -> None:
    result = run("check", file)
    assert result.exit_code == 0
    assert "slow: latency" in result.output
    assert "3 rules, no mistake found" in result.output


def test_check_prints_one_sentence_and_fails(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(TEXT.replace("0.5", "1.2"))
    result = run("check", str(path))
    assert result.exit_code == 1
    assert result.output.strip() == (
        f"Error: {path}:6: rule 'slow': probability must be a number from 0 to 1, not 1.2"
    )


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    result = run("check", str(tmp_path / "none.toml"))
    assert result.exit_code == 2
    assert "No such file" in result.output


def test_explain_names_rule_gate_and_result(file: str) -> None:
    result = run("explain", file, "--op", "PUB", "--subject", "orders.eu.1", "--client-name", "shop")
    assert result.exit_code == 0
    assert "* slow (latency): hold for 250 ms (constant)\n    with probability 0.5" in result.output
    assert "  split (rewrite): applies to other clients: those with name canary*" in result.output


def test_explain_knows_roles_headers_and_sizes(tmp_path: Path) -> None:
    path = tmp_path / "acks.toml"
    path.write_text(
        '[[rules]]\nname = "lost"\nkind = "drop"\nrole = "publish-ack"\nsubject = "orders.>"\n'
        '[[rules]]\nname = "big"\nkind = "drop"\nheader = { Region = "eu*" }\nmin_size = "1KiB"\n'
        '[[rules]]\nname = "empty"\nkind = "drop"\nstatus = 503\n'
    )
    asked = [
        ("--role publish-ack --subject orders.1", "* lost (drop): drop\n    always"),
        ("--op MSG --subject _INBOX.1", "Assumed: it answers no earlier request"),
        (
            "--role publish-ack --subject other",
            "  lost (drop): selects other frames: s2c MSG HMSG on orders.> that are",
        ),
        ("--subject a --header 'Region: eu-1'", "Assumed: its payload is empty"),
        ("--subject a --header 'Region: eu-1' --size 1KiB", "* big (drop): drop\n    always"),
        ("--subject a --header 'Region: us' --size 1024", "No rule acts on HPUB a: it passes unchanged."),
        ("--op PUB --subject a --payload hi", "No rule acts on PUB a: it passes unchanged."),
        ("--subject _INBOX.1 --status '503 No Responders'", "* empty (drop): drop\n    always"),
    ]
    for words, expected in asked:
        result = run("explain", str(path), *shlex.split(words))
        assert result.exit_code == 0
        assert expected in result.output, words


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--role puback", "must be a role, which 'puback' is not: did you mean 'publish-ack'?"),
        ("--subject a --header X", "must be 'NAME: VALUE', not 'X'"),
        ("--subject a --status 5", "must be a status code of three digits"),
        ("--subject a --size much", "'much'"),
    ],
)
def test_a_property_that_is_wrong(words: str, expected: str, file: str) -> None:
    result = run("explain", file, *shlex.split(words))
    assert result.exit_code == 2
    assert expected in " ".join(result.output.split())


def test_explain_gives_the_exact_denial(file: str) -> None:
    result = run("explain", file, "--op", "SUB", "--subject", "admin.>")
    assert "* no admin (deny): -ERR 'Permissions Violation for Subscription to \"admin.>\"'" in result.output
    assert "Note: " in result.output


def test_explain_gives_the_destinations(file: str) -> None:
    result = run("explain", file, "--subject", "pay.1", "--client-name", "canary-3", "--json")
    steps = {step["rule"]: step for step in map(json.loads, result.output.splitlines())}
    assert steps["split"]["result"] == "pay.1 -> new.1 or unchanged, by chance"
    assert steps["split"]["assumptions"] == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "PUB needs a subject: --subject orders.new"),
        (["--op", "SUB", "--subject", "a.>.b"], "SUB cannot have the subject 'a.>.b'"),
        (["--subject", "a b"], "PUB cannot have the subject 'a b'"),
        (["--op", "PING", "--subject", "a"], "PING has no subject"),
        (["--op", "MSG", "--subject", "a", "--direction", "c2s"], "MSG never goes c2s"),
        (["--op", "FOO"], "must name an operation"),
        (["--op", "UNSUB", "--subject", "a"], "UNSUB has no subject"),
    ],
)
def test_explain_refuses_a_frame_that_cannot_exist(arguments: list[str], expected: str, file: str) -> None:
    result = run("explain", file, *arguments)
    assert (result.exit_code, result.output.count("\n")) == (2, 1)
    assert f"Error: no such frame exists: {expected}" in result.output


def test_rules_from_standard_input() -> None:
    """For both commands that read a file of rules; not text is a sentence."""
    runner = CliRunner()
    assert runner.invoke(main, ["rules", "check", "-"], input=TEXT).exit_code == 0
    explained = runner.invoke(main, ["rules", "explain", "-", "--subject", "admin.x"], input=TEXT)
    assert "* no admin (deny)" in explained.output
    wrong = runner.invoke(main, ["rules", "check", "-"], input=TEXT.replace("0.5", "1.2"))
    assert (wrong.exit_code, "Error: standard input:6: rule 'slow'" in wrong.output) == (1, True)
    done = runner.invoke(main, ["rules", "check", "-"], input=b"\xff")
    assert (done.exit_code, "standard input: not valid TOML" in done.output) == (2, True)


def test_check_for_a_script(file: str) -> None:
    rows = list(map(json.loads, run("check", file, "--json").output.splitlines()))
    assert [row["rule"] for row in rows] == ["slow", "no admin", "split"]
    assert rows[0]["gate"] == "with probability 0.5"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[rules]\nname = "a"\n', "each rule begins with [[rules]], in two pairs of brackets"),
        (
            'upstream = "x:1"\n',
            "there is no key 'upstream' here: a rules file holds [[rules]] and [[expect]]",
        ),
    ],
)
def test_a_file_that_holds_something_else(text: str, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    result = run("check", str(path))
    assert result.exit_code == 1
    assert f"{path}: {expected}" in result.output


def test_explain_reports_that_no_rule_acts(file: str) -> None:
    assert "No rule acts on PUB other" in run("explain", file, "--subject", "other").output


@pytest.mark.parametrize("name", sorted(KINDS))
def test_every_kind_is_listed_with_an_example_that_loads(name: str) -> None:
    assert name in run("list", "--short").output
    result = run("list", name)
    assert result.exit_code == 0
    shown = result.output[result.output.index(f"{name}: {KINDS[name].text}") :]  # behind a key of that name
    assert shown in run("list").output
    example = shown.split("example:\n", 1)[1]
    assert {rule.kind for rule in load(example, KINDS)} == {name}


@pytest.mark.parametrize(
    ("address", "acts"),
    [("10.1.2.3", True), ("10.1.2.3:4222", True), ("[::1]:4222", False), ("::1", False), ("11.0.0.1", False)],
)
def test_explain_for_an_address(address: str, acts: bool, tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(
        '[[rules]]\nname = "a"\nkind = "deny"\nsubject = "x"\nclient = { address = "10.0.0.0/8" }\n'
    )
    result = run("explain", str(path), "--subject", "x", "--address", address)
    assert (result.exit_code, "* a (deny)" in result.output) == (0, acts)
    assert "Assumed: the client has no address" in run("explain", str(path), "--subject", "x").output


@pytest.mark.parametrize("address", ["nonsense", "", "10.0.0.0/8", "localhost:1"])
def test_explain_refuses_a_bad_address(address: str, file: str) -> None:
    result = run("explain", file, "--subject", "x", "--address", address)
    assert (result.exit_code, f"{address!r} is not an IP address" in result.output) == (2, True)


KEYS = {setting.name: setting for setting in (*SELECTOR, *GATE)}


@pytest.mark.parametrize("name", [*KEYS, *ROLES])
def test_every_key_and_role_is_listed_with_a_line_that_loads(name: str) -> None:
    result = run("list", name)
    assert (result.exit_code, result.output.startswith(f"{name}: ")) == (0, True)
    line = result.output.split("example:\n", 1)[1].split("\n\n")[0]  # a kind may have the same name
    (rule,) = load(f'[[rules]]\nname = "r"\nkind = "drop"\n{line}', KINDS)
    assert (name in rule.table) is (name in KEYS)
    assert name in KEYS or rule.selector.role is ROLES[name]
    everything = run("list").output
    text = KEYS[name].text if name in KEYS else ROLES[name].text
    assert f"  {name:<12} " in everything
    assert text in everything


@pytest.mark.parametrize(
    ("word", "names"),
    [
        ("selector", [setting.name for setting in SELECTOR]),
        ("selectors", [setting.name for setting in SELECTOR]),
        ("gate", [setting.name for setting in GATE]),
        ("roles", list(ROLES)),
        ("kinds", list(KINDS)),
    ],
)
def test_a_sort_of_words_is_listed(word: str, names: list[str]) -> None:
    lines = run("list", word, "--short").output.splitlines()
    assert [line.split()[0] for line in lines[1:]] == names
    rows = list(map(json.loads, run("list", word, "--json").output.splitlines()))
    assert [row["name"] for row in rows] == names
    assert all(row["text"] and row["sort"] for row in rows)


def test_the_values_of_a_key_and_the_settings_of_kinds() -> None:
    for word, listed in (("role", ROLES), ("kind", KINDS)):
        (row,) = map(json.loads, run("list", word, "--json").output.splitlines())
        assert row["values"] == [{"name": name, "text": one.text} for name, one in listed.items()]
    assert "\nvalues:\n  permissions  the permission map" in run("list", "kind").output
    assert "  HMSG         s2c" in run("list", "op").output
    assert "of bandwidth: bytes per second" in run("list", "rate").output
    assert "lasts: of bandwidth, " in run("list", "lasts").output
    assert run("list", "close").output.startswith("close: connections end")  # also a setting of error
    (row,) = map(json.loads, run("list", "latency", "--json").output.splitlines())
    assert [setting["name"] for setting in row["settings"]] == ["delay", "overtake"]
    assert load(row["example"], KINDS)[0].kind == "latency"


@pytest.mark.parametrize(
    ("word", "hint"),
    [("Latncy", "latency"), ("puback", "publish-ack"), ("selektor", "selectors"), ("betwen", "between")],
)
def test_a_word_that_is_nearly_right(word: str, hint: str) -> None:
    result = run("list", word)
    assert result.exit_code == 2
    assert f"there is no word {word!r} in rules; did you mean {hint!r}?" in result.output


def test_the_operators_word_finds_the_kind() -> None:
    assert run("list", "suspend").output == run("list", "swallow").output
    assert run("list", "suspend").output.startswith(
        "swallow: messages are lost for a while, as on a suspended"
    )


def test_an_unknown_word_is_reported() -> None:
    result = run("list", "xyzzy")
    assert result.exit_code == 2
    assert "there is no word 'xyzzy' in rules; known: kinds, selectors, gates, roles" in result.output


@pytest.mark.parametrize(
    ("word", "says"),
    [
        (
            "per",
            ['per: the scope of counts and times  ["connection"]', "\n  proxy        all connections count"],
        ),
        (
            "limit",
            ["without it: any number", "limit = 1 fires again after a reconnect", "\n\nlimit: what a client"],
        ),
        ("after", ["what lasts (pause, slice, ...) begins with that frame  [0]"]),
        ("reorder", ['how long it waits for them at most  ["1s"]']),
        ("close", ["without them once per connection, at once"]),
    ],
)
def test_a_word_is_listed_with_its_values_and_its_default(word: str, says: list[str]) -> None:
    done = CliRunner().invoke(main, ["rules", "list", word])
    assert done.exit_code == 0
    assert all(text in done.output for text in says), done.output
