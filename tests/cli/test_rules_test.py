"""`natsproxy rules test`: its table, its exit codes, and expectations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from natsproxy.cli import main
from natsproxy.config.files import rules_file
from natsproxy.rules.file.expectations import VERDICTS
from natsproxy.rules.file.parser import load
from natsproxy.rules.kinds import KINDS
from tests.trial.kit import HEAD, opened

RULES = '[[rules]]\nname = "no"\nkind = "deny"\nsubject = "orders.>"\nop = ["PUB", "SUB"]\n'
TEXT = (
    opened("a", "app")
    + opened("b", "billing")
    + "a > SUB orders.> 1\na > PUB orders.1234\n  | x\na > PUB orders.5678\n  | x\nb > PUB quotes\n  | x\n"
    + "a < MSG orders.1234 1\n  | x\n"
)


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    path = tmp_path / "x.nats.txt"
    path.write_text(HEAD + TEXT)
    return path


def invoke(capture: Path, rules: str, *more: str) -> Result:
    file = capture.with_name("rules.toml")
    file.write_text(rules)
    assert rules_file(file), "the proxy takes the file too"
    return CliRunner().invoke(main, ["rules", "test", str(file), str(capture), *more])


def test_a_table_counts_by_rule_template_and_client(capture: Path) -> None:
    done = invoke(capture, RULES)
    assert done.exit_code == 0
    rows = [line.split()[:6] for line in done.stdout.splitlines() if line.startswith("no ")]
    assert ["no", "deny", "PUB", "orders.*", "2", "app"] in rows
    assert ["no", "deny", "SUB", "orders.>", "1", "app"] in rows
    assert ["no", "would", "not", "come", "MSG", "orders.*"] in rows
    assert len(rows) == 3
    assert "7 frames, 3 of them pass untouched" in done.stdout


def test_each_frame_is_listed(capture: Path) -> None:
    lines = invoke(capture, RULES, "--frames").stdout.splitlines()
    assert lines[1].split("  ") == [
        lines[1].split("  ")[0],
        "1 → #2",
        "app",
        "PUB orders.1234",
        "[deny by no]",
    ]
    assert sum("[deny by no]" in line or "[would not come by no]" in line for line in lines) == 4


def test_json_has_rows_and_frames(capture: Path) -> None:
    facts = json.loads(invoke(capture, RULES, "--json", "--frames").stdout)
    assert (facts["frames"], facts["passed"], len(facts["rows"])) == (7, 3, 3)
    assert [one["subject"] for one in facts["listed"]] == [
        "orders.>",
        "orders.1234",
        "orders.5678",
        "orders.1234",
    ]


@pytest.mark.parametrize(
    "expected",
    [
        'subject = "orders.>"\nop = "PUB"\nverdict = "deny"',
        'subject = "orders.>"\nop = "PUB"\nverdict = "deny"\nrule = "no"',
        'subject = "orders.>"\nop = "PUB"\nverdict = "deny"\ncount = 2',
        'subject = "orders.>"\nverdict = "would not come"\ncount = 1',
        'op = "PUB"\nclient = { name = "billing" }\nverdict = "pass"',
        'op = "PUB"\nclient = { name = "billing" }\nverdict = "deny"\ncount = 0',
    ],
)
def test_expectations_that_are_met_end_with_0(capture: Path, expected: str) -> None:
    done = invoke(capture, f"{RULES}[[expect]]\n{expected}\n")
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, "1 of 1 expectations met")


@pytest.mark.parametrize(
    ("expected", "says"),
    [
        ('op = "PUB"\nverdict = "deny"', "2 of 3 frames"),
        ('subject = "orders.>"\nop = "PUB"\nverdict = "pass"', "0 of 2 frames"),
        ('subject = "orders.>"\nop = "PUB"\nverdict = "deny"\ncount = 3', "2 of 2 frames"),
        ('subject = "orders.>"\nop = "PUB"\nverdict = "deny"\nrule = "other"', "0 of 2 frames"),
        ('subject = "nobody"\nverdict = "pass"', "no frame is selected"),
        ('op = "PUB"\nclient = { name = "nobody" }\nverdict = "pass"', "no frame is selected"),
    ],
)
def test_expectations_that_are_not_met_end_with_1_and_name_their_line(
    capture: Path, expected: str, says: str
) -> None:
    done = invoke(capture, f"{RULES}[[expect]]\n{expected}\n")
    assert done.exit_code == 1
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("Not met: ")]
    assert "rules.toml:6: expectation '1': " in line
    assert line.endswith(says)


def test_an_expectation_names_the_frames_that_got_another_verdict(capture: Path) -> None:
    lines = invoke(capture, f'{RULES}[[expect]]\nop = "PUB"\nverdict = "deny"\n').stdout.splitlines()
    (at,) = [place for place, line in enumerate(lines) if line.startswith("Not met: ")]
    assert lines[at + 1].endswith("2 → #1  billing  PUB quotes  [pass]")


@pytest.mark.parametrize(
    ("expected", "says"),
    [
        (
            'subjct = "x"\nverdict = "pass"',
            "rules.toml:7: expectation '1': there is no key 'subjct'; did you mean 'subject'?",
        ),
        ('subject = "x"', "rules.toml:6: expectation '1': it needs 'verdict'"),
        ('verdict = "maybe"', "rules.toml:7: expectation '1': verdict must be"),
        ('verdict = "pass"\nevery = 2', "rules.toml:8: expectation '1': every has no meaning"),
    ],
)
def test_a_mistake_in_an_expectation_is_one_for_the_proxy_too(
    capture: Path, expected: str, says: str
) -> None:
    file = capture.with_name("rules.toml")
    file.write_text(f"{RULES}[[expect]]\n{expected}\n")
    for command in (["rules", "test", str(file), str(capture)], ["rules", "check", str(file)]):
        done = CliRunner().invoke(main, command)
        assert done.exit_code in (1, 2)
        assert says in done.output


def test_what_a_recording_cannot_tell_is_said(capture: Path) -> None:
    window = '[[rules]]\nname = "w"\nkind = "drop"\nsubject = "x"\nbetween = ["+1s", "+2s"]\n'
    assert "count from the beginning of the recording" in invoke(capture, window).stdout
    assert "count from the beginning of the recording" not in invoke(capture, RULES).stdout


def test_what_could_not_run_ends_with_2(capture: Path) -> None:
    assert CliRunner().invoke(main, ["rules", "test", str(capture)]).exit_code == 2
    assert CliRunner().invoke(main, ["rules", "test", "no.toml", str(capture)]).exit_code == 2
    assert invoke(capture.with_name("none.ncap"), RULES).exit_code == 2


def test_each_action_of_a_kind_is_a_verdict() -> None:
    labels = {rule.action.label for kind in KINDS.values() for rule in load(kind.example, KINDS)}
    assert labels <= set(VERDICTS)
