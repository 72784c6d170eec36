"""`natsproxy permissions`: its formats, its exit codes, and bad input."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from natsproxy.cli import main
from natsproxy.errors import Exit
from natsproxy.permissions.needs import ClientNeeds, needs_of
from natsproxy.rules.file.parser import parse_rules
from natsproxy.rules.kinds import KINDS
from natsproxy.testing import NatsServer
from tests.permissions.kit import NUID, connect, items, msg, pub, segments, sub

FRAMES = [
    connect('it\\"s', "ann"),
    sub(b"ask", b"crew"),
    msg(b"ask", b"_INBOX.%b.1" % NUID),
    pub(b"_INBOX.%b.1" % NUID),
    pub(b"o.1"),
    pub(b"o.2"),
    pub(b"o.3"),
    pub(b"$JS.API.CONSUMER.MSG.NEXT.S.C"),
]


@pytest.fixture
def capture(tmp_path: Path) -> str:
    segments(tmp_path / "capture", items([(1, frame) for frame in FRAMES]), 99)
    return str(tmp_path / "capture")


def _run(*arguments: str) -> str:
    done = CliRunner().invoke(main, ["permissions", *arguments])
    assert done.exit_code == Exit.OK, done.output
    return done.stdout


@pytest.mark.server
@pytest.mark.parametrize("by", ["user", "name", "account"])
def test_nats_server_takes_its_configuration(by: str, capture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANN_PASSWORD", "secret")
    monkeypatch.setenv("IT_S_PASSWORD", "secret")
    text = _run(capture, "--by", by)
    assert '"o.*"  # 3 frames, 3 values, 2026-01-01T00:00:00Z' in text
    assert '"ask crew"  # 1 frame, 2026-01-01T00:00:00Z' in text
    assert 'allow_responses: { max: 1, expires: "10s" }  # 1 frame' in text
    assert '#   publish "$JS.ACK.S.C.>"  # no message of this consumer was acked' in text
    with NatsServer(text):
        pass


def test_nsc_gets_one_command(capture: str) -> None:
    command = [line.strip(" \\") for line in _run(capture, "--format", "nsc").splitlines() if line[:1] != "#"]
    assert command == [
        "nsc edit user --name ann",
        "--allow-pub '$JS.API.CONSUMER.MSG.NEXT.S.C'",
        "--allow-pub 'o.*'",
        "--allow-sub 'ask crew'",
        "--allow-pub-response=1 --response-ttl 10s",
    ]


@pytest.mark.parametrize(("by", "client"), [("user", {"user": "ann"}), ("name", {"name": 'it"s'})])
def test_the_rule_can_be_loaded(by: str, client: dict[str, str], capture: str) -> None:
    text = _run(capture, "--by", by, "--format", "rule")
    (rule,) = parse_rules(tomllib.loads(text)["rules"], KINDS)
    (table,) = tomllib.loads(text)["rules"]
    assert (rule.kind, table["client"]) == ("permissions", client)
    assert table["publish"] == {"allow": ["$JS.API.CONSUMER.MSG.NEXT.S.C", "o.*"]}


def test_json_has_the_evidence(capture: str) -> None:
    (one,) = json.loads(_run(capture, "--format", "json"))["permissions"]
    assert one["user"] == "ann"
    assert [row["entry"] for row in one["evidence"]] == ["$JS.API.CONSUMER.MSG.NEXT.S.C", "o.*", "ask crew"]
    assert [row["distinct"] for row in one["evidence"]] == [[], [3], []]
    assert one["responses"]["most"] == 1


def test_the_number_of_values_can_be_chosen(capture: str) -> None:
    assert '"o.1"  # 1 frame' in _run(capture, "--distinct", "4")


def test_a_file_that_is_no_capture_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x.ncap").write_bytes(b"no capture")
    done = CliRunner().invoke(main, ["permissions", str(tmp_path / "x.ncap")])
    assert done.exit_code == Exit.COULD_NOT_RUN
    assert "x.ncap" in done.stderr


@pytest.mark.server
def test_the_proof_is_in_the_output(capture: str) -> None:
    proof = [line for line in _run(capture, "--prove").splitlines() if line.startswith("# ")]
    assert proof[0].startswith(
        "# proof: no permissions violation in 6 frames of 1 connections, on nats-server 2."
    )
    assert '# needed: ann publish "o.*": Permissions Violation for Publish to "o.1"' in proof
    proved = json.loads(_run(capture, "--prove", "--format", "json"))["proof"]
    assert (proved["passed"], [line["verdict"] for line in proved["lines"]]) == (
        True,
        ["needed", "needed", "needed", "not proved"],
    )


@pytest.mark.server
def test_a_block_that_fails_ends_with_1(capture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def less(*arguments: Any, **options: Any) -> list[ClientNeeds]:
        (need,) = needs_of(*arguments, **options)
        return [replace(need, lines={place: one for place, one in need.lines.items() if place.queue})]

    monkeypatch.setattr("natsproxy.cli.permissions.needs_of", less)
    done = CliRunner().invoke(main, ["permissions", capture, "--prove"])
    assert done.exit_code == Exit.FOUND_WRONG
    assert (
        '# violation: ann: Permissions Violation for Publish to "$JS.API.CONSUMER.MSG.NEXT.S.C"'
        in done.stdout
    )


def test_a_configuration_that_differs_ends_with_1(capture: str, tmp_path: Path) -> None:
    config = tmp_path / "server.conf"
    config.write_text(_run(capture))
    same = _run(capture, "--diff", str(config))
    assert same == "ann: allows what was used, and no more\n"
    config.write_text(config.read_text().replace('"o.*"', '"other"'))
    done = CliRunner().invoke(main, ["permissions", capture, "--diff", str(config)])
    assert done.exit_code == Exit.FOUND_WRONG
    assert done.stdout.splitlines() == [
        "ann",
        '  denies publish "o.*": 3 frames, 2026-01-01T00:00:00Z, such as "o.1"',
        '  unused publish "other"',
    ]
    done = CliRunner().invoke(main, ["permissions", capture, "--diff", str(config), "--format", "json"])
    assert json.loads(done.stdout)["differences"][0]["unused"] == [{"verb": "publish", "entry": "other"}]


@pytest.mark.parametrize("more", [["--diff", "missing.conf"], ["--diff", "x", "--prove"]])
def test_a_diff_that_could_not_run(more: list[str], capture: str) -> None:
    done = CliRunner().invoke(main, ["permissions", capture, *more])
    assert done.exit_code == Exit.COULD_NOT_RUN
