"""`natsproxy ctl` against a running proxy."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from natsproxy.cli import main
from natsproxy.cli.ctl_fault import value_of
from natsproxy.rules.file.keys import keys_of
from natsproxy.rules.kinds import KINDS
from natsproxy.testing import NatsServer
from tests.benchmarks.bench_proxy import dial, until
from tests.kit.process import ProxyProcess

TOKEN = "a-token-of-some-length"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all files of the proxy."""
    return tmp_path_factory.mktemp("ctl")


@pytest.fixture(scope="module")
def proxy(nats_server: NatsServer, folder: Path) -> Iterator[ProxyProcess]:
    """A proxy with an admin API on a unix socket, a token, a folder for captures, and one rule in a file."""
    (folder / "token").write_text(TOKEN)
    (folder / "rules.toml").write_text('[[rules]]\nname = "of the file"\nkind = "drop"\nsubject = "never"\n')
    flags = ["--admin", f"unix:{folder}/admin", "--admin-token-file", f"{folder}/token"]
    flags += ["--admin-captures", f"{folder}/captures", "--rules", f"{folder}/rules.toml"]
    with pytest.MonkeyPatch.context() as patch, ProxyProcess(nats_server.url, *flags) as running:
        patch.setenv("NATSPROXY_ADMIN_URL", f"unix:{folder}/admin")
        patch.setenv("NATSPROXY_ADMIN_TOKEN", TOKEN)
        yield running


def ctl(*args: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, ["ctl", *args])
    assert result.exit_code == code, result.output
    return result


def rules() -> dict[str, dict[str, object]]:
    return {row["rule"]["name"]: row for row in json.loads(ctl("rules", "--json").stdout)["rules"]}


def test_rules_are_changed_and_come_back(proxy: ProxyProcess, tmp_path: Path) -> None:
    assert "of the file  drop  yes      file" in ctl("rules").stdout
    ctl("rules", "disable", "of the file")
    assert rules()["of the file"]["enabled"] is False
    ctl("rules", "enable", "of the file")
    file = tmp_path / "other.toml"
    file.write_text('[[rules]]\nname = "other"\nkind = "latency"\ndelay = "1ms"\n')
    stale = json.loads(ctl("rules", "list", "--json").stdout)["revision"]
    assert list(json.loads(ctl("rules", "set", str(file), "--json").stdout)["rules"]) != []
    assert list(rules()) == ["other"]
    assert "removed: of the file" in ctl("rules", "list").stdout
    refused = ctl("rules", "set", str(file), "--revision", stale, code=2)
    assert "somebody has changed the rules meanwhile" in refused.output
    ctl("rules", "remove", "other")
    assert "there is no rule 'other'" in ctl("rules", "remove", "other", code=2).output
    assert "of the file" in ctl("rules", "reset").stdout
    assert list(rules()) == ["of the file"]


def test_a_reload_keeps_changes_and_says_which_it_undoes(proxy: ProxyProcess, folder: Path) -> None:
    file = folder / "rules.toml"
    before = file.read_text()
    ctl("rules", "disable", "of the file")
    ctl("fault", "drop", "--subject", "x", "--name", "mine")
    reloads = sum(line["event"] == "reloaded" for line in proxy.lines())
    proxy.process.send_signal(signal.SIGHUP)
    line = proxy.wait_for(lambda line: line["event"] == "reloaded", reloads + 1)
    assert line["changes_undone"] is None
    assert [row["enabled"] for row in rules().values()] == [False, True]
    file.write_text(before.replace("never", "other"))
    proxy.process.send_signal(signal.SIGHUP)
    line = proxy.wait_for(lambda line: line["event"] == "reloaded", reloads + 2)
    assert line["changes_undone"] == ["of the file"]
    assert list(rules()) == ["of the file", "mine"]
    assert rules()["of the file"]["enabled"] is True
    ctl("rules", "remove", "mine")


