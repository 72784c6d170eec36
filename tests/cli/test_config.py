"""Layers of settings: defaults < file < environment < flags, and where each came from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from natsproxy.capture.filter.filters import Filters
from natsproxy.cli import main
from natsproxy.config.endpoints import read_upstream
from natsproxy.config.files import inline_rules
from natsproxy.config.recording import Keep, read_keep
from natsproxy.config.settings import OPTIONS, proxy_settings
from natsproxy.errors import ConfigError
from natsproxy.protocol.places import parse_pointer
from natsproxy.units import DAY, HOUR

FILE = '# the sidecar\nupstream = "nats://file:1"\nlisten = "127.0.0.1:1"\nseed = 5\nlog-format = "json"\n'


def test_each_layer_wins_over_those_below(tmp_path: Path) -> None:
    """The output names the winning layer."""
    path = tmp_path / "natsproxy.toml"
    path.write_text(FILE)
    environment = {"NATSPROXY_LISTEN": "127.0.0.1:2", "NATSPROXY_SEED": "6"}
    arguments = ["config", "--json", "--config", str(path), "--seed", "7"]

    done = CliRunner().invoke(main, arguments, env=environment)

    assert done.exit_code == 0, done.output
    rows = {name: (row["value"], row["source"]) for name, row in json.loads(done.output).items()}
    assert rows["upstream"] == (["nats://file:1"], "file")
    assert rows["listen"] == (["nats://127.0.0.1:2"], "environment")
    assert rows["seed"] == (7, "flag")
    assert rows["buffers"] == (256 << 20, "default")
    assert rows["drain"] == ("30s", "default")
    assert rows["log-format"] == ("json", "file")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            'upstream = "nats://x:1"\nlisen = "a:1"\n',
            ":2: there is no setting 'lisen'; did you mean 'listen'?",
        ),
        ("upstream = [1]\n", ":1: upstream must be a string, not 1"),
        ("seed = [1]\n", ":1: seed takes one value"),
        ('upstream = "nats://u:secret@x:1"\n', "clients bring their own"),
        ("upstream-hold = -1\n", ":1: upstream-hold must be a duration"),
        ('[record]\npath = "x.ncap"\nflsh = "1s"\n', ":3: there is no setting 'record-flsh'; did you mean"),
        ('[record]\nkeep = "10 bottles"\n', ':2: record-keep must be a size such as "10GiB", a number of'),
        ("record-keep = [0]\n", ":1: record-keep must be a size such as"),
        ('[record]\npayload = [">=burn"]\n', ":2: record-payload '>=burn': the action is keep"),
        ('upstream = "x:1"\n[[rules]]\nname = "a"\nkind = "dorp"\n', ":4: rule 'a'"),
        ("upstream = \n", "not valid TOML"),
        ('upstream = "x:1"\n[rules]\nname = "a"\n', ":2: each rule begins with [[rules]], in two pairs"),
        ('listen = "127.0.0.1:99999"\n', ":1: listen must have a port up to 65535, not 99999"),
        ('rules = ""\n', ":1: rules must be the name of a file, not ''"),
        ("seed = 1.5\n", ":1: seed must be a whole number of at most 64 bits, not 1.5"),
        ("seed = 9223372036854775808\n", ":1: seed must be a whole number of at most 64 bits"),
        ('upstream = "nats://a:1,nats://b:1"\n', ":1: upstream must be one server"),
        ('upstream = "nats://a..b:1"\n', ":1: upstream must be HOST:PORT"),
        ('upstream-tls-name = "a..b"\n', ":1: upstream-tls-name must be a host name or an IP address"),
        ('upstream-tls-name = "tls://h:1"\n', ":1: upstream-tls-name must be a host name or an IP address"),
        ('listen = "4222"\n', ":1: listen must be HOST:PORT, such as 127.0.0.1:4222"),
    ],
)
def test_mistakes_are_one_sentence(tmp_path: Path, text: str, expected: str) -> None:
    """File, line, key and the nearest valid one."""
    path = tmp_path / "bad.toml"
    path.write_text(text)

    done = CliRunner().invoke(main, ["run", "--config", str(path)])

    assert done.exit_code == 2
    assert expected in done.output
    assert str(path) in done.output


SECRET = "s3cr3t"


@pytest.mark.parametrize(
    "words",
    [
        ["run", "--upstream", "u:s3cr3t@h:1"],
        ["run", "--upstream", "s3cr3t@h:1"],
        ["run", "--upstream", "nats://u:s3cr3t@h:1"],
        ["run", "--upstream", "nats://u:PASS@s3cr3t@h:1"],
        ["run", "--upstream", "nats://u:s3cr3t/s3cr3t@h:1"],
        ["run", "--upstream", "nats://u:s3cr3t"],
        ["run", "--upstream", "u:s3cr3t"],
        ["run", "--upstream", "tls://u:s3cr3t@h"],
        ["run", "--upstream", "nats://u:s3cr3t@a,nats://v:s3cr3t@b"],
        ["run", "-u", "h:1", "--listen", "u:s3cr3t@h:1"],
        ["run", "nats://u:s3cr3t@h:1"],
        ["config", "--upstream", "u:s3cr3t@h:1"],
        ["config", "--upstream", "s3cr3t@h:1", "--json"],
        ["u:s3cr3t@h:1"],
        ["capture", "cat", "nats://u:s3cr3t@h:1"],
        ["replay", "to-server", "x.ncap", "--to", "tls://u:s3cr3t@h:1"],
        ["replay", "to-server", "x.ncap", "--to", "u:s3cr3t"],
        ["replay", "to-server", "x.ncap", "--to", "h", "--map-user", "u:s3cr3t"],
        ["replay", "to-client", "x.ncap", "--upstream", "nats://u:s3cr3t:x@h:1"],
        ["cassette", "run", "--mode", "all", "--upstream", "tls://u:s3cr3t@h", "x.ncap", "--", "true"],
    ],
)
def test_an_error_never_quotes_a_password(
    tmp_path: Path, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may stand in an option or in an argument."""
    monkeypatch.chdir(tmp_path)
    Path("x.ncap").touch()
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 2
    assert SECRET not in done.output


