"""`natsproxy permissions`: its formats, its exit codes, and bad input."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from natsproxy.cli import main
from natsproxy.errors import Exit
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
    assert '#   "$JS.ACK.S.C.>"  # no message of this consumer was acked' in text
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
