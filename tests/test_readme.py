"""The README and the deploy files tell the truth: every natsproxy command in them is run, or checked."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from natsproxy.cli import main
from natsproxy.rules.kinds import KINDS
from natsproxy.rules.spec import load
from natsproxy.wire.ops import C2S, S2C
from tests.kit.captures import Scribe, write
from tests.kit.servers import NatsServer

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
COMMANDS = [
    line for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL) for line in block.splitlines()
]
RULES = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)


def test_make_targets_exist() -> None:
    """`make demo` and `make test` are targets."""
    makefile = (ROOT / "Makefile").read_text()
    for line in COMMANDS:
        if line.startswith("make "):
            assert re.search(rf"^{line.split()[1]}:", makefile, re.MULTILINE)


def test_the_rules_are_rules() -> None:
    """The TOML of the README loads."""
    (text,) = RULES
    assert len(load(text, KINDS)) == 3


@pytest.mark.server
@pytest.mark.parametrize("line", [line for line in COMMANDS if line.startswith("natsproxy ")])
def test_each_command_runs_as_printed(line: str, nats_server: NatsServer, tmp_path: Path) -> None:
    """With the ports of this machine put in; servers are stopped when they say that they listen."""
    capture = Scribe()
    capture.frame(
        0, 1, S2C, b'INFO {"server_id":"S","version":"2.15.1","headers":true,"max_payload":1000} \r\n'
    )
    capture.frame(1, 1, C2S, b'CONNECT {"verbose":false,"headers":true}\r\n')
    capture.frame(2, 1, C2S, b"PUB orders.new 1\r\nx\r\n")
    if "--record" not in line:
        write(tmp_path / "traffic.ncap", capture.items)
    (tmp_path / "faults.toml").write_text(RULES[0])
    line = line.replace("nats://127.0.0.1:4223", nats_server.url)
    line = re.sub(r"--listen 127\.0\.0\.1:\d+", "--listen 127.0.0.1:0", line)
    arguments = shlex.split(line)[1:]
    process = subprocess.Popen(
        [sys.executable, "-m", "natsproxy", *arguments], cwd=tmp_path, stderr=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    try:
        if "--listen" in line:
            assert any("listening" in said or "playing" in said for said in process.stderr)
            process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert "Traceback" not in errors
    assert process.returncode in ((0, 1, 130) if "to-client" in line else (0,)), errors


def test_help_is_there_for_every_command() -> None:
    """Each command's --help has an example."""
    runner = CliRunner()
    for name in main.list_commands(None):  # type: ignore[arg-type]
        done = runner.invoke(main, [name, "--help"])
        assert done.exit_code == 0
        assert "natsproxy" in done.output or "Commands:" in done.output


def test_the_image_runs_real_commands() -> None:
    """The Dockerfile's command and the compose file's are known to the command line."""
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
    (command,) = re.findall(r"^CMD (\[.*\])$", dockerfile, re.MULTILINE)
    compose = (ROOT / "deploy" / "compose.yaml").read_text()
    (composed,) = re.findall(r'command: (\["run".*\])$', compose, re.MULTILINE)
    for text in (command, composed):
        words = tomllib.loads(f"words = {text}")["words"]
        options = {option for param in main.get_command(None, words[0]).params for option in param.opts}  # type: ignore[arg-type, union-attr]
        assert {word for word in words[1:] if word.startswith("--")} <= options
