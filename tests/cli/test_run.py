"""`natsproxy run` as a process: signals, log files, rules in the configuration."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from natsproxy.cli import main
from tests.kit.authority import Authority
from tests.kit.servers import NatsServer

RULE = '[[rules]]\nname = "{name}"\nkind = "deny"\nsubject = "{subject}"\n'


def lines(path: Path) -> list[dict[str, Any]]:
    """Return the whole lines of a JSON log."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def until(read: Callable[[], Any], process: subprocess.Popen[str]) -> Any:
    """Poll until something is true of a running process."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if found := read():
            return found
        assert process.poll() is None, "it has ended"
        time.sleep(0.01)
    raise AssertionError("it did not come in 20 s")


@contextmanager
def running(config: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    """Run the proxy; it is stopped at the end, whatever happens."""
    process = subprocess.Popen(
        [sys.executable, "-m", "natsproxy", "run", "--config", str(config), *more],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def denied(port: int, subject: bytes) -> bool:
    """Return True if a publish is answered with an error."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
        sock.sendall(b'CONNECT {"verbose":false}\r\nPUB %s 1\r\nx\r\nPING\r\n' % subject)
        received = b""
        while b"PONG" not in received:
            received += sock.recv(4096)
        return b"-ERR" in received


@pytest.mark.server
def test_hup_reloads_rules_and_opens_the_log_anew(nats_server: NatsServer, tmp_path: Path) -> None:
    """Rules stand in the configuration; a bad one changes nothing; the moved log is left alone."""
    log, moved, config = tmp_path / "log", tmp_path / "log.1", tmp_path / "natsproxy.toml"
    head = (
        f'listen = "127.0.0.1:0"\nupstream = "{nats_server.url}"\nlog-format = "json"\nlog-file = "{log}"\n'
    )
    config.write_text(head + RULE.format(name="one", subject="a"))
    with running(config) as process:
        listening = until(lambda: lines(log), process)[0]
        port = int(listening["listen"][0].rpartition(":")[2])
        assert (denied(port, b"a"), denied(port, b"b")) == (True, False)

        log.rename(moved)
        config.write_text(head + RULE.format(name="one", subject="b"))
        process.send_signal(signal.SIGHUP)
        until(lambda: any(line["event"] == "reloaded" for line in lines(log)), process)
        assert (denied(port, b"a"), denied(port, b"b")) == (False, True)

        config.write_text(head + RULE.format(name="one", subject="b..c"))
        process.send_signal(signal.SIGHUP)
        until(lambda: any("not reloaded" in line["event"] for line in lines(log)), process)
        assert denied(port, b"b")
        assert not any(line["event"] == "reloaded" for line in lines(moved))

        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


@pytest.mark.server
@pytest.mark.parametrize(
    ("flags", "subjects", "code", "says"),
    [
        (["--rules-must-fire"], ["a", "b"], 0, []),
        (
            ["--rules-must-fire"],
            ["a"],
            1,
            ["rule 'two' never fired: it selects ", " on b, and there was none"],
        ),
        (["--rules-must-fire"], [], 1, ["Error: rule 'one' never fired: ", "\nrule 'two' never fired: "]),
        ([], [], 0, []),
    ],
)
def test_rules_must_fire(
    nats_server: NatsServer, tmp_path: Path, flags: list[str], subjects: list[str], code: int, says: list[str]
) -> None:
    log, config = tmp_path / "log", tmp_path / "natsproxy.toml"
    config.write_text(
        f'listen = "127.0.0.1:0"\nupstream = "{nats_server.url}"\nlog-format = "json"\nlog-file = "{log}"\n'
        + RULE.format(name="one", subject="a")
        + RULE.format(name="two", subject="b")
    )
    with running(config, *flags) as process:
        listening = until(lambda: lines(log), process)[0]
        for subject in subjects:
            assert denied(int(listening["listen"][0].rpartition(":")[2]), subject.encode())
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == code
    assert all(one in errors for one in says), errors
    assert bool(errors) is bool(says)


@pytest.mark.server
def test_a_reload_names_the_settings_that_need_a_restart(nats_server: NatsServer, tmp_path: Path) -> None:
    """As long as the file has them otherwise than at the start."""
    log, config = tmp_path / "log", tmp_path / "natsproxy.toml"
    text = (
        f'listen = "127.0.0.1:0"\nupstream = "{nats_server.url}"\nlog-format = "json"\nlog-file = "{log}"\n'
    )
    config.write_text(text + "rules = []\n")

    def reloaded() -> list[dict[str, Any]]:
        return [line for line in lines(log) if line["event"] == "reloaded"]

    with running(config) as process:
        until(lambda: lines(log), process)
        for number, (more, level, names) in enumerate(
            [
                ("max-connections = 5\n[drain]\npath = '1s'\n", "warning", ["drain", "max-connections"]),
                ("", "info", None),
            ]
        ):
            config.write_text(text + "rules = []\n" + more)
            process.send_signal(signal.SIGHUP)
            until(lambda number=number: len(reloaded()) > number, process)  # type: ignore[misc]
            assert (reloaded()[-1]["level"], reloaded()[-1]["need_restart"]) == (level, names)
        config.write_text(text + "rules = []\nmax-conections = 5\n")
        process.send_signal(signal.SIGHUP)
        told = until(lambda: [line for line in lines(log) if line["level"] == "error"], process)
        assert told[0]["event"] == "configuration file invalid, the next start will fail"
        assert "did you mean 'max-connections'?" in told[0]["reason"]


