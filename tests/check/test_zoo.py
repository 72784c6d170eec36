"""Programs as people write them are sound: no check finds anything in their traffic."""

from __future__ import annotations

from pathlib import Path

import pytest

from natsproxy.capture.read.reader import open_capture
from natsproxy.capture.text.writer import write_text
from natsproxy.check.checker import check_captures
from tests.kit.go import MISSING as MISSING_GO
from tests.kit.node import MISSING as MISSING_NODE
from tests.testing.zoo import GO, JAVASCRIPT, PYTHON, available

pytestmark = pytest.mark.server


@pytest.mark.parametrize("name", [*PYTHON, *JAVASCRIPT, *GO])
def test_a_sound_program_has_no_finding(name: str, zoo: Path, tmp_path: Path) -> None:
    path = zoo / f"{name}.ncap"
    if name not in available():
        pytest.skip(MISSING_GO if name in GO else MISSING_NODE)
    assert [one for one in check_captures([path]) if one.found] == []
    brief = tmp_path / f"{name}.nats.txt"
    with brief.open("wb") as text:
        write_text(open_capture(path), text, brief=True)
    assert [one for one in check_captures([brief]) if one.found] == []


def test_all_programs_are_one_sound_system(zoo: Path) -> None:
    paths = sorted(zoo.glob("*.ncap"))
    assert [one for one in check_captures(paths) if one.found] == []
