"""Texts on the command line: made, edited, read as captures are, and made captures again."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from natsproxy.cli import main
from tests.replay.scripted import hello, write


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["capture", *map(str, arguments)])


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    lines = [*hello(1, "shop"), (1, ">", b'PUB orders 9\r\n{"qty":3}\r\n'), (1, ">", b"PUB other 1\r\nx\r\n")]
    return write(tmp_path / "x.ncap", lines)


@pytest.fixture
def text(capture: Path) -> Path:
    path = capture.with_name("x.nats.txt")
    assert run("export", capture, "--text", path).exit_code == 0
    return path


@pytest.mark.parametrize("command", ["info", "cat", "verify"])
def test_commands_say_the_same_of_a_text(command: str, capture: Path, text: Path) -> None:
    ours, theirs = (run(command, path, "--json") for path in (capture, text))
    assert ours.exit_code == theirs.exit_code == 0
    told = theirs.output.replace(str(text), str(capture))
    # The text makes one record of neighbouring frames, so its blocks have other sizes.
    assert [_without_bytes(line) for line in told.splitlines()] == [
        _without_bytes(line) for line in ours.output.splitlines()
    ]


def _without_bytes(line: str) -> str:
    return "" if 'bytes"' in line else line


def test_an_edited_text_differs_where_it_was_edited(capture: Path, text: Path, tmp_path: Path) -> None:
    assert run("diff", capture, text).exit_code == 0
    text.write_text(text.read_text().replace('{"qty":3}', '{"qty":17}'))
    done = run("diff", capture, text)
    assert done.exit_code == 1
    assert '  -  | {"qty":3}\n  +  | {"qty":17}\n' in done.output
    assert run("import", text, tmp_path / "y.ncap").exit_code == 0
    assert run("diff", text, tmp_path / "y.ncap").exit_code == 0


def test_a_choice_of_frames_becomes_a_text(capture: Path) -> None:
    done = run("export", capture, "--text", "-", "--subject", "orders")
    assert "shop > PUB orders" in done.output
    assert "other" not in done.output


def test_a_mistake_is_a_sentence_with_its_line(text: Path, tmp_path: Path) -> None:
    text.write_text(text.read_text().replace("PUB orders", "PUB orders a b"))
    commands = {"info": [text], "import": [text, tmp_path / "y.ncap"], "diff": [text, text], "verify": [text]}
    for name, arguments in commands.items():
        done = run(name, *arguments)
        assert done.exit_code == (1 if name == "verify" else 2)
        assert "x.nats.txt: line " in done.output
        assert "PUB is followed by SUBJECT" in done.output
    assert not (tmp_path / "y.ncap").exists()


def test_nothing_is_overwritten_unasked(capture: Path, text: Path) -> None:
    before = capture.read_bytes()
    assert "exists already" in run("import", text, capture).output
    assert "exists already" in run("export", capture, "--text", text).output
    assert "this is the capture itself" in run("import", text, text, "--force").output
    assert "not the text of a capture" in run("import", capture, text, "--force").output
    assert capture.read_bytes() == before
    assert run("import", text, capture, "--force").exit_code == 0


def test_a_text_is_not_recorded_at_once(tmp_path: Path) -> None:
    """The name would become a folder."""
    done = CliRunner().invoke(
        main,
        ["run", "--listen", "127.0.0.1:0", "--upstream", "nats://x:1", "--record", f"{tmp_path}/x.nats.txt"],
    )
    assert done.exit_code == 2
    assert "`capture export --text` makes a text of it" in done.output
    assert list(tmp_path.iterdir()) == []


def test_a_text_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = run("import", tmp_path / "no.nats.txt", tmp_path / "y.ncap")
    assert done.exit_code == 2
    assert "no.nats.txt" in done.output