@pytest.mark.parametrize("value", ["u:s3cr3t@h:1", "nats://u:s3cr3t@h:1", "nats://u:s3cr3t"])
def test_nor_from_a_file_or_the_environment(tmp_path: Path, value: str) -> None:
    path = tmp_path / "natsproxy.toml"
    path.write_text(f'upstream = "{value}"\n')
    for command in ("run", "config"):
        file = CliRunner().invoke(main, [command, "--config", str(path)])
        variable = CliRunner().invoke(main, [command], env={"NATSPROXY_UPSTREAM": value})
        assert (file.exit_code, variable.exit_code) == (2, 2)
        assert SECRET not in file.output + variable.output


def test_unparsed_bytes_and_a_deny_rule_do_not_go_together(tmp_path: Path) -> None:
    """Bytes that are not framed cannot be denied."""
    path = tmp_path / "bad.toml"
    rule = '[[rules]]\nname = "a"\nkind = "deny"\nsubject = "x"\n'
    path.write_text('upstream = "x:1"\nunparsed = "pass"\n' + rule)
    done = CliRunner().invoke(main, ["run", "--config", str(path)])
    assert (done.exit_code, "is a way around rules" in done.output) == (2, True)


def test_tables_and_rules_in_the_file(tmp_path: Path) -> None:
    """`[record] flush` is record-flush, `path` is record itself; `[[rules]]` stand beside them."""
    path = tmp_path / "natsproxy.toml"
    path.write_text(
        'upstream = "nats://x:1"\n[record]\npath = "y.ncap"\nflush = "1s"\nsubject = ["a.>", "b"]\n'
        'payload = ">=hash"\nfilter-json = ["/card", "a.> /pin"]\n'
        '[[rules]]\nname = "slow"\nkind = "latency"\ndelay = "1ms"\n'
    )
    done = CliRunner().invoke(main, ["config", "--json", "--config", str(path)])
    assert done.exit_code == 0, done.output
    rows = {name: (row["value"], row["source"]) for name, row in json.loads(done.output).items()}
    assert rows["record"] == ("y.ncap", "file")
    assert rows["record-flush"] == ("1s", "file")
    assert rows["record-subject"] == (["a.>", "b"], "file")
    assert rows["record-payload"] == ([">=hash"], "file")
    assert rows["record-filter-json"] == (["/card", "a.> /pin"], "file")
    assert rows["rules"] == (["slow"], "file")