def test_the_log_has_the_schemes_of_listeners_and_warns_of_unchecked_servers(tmp_path: Path) -> None:
    log, config = tmp_path / "log", tmp_path / "natsproxy.toml"
    certificate = Authority(tmp_path).server()
    config.write_text(
        'listen = ["127.0.0.1:0", "tls://127.0.0.1:0"]\nupstream = "tls://127.0.0.1:1"\n'
        f'tls-cert = "{certificate}"\nupstream-tls-insecure = true\n'
        f'log-format = "json"\nlog-file = "{log}"\n'
    )
    with running(config) as process:
        warned = until(lambda: [line for line in lines(log) if line["level"] == "warning"], process)
    plain, secured = lines(log)[0]["listen"]
    assert (plain.startswith("127.0.0.1:"), secured.startswith("tls://127.0.0.1:")) == (True, True)
    assert warned[0]["event"].startswith("upstream-tls-insecure: server certificates are not verified")


@pytest.mark.server
@pytest.mark.parametrize("inline", [False, True])
def test_only_an_explicit_empty_list_removes_all_rules(
    nats_server: NatsServer, tmp_path: Path, inline: bool
) -> None:
    """An emptied, truncated or missing file changes nothing; the log names the rules that are gone."""
    log, config, rules = tmp_path / "log", tmp_path / "natsproxy.toml", tmp_path / "rules.toml"
    head = f'listen = "127.0.0.1:0"\nupstream = "{nats_server.url}"\n[log]\nformat = "json"\nfile = "{log}"\n'
    file = config if inline else rules
    config.write_text(head)
    both = RULE.format(name="one", subject="a") + RULE.format(name="two", subject="b")
    file.write_text(head + both if inline else both)

    def after_a_reload() -> dict[str, Any]:
        seen = len(lines(log))
        process.send_signal(signal.SIGHUP)
        events = ("reloaded", "rules not reloaded")
        line: list[dict[str, Any]] = until(
            lambda: [one for one in lines(log)[seen:] if one["event"] in events], process
        )
        return line[-1]

    with running(config, *([] if inline else ["--rules", str(rules)])) as process:
        listening = until(lambda: lines(log), process)[0]
        port = int(listening["listen"][0].rpartition(":")[2])
        for text in ("", "# nothing\n", both[:-3]):
            file.write_text(text)
            line = after_a_reload()
            assert (line["event"], line["level"]) == ("rules not reloaded", "error")
            assert str(file) in line["reason"]
            assert denied(port, b"a")
            assert denied(port, b"b")
        file.unlink()
        assert "No such file" in after_a_reload()["reason"]

        file.write_text(RULE.format(name="two", subject="c"))
        line = after_a_reload()
        assert (line["event"], line["level"], line["rules_gone"]) == ("reloaded", "warning", ["one"])
        assert (denied(port, b"a"), denied(port, b"c")) == (False, True)
        file.write_text("rules = []\n")
        assert after_a_reload()["rules_gone"] == ["two"]
        assert not denied(port, b"c")
        file.write_text(RULE.format(name="three", subject="a"))
        assert after_a_reload()["rules_gone"] is None
        assert denied(port, b"a")


def test_a_proxy_does_not_start_with_an_empty_rules_file(tmp_path: Path) -> None:
    """It would run without the denials that somebody meant to give it."""
    empty = tmp_path / "rules.toml"
    empty.touch()
    done = CliRunner().invoke(main, ["run", "-u", "nats://127.0.0.1:1", "--rules", str(empty)])
    assert done.exit_code == 2
    assert f"{empty}: there are no rules in it: write `rules = []` if" in done.stderr


@pytest.mark.server
def test_the_log_level(nats_server: NatsServer, tmp_path: Path) -> None:
    """At `warning` a quiet life is not told."""
    log, config = tmp_path / "log", tmp_path / "natsproxy.toml"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config.write_text(
        f'listen = "127.0.0.1:{port}"\nupstream = "{nats_server.url}"\n'
        f'[log]\nlevel = "warning"\nfile = "{log}"\n'
    )

    def reachable() -> bool:
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", port)) == 0

    with running(config) as process:
        until(reachable, process)
        assert not denied(port, b"a")
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    assert log.read_text() == ""


def test_a_log_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    """The file is named."""
    done = CliRunner().invoke(main, ["run", "-u", "nats://127.0.0.1:1", "--log-file", "/nonexistent/log"])
    assert done.exit_code == 2
    assert "cannot write the log /nonexistent/log" in done.stderr
    assert "Traceback" not in done.stderr