def test_a_fault_has_the_settings_of_its_kind(proxy: ProxyProcess) -> None:
    name = ctl("fault", "latency", "--subject", "orders.>", "--delay", "200ms", "--for", "30s").stdout.strip()
    row = rules()[name]
    assert row["rule"] == {"name": name, "kind": "latency", "subject": "orders.>", "delay": "200ms"}
    assert 0 < int(str(row["ends_in_ns"])) <= 30_000_000_000
    assert name in ctl("rules").stdout
    more = ("--client", "name=svc-*", "--op", "PUB", "--op", "HPUB", "--first", "2", "--probability", "0.5")
    made = json.loads(ctl("fault", "drop", "--name", "mine", *more, "--json").stdout)
    wanted = {"client": {"name": "svc-*"}, "op": ["PUB", "HPUB"], "first": 2, "probability": 0.5}
    assert made["rule"] == {"name": "mine", "kind": "drop", **wanted}
    refused = ctl("fault", "drop", "--first", "none", code=2)
    assert "first must be a whole number of at least 1, not 'none'" in refused.output
    assert "No such command 'latancy'" in ctl("fault", "latancy", code=2).output
    ctl("rules", "reset")


@pytest.mark.parametrize(
    ("name", "texts", "value"),
    [
        ("delay", ["200ms"], "200ms"),
        ("delay", ['{ distribution = "uniform", min = "1ms", max = "2ms" }'], {"min": "1ms"}),
        ("between", ['["1s", "2s"]'], ["1s", "2s"]),
        ("subject", ["1"], "1"),
        ("subject", ["a", "b.>"], ["a", "b.>"]),
        ("header", ["A=1", "B=x=y"], {"A": "1", "B": "x=y"}),
        ("client", ["ordinal=3"], {"ordinal": 3}),
        ("status", ["503"], 503),
    ],
)
def test_values_are_written_as_in_a_shell(name: str, texts: list[str], value: object) -> None:
    (setting,) = (one for one in keys_of(KINDS["latency"]) if one.name == name)
    found = value_of(setting, texts)
    if isinstance(value, dict) and name == "delay":
        found = {"min": found["min"]}
    assert found == value


def test_every_kind_is_a_command(proxy: ProxyProcess) -> None:
    listed = ctl("fault", "--help").stdout
    for kind in KINDS.values():
        assert kind.name in listed
        text = ctl("fault", kind.name, "--help").stdout
        assert all(f"--{one.name.replace('_', '-')}" in text for one in kind.settings)


def test_connections_are_listed_and_closed(proxy: ProxyProcess) -> None:
    with dial(proxy.port) as client:
        (row,) = json.loads(ctl("connections", "--json").stdout)
        conn = str(row["conn"])
        assert ctl("connections").stdout.splitlines()[1].startswith(conn)
        for command, state in (("suspend", "suspended"), ("pause", "paused"), ("resume", "ready")):
            ctl("connections", command, conn)
            if command == "pause":
                assert json.loads(ctl("connections", "--json").stdout)[0]["paused"] is True
            else:
                assert state in ctl("connections", "list").stdout
        ctl("connections", "close", conn, "--error", "bye")
        until(client, b"-ERR 'bye'\r\n")
    assert "there is no connection '999'" in ctl("connections", "close", "999", code=2).output


def test_a_capture_is_made_and_fetched(proxy: ProxyProcess, tmp_path: Path) -> None:
    assert "no capture is being made" in ctl("capture", "status").stdout
    assert "recording to" in ctl("capture", "start", "one.ncap", "--flush", "1ms", "--subject", "a.>").stdout
    ctl("capture", "mark", "here")
    ctl("capture", "rotate")
    assert re.search(r"one\.ncap, [\d.]+(KiB|B) so far", ctl("capture", "status").stdout)
    assert "one.ncap is whole" in ctl("capture", "stop").stdout
    assert "one.ncap" in ctl("capture", "list").stdout
    target = tmp_path / "copy.ncap"
    assert ctl("capture", "download", "one.ncap", "--output", str(target)).stdout.strip() == str(target)
    shown = CliRunner().invoke(main, ["capture", "info", str(target)])
    assert shown.exit_code == 0, shown.output
    assert ctl("capture", "download", "one.ncap", "--output", str(target), code=2)  # it is not overwritten
    assert "there is no segment 'none'" in ctl("capture", "download", "none", code=2).output


