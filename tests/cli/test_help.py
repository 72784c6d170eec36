"""The first contact of a user: help, its examples, misspelt names, completion by the shell."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from natsproxy.cli import COMMANDS, main
from natsproxy.cli.help import EXIT_CODES, TOPICS
from natsproxy.cli.params import Seconds
from natsproxy.cli.table import show_table
from natsproxy.config.admin import ADMIN_OPTIONS
from natsproxy.config.settings import OPTIONS, TLS_OPTIONS
from natsproxy.errors import Exit
from natsproxy.rules.cookbook import COOKBOOK
from natsproxy.rules.file.keys import SELECTOR
from natsproxy.sweep.faults import FAULTS
from natsproxy.sweep.values import Verdict
from tests.cli.test_bad_input import run, whole
from tests.kit.documents import ROOT, TEXT
from tests.replay.scripted import hello, write


def leaves(group: click.Group, *before: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from leaves(command, *before, name)
        else:
            yield (*before, name), command


LEAVES = dict(leaves(main))


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_each_command_has_examples_that_parse(
    path: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines of its help that begin with its name."""
    monkeypatch.chdir(tmp_path)
    Path("natsproxy.toml").write_text('upstream = "nats://127.0.0.1:4223"\n')
    lines = [line.strip() for line in run(*path, "--help").output.splitlines()]
    begin = " ".join(("natsproxy", *path))
    examples = [line for line in lines if f"{line} ".startswith(f"{begin} ")]
    assert examples
    for example in examples:
        words = list(takewhile(lambda word: word not in ("|", ">"), shlex.split(example)))
        LEAVES[path].make_context(begin, words[1 + len(path) :])


@pytest.mark.parametrize("path", [(), *LEAVES], ids=" ".join)
def test_help_fits_a_terminal(path: tuple[str, ...]) -> None:
    """Examples are the exception: each must stay on one line."""
    for line in run(*path, "--help").output.splitlines():
        assert len(line) <= 80 or "natsproxy " in line


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["capture", "inf"], "there is no command 'inf'; did you mean 'info'?"),
        (["captur"], "there is no command 'captur'; did you mean 'capture'?"),
        (["cat", "x.ncap"], "there is no command 'cat'; did you mean 'capture cat'?"),
        (["to-sever"], "there is no command 'to-sever'; did you mean 'replay to-server'?"),
        (["zzz"], f"there is no command 'zzz'; there are {', '.join(COMMANDS)}"),
        (["run", "--upstraem", "x"], "--upstream"),
        (
            ["run", "-u", "x:1", "--rules", "a", "--rules", "b"],
            "--rules is given 2 times, but takes one value",
        ),
        (["config", "--seed", "1", "--seed", "1"], "--seed is given 2 times, but takes one value"),
    ],
)
def test_a_name_that_is_nearly_right(words: list[str], expected: str) -> None:
    done = run(*words)
    assert done.exit_code == 2
    assert expected in done.output


def test_an_option_that_may_be_repeated() -> None:
    assert run("config", "-l", "a:1", "-l", "b:2").exit_code == 0


@pytest.mark.parametrize(("text", "seconds"), [("5", 5), ("0.5", 0.5), ("250ms", 0.25), ("1m30s", 90)])
def test_waiting_times_are_durations_or_seconds(text: str, seconds: float) -> None:
    assert Seconds().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["-1", "nan", "soon", ""])
def test_other_waiting_times_are_refused(text: str, tmp_path: Path) -> None:
    whole(tmp_path / "x.ncap")
    done = run("replay", "to-client", str(tmp_path / "x.ncap"), "--timeout", text)
    assert done.exit_code == 2
    assert "must be a duration" in done.output


def test_an_empty_capture_is_reported_as_empty(tmp_path: Path) -> None:
    path = write(tmp_path / "x.ncap", [])
    told = run("capture", "info", str(path)).output.splitlines()
    assert told == [f"{path}  1 segment, {path.stat().st_size}B, closed", "the capture is empty"]


def completed(line: str) -> list[str]:
    """Return the completions of the last word of a line."""
    variables = {
        "_NATSPROXY_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
    }
    done = CliRunner().invoke(main, [], env=variables, prog_name="natsproxy")
    return [offer.partition(",")[2] for offer in done.output.splitlines()]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("natsproxy ca", ["capture", "cassette"]),
        ("natsproxy replay to-", ["to-client", "to-server"]),
        ("natsproxy run --record-o", ["--record-overflow"]),
        ("natsproxy run --advertise s", ["strip", "self"]),
        ("natsproxy rules list la", ["lame_duck", "lasts", "latency"]),
        ("natsproxy capture cat x.ncap --op P", ["PUB", "PING", "PONG"]),
        ("natsproxy rules cookbook lo", ["lost-publish-ack"]),
        ("natsproxy help se", ["selectors", "settings"]),
    ],
)
def test_the_shell_completes(line: str, offered: list[str]) -> None:
    assert completed(line) == offered