def test_filters_come_from_variables_too() -> None:
    """A value may have a blank, so there each line is one."""
    lines = {
        "NATSPROXY_RECORD_FILTER_JSON": "/card\na.> /pin",
        "NATSPROXY_RECORD_FILTER_HEADERS": "a B",
        "NATSPROXY_RECORD_FILTER_SUBJECTS": "a.* b.>",
    }
    done = CliRunner().invoke(main, ["config", "--json", "--upstream", "x:1"], env=lines)
    assert done.exit_code == 0, done.output
    rows = json.loads(done.output)
    found = [rows[f"record-filter-{name}"]["value"] for name in ("json", "headers", "subjects")]
    assert found == [["/card", "a.> /pin"], ["a", "b"], ["a.*", "b.>"]]
    wrong = CliRunner().invoke(main, ["config", "--upstream", "x:1", "--record-filter-subjects", "a.b"])
    assert "must have * or > in place of the secret" in wrong.output


def test_filters_are_part_of_a_recording() -> None:
    values: dict[str, Any] = {option.key: [] if option.many else None for option in OPTIONS}
    values |= {"upstream": [read_upstream("nats://x:1")], "record": Path("x.ncap"), "record_rotate": 1}
    values |= {"record_rotate_every": 0, "record_filter_headers": ["a"], "record_filter_subjects": [b"a.*"]}
    values["record_filter_bodies"] = [b"c"]
    values["record_filter_json"] = [parse_pointer("a /b")]
    record = proxy_settings(values).record
    assert record is not None
    assert record.selection.filters == Filters(("a",), (parse_pointer("a /b"),), (b"c",), (b"a.*",))


def test_limits_of_a_recording_are_told_apart_by_their_units() -> None:
    """And a segment is at most a quarter of them."""
    values: dict[str, Any] = {option.key: [] if option.many else None for option in OPTIONS}
    values |= {"upstream": [read_upstream("nats://x:1")], "record": Path("x.ncap"), "record_rotate": 1 << 30}
    values |= {"record_keep": [read_keep("1GiB"), read_keep(100), read_keep("7d")], "record_rotate_every": 0}
    record = proxy_settings(values).record
    assert record is not None
    assert record.keep == Keep(size=1 << 30, count=100, age=7 * DAY)
    assert (record.rotate_size, record.rotate_interval) == (1 << 28, 42 * HOUR)
    values |= {"record_keep": [read_keep("12")], "record_rotate": 5}
    record = proxy_settings(values).record
    assert record is not None
    assert (record.rotate_size, record.rotate_interval) == (5, 0)
    with pytest.raises(ConfigError, match="record-keep 2d: the age limit is given twice"):
        proxy_settings(values | {"record_keep": [read_keep("1d"), read_keep("12"), read_keep("2d")]})
    with pytest.raises(
        ConfigError,
        match="record-keep has no effect without record: give the folder or file of the recording",
    ):
        proxy_settings(values | {"record": None})


@pytest.mark.parametrize("text", ["10GiB", "10GB", "513B", "100", "7d", "90m", "250ms"])
def test_a_limit_is_read_as_it_is_written(text: str) -> None:
    assert read_keep(str(read_keep(text))) == read_keep(text)


def test_rules_that_are_replaced_are_named(tmp_path: Path) -> None:
    """A rules file wins over the rules of the configuration; nobody must think that both are in force."""
    path = tmp_path / "natsproxy.toml"
    path.write_text('upstream = "x:1"\n[[rules]]\nname = "a"\nkind = "deny"\nsubject = "x"\n')
    words = ["run", "--config", str(path), "--listen", "127.0.0.1:0", "--rules", str(tmp_path / "none.toml")]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 2
    assert f"Warning: {tmp_path / 'none.toml'} replaces the [[rules]] of {path}\n" in done.stderr


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    """The file is named."""
    done = CliRunner().invoke(main, ["config", "--config", str(tmp_path / "none.toml")])
    assert done.exit_code == 2
    assert "none.toml" in done.output


