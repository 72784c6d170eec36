"""`natsproxy run --test`: it refuses what `run` refuses, all of it at once, and leaves nothing behind."""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from natsproxy.cli import main
from tests.kit.authority import Authority
from tests.kit.disks import Disk

UPSTREAM = ["--upstream", "nats://127.0.0.1:4222"]


def run(*options: str, env: dict[str, str] | None = None) -> Result:
    """Run `natsproxy run` with options, and a port that is free."""
    listen = [] if "--listen" in options else ["--listen", "127.0.0.1:0"]
    return CliRunner().invoke(main, ["run", *listen, *options], env=env)


def test_a_start_without_a_mistake(tmp_path: Path) -> None:
    """It is said, and the folder is as it was: no log, no capture, no socket, no file of a state."""
    (tmp_path / "rules.toml").write_text("rules = []\n")
    certificate = ["--tls-cert", str(Authority(tmp_path).server())]
    before = sorted(tmp_path.iterdir())
    paths = {
        "--record": "captures/of/today",
        "--log-file": "log",
        "--ready-file": "ready",
        "--live-file": "live",
        "--admin-captures": "taken/here",
        "--rules": "rules.toml",
    }
    files = [part for option, name in paths.items() for part in (option, str(tmp_path / name))]
    servers = ["--admin", f"unix:{tmp_path}/admin.sock", "--monitor", "127.0.0.1:0"]

    done = run("--test", "--listen", "tls://127.0.0.1:0", *UPSTREAM, *certificate, *files, *servers)

    assert done.exit_code == 0, done.output
    assert done.output == "no mistake found: the proxy could start\n"
    assert sorted(tmp_path.iterdir()) == before


def test_all_mistakes_at_once(tmp_path: Path) -> None:
    """Each in a line of its own, those of the file with its line, the good settings of it in force."""
    config = tmp_path / "natsproxy.toml"
    config.write_text(
        'upstream = "nats://127.0.0.1:4222"\n'
        'lissten = "x"\n'
        'drain = "soon"\n'
        'admin-host = ["x.example"]\n'
        f'ready-file = "{tmp_path}/nowhere/ready"\n'
        "[record]\n"
        'keep = "10GiB"\n'
        '[[rules]]\nname = "one"\nkind = "denny"\n'
        '[[rules]]\nname = "two"\nkind = "drop"\nsubjct = "x"\n'
    )
    done = run("--test", "--config", str(config), "--connect-timeout", "late", env={"NATSPROXY_SEED": "x"})
    assert done.exit_code == 1
    first, *others = done.output.splitlines()
    assert first.startswith(f"Error: {config}:2: there is no setting 'lissten'")
    assert [
        line.partition(":")[0] + line.partition(":")[2][:3] for line in others if str(config) in line
    ] == [f"{config}{place}" for place in ("3: ", "7: ", "4: ", "10:", "14:", "5: ")]
    assert any("'--connect-timeout': must be a duration" in line for line in others)
    assert any("'--seed': must be" in line for line in others)
    assert len(others) == 8


def test_a_file_that_is_not_there_is_one_mistake(tmp_path: Path) -> None:
    done = run("--test", "--config", str(tmp_path / "none"), *UPSTREAM)
    assert (done.exit_code, len(done.output.splitlines())) == (1, 1)
    assert "cannot read the configuration" in done.output


def _in_use(_: Path, busy: int) -> list[str]:
    return ["--listen", f"127.0.0.1:{busy}"]


def _monitor_in_use(_: Path, busy: int) -> list[str]:
    return ["--monitor", f"127.0.0.1:{busy}"]


def _no_certificate(folder: Path, _: int) -> list[str]:
    return ["--listen", "tls://127.0.0.1:0", "--tls-cert", str(folder / "none.pem")]


def _no_authority(folder: Path, _: int) -> list[str]:
    return ["--upstream-tls-ca", str(folder / "none.pem")]


def _no_token(folder: Path, _: int) -> list[str]:
    (folder / "token").write_text("short")
    return ["--admin", "127.0.0.1:0", "--admin-token-file", str(folder / "token")]


def _bad_rules(folder: Path, _: int) -> list[str]:
    (folder / "rules.toml").write_text('[[rules]]\nname = "a"\nkind = "denny"\n')
    return ["--rules", str(folder / "rules.toml")]


def _way_around(folder: Path, _: int) -> list[str]:
    (folder / "rules.toml").write_text('[[rules]]\nname = "a"\nkind = "deny"\nsubject = "x"\n')
    return ["--rules", str(folder / "rules.toml"), "--unparsed", "pass"]


def _bad_login(folder: Path, _: int) -> list[str]:
    return ["--upstream-credentials", str(folder / "none.creds")]


def _no_folder(folder: Path, _: int) -> list[str]:
    (folder / "file").touch()
    return ["--record", str(folder / "file" / "x.ncap")]


