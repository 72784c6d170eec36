"""Text of peers reaches a terminal as text: no command prints escape sequences or markup."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from natsproxy.cli import main
from natsproxy.errors import CaptureError
from natsproxy.printable import printable
from natsproxy.wire.ops import C2S, S2C
from tests.kit.captures import Scribe, write


@given(st.one_of(st.text(), st.binary()))
def test_printable_prints(text: str | bytes) -> None:
    shown = printable(text)
    assert shown.isprintable()
    if isinstance(text, str) and text.isprintable():
        assert shown == text


def test_errors_are_safe() -> None:
    assert str(CaptureError("\x1b]0;title\x07", path="x")) == "x: \\x1b]0;title\\x07"


def evil(path: Path, body: bytes) -> Path:
    scribe = Scribe()
    scribe.frame(0, 1, S2C, b'INFO {"server_id":"\x1b[2J","version":"2.15.1","headers":true} \r\n')
    scribe.frame(1, 1, C2S, b'CONNECT {"verbose":false,"name":"[/evil]\\u001b[31m","headers":true}\r\n')
    scribe.frame(2, 1, C2S, b"SUB a.[/x].\x1b[2J\x07 1\r\n")
    scribe.frame(3, 1, C2S, b"HPUB a.[/x].\x1b[2J\x07 17 22\r\nNATS/1.0\r\nA:\x1b\r\n\r\n" + body + b"\r\n")
    scribe.frame(4, 1, S2C, b"-ERR '[/no] \x1b[5m'\r\n")
    return write(path, scribe.items)


@pytest.mark.parametrize(
    "words",
    [
        "capture info A",
        "capture cat A",
        "capture cat A --json",
        "capture verify A",
        "capture diff A B",
        "capture diff A B --json",
        "replay to-server A --to nats://127.0.0.1:1 --dry-run",
    ],
)
def test_no_command_passes_it_on(words: str, tmp_path: Path) -> None:
    paths = {name: str(evil(tmp_path / f"{name}.ncap", name.encode() * 3 + b"\x1b\x07")) for name in "AB"}
    done = CliRunner().invoke(main, [paths.get(word, word) for word in words.split()], color=False)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
    assert all(line.isprintable() for line in done.output.split("\n")), done.output
