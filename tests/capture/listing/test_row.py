"""A viewer that has the JSON of frames shows the lines that one with the frames does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from natsproxy.capture.format.records import Flags, Frames
from natsproxy.capture.listing.choice import Choice, listed_frames
from natsproxy.capture.listing.listing import Listed
from natsproxy.capture.listing.row import from_row, json_line, row
from natsproxy.capture.read.frames import Query
from natsproxy.capture.read.reader import open_capture
from natsproxy.cli.frame_lines import FramePrinter
from natsproxy.wire.ops import C2S, S2C
from tests.kit.captures import MONO, Scribe, write

GOLDEN = sorted((Path(__file__).parents[3] / "recordings").glob("*.ncap"))


def lines(found: Iterator[Listed], payload: str, *, raw: bool) -> list[str]:
    """Return the lines of frames."""
    shown = FramePrinter(300, payload, raw=raw)
    return [line for one in found for line in shown.lines(one)]


def same(path: Path, choice: Choice) -> int:
    """Compare the lines of both ways; return their number."""
    count = 0
    for payload in ("line", "whole"):
        for raw in (False, True):
            straight = lines(listed_frames(open_capture(path), choice), payload, raw=raw)
            rows = (json.loads(json_line(one)) for one in listed_frames(open_capture(path), choice))
            assert lines((from_row(one) for one in rows), payload, raw=raw) == straight
            count += len(straight)
    return count


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
@pytest.mark.parametrize(
    "choice", [Choice(), Choice(Query(subjects=(b">",)), exchange=True)], ids=["all", "exchange"]
)
def test_real_conversations(path: Path, choice: Choice) -> None:
    assert same(path, choice) >= 20


def test_frames_that_are_odd(tmp_path: Path) -> None:
    """Bytes that are no text, headers that come again, payloads that were not kept, frames without an end."""
    scribe = Scribe()
    scribe.frame(0, 1, C2S, b"PUB a.\xff 4\r\n\x00\xff\x01\x02\r\n")
    scribe.frame(1, 1, C2S, b"HPUB a 30 32\r\nNATS/1.0\r\nA: 1\r\nA: 2\r\nB: \xff\r\n\r\n{}\r\n")
    scribe.frame(2, 1, S2C, b"HMSG a 1 28 28\r\nNATS/1.0 404 No Messages\r\n\r\n\r\n")
    scribe.frame(3, 1, C2S, b"SUB a.* q 1\r\n")
    scribe.frame(4, 1, C2S, b"UNSUB 1 5\r\n")
    at = MONO + 5
    whole = Frames(1, C2S, b"PUB kept.not 5\r\n", 1, 0, 9, at, 9, at)
    scribe.items.append(whole._replace(flags=Flags.PAYLOAD, extra={"policy": "drop"}))
    scribe.items.append(whole._replace(data=b"PUB a.b", flags=Flags.CUT))
    assert same(write(tmp_path / "x.ncap", scribe.items), Choice()) > 20


def test_the_beginning_of_a_payload_is_shown(tmp_path: Path) -> None:
    scribe = Scribe()
    scribe.frame(0, 1, C2S, b"PUB a 10\r\n0123456789\r\n")
    (one,) = listed_frames(open_capture(write(tmp_path / "x.ncap", scribe.items)), Choice())
    cut = {**row(one), "payload": "0123", "payload_cut": True}
    (_, line) = lines(iter([from_row(cut)]), "line", raw=False)
    assert click.unstyle(line).endswith("→ PUB     a  10B  0123")


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"direction": "up"},
        {"op": "NONE"},
        {"conn": None, "recorder": "x"},
        {"request": 5},
        {"subject": 5},
    ],
)
def test_what_is_no_frame(tmp_path: Path, wrong: dict[str, Any]) -> None:
    scribe = Scribe()
    scribe.frame(0, 1, C2S, b"PUB a 0\r\n\r\n")
    (one,) = listed_frames(open_capture(write(tmp_path / "x.ncap", scribe.items)), Choice())
    with pytest.raises(ValueError, match=r"frame|hex"):
        from_row({**row(one), **wrong} if wrong else {})
