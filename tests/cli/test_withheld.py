"""Commands show frames whose payloads were not kept as such."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from natsproxy.capture.filter.recording_filter import PayloadPolicy, RecordingFilter, Selection
from natsproxy.capture.format.records import Frames
from natsproxy.cli import main
from natsproxy.wire.ops import C2S, Op
from tests.kit.captures import write


@pytest.mark.parametrize(
    ("action", "kept"),
    [
        ("hash", "payload not kept"),
        ("drop", "payload not kept"),
        ("truncate:3", "3 of 12 bytes of the payload kept"),
    ],
)
def test_op_subject_and_size_are_there(action: str, kept: str, tmp_path: Path) -> None:
    recording_filter = RecordingFilter(Selection(payloads=(PayloadPolicy.parse(f">={action}"),)))
    raw = b"HPUB orders.eu reply.x 18 30\r\nNATS/1.0\r\nA: b\r\n\r\nhello, world\r\n"
    whole = Frames(1, C2S, raw, 1, Op.HPUB.bit, 0, 1, 0, 1)
    path = write(tmp_path / "x.ncap", recording_filter.apply(whole))

    command = ["capture", "cat", str(path)]
    line = CliRunner().invoke(main, command, env={"COLUMNS": None}, color=False).output
    row = json.loads(CliRunner().invoke(main, ["capture", "cat", str(path), "--json"]).output)
    info = json.loads(CliRunner().invoke(main, ["capture", "info", str(path), "--json"]).output)

    assert f"HPUB    orders.eu  reply reply.x  30B  [{kept}]" in line
    assert (row["op"], row["subject"], row["size"]) == ("HPUB", "orders.eu", 30)
    assert row["headers"] == {"A": "b"}
    assert "payload" not in row
    assert info["subjects"] == [["orders.eu", 1]]
    assert info["ops"] == {"HPUB": 1}