def _no_log(folder: Path, _: int) -> list[str]:
    return ["--log-file", str(folder / "none" / "log")]


def _no_ready_file(folder: Path, _: int) -> list[str]:
    return ["--ready-file", str(folder / "none" / "ready")]


def _a_folder_for_a_file(folder: Path, _: int) -> list[str]:
    (folder / "ready").mkdir()
    return ["--ready-file", str(folder / "ready")]


def _one_address_twice(_: Path, __: int) -> list[str]:
    with socket.create_server(("127.0.0.1", 0)) as once:
        port = once.getsockname()[1]
    return ["--listen", f"127.0.0.1:{port}", "--monitor", f"127.0.0.1:{port}"]


def _a_name_too_long(folder: Path, _: int) -> list[str]:
    return ["--record", str(folder / ("x" * 300))]


def _a_text(folder: Path, _: int) -> list[str]:
    return ["--record", str(folder / "traffic.txt")]


def _nothing_watched(_: Path, __: int) -> list[str]:
    return ["--watch-files"]


def _own_address(_: Path, busy: int) -> list[str]:
    return ["--listen", f"127.0.0.1:{busy}", "--upstream", f"nats://127.0.0.1:{busy}"]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (_in_use, "cannot listen on 127.0.0.1:"),
        (_monitor_in_use, "cannot listen on 127.0.0.1:"),
        (_no_certificate, "cannot read tls-cert: "),
        (_no_authority, "cannot read upstream-tls-ca: "),
        (_no_token, "admin_token_file"),
        (_bad_rules, "there is no kind 'denny'"),
        (_way_around, 'unparsed = "pass" is a way around'),
        (_bad_login, "upstream_credentials"),
        (_no_folder, "x.ncap"),
        (_no_log, "none/log"),
        (_no_ready_file, "none/ready"),
        (_a_folder_for_a_file, "/ready"),
        (_one_address_twice, "cannot listen on 127.0.0.1:"),
        (_a_name_too_long, "File name too long"),
        (_a_text, "record to x.ncap or a folder"),
        (_nothing_watched, "watch-files has nothing to watch"),
        (_own_address, "natsproxy's own address"),
    ],
)
def test_what_run_refuses(wrong: Callable[[Path, int], list[str]], words: str, tmp_path: Path) -> None:
    """The test says it in one line, and nothing else."""
    with socket.create_server(("127.0.0.1", 0)) as busy:
        options = wrong(tmp_path, busy.getsockname()[1])
        started, tested = run(*UPSTREAM, *options), run(*UPSTREAM, "--test", *options)
    assert (started.exit_code, tested.exit_code) == (2, 1), (started.output, tested.output)
    assert words in started.output
    assert words in tested.output
    assert len(tested.output.splitlines()) == 1 + (wrong is _own_address)  # it is in use, too


def test_a_name_without_an_address_is_a_warning() -> None:
    """A proxy starts before its servers: their names may come later."""
    done = run("--test", "--upstream", "nats://nowhere.invalid:4222")
    assert done.exit_code == 0
    assert "Warning: upstream nats://nowhere.invalid:4222: " in done.stderr


def test_a_password_in_a_url_is_not_shown() -> None:
    done = run("--test", "--upstream", "nats://user:secret@127.0.0.1:4222")
    assert done.exit_code == 1
    assert "secret" not in done.output


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A capture could not begin there, though its file could be made."""
    path = str(tmp_path / "x.ncap")
    assert run("--test", *UPSTREAM, "--record", path).exit_code == 0
    Disk(monkeypatch).error = errno.ENOSPC
    done = run("--test", *UPSTREAM, "--record", path)
    assert done.exit_code == 1
    assert "No space left on device" in done.output
    assert list(tmp_path.iterdir()) == []


def test_a_package_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is named, as by a start."""
    monkeypatch.delitem(sys.modules, "natsproxy.admin.http_server", raising=False)
    monkeypatch.setitem(sys.modules, "h11", None)
    done = run("--test", *UPSTREAM, "--monitor", "127.0.0.1:0")
    assert (done.exit_code, "monitor needs h11: pip install 'natsproxy[admin]'" in done.output) == (1, True)


def test_a_log_that_nobody_reads_does_not_hold_it_up(tmp_path: Path) -> None:
    """A start would wait for the reader of the pipe; the test says that there is none."""
    os.mkfifo(tmp_path / "log")
    assert "/log cannot be written" in run("--test", *UPSTREAM, "--log-file", str(tmp_path / "log")).output


def test_very_many_mistakes_are_counted(tmp_path: Path) -> None:
    (tmp_path / "rules.toml").write_text("[[rules]]\n" * 1000)
    done = run("--test", *UPSTREAM, "--rules", str(tmp_path / "rules.toml"))
    *_, last = done.output.splitlines()
    assert (len(done.output.splitlines()), last) == (51, "950 more mistakes")
