"""Commands take as much memory for a large capture as for a small one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.peak_memory import peak, start
from tests.kit.traffic import traffic

COMMANDS = [
    ["verify"],
    ["info"],
    ["cat"],
    ["export", "--jsonl", "-"],
    ["export", "--pcapng", "-"],
    ["export", "--parquet", "-"],
]


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two captures, of about 60 and 300 MB."""
    folder = tmp_path_factory.mktemp("large")
    return traffic(folder / "60.ncap", 15_000, size=4_000), traffic(folder / "300.ncap", 75_000, size=4_000)


@pytest.mark.long
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_memory_does_not_follow_the_capture(captures: tuple[Path, Path], command: list[str]) -> None:
    """Five times as much to read is not a quarter of the difference more to keep."""
    if "--parquet" in command:
        pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'natsproxy[spark]'")
    small, large = captures
    more = large.stat().st_size - small.stat().st_size
    assert more > 200e6
    least, most = (peak(start("capture", command[0], one, *command[1:])) for one in captures)
    assert most - least < more / 4
