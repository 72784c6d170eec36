"""Programs as people write them are sound: no check finds anything in their traffic."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from natsproxy.capture.read.reader import open_capture
from natsproxy.capture.text.writer import write_text
from natsproxy.check.checker import check_captures
from tests.kit.go import MISSING as MISSING_GO
from tests.kit.node import MISSING as MISSING_NODE
from tests.testing.zoo import GO, JAVASCRIPT, PYTHON, available, record

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The captures of all programs that this machine can run."""
    folder = tmp_path_factory.mktemp("zoo")
    trio.run(record, available(), folder)
    return folder


@pytest.mark.parametrize("name", [*PYTHON, *JAVASCRIPT, *GO])
def test_a_sound_program_has_no_finding(name: str, folder: Path) -> None:
    path = folder / f"{name}.ncap"
    if name not in available():
        pytest.skip(MISSING_GO if name in GO else MISSING_NODE)
    assert [one for one in check_captures([path]) if one.found] == []
    brief = folder / f"{name}.nats.txt"
    with brief.open("wb") as text:
        write_text(open_capture(path), text, brief=True)
    assert [one for one in check_captures([brief]) if one.found] == []


def test_all_programs_are_one_sound_system(folder: Path) -> None:
    paths = sorted(folder.glob("*.ncap"))
    assert [one for one in check_captures(paths) if one.found] == []
