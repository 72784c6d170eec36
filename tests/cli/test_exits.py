"""Exit codes: one table for every command, whatever ends it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from natsproxy.cli import main
from natsproxy.cli.exits import GuardedGroup
from natsproxy.errors import ConfigError, Exit, NatsproxyError, Stopped
from natsproxy.rules.kinds import KINDS
from tests.cli.test_bad_input import flipped, run, whole
from tests.kit.process import ProxyProcess
from tests.replay.scripted import hello, write

NATSPROXY = [sys.executable, "-m", "natsproxy"]
RULES = '[[rules]]\nname = "a"\nkind = "deny"\nsubject = "secret"\n'
NKEY = "ABCAELBLPVTA2Q4T5SNBRCNZC5IEWVVZ6OQLOH7BVU35Q2OHMS74M55X"
OK, WRONG, COULD_NOT, PARTLY = Exit.OK, Exit.FOUND_WRONG, Exit.COULD_NOT_RUN, Exit.PARTLY

CTL = [
    "capture download traffic.ncap",
    "capture list",
    "capture mark here",
    "capture rotate",
    "capture start traffic.ncap",
    "capture status",
    "capture stop",
    "connections close 1",
    "connections list",
    "connections pause 1",
    "connections resume 1",
    "connections suspend 1",
    *(f"fault {kind}" for kind in KINDS),
    "firings",
    "health",
    "page",
    "rules disable slow",
    "rules enable slow",
    "rules list",
    "rules remove slow",
    "rules reset",
    "rules set rules.toml",
]
"""Requests to a proxy; nobody is at the address."""
TABLE: list[tuple[str, int]] = [
    ("--version", OK),
    ("--no-such-option", COULD_NOT),
    ("no-such-command", COULD_NOT),
    ("run", COULD_NOT),
    ("run -u nats://127.0.0.1:1 --config none.toml", COULD_NOT),
    ("run -u nats://127.0.0.1:1 --rules none.toml", COULD_NOT),
    ("run -u nats://127.0.0.1:1 --rules mistake.toml", COULD_NOT),
    ("run -u nats://127.0.0.1:1 --listen TAKEN", COULD_NOT),
    ("run -u nats://127.0.0.1:1 --listen 127.0.0.1:0 --record none/x.ncap", COULD_NOT),
    ("run -u nats://127.0.0.1:1 --listen 127.0.0.1:0 --record whole.ncap/folder/", COULD_NOT),
    ("config -u nats://127.0.0.1:1", OK),
    ("config", OK),
    ("config --listen nowhere", COULD_NOT),
    ("config -u nats://127.0.0.1:1 --config none.toml", COULD_NOT),
    ("capture info whole.ncap", OK),
    ("capture info none.ncap", COULD_NOT),
    ("capture info flipped.ncap", COULD_NOT),
    ("capture cat whole.ncap", OK),
    ("capture cat none.ncap", COULD_NOT),
    ("capture cat none.ncap --follow", COULD_NOT),
    ("capture cat whole.ncap --op NONE", COULD_NOT),
    ("capture verify whole.ncap", OK),
    ("capture verify flipped.ncap", WRONG),
    ("capture verify cut.ncap", WRONG),
    ("capture verify mistake.toml", WRONG),
    ("capture verify none.ncap", COULD_NOT),
    ("capture verify empty", COULD_NOT),
    ("capture recover whole.ncap new.ncap", OK),
    ("capture recover flipped.ncap new.ncap", PARTLY),
    ("capture recover mistake.toml new.ncap", WRONG),
    ("capture recover none.ncap new.ncap", COULD_NOT),
    ("capture recover whole.ncap flipped.ncap", COULD_NOT),
    ("capture diff whole.ncap whole.ncap", OK),
    ("capture diff whole.ncap other.ncap", WRONG),
    ("capture diff whole.ncap none.ncap", COULD_NOT),
    ("capture export whole.ncap --jsonl new.jsonl", OK),
    ("capture export none.ncap --jsonl new.jsonl", COULD_NOT),
    ("capture export whole.ncap --jsonl whole.ncap", COULD_NOT),
    ("capture export whole.ncap --text new.nats.txt", OK),
    ("capture import none.nats.txt new.ncap", COULD_NOT),
    ("capture import rules.toml new.ncap", COULD_NOT),
    ("check whole.ncap", OK),
    ("check none.ncap", COULD_NOT),
    ("check flipped.ncap", COULD_NOT),
    ("check whole.ncap --only none", COULD_NOT),
    (f"verify whole.ncap --key {NKEY}", OK),
    (f"verify none.ncap --key {NKEY}", COULD_NOT),
    (f"verify --key {NKEY}", COULD_NOT),
    ("verify whole.ncap --key no-key", COULD_NOT),
    (f"verify --message rules.toml --key {NKEY}", COULD_NOT),
    (f"verify --message plain.json --key {NKEY}", WRONG),
    ("rules check rules.toml", OK),
    ("rules check mistake.toml", WRONG),
    ("rules check none.toml", COULD_NOT),
    ("rules explain rules.toml --subject secret", OK),
    ("rules explain mistake.toml --subject secret", COULD_NOT),
    ("rules explain none.toml --subject secret", COULD_NOT),
    ("rules test rules.toml whole.ncap", OK),
    ("rules test mistake.toml whole.ncap", COULD_NOT),
    ("rules test rules.toml none.ncap", COULD_NOT),
    ("rules promote rules.toml none.ncap", COULD_NOT),
    ("rules promote rules.toml", COULD_NOT),
    ("rules promote rules.toml --admin http://127.0.0.1:1", COULD_NOT),
    ("rules from-capture none.ncap", COULD_NOT),
    ("rules from-capture whole.ncap", COULD_NOT),
    ("rules list", OK),
    ("rules list none", COULD_NOT),
    ("rules cookbook", OK),
    ("rules cookbook none", COULD_NOT),
    ("help", OK),
    ("help none", COULD_NOT),
    ("replay to-server whole.ncap --dry-run", OK),
    ("replay to-server none.ncap --dry-run", COULD_NOT),
    ("replay to-server whole.ncap --to nats://127.0.0.1:1", COULD_NOT),
    ("replay to-client none.ncap", COULD_NOT),
    ("replay to-client whole.ncap --listen TAKEN", COULD_NOT),
    ("cassette run --no-strict --min-served 0 whole.ncap -- true", OK),
    ("cassette run whole.ncap -- true", WRONG),
    ("cassette run --strict whole.ncap -- true", WRONG),
    ("cassette run whole.ncap -- false", 1),  # the program's own
    ("cassette run whole.ncap -- sh -c 'exit 9'", 9),
    ("cassette run whole.ncap -- sh -c 'kill -9 $$'", 137),
    ("cassette run none.ncap -- true", COULD_NOT),
    ("cassette run whole.ncap -- /none", COULD_NOT),
    ("cert whole.ncap", COULD_NOT),
    ("healthcheck", COULD_NOT),
    ("healthcheck --ready-file none", WRONG),
    ("healthcheck --ready-file whole.ncap", 0),
    ("toxiproxy -config none.json", COULD_NOT),
    ("tap --admin http://127.0.0.1:1", COULD_NOT),
    ("top --once --admin http://127.0.0.1:1", COULD_NOT),
    *((f"ctl {rest} --admin http://127.0.0.1:1", COULD_NOT) for rest in CTL),
    ("permissions whole.ncap", OK),
    ("permissions none.ncap", COULD_NOT),
    ("permissions", COULD_NOT),
    ("permissions --tables .", COULD_NOT),
    ("permissions whole.ncap --tables .", COULD_NOT),
    ("sweep -- true", COULD_NOT),
    ("sweep --server none --out out -- true", COULD_NOT),
    ("analyze none.ncap --out out", COULD_NOT),
    ("analyze whole.ncap --out out --tables none", COULD_NOT),
]


@pytest.mark.parametrize(("line", "code"), TABLE)
def test_the_table(line: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    whole(Path("whole.ncap"))
    flipped(Path("flipped.ncap"))
    Path("cut.ncap").write_bytes(Path("whole.ncap").read_bytes()[:40])
    write(Path("other.ncap"), [*hello(1, "b"), (1, ">", b"PUB b 0\r\n\r\n")])
    Path("empty").mkdir()
    Path("plain.json").write_text('{"message": {"subject": "a"}}')
    Path("rules.toml").write_text(RULES)
    Path("mistake.toml").write_text(RULES.replace("deny", "dney"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        line = line.replace("TAKEN", f"127.0.0.1:{taken.getsockname()[1]}")
        words, quoted, rest = line.partition("sh -c ")
        done = run(*words.split(), *(["sh", "-c", rest.strip("'")] if quoted else []))
    assert done.exit_code == code, done.output
    assert bool(done.stderr) or code not in (COULD_NOT, PARTLY, WRONG) or "recover" in line or "diff" in line


def test_each_command_is_in_the_table() -> None:
    """A new command needs its rows."""

    def paths(group: click.Group, before: str = "") -> list[str]:
        found: list[str] = []
        context = click.Context(group)
        for name in group.list_commands(context):
            command, path = group.get_command(context, name), f"{before}{name}"
            found += paths(command, f"{path} ") if isinstance(command, click.Group) else [path]
        return found

    for path in paths(main):
        codes = {code for line, code in TABLE if f"{line} ".startswith(f"{path} ")}
        assert COULD_NOT in codes, f"{path}: TABLE lacks a line of it that ends with 2"


@pytest.mark.parametrize(
    ("error", "code", "output"),
    [
        (KeyboardInterrupt(), Exit.STOPPED, ""),
        (Stopped("stopped at once"), Exit.STOPPED, "Error: stopped at once\n"),
        (NatsproxyError("no\x1b[31m"), Exit.COULD_NOT_RUN, "Error: no\\x1b[31m\n"),
        (ConfigError("wrong"), Exit.COULD_NOT_RUN, "Error: wrong\n"),
        (BrokenPipeError(), Exit.NOBODY_READS, ""),
        (OSError(28, "No space left"), Exit.COULD_NOT_RUN, "Error: standard output: No space left\n"),
        (OSError(13, "Denied", "x.toml"), Exit.COULD_NOT_RUN, "Error: x.toml: Denied\n"),
        (ExceptionGroup("", [ConfigError("a"), ConfigError("b")]), Exit.COULD_NOT_RUN, "Error: a; b\n"),
        (
            ExceptionGroup("", [ExceptionGroup("", [OSError(13, "No", "x")])]),
            Exit.COULD_NOT_RUN,
            "Error: x: No\n",
        ),
        (BaseExceptionGroup("", [KeyboardInterrupt(), ConfigError("a")]), Exit.STOPPED, ""),
    ],
)
def test_every_end_of_a_command_has_its_exit_code(error: BaseException, code: int, output: str) -> None:
    """One sentence or none, and the code that the table has."""

    @click.group(cls=GuardedGroup)
    def group() -> None: ...

    @group.command()
    def fails() -> None:
        raise error

    done = CliRunner().invoke(group, ["fails"])
    assert (done.exit_code, done.output) == (code, output)


@pytest.mark.parametrize("bug", [KeyError("x"), ExceptionGroup("", [ConfigError("a"), KeyError("x")])])
def test_a_bug_is_no_sentence(bug: Exception) -> None:
    """It keeps its traceback."""

    @click.group(cls=GuardedGroup)
    def group() -> None: ...

    @group.command()
    def fails() -> None:
        raise bug

    assert CliRunner().invoke(group, ["fails"]).exception is bug


def long_capture(path: Path) -> Path:
    """A capture whose frames are more than a pipe holds."""
    return write(path, [*hello(1, "a"), *[(1, ">", b"PUB a.b.c.d 0\r\n\r\n")] * 5_000])


SIGNALS = [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)]


@pytest.mark.parametrize("number", SIGNALS)
def test_a_follower_ends_well(number: int, tmp_path: Path) -> None:
    capture = write(tmp_path / "x.ncap", hello(1, "a"))
    command = [*NATSPROXY, "capture", "cat", str(capture), "--follow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert any("INFO" in line for line in process.stdout)
        process.send_signal(number)
        _, output = process.communicate(timeout=20)
    assert (process.returncode, output) == (Exit.OK, "")


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_interrupts_unfinished_work(number: int, tmp_path: Path) -> None:
    command = [*NATSPROXY, "capture", "cat", str(long_capture(tmp_path / "x.ncap"))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()  # the rest does not fit into the pipe
        process.send_signal(number)
        _, output = process.communicate(timeout=20)
    assert (process.returncode, output) == (Exit.STOPPED, "")


@pytest.mark.parametrize("number", SIGNALS)
def test_a_program_that_is_stopped_with_its_cassette(number: int, tmp_path: Path) -> None:
    capture = write(tmp_path / "x.ncap", hello(1, "a"))
    command = [*NATSPROXY, "cassette", "run", str(capture), "--", "sh", "-c", "echo here; exec sleep 60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(number)
        process.communicate(timeout=20)
    assert process.returncode == Exit.STOPPED


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("times", [pytest.param(1, marks=pytest.mark.long), 2])
def test_a_proxy_drains_and_a_second_signal_does_not_wait(number: int, times: int) -> None:
    """A server that says nothing more leaves a connection that can only be waited for."""
    with (
        socket.create_server(("127.0.0.1", 0)) as upstream,
        ProxyProcess(
            f"nats://127.0.0.1:{upstream.getsockname()[1]}", "--drain", "60s" if times == 2 else "10ms"
        ) as proxy,
        closing(socket.create_connection(("127.0.0.1", proxy.port))) as client,
        closing(upstream.accept()[0]) as server,
    ):
        server.sendall(b'INFO {"version":"2.15.1"}\r\n')
        client.sendall(b'CONNECT {"verbose":false}\r\nPING\r\n')
        proxy.wait_for(lambda line: line["event"] == "opened")
        proxy.process.send_signal(number)
        if times == 2:
            proxy.wait_for(lambda line: line["event"] == "draining")
            proxy.process.send_signal(number)
        assert proxy.process.wait(20) == (Exit.OK if times == 1 else Exit.STOPPED)


@pytest.mark.parametrize(
    "command", ["cat CAPTURE", pytest.param("export CAPTURE --jsonl -", marks=pytest.mark.long)]
)
def test_a_reader_that_has_enough(command: str, tmp_path: Path) -> None:
    """As `| head -1`: nothing on standard error, no traceback."""
    capture = str(long_capture(tmp_path / "x.ncap"))
    words = [capture if word == "CAPTURE" else word for word in command.split()]
    with subprocess.Popen(
        [*NATSPROXY, "capture", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert process.returncode == Exit.NOBODY_READS


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("line", ["--help", "config", "capture verify x.ncap"])
def test_a_full_disk_behind_the_output(line: str, tmp_path: Path) -> None:
    whole(tmp_path / "x.ncap")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*NATSPROXY, *line.split()],
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=20,
            env=os.environ,
        )
    output = "Error: standard output: No space left on device\n"
    assert (done.returncode, done.stderr) == (Exit.COULD_NOT_RUN, output)