def test_firings_are_shown(proxy: ProxyProcess) -> None:
    ctl("fault", "drop", "--subject", "lost.>", "--name", "lose")
    with dial(proxy.port) as client:
        client.sendall(b'CONNECT {"verbose":false,"name":"shop"}\r\nPUB lost.1 2\r\nhi\r\nPING\r\n')
        until(client, b"PONG\r\n")
    shown = ctl("firings", "--rule", "lose").stdout
    assert " shop 127.0.0.1:" in shown
    assert "lose: drop  PUB lost.1" in shown
    assert json.loads(ctl("firings", "--json", "--rule", "lose").stdout)["subject"] == "lost.1"
    command = [sys.executable, "-u", "-m", "natsproxy", "ctl", "firings", "--follow", "--rule", "lose"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as follow:
        assert follow.stdout is not None
        assert "lost.1" in follow.stdout.readline()
        with dial(proxy.port) as client:
            client.sendall(b"PUB lost.2 2\r\nhi\r\n")
            assert "lost.2" in follow.stdout.readline()
        follow.terminate()
        assert follow.wait(20) == 130
    ctl("rules", "reset")


def test_health_and_nobody(proxy: ProxyProcess, tmp_path: Path) -> None:
    assert ctl("health").stdout == "ready\n"
    for url, text in (
        (f"unix:{tmp_path}/none", "nobody answers at unix:"),
        ("http://127.0.0.1:1", "nobody answers at http://127.0.0.1:1: Connection refused"),
        ("ftp://x", "the admin API is at http(s)://HOST:PORT or unix:PATH"),
    ):
        assert text in ctl("health", "--admin", url, code=2).output
    wrong = tmp_path / "token"
    wrong.write_text("another-token-altogether")
    refused = ctl("rules", "--token-file", str(wrong), code=2)
    assert "the token is missing or wrong" in refused.output
    assert "another-token" not in refused.output


def test_names_are_completed(proxy: ProxyProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_NATSPROXY_COMPLETE", "bash_complete")
    for words, wanted in (
        ("natsproxy ctl rules disable ", "plain,of the file"),
        ("natsproxy ctl fault lat", "plain,latency"),
        ("natsproxy ctl co", "plain,connections"),
    ):
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
        result = CliRunner().invoke(main, [], prog_name="natsproxy", complete_var="_NATSPROXY_COMPLETE")
        assert wanted in result.output.splitlines()


def test_without_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NATSPROXY_ADMIN_URL", raising=False)
    assert (
        "name the admin API of a proxy: --admin http://HOST:PORT, or NATSPROXY_ADMIN_URL"
        in ctl("rules", code=2).output
    )


def test_a_link_opens_the_page(nats_server: NatsServer, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    flags = ("--admin", "127.0.0.1:0", "--admin-token-file", str(tmp_path / "token"))
    with ProxyProcess(nats_server.url, *flags) as proxy:
        url = proxy.wait_for(lambda line: line["event"] == "admin listens")["url"]
        given = ("--admin", url, "--token-file", str(tmp_path / "token"))
        link = ctl("page", *given).stdout.strip()
        assert link.startswith(f"{url}/login?")
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with browser.open(link) as answer:
            assert (answer.url, answer.read()[:15]) == (f"{url}/", b"<!doctype html>")
        with browser.open(f"{url}/v1/proxies") as answer:
            assert json.loads(answer.read())["proxies"]
        assert TOKEN not in link
        assert link.partition("?")[2] not in proxy.log.read_text()


def test_no_browser_opens_a_unix_socket(proxy: ProxyProcess) -> None:
    assert "the page needs --admin HOST:PORT" in ctl("page", code=2).output