@pytest.mark.parametrize(
    "line", ["natsproxy run --rules f", "natsproxy capture cat f", "natsproxy rules check f"]
)
def test_the_shell_completes_files(line: str) -> None:
    variables = {"_NATSPROXY_COMPLETE": "bash_complete", "COMP_WORDS": line}
    variables["COMP_CWORD"] = str(line.count(" "))
    done = CliRunner().invoke(main, [], env=variables, prog_name="natsproxy")
    assert done.output == "file,f\n"


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_the_line_for_bash_works(tmp_path: Path) -> None:
    """As the README has it, in a shell that finds `natsproxy`."""
    (line,) = [line for line in TEXT.splitlines() if "_NATSPROXY_COMPLETE=bash_source" in line]
    script = f"{line}\ncomplete -p natsproxy\nCOMP_WORDS=(natsproxy rul)\nCOMP_CWORD=1\n"
    script += '_natsproxy_completion natsproxy\necho "${COMPREPLY[@]}"\n'
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": path},
        timeout=30,
    )
    assert (done.stdout.splitlines()[-1], done.stderr) == ("rules", "")


def test_a_terminal_that_wants_no_colours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By NO_COLOR, or because it is a dumb one; an empty NO_COLOR says nothing."""
    whole(tmp_path / "x.ncap")
    words = ["capture", "cat", str(tmp_path / "x.ncap")]
    for name, value, coloured in (
        ("NO_COLOR", "", True),
        ("NO_COLOR", "1", False),
        ("TERM", "dumb", False),
        ("TERM", "xterm", True),
    ):
        with monkeypatch.context() as patch:
            patch.delenv("NO_COLOR", raising=False)
            patch.setenv("TERM", "xterm")
            patch.setenv(name, value)
            assert ("\x1b[" in CliRunner().invoke(main, words, color=True).output) is coloured


@pytest.mark.parametrize("command", [["cat", "x.ncap"], ["diff", "x.ncap", "y.ncap"]])
def test_a_terminal_that_has_no_arrows(command: list[str], tmp_path: Path) -> None:
    write(tmp_path / "x.ncap", [*hello(1, "a"), (1, ">", b"PUB a 0\r\n\r\n")])
    write(tmp_path / "y.ncap", hello(1, "a"))
    done = subprocess.run(
        [sys.executable, "-m", "natsproxy", "capture", *command],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        timeout=30,
    )
    assert (done.returncode, done.stderr) == (0 if command[0] == "cat" else 1, "")
    assert "\\u2192" in done.stdout


def test_a_name_that_is_no_text(tmp_path: Path) -> None:
    """Of a file, or a subject: bytes as any other."""
    name = b"\xff.ncap"
    whole(tmp_path / os.fsdecode(name))
    for command in (["info"], ["verify"], ["cat", "--subject", b"a.\xff"]):
        done = subprocess.run(
            [sys.executable, "-m", "natsproxy", "capture", *command, name],
            capture_output=True,
            cwd=tmp_path,
            timeout=30,
        )
        assert (done.returncode, done.stderr) == (0, b"")


def test_a_table_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short columns stay whole, the long one is folded."""
    monkeypatch.setattr("rich.console.Console.is_terminal", True)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    with CliRunner().isolation(color=False) as (out, *_):
        show_table(("subject", "sent", "received"), [("orders." + "x" * 40, "1→2", None)])
    lines = out.getvalue().decode().splitlines()
    assert lines[0].split() == ["subject", "sent", "received"]
    assert all(len(line) <= 40 for line in lines)
    words = " ".join(lines[1:]).split()
    words.remove("1→2")
    assert "".join(words) == "orders." + "x" * 40


def test_help_and_completion_load_no_command() -> None:
    """They load neither the modules of commands nor the libraries that these need."""
    script = (
        "import sys\nfrom natsproxy.cli import COMMANDS, main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "wanted = {place.partition(':')[0] for place, _ in COMMANDS.values()} | {'trio', 'rich', 'pyspark'}\n"
        "print(sorted(wanted & set(sys.modules)))"
    )
    variables = {"_NATSPROXY_COMPLETE": "bash_complete", "COMP_WORDS": "natsproxy r", "COMP_CWORD": "1"}
    for words, more in ((["--help"], {}), ([], variables)):
        done = subprocess.run(
            [sys.executable, "-c", f"import sys; sys.argv = ['natsproxy', *{words}]\n{script}"],
            capture_output=True,
            text=True,
            env={**os.environ, **more},
            timeout=30,
            check=True,
        )
        assert done.stdout.splitlines()[-1] == "[]"
        assert "replay" in done.stdout


