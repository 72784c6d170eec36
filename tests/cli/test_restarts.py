"""A recording that spans restarts of its proxy, through every command that reads captures."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from natsproxy.capture.listing.row import iso
from natsproxy.capture.read.reader import open_capture
from natsproxy.cli import main
from tests.kit.restarts import record_runs
from tests.kit.servers import NatsServer

NATSPROXY = str(Path(sys.executable).parent / "natsproxy")
ROOT = Path(__file__).parents[2]
BODIES = ["1", "2", "3", "4"]
"""What the client of each run published."""


def run(*arguments: object) -> Result:
    done = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four runs of a proxy that recorded to a folder, and whose segments have names in another order."""
    path = tmp_path_factory.mktemp("restarts") / "cap"
    record_runs(path)
    segments = [run.paths[0] for run in open_capture(path).runs]
    for name, segment in zip(("2", "14", "13", "1"), segments, strict=True):
        segment.rename(path / f"old-{name}.ncap")
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four runs of a proxy that recorded to one file, as a pattern."""
    folder = tmp_path_factory.mktemp("restarts")
    record_runs(folder / "t.ncap")
    assert len(list(folder.iterdir())) == 4
    return folder / "t*.ncap"


@pytest.fixture(params=["folder", "files"])
def capture(request: pytest.FixtureRequest) -> Path:
    path: Path = request.getfixturevalue(request.param)
    return path


def rows(capture: Path, *options: str) -> list[dict[str, Any]]:
    done = run("capture", "cat", capture, "--json", *options)
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


def published(found: list[dict[str, Any]]) -> list[tuple[int, int, str]]:
    return [(row["run"], row["conn"], row["payload"]) for row in found if row["op"] == "PUB"]


def test_all_clients_are_played_to_a_server(capture: Path) -> None:
    with NatsServer() as server:
        played = run(
            "replay", "to-server", capture, "--to", server.url, "--speed", "max", "--report", "--json"
        )
        assert played.exit_code == 0, played.output
        done = run("replay", "to-server", capture, "--to", server.url, "--speed", "max", "--json", "--quiet")
    facts = json.loads(done.stdout)
    assert (facts["connections"], facts["frames"], facts["missing"]) == (4, 8, 0)
    looked = json.loads(run("replay", "to-server", capture, "--dry-run", "--json").stdout)
    assert (looked["connections"], looked["client_frames"], looked["out_of_order"]) == (4, 16, 0)


def test_the_clients_of_a_server_are_chosen_by_run(capture: Path) -> None:
    def sent(*options: str) -> list[tuple[int, int]]:
        with NatsServer() as server:
            done = run(
                *("replay", "to-server", capture, "--to", server.url, "--speed", "max", "--json", "--quiet"),
                *options,
            )
        facts = json.loads(done.stdout)
        return [(facts["connections"], facts["frames"])]

    assert sent("--connections", "3:1") == [(1, 2)]
    assert sent("--connections", "1:1,4:1") == [(2, 4)]
    assert sent("--connections", "1") == [(4, 8)]
    refused = run("replay", "to-server", capture, "--to", "nats://127.0.0.1:1", "--connections", "5:1")
    assert refused.exit_code == 2
    assert "there is no run 5" in refused.output
    with NatsServer() as server:
        refused = run("replay", "to-server", capture, "--to", server.url, "--connections", "1,7,2:8")
    assert refused.exit_code == 2
    assert "has no connection 7, 2:8" in refused.output


@pytest.mark.long
def test_a_cassette_plays_for_each_client(capture: Path) -> None:
    clients = [sys.executable, "-m", "tests.kit.restarts"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}

    def play(*numbers: str) -> subprocess.CompletedProcess[str]:
        command = [NATSPROXY, "cassette", "run", str(capture), "--", *clients, *numbers]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)

    whole = play(*BODIES)
    assert whole.returncode == 0, whole.stderr
    short = play("1", "2")
    assert short.returncode == 1
    assert "PUB prices '3' (connection 3:1)" in short.stderr


def test_frames_are_listed_by_time_with_their_run(capture: Path) -> None:
    found = rows(capture)
    assert published(found) == [(n, 1, str(n)) for n in (1, 2, 3, 4)]
    assert all(one["t_ns"] <= other["t_ns"] for one, other in pairwise(found))
    assert len({row["recorder"] for row in found}) == 4
    lines = [line for line in run("capture", "cat", capture).stdout.splitlines() if " PUB " in line]
    assert [line.split()[2] for line in lines] == ["#1", "#2:1", "#3:1", "#4:1"]


def test_connections_are_chosen_in_every_run_or_in_one(capture: Path) -> None:
    assert published(rows(capture, "--conn", "1")) == [(n, 1, str(n)) for n in (1, 2, 3, 4)]
    assert published(rows(capture, "--conn", "2:1")) == [(2, 1, "2")]
    assert published(rows(capture, "--conn", "1:1", "--conn", "4:1")) == [(1, 1, "1"), (4, 1, "4")]
    assert rows(capture, "--conn", "2") == []
    lines = run("capture", "cat", capture, "--conn", "2:1").stdout
    assert "closed" in lines
    assert "#1 " not in lines
    for wrong in ("1:", "a", "0:1", "1:2:3"):
        refused = run("capture", "cat", capture, "--conn", wrong)
        assert refused.exit_code == 2
        assert "NUMBER, or RUN:NUMBER" in refused.output
    refused = run("capture", "cat", capture, "--conn", "5:1")
    assert refused.exit_code == 2
    assert "there is no run 5" in refused.output
    assert "has 4 runs" in refused.output


def test_an_exchange_is_of_one_run(capture: Path) -> None:
    found = rows(capture, "--exchange", "--op", "MSG", "--conn", "3:1")
    assert [(row["op"], row["run"], row["payload"]) for row in found] == [("PUB", 3, "3"), ("MSG", 3, "3")]
    numbers = {(row["run"], row["exchange"]) for row in rows(capture, "--exchange", "--op", "MSG")}
    assert len(numbers) == 4


def test_the_past_is_followed_by_time(folder: Path) -> None:
    since = iso(rows(folder)[0]["t_ns"])
    command = [NATSPROXY, "capture", "cat", str(folder), "--follow", "--from", since, "--op", "PUB"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines: list[str] = []
        while len(lines) < 4:
            line = process.stdout.readline()
            assert line, lines
            lines += [line] if " PUB " in line else []
        process.terminate()
    labels = [word for line in lines for word in line.split() if word.startswith("#")]
    assert labels == ["#1", "#2:1", "#3:1", "#4:1"]


def test_information_shows_the_runs(capture: Path) -> None:
    facts = json.loads(run("capture", "info", capture, "--json").stdout)
    assert facts["runs"] == 4
    shown = [(row["run"], row["conn"], row["frames"]) for row in facts["connections"]]
    assert shown == [(1, 1, 8), (2, 1, 8), (3, 1, 8), (4, 1, 8)]
    text = run("capture", "info", capture).stdout
    assert "of 4 runs" in text
    labels = [line.split()[0] for line in text.splitlines() if "shop" in line]
    assert labels == ["1", "2:1", "3:1", "4:1"]


def test_captures_of_the_same_runs_are_the_same(capture: Path, folder: Path, tmp_path: Path) -> None:
    assert run("capture", "diff", capture, folder).exit_code == 0
    one = tmp_path / "one.ncap"
    record_runs(one, 1)
    differs = run("capture", "diff", capture, one)
    assert differs.exit_code == 1
    assert "4→1" in differs.output


def test_exports_keep_the_runs_apart(capture: Path, tmp_path: Path) -> None:
    lines = tmp_path / "all.jsonl"
    assert run("capture", "export", capture, "--jsonl", lines).exit_code == 0
    assert published([json.loads(line) for line in lines.read_text().splitlines()]) == [
        (n, 1, str(n)) for n in (1, 2, 3, 4)
    ]
    packets = tmp_path / "all.pcapng"
    assert run("capture", "export", capture, "--pcapng", packets).exit_code == 0
    raw = packets.read_bytes()
    names = [f"connection {label}: ".encode() for label in ("1", "2:1", "3:1", "4:1")]
    assert [raw.count(name) for name in names] == [1, 1, 1, 1]
    assert sorted(raw.index(name) for name in names) == [raw.index(name) for name in names]
    places = [raw.index(f"PUB prices 1\r\n{body}\r\n".encode()) for body in BODIES]
    assert places == sorted(places)
    one = tmp_path / "one.pcapng"
    assert run("capture", "export", capture, "--pcapng", one, "--conn", "3:1").exit_code == 0
    assert [body.encode() in one.read_bytes().split(b"PUB prices 1\r\n")[1][:3] for body in BODIES] == [
        False,
        False,
        True,
        False,
    ]


def test_a_parquet_export_has_all_runs(capture: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    target = tmp_path / "all.parquet"
    assert run("capture", "export", capture, "--parquet", target, "--conn", "2:1").exit_code == 0
    assert len(set(parquet.read_table(target).column("recorder").to_pylist())) == 1
    assert run("capture", "export", capture, "--parquet", target, "--force").exit_code == 0
    table = parquet.read_table(target)
    sent = [
        body
        for body, op in zip(table["payload"].to_pylist(), table["op"].to_pylist(), strict=True)
        if op == "PUB"
    ]
    assert sent == [b"1", b"2", b"3", b"4"]


def test_a_text_has_all_runs_and_plays(capture: Path, tmp_path: Path) -> None:
    text, again = tmp_path / "all.nats.txt", tmp_path / "again.nats.txt"
    assert run("capture", "export", capture, "--text", text).exit_code == 0
    assert text.read_text().count(" opened\n") == 4
    assert run("capture", "diff", capture, text).exit_code == 0
    found = [(row["conn"], row["payload"]) for row in rows(text) if row["op"] == "PUB"]
    assert found == [(1, "1"), (2, "2"), (3, "3"), (4, "4")]
    assert run("capture", "import", text, tmp_path / "all.ncap").exit_code == 0
    assert run("capture", "export", tmp_path / "all.ncap", "--text", again).exit_code == 0
    assert again.read_text() == text.read_text()
    with NatsServer() as server:
        done = run("replay", "to-server", text, "--to", server.url, "--speed", "max", "--json", "--quiet")
    assert json.loads(done.stdout)["connections"] == 4


def test_a_part_of_the_runs_is_never_read_without_a_word(files: Path) -> None:
    first = files.with_name("t.ncap")
    commands = (["capture", "cat"], ["capture", "info"], ["replay", "to-server", "--dry-run"])
    cassette = [["cassette", "run", "--min-served", "0", "--no-strict", str(first), "--", "true"]]
    for command in [*([*command, str(first)] for command in commands), *cassette]:
        done = CliRunner().invoke(main, command)
        assert done.exit_code == 0
        assert re.search(r"a later run recorded to t_\w+\.ncap, which is not read", done.stderr), command
