"""Rules in shadow put in force: what that would break, and the text of the rules."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from natsproxy.cli import main
from natsproxy.trial.promotion import text_enforced
from tests.trial.kit import HEAD, opened

RULES = """# Ours.
[[rules]]
name = "no"
kind = "deny"
mode = "shadow"  # until Friday
subject = "secret"
op = ["PUB", "SUB"]

[[rules]]
name = "lost"
kind = "drop"
subject = "x"

[[expect]]
subject = "free"
verdict = "pass"
"""
BEGIN = opened("a", "app") + "a > SUB secret 1\na > PUB x\n  | 1\n"
END = "a < MSG secret 1\n  | 1\n"


def promote(tmp_path: Path, rules: str, text: str, *more: str) -> tuple[int, str]:
    (tmp_path / "rules.toml").write_text(rules)
    (tmp_path / "x.nats.txt").write_text(HEAD + text)
    done = CliRunner().invoke(
        main, ["rules", "promote", str(tmp_path / "rules.toml"), str(tmp_path / "x.nats.txt"), *more]
    )
    return done.exit_code, done.output


def test_what_would_have_broken_is_above_the_rules(tmp_path: Path) -> None:
    text = BEGIN + "a > PUB secret\n  | 1\n@ +2s\na > PUB secret\n  | 1\n" + END
    code, output = promote(tmp_path, RULES, text)
    lines = output.splitlines()
    assert code == 1
    assert lines[0] == "# 6 frames: these rules would have broken 4:"
    assert lines[1].startswith("# no: deny: 2 PUB secret of app, ")
    assert lines[1].endswith(" s")
    assert " to 2." in lines[1]
    assert lines[2].startswith("# no: deny: 1 SUB secret of app, ")
    assert lines[3].startswith("# no: would not come: 1 MSG secret of app, ")
    assert "lost" not in "".join(lines[:4])  # a rule in force breaks what it has broken before
    document = tomllib.loads(output)
    assert "mode" not in document["rules"][0]
    assert output.endswith(RULES.replace('mode = "shadow"  # until Friday\n', ""))


def test_nothing_broken_ends_with_0(tmp_path: Path) -> None:
    code, output = promote(tmp_path, RULES, opened("a", "app") + "a > PUB free\n  | 1\na > PUB x\n  | 1\n")
    assert (code, output.splitlines()[0]) == (0, "# 3 frames: these rules would have broken nothing")


def test_a_file_without_shadow_cannot_be_promoted(tmp_path: Path) -> None:
    code, output = promote(tmp_path, text_enforced(RULES), BEGIN)
    assert code == 2
    assert "no rule is in shadow" in output


@pytest.mark.parametrize(
    "text",
    [
        RULES,
        RULES.replace('mode = "shadow"', "mode = 'shadow'"),
        RULES.replace('mode = "shadow"', "'mode' = \"shadow\""),
        RULES.replace('name = "lost"', 'name = "mode = \\"shadow\\""'),
        'rules = [{ name = "no", kind = "deny", mode = "shadow", subject = "x" }]\n',
    ],
)
def test_only_the_shadow_goes(text: str) -> None:
    before, after = tomllib.loads(text)["rules"], tomllib.loads(text_enforced(text))["rules"]
    assert [{key: value for key, value in rule.items() if key != "mode"} for rule in before] == after
