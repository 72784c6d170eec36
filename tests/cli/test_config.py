"""Layers of settings: defaults < file < environment < flags, and where each came from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from natsproxy.cli import main

FILE = '# the sidecar\nupstream = "nats://file:1"\nlisten = "127.0.0.1:1"\nseed = 5\nlog-format = "json"\n'


def test_each_layer_wins_over_those_below(tmp_path: Path) -> None:
    """And says that it did."""
    path = tmp_path / "natsproxy.toml"
    path.write_text(FILE)
    environment = {"NATSPROXY_LISTEN": "127.0.0.1:2", "NATSPROXY_SEED": "6"}
    arguments = ["config", "--json", "--config", str(path), "--seed", "7"]

    done = CliRunner().invoke(main, arguments, env=environment)

    assert done.exit_code == 0, done.output
    rows = {name: (row["value"], row["source"]) for name, row in json.loads(done.output).items()}
    assert rows["upstream"] == ("nats://file:1", "file")
    assert rows["listen"] == ("127.0.0.1:2", "environment")
    assert rows["seed"] == (7, "flag")
    assert rows["drain"] == (30.0, "default")
    assert rows["log_format"] == ("json", "file")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            'upstream = "nats://x:1"\nlisen = "a:1"\n',
            ":2: there is no setting 'lisen'; did you mean 'listen'?",
        ),
        ("upstream = [1]\n", ":1: upstream takes one value"),
        ("upstream = \n", "not valid TOML"),
    ],
)
def test_mistakes_are_one_sentence(tmp_path: Path, text: str, says: str) -> None:
    """File, line, key and the nearest valid one."""
    path = tmp_path / "bad.toml"
    path.write_text(text)

    done = CliRunner().invoke(main, ["run", "--config", str(path)])

    assert done.exit_code == 1
    assert says in done.output
    assert str(path) in done.output


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    """The file is named."""
    done = CliRunner().invoke(main, ["config", "--config", str(tmp_path / "none.toml")])
    assert done.exit_code == 1
    assert "none.toml" in done.output