@pytest.mark.parametrize(
    ("words", "others"),
    [
        (["capture", "info", str(ROOT / "recordings" / "core-v1.1.ncap")], {"cat", "diff", "export"}),
        (["rules", "list", "--short"], {"rules_check", "rules_test", "rules_explain"}),
        (["replay", "to-server", "--help"], {"replay_to_client"}),
    ],
    ids=lambda words: words[0] if isinstance(words, list) else "",
)
def test_a_command_of_a_group_loads_no_other_one(words: list[str], others: set[str]) -> None:
    script = (
        "import sys\nfrom natsproxy.cli import main\n"
        f"try:\n    main({words!r})\nexcept SystemExit as end:\n    assert not end.code\n"
        "print(sorted(name for name in sys.modules if name.startswith('natsproxy.cli.')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    loaded = done.stdout.splitlines()[-1]
    assert f"'natsproxy.cli.{words[0]}'" in loaded
    assert [name for name in others if f"'natsproxy.cli.{name}'" in loaded] == []


def test_every_command_has_a_line_in_the_help() -> None:
    """In other words perhaps, where one line is to hold it; a new command needs its line."""
    assert main.list_commands(click.Context(main)) == list(COMMANDS)
    for name, (_, text) in COMMANDS.items():
        assert f"  {name:<11}  {text}" in run("--help").output
        assert len(text) <= 64


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_there_is_a_script_for_each_shell_of_the_readme(shell: str) -> None:
    assert f"{shell}_source" in TEXT
    done = CliRunner().invoke(main, [], env={"_NATSPROXY_COMPLETE": f"{shell}_source"}, prog_name="natsproxy")
    assert (done.exit_code, f"_NATSPROXY_COMPLETE={shell}_complete" in done.output) == (0, True)


@pytest.mark.parametrize(
    "words",
    [
        ["capture", "info", ""],
        ["rules", "check", ""],
        ["run", "-u", "x:1", "--record", ""],
        ["run", "--config", ""],
        ["replay", "to-server", "x", "--record", ""],
        ["cassette", "run", "", "true"],
    ],
)
def test_an_empty_name_is_not_the_folder_one_is_in(words: list[str]) -> None:
    """As of a variable that is not set."""
    done = run(*words)
    assert done.exit_code == 2
    assert "the name of a file" in done.output


@pytest.mark.parametrize("topic", TOPICS)
def test_a_topic_is_printed(topic: str) -> None:
    """It fits a terminal where it is prose, and is listed."""
    done = run("help", *topic.split("-"))
    assert (done.exit_code, done.output.count("\n") > 3) == (0, True)
    assert f"  {topic} " in run("help").output
    if topic not in ("selectors", "cookbook"):
        assert all(len(line) <= 80 for line in done.output.splitlines())


def test_topics_say_what_the_tables_say() -> None:
    settings = run("help", "settings").output
    assert all(f"--{option.name} " in settings or f"--{option.name}\n" in settings for option in OPTIONS)
    assert "[on]" in settings
    assert not {"[True]", "[False]"} & set(settings.split())
    assert all(f"--{option.name}" in run("help", "tls").output for option in TLS_OPTIONS.values())
    assert all(f"--{option.name}" in run("help", "monitoring").output for option in ADMIN_OPTIONS.values())
    assert all(f"  {setting.name} " in run("help", "selectors").output for setting in SELECTOR)
    assert all(recipe.sees in run("help", "cookbook").output for recipe in COOKBOOK.values())
    sweep = " ".join(run("help", "sweep").output.split())
    assert all(f" {fault.name} {fault.text}" in sweep for fault in FAULTS)
    assert all(f" {verdict.value} {verdict.meaning}" in sweep for verdict in Verdict)
    table = re.findall(r"^\| (\d+) \|", TEXT, re.MULTILINE)
    assert set(table) <= set(EXIT_CODES)
    assert set(EXIT_CODES) == {str(int(code)) for code in Exit}
    lines = run("config").output.splitlines()
    assert len({line.index(" default") for line in lines if line.endswith("  default")}) == 1


def test_the_commands_in_the_topics_parse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are indented by four; prose, and the folded lines of settings, begin elsewhere."""
    monkeypatch.chdir(tmp_path)
    lines = [line for topic in TOPICS for line in run("help", topic).output.splitlines()]
    commands = [line.strip().partition("  ")[0] for line in lines if line.startswith("    natsproxy ")]
    assert len(commands) >= 10
    for command in commands:
        words = shlex.split(command)[1:]
        path = next((path for path in LEAVES if tuple(words[: len(path)]) == path), None)
        assert path is not None, f"{command!r} is no command"
        LEAVES[path].make_context(" ".join(path), words[len(path) :])


def test_the_help_of_a_command() -> None:
    assert (
        run("help", "rules", "explain").output.splitlines()[1:]
        == run("rules", "explain", "--help").output.splitlines()[1:]
    )
    assert "Usage: natsproxy capture" in run("help", "capture").output.replace("main", "natsproxy")
    for words, hint in ((["setings"], "settings"), (["rules", "chek"], "check")):
        done = run("help", *words)
        assert (done.exit_code, f"did you mean {hint!r}?" in done.output) == (2, True)


@pytest.mark.parametrize("name", COOKBOOK)
def test_the_cookbook_is_printed(name: str) -> None:
    assert run("rules", "cookbook", name).output == COOKBOOK[name].text
    rows = list(map(json.loads, run("rules", "cookbook", "--json").output.splitlines()))
    assert name in [row["name"] for row in rows]
    assert f"{name}: {COOKBOOK[name].title}" in run("rules", "cookbook").output


def test_a_recipe_that_is_nearly_right() -> None:
    done = run("rules", "cookbook", "lost-pub-ack")
    assert (done.exit_code, "did you mean 'lost-publish-ack'?" in done.output) == (2, True)
