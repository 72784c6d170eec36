"""`natsproxy capture diff`: exit codes 0, 1, 2; a table or JSON."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

from natsproxy.capture.format.records import GapRecord
from natsproxy.capture.write.builder import BlockBuilder
from natsproxy.capture.write.writer import CaptureWriter, SegmentInfo
from natsproxy.cli import main
from tests.replay.scripted import hello, write


def diff(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["capture", "diff", *map(str, arguments)])


def pair(tmp_path: Path, ours: bytes, theirs: bytes) -> tuple[Path, Path]:
    return (
        write(tmp_path / "a.ncap", [*hello(1, "a"), (1, ">", ours)]),
        write(tmp_path / "b.ncap", [*hello(1, "a"), (1, ">", theirs)]),
    )


def test_the_same_is_0(tmp_path: Path) -> None:
    done = diff(*pair(tmp_path, b"PUB a 1\r\nx\r\n", b"PUB a 1\r\nx\r\n"))
    assert (done.exit_code, done.output) == (0, "the same: 1 subjects compared\n")


def test_a_difference_is_1_and_shown(tmp_path: Path) -> None:
    done = diff(*pair(tmp_path, b"PUB a 1\r\nx\r\n", b"PUB a 1\r\ny\r\n"))
    assert done.exit_code == 1
    assert "a: body differs" in done.output
    assert "-1 +1" in done.output
    assert "1 of 1 subjects differ" in done.output


def test_frames_of_one_side_only_are_shown_as_such(tmp_path: Path) -> None:
    ours, theirs = pair(tmp_path, b"SUB a 1\r\n", b"PUB b 1\r\ny\r\n")
    done = diff(ours, theirs)
    assert "a: only recorded" in done.output
    assert "b: only observed" in done.output


def test_json_is_one_object(tmp_path: Path) -> None:
    both = pair(tmp_path, b'PUB a 8\r\n{"ts":1}\r\n', b'PUB a 8\r\n{"ts":2}\r\n')
    assert json.loads(diff(*both, "--json").output)["same"] is False
    assert json.loads(diff(*both, "--json", "--ignore-json", "/ts").output)["same"] is True


def test_a_missing_file_is_2(tmp_path: Path) -> None:
    done = diff(tmp_path / "no.ncap", tmp_path / "no.ncap")
    assert done.exit_code == 2
    assert "no such file" in done.output


def test_gaps_are_reported(tmp_path: Path) -> None:
    ours, theirs = write(tmp_path / "a.ncap", hello(1, "a")), tmp_path / "b.ncap"
    writer, builder = CaptureWriter(theirs, SegmentInfo(b"r" * 16, b"b" * 16, 0, 0)), BlockBuilder()
    builder.begin(0, 0)
    builder.add(GapRecord(None, 0, {"reason": "the disk did not keep up"}))
    writer.open_segment()
    writer.write(builder.seal())
    writer.close()
    assert "observed: 1 gaps" in diff(ours, theirs).output
    assert json.loads(diff(theirs, ours, "--json").output)["recorded_gaps"] == 1
