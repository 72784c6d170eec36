"""The golden captures are whole, readable and small, and begin as their README says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from natsproxy.capture.format.records import Firing
from natsproxy.capture.read.frames import read_frames
from natsproxy.capture.read.reader import open_capture
from natsproxy.capture.read.recover import verify

FOLDER = Path(__file__).parent.parent / "recordings"
GOLDEN = sorted(FOLDER.glob("*.ncap"))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_each_is_whole_and_small(path: Path) -> None:
    """Closed, every checksum right, at most 200 KiB, and its frames parse."""
    assert path.stat().st_size <= 200 << 10
    assert verify(path).whole
    frames = list(read_frames(open_capture(path)))
    assert len(frames) > 8
    assert b"password" not in path.read_bytes()


def test_denied_holds_both_firings() -> None:
    """What the rules did is in the capture."""
    firings = [
        item.info["rule"]
        for _, item in open_capture(FOLDER / "denied-v1.ncap").items()
        if isinstance(item, Firing)
    ]
    assert firings == ["no-secrets", "no-telemetry"]


def test_the_worked_example_is_true() -> None:
    """The bytes in the README are the first bytes of every capture."""
    text = (FOLDER / "README.md").read_text()
    (block,) = re.findall(r"```\n(89.*?)```", text, re.DOTALL)
    pattern = b""
    for line in block.splitlines():
        for pair in re.match(r"((?:[0-9a-n]{2} ?)+)", line)[1].split():  # type: ignore[index]
            pattern += b"(?s:.)" if pair == "nn" else re.escape(bytes.fromhex(pair))
    for path in GOLDEN:
        assert re.match(pattern, path.read_bytes())
    assert {path.name for path in GOLDEN} == set(re.findall(r"`(\S+\.ncap)`", text))
