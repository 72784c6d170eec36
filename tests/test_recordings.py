"""The golden captures are whole, readable and small, and begin as their README says."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import msgpack
import pytest

from natsproxy.capture.format.blocks import MAGIC, VERSION
from natsproxy.capture.format.records import FiringRecord, OpenRecord
from natsproxy.capture.read.frames import read_frames
from natsproxy.capture.read.reader import open_capture
from natsproxy.capture.read.recover import verify
from natsproxy.capture.read.segment import CaptureFile
from natsproxy.protocol.template import template
from natsproxy.wire.ops import Direction, Op

FOLDER = Path(__file__).parent.parent / "recordings"
GOLDEN = sorted(FOLDER.glob("*.ncap"))
VERSIONS = {"v1": [1, 0], "v1.1": [1, 1]}
SCENARIOS = sorted({path.stem.split("-")[0] for path in GOLDEN})
TIMED = (Op.PING, Op.PONG, Op.OK)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_each_is_whole_and_small(path: Path) -> None:
    """Closed, every checksum right, at most 200 KiB, and its frames parse."""
    assert path.stat().st_size <= 200 << 10
    assert verify(path).whole
    frames = list(read_frames(open_capture(path)))
    assert len(frames) > 8
    assert b"password" not in path.read_bytes()


@pytest.mark.parametrize("version", VERSIONS)
def test_denied_holds_both_firings(version: str) -> None:
    """The firings of its rules are in the capture."""
    firings = [
        item.info["rule"]
        for _, item in open_capture(FOLDER / f"denied-{version}.ncap").items()
        if isinstance(item, FiringRecord)
    ]
    assert firings == ["no-secrets", "no-telemetry"]


def test_every_version_is_here() -> None:
    """Each scenario in each version of the format, the newest included."""
    assert {path.stem for path in GOLDEN} == {
        f"{name}-{version}" for name in SCENARIOS for version in VERSIONS
    }
    assert list(VERSION) in VERSIONS.values()


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_a_version_has_its_fields(path: Path) -> None:
    """The header names the version; the server's view of a connection's address came with 1.1."""
    version = VERSIONS[path.stem.split("-")[1]]
    with CaptureFile(path) as file:
        block = file.block_at(len(MAGIC))
        assert block is not None
        assert msgpack.unpackb(file.read(block)[1])["version"] == version
    opened = [item.info for _, item in open_capture(path).items() if isinstance(item, OpenRecord)]
    assert opened
    assert {"upstream_local" in info for info in opened} == {version >= [1, 1]}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_scenario_reads_alike_in_all_versions(scenario: str) -> None:
    """The same frames, whatever the version that recorded them; signs of life come by the clock."""

    def frames(version: str) -> Counter[tuple[Direction, Op, bytes]]:
        heads = (
            (one.direction, one.head)
            for one in read_frames(open_capture(FOLDER / f"{scenario}-{version}.ncap"))
        )
        return Counter(
            (direction, head.op, template(head.subject))
            for direction, head in heads
            if head is not None and head.op not in TIMED
        )

    first, *others = map(frames, VERSIONS)
    assert all(other == first for other in others)


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
