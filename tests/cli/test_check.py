"""`natsproxy check`: its output, its exit codes, and bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from natsproxy.check.checker import CHECKS
from natsproxy.cli import main
from tests.check.kit import written

LOST = "a > PING\nsound: a < PONG\n@ +6s\na closed client-closed\n"
RECORDINGS = Path(__file__).parents[2] / "recordings"


def test_a_finding_is_printed_with_its_frames(tmp_path: Path) -> None:
    path = written(tmp_path / "x.nats.txt", LOST)
    done = CliRunner().invoke(main, ["check", str(path)])
    assert done.exit_code == 1
    assert "found  ping_without_pong" in done.stdout
    assert "worker (connection 1): the server did not answer a PING in 6s" in done.stdout
    assert "1 →" in done.stdout
    assert f"1 found by {len(CHECKS)} checks" in done.stdout


def test_json_has_the_facts(tmp_path: Path) -> None:
    path = written(tmp_path / "x.nats.txt", LOST)
    done = CliRunner().invoke(main, ["check", str(path), "--json"])
    facts = json.loads(done.stdout)
    assert (done.exit_code, facts["found"]) == (1, 1)
    (statement,) = facts["statements"]
    assert statement["check"] == "ping_without_pong"
    assert statement["frames"][0]["connection"] == "1"
    assert statement["frames"][0]["text"] == "PING"


def test_sound_traffic_ends_with_0(tmp_path: Path) -> None:
    path = written(tmp_path / "x.nats.txt", LOST, "sound")
    done = CliRunner().invoke(main, ["check", str(path)])
    assert (done.exit_code, done.stdout) == (0, f"nothing found by {len(CHECKS)} checks\n")


def test_only_some_checks_run(tmp_path: Path) -> None:
    path = written(tmp_path / "x.nats.txt", LOST)
    done = CliRunner().invoke(main, ["check", str(path), "--only", "stored_twice"])
    assert (done.exit_code, done.stdout) == (0, "nothing found by 1 check\n")


def test_the_checks_are_listed() -> None:
    done = CliRunner().invoke(main, ["check", "--list"])
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(CHECKS)


@pytest.mark.parametrize(
    "path", sorted(RECORDINGS.glob("*-v1*.ncap")) + sorted(RECORDINGS.glob("*.nats.txt"))
)
def test_the_golden_recordings_are_sound(path: Path) -> None:
    done = CliRunner().invoke(main, ["check", str(path)])
    assert (done.exit_code, done.stdout) == (0, f"nothing found by {len(CHECKS)} checks\n")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "Missing argument"),
        (["no-such.ncap"], "no such file or folder"),
        ([__file__], "not a natsproxy capture"),
        (["x.ncap", "--only", "nothing"], "is not one of"),
    ],
)
def test_what_could_not_run_ends_with_2(arguments: list[str], text: str) -> None:
    done = CliRunner().invoke(main, ["check", *arguments])
    assert done.exit_code == 2
    assert text in done.stderr
