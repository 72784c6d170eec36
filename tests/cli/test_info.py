"""`capture info`: bounded, and quick on folders of many segments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from natsproxy.capture.columns import counts
from natsproxy.capture.format.records import CloseRecord, Item, OpenRecord, Preamble
from natsproxy.capture.read.segment import BlockRef, CaptureFile
from natsproxy.cli import info, main
from natsproxy.wire.ops import C2S
from tests.kit.captures import MONO, Scribe, write
from tests.kit.traffic import minutes

SEGMENTS = 30
FRAMES = 16


def run(path: Path, *words: str) -> str:
    """Return what the command prints."""
    done = CliRunner().invoke(main, ["capture", "info", str(path), *words])
    assert done.exit_code == 0, done.output
    return done.output


def facts(path: Path, *words: str) -> dict[str, Any]:
    """Return its JSON."""
    found = json.loads(run(path, "--json", *words))
    assert isinstance(found, dict)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of segments with a block each."""
    return minutes(tmp_path / "captures", SEGMENTS, FRAMES)


def test_top_is_for_connections_too(tmp_path: Path) -> None:
    """Those with the most frames; the number of all is told."""
    scribe = Scribe()
    for conn in range(1, 40):
        scribe.items.append(OpenRecord(conn, MONO, {"client": f"h:{conn}"}))
        for n in range(conn):
            scribe.frame(n, conn, C2S, b"PUB %s 0\r\n\r\n" % (b"a" * conn))
        scribe.items.append(CloseRecord(conn, MONO, "client-closed", {}))
    path = write(tmp_path / "x.ncap", scribe.items)
    found = facts(path, "--top", "3")
    assert [row["conn"] for row in found["connections"]] == [39, 38, 37]
    most = found["connections"][0]
    assert (most["frames"], most["client"], most["end"]) == (39, "h:39", "client-closed")
    assert found["connection_count"] == 39
    assert len(found["subjects"]) == 3
    assert "connections: 3 of 39" in run(path, "--top", "3")
    assert facts(path, "--top", "0")["connections"] == []


def test_a_large_capture_is_counted_in_part(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few blocks are read; frames and times are exact, and the rest says of how much it is."""
    size = sum(file.stat().st_size for file in folder.iterdir())
    whole = facts(folder)
    monkeypatch.setattr(info, "_READ", size // 10)
    read: list[BlockRef] = []
    body = CaptureFile.body

    def noted(file: CaptureFile, ref: BlockRef) -> bytes:
        read.append(ref)
        return body(file, ref)

    monkeypatch.setattr(CaptureFile, "body", noted)
    part = facts(folder)
    assert len({ref.segment.number for ref in read}) == 2
    exact = ("segments", "from", "seconds", "frames", "file_bytes", "closed")
    assert [part[name] for name in exact] == [whole[name] for name in exact]
    assert (part["frames"], part["segments"]) == (SEGMENTS * FRAMES, SEGMENTS)
    assert (whole["counted"], whole["ops"]) == ("1/1", {"PUB": SEGMENTS * FRAMES})
    assert (part["counted"], part["ops"]) == ("1/11", {"PUB": 2 * FRAMES})
    assert "counted in 1 of 11 blocks (--exact counts all):" in run(folder)
    assert facts(folder, "--exact") == whole


def test_recorders_number_their_connections_alone(tmp_path: Path) -> None:
    """The first connection of two recorders is two; preambles name those that were open before."""
    named = {"connect": b'CONNECT {"name":"shop"}\r\n', "open": {"client": "h:1"}}
    (tmp_path / "captures").mkdir()
    for name, told in (("a", named), ("b", {"connect": b"nonsense", "open": 3})):
        items: list[Item] = [Preamble(1, MONO, told)]
        write(tmp_path / "captures" / f"{name}.ncap", items)
    rows = facts(tmp_path / "captures")["connections"]
    # Both begin at the same time: their random ids order them.
    known = {(row["conn"], row.get("client"), row.get("name")) for row in rows}
    assert known == {(1, "h:1", "shop"), (1, None, None)}
    assert len({row["recorder"] for row in rows}) == 2


@pytest.mark.parametrize("compiled", [True, False])
def test_a_connect_without_arguments_has_no_name(
    tmp_path: Path, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr(counts, "decoder", None)
    scribe = Scribe()
    scribe.frame(0, 1, C2S, b"CONNECT\r\n")
    (row,) = facts(write(tmp_path / "x.ncap", scribe.items))["connections"]
    assert (row["name"], row["frames"]) == ("", 1)
