"""Lines of hostile frames: everything is shown, nothing is executed, and no line is longer than it may be."""

from __future__ import annotations

import json
import re

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from natsproxy.capture.format.connection import ConnectionId
from natsproxy.capture.format.records import (
    CloseRecord,
    FiringRecord,
    GapRecord,
    Item,
    Note,
    OpaqueRecord,
    OpenRecord,
    Preamble,
)
from natsproxy.capture.listing.listing import Event, Listed, OpenRequest
from natsproxy.capture.listing.row import json_line
from natsproxy.capture.read.frames import CapturedFrame
from natsproxy.cli.frame_lines import FramePrinter
from natsproxy.cli.payload_lines import cut, one_line, whole
from natsproxy.wire import encode
from natsproxy.wire.ops import C2S, S2C, Direction
from natsproxy.wire.parse import frames
from tests.kit.captures import WALL

WIDTH = 70
EVIL = "\x1b]0;title\x07 \x1b[2J \u202egnp.exe\u2066 \u200b [bold]x[/bold] \x9b31m \ud7ff\U0010ffff \x7f\x00"
BODIES = [
    EVIL.encode(),
    b'{"a":"' + EVIL.replace("\x00", "").encode() + b'"}',
    '{"a":"\u202e\u001b"}'.encode(),
    b"\xff\xfe" * 20_000,
    b"[" * 100_000,
    b'{"a":' * 50 + b"1" + b"}" * 50,
    b"x" * 3_000_000,
    json.dumps([{"n": n} for n in range(20_000)]).encode(),
    "漢字".encode() * 1_000,
    b" " * 100_000,
    b"\n" * 10_000,
    "é".encode()[:1] + b"abc",
]

CONN = ConnectionId(b"r" * 16, 1, 1)


def listed(raw: bytes, direction: Direction, cause: str | None = None) -> Listed:
    """Return the frame of some bytes."""
    (frame,) = frames(raw, direction)
    one = CapturedFrame(CONN, direction, 0, WALL, 0, 0, 0, cause, 0, None, frame, raw)
    return Listed(one, "", None, False)


def is_safe(line: str) -> bool:
    """Tell whether a line has no control characters but those of the colours."""
    return all(part.isprintable() for part in re.split("\x1b\\[(?:0|1|2|3[1-4])m", line))


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_payloads(body: bytes) -> None:
    """On a line, and whole: as text or as hex, nothing is missing."""
    line = one_line(body, WIDTH)
    assert line.isprintable()
    assert cell_len(line) <= WIDTH
    lines = list(whole(body))
    assert all(line.isprintable() for line in lines)
    assert len("".join(lines)) >= len(body.decode("utf-8", "ignore").replace("\n", ""))


@pytest.mark.parametrize("payload", ["line", "whole", "none"])
@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_frames_with_them(body: bytes, payload: str) -> None:
    """In the payload, a header, the greeting, an error and a rule's name."""
    text = body[:3_000].replace(b"\r", b"").replace(b"\n", b"")
    name = text.replace(b" ", b"").replace(b"\t", b"") or b"x"
    block = b"NATS/1.0\r\nA: %s\r\n\r\n" % text
    known = [
        listed(encode.pub(b"a", body, headers=block), C2S, cause=text.decode("utf-8", "replace")),
        listed(encode.msg(b"_INBOX." + name, b"1", body, reply=name), S2C)._replace(
            request=OpenRequest(name, 0)
        ),
        listed(encode.connect(b'{"name":"%s"}' % text), C2S),
        listed(encode.info(b'{"version":"%s"}' % text), S2C),
        listed(encode.err(text), S2C),
    ]
    for width in (40, WIDTH, 200):
        for raw in (False, True):
            lines = FramePrinter(width, payload, raw=raw)
            for one in known:
                first, *below = [line for line in lines.lines(one) if not line.startswith("\x1b[2m2026-")]
                assert is_safe(first)
                assert cell_len(click.unstyle(first)) <= width
                assert all(map(is_safe, below))
                assert bool(below) <= (payload == "whole")
    for one in known:
        line = json_line(one)
        assert line.isprintable()
        assert json.loads(line)["op"]


@given(st.binary(max_size=300), st.integers(20, 200))
def test_any_bytes(body: bytes, width: int) -> None:
    """A line is as long as it may be; JSON has texts that every reader takes."""
    assert cell_len(one_line(body, width)) <= width
    assert all(line.isprintable() for line in whole(body))
    block = b"NATS/1.0" + body.replace(b"\r\n", b"") + b"\r\n\r\n"
    args = b'{"name":"' + body.replace(b"\r", b"").replace(b"\n", b"") + b'"}'
    for raw, direction in ((encode.pub(b"a", body, headers=block), C2S), (encode.connect(args), C2S)):
        one = listed(raw, direction)
        assert all(map(is_safe, FramePrinter(width, "whole", raw=True).lines(one)))
        json.dumps(json.loads(json_line(one)), ensure_ascii=False).encode()  # no half of a surrogate pair


@pytest.mark.parametrize(
    "item",
    [
        OpenRecord(1, 0, {"client": EVIL, "upstream": None}),
        OpenRecord(1, 0, {}),
        CloseRecord(1, 0, EVIL, {"detail": EVIL}),
        FiringRecord(1, 0, {"rule": EVIL, "ordinal": None, "action": 5}),
        GapRecord(None, 0, {"reason": EVIL, "frames": []}),
        Preamble(1, 0, {"open": EVIL}),
        OpaqueRecord(1, C2S, 0, 5),
        Note(0, {}),
    ],
    ids=lambda item: type(item).__name__,
)
def test_events(item: Item) -> None:
    assert all(map(is_safe, FramePrinter(WIDTH).lines(Event(item, WALL, CONN, EVIL))))
    assert all(map(is_safe, FramePrinter(200).lines(Event(item, -1, CONN, EVIL))))


@given(st.text(), st.integers(0, 30))
def test_a_cut_text_fits(text: str, cells: int) -> None:
    assert cell_len(cut(text, cells)) <= cells
    assert cell_len(text) > cells or cut(text, cells) == text