def test_a_variable_that_is_no_option_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NATSPROXY_UPSTRAEM", "nats://127.0.0.1:1")
    done = CliRunner().invoke(main, ["config", "--upstream", "nats://127.0.0.1:2"])
    assert done.exit_code == 0
    assert (
        "NATSPROXY_UPSTRAEM is set, but there is no such option; did you mean NATSPROXY_UPSTREAM?"
        in done.stderr
    )


def test_without_options_it_shows_the_defaults_and_what_is_needed() -> None:
    done = CliRunner().invoke(main, ["config"])
    shown = {name: " ".join(rest) for name, *rest in map(str.split, done.output.splitlines())}
    assert done.exit_code == 0
    assert list(shown) == [option.name for option in OPTIONS]
    assert shown["upstream"] == "- needed by natsproxy run"
    assert shown["record-queue"] == "64MiB default"
    assert shown["keepalive"] == "true default"


RULE = {"name": "slow", "kind": "latency", "delay": "1ms"}


def test_toml_is_a_file_that_config_reads_back(tmp_path: Path) -> None:
    """Settings of every layer and the rules are the same again, and now come from the file."""
    first, second = tmp_path / "first.toml", tmp_path / "second.toml"
    first.write_text(
        'upstream = "nats://x:1"\nkeepalive = false\n[record]\npath = "y.ncap"\n'
        'payload = ["a\\"b.>=hash", ">=drop"]\n'
        '[[rules]]\nname = "slow"\nkind = "latency"\ndelay = "1ms"\n'
    )
    words = ["config", "--config", str(first), "--seed", "7", "--drain", "90s"]
    words += ["--monitor", "127.0.0.1:8222", "--admin", f"unix:{tmp_path}/admin"]
    before = json.loads(CliRunner().invoke(main, [*words, "--json"]).output)
    second.write_text(CliRunner().invoke(main, [*words, "--toml"]).output)
    after = json.loads(CliRunner().invoke(main, ["config", "--config", str(second), "--json"]).output)
    assert {name: row["value"] for name, row in after.items()} == {
        name: row["value"] for name, row in before.items()
    }
    assert [rule.table for path in (first, second) for rule in inline_rules(path) or ()] == [RULE, RULE]
    assert after["seed"]["source"] == "file"


def test_toml_of_the_defaults_names_the_missing_upstream(tmp_path: Path) -> None:
    path = tmp_path / "natsproxy.toml"
    path.write_text(CliRunner().invoke(main, ["config", "--toml"]).output)
    assert path.read_text().count("needed by natsproxy run") == 1
    assert CliRunner().invoke(main, ["config", "--config", str(path)]).exit_code == 0
    both = CliRunner().invoke(main, ["config", "--toml", "--json"])
    assert (both.exit_code, "are mutually exclusive" in both.output) == (2, True)


def test_several_servers_come_from_each_layer(tmp_path: Path) -> None:
    """As a list in a file, with spaces between in the environment, as flags."""
    path = tmp_path / "natsproxy.toml"
    path.write_text('upstream = ["nats://a", "b:1"]\nupstream-randomize = false\n')
    words = ["config", "--json", "--config", str(path)]
    for flags, environment, expected in (
        ([], {}, ["nats://a:4222", "nats://b:1"]),
        ([], {"NATSPROXY_UPSTREAM": "nats://c nats://[::1]"}, ["nats://c:4222", "nats://[::1]:4222"]),
        (["-u", "d:1", "-u", "nats://e"], {"NATSPROXY_UPSTREAM": "c:1"}, ["nats://d:1", "nats://e:4222"]),
    ):
        done = CliRunner().invoke(main, [*words, *flags], env=environment)
        rows = json.loads(done.output)
        assert rows["upstream"]["value"] == expected
        assert rows["upstream-randomize"]["value"] is False


@pytest.mark.parametrize(
    ("text", "address"),
    [("nats://h", "nats://h:4222"), ("h:1", "nats://h:1"), ("nats://[::1]", "nats://[::1]:4222")],
)
def test_an_upstream_is_written_as_clients_write_it(text: str, address: str) -> None:
    assert str(read_upstream(text)) == address
