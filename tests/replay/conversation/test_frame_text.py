"""Frames, and their differences, as people see them."""

from __future__ import annotations

import json
import uuid

from natsproxy.replay.conversation.frame_text import changed_lines, frame_text
from natsproxy.wire.ops import C2S, S2C
from natsproxy.wire.parse import frames


def lines(raw: bytes, direction: object = C2S) -> list[str]:
    (frame,) = frames(raw, direction)  # type: ignore[arg-type]
    return frame_text(frame)


def publish(**members: object) -> list[str]:
    body = json.dumps(members).encode()
    return lines(b"PUB orders.new _INBOX.%d.1 %d\r\n%b\r\n" % (len(body), len(body), body))


def test_a_frame_is_its_lines_and_an_inbox_its_template() -> None:
    assert lines(b"SUB a  1\r\n") == ["SUB a 1"]
    assert lines(b"-ERR 'no'\r\n", S2C) == ["-ERR 'no'"]
    assert lines(b"HPUB a _INBOX.x.y 20 22\r\nNATS/1.0\r\nKey: v\r\n\r\nhi\r\n") == [
        "HPUB a _INBOX.*.*",
        "  Key: v",
        "  | hi",
    ]


def test_of_json_the_members_that_differ_are_shown() -> None:
    common = {f"member{n}": "x" * 20 for n in range(9)}
    assert changed_lines(publish(qty=3, **common, unit="kg"), publish(qty=4, **common, unit="g")) == [
        "   json spaced {",
        '-    "qty": 3,',
        '+    "qty": 4,',
        '     "member0": "xxxxxxxxxxxxxxxxxxxx",',
        "  …",
        '     "member8": "xxxxxxxxxxxxxxxxxxxx",',
        '-    "unit": "kg"',
        '+    "unit": "g"',
        "   }",
    ]


def test_identifiers_and_times_may_be_alike() -> None:
    """Where the rest of the line is the same, and both have one form."""
    ours, theirs = (
        publish(
            id=f"order-{uuid.uuid4()}", at=f"2026-11-22T09:38:5{n}Z", note=note, qty=n, word="x" * (20 + n)
        )
        for n, note in ((1, "antidisestablishmentarianism"), (2, "antidisestablishmentarianist"))
    )
    assert [line for line in changed_lines(ours, theirs, alike=True) if line[0] in "-+"] == [
        '-    "note": "antidisestablishmentarianism",',
        '-    "qty": 1,',
        f'-    "word": "{"x" * 21}"',
        '+    "note": "antidisestablishmentarianist",',
        '+    "qty": 2,',
        f'+    "word": "{"x" * 22}"',
    ]


def test_long_lines_are_cut_around_the_difference() -> None:
    ours, theirs = (b"PUB x 900\r\n%b%b%b\r\n" % (b"a" * 500, one, b"b" * 399) for one in (b"x", b"y"))
    _, old, new = changed_lines(lines(ours), lines(theirs))
    assert old[0] == "-"
    assert new[0] == "+"
    assert "aaax" in old
    assert "aaay" in new
    assert len(old) < 130


def test_a_frame_alone_is_shown_with_its_sign_and_a_long_one_in_part() -> None:
    assert changed_lines([], lines(b"PUB x 1\r\ny\r\n")) == ["+PUB x", "+  | y"]
    body = b"\n".join(b"%d" % n for n in range(100))
    many = changed_lines(lines(b"PUB x %d\r\n%b\r\n" % (len(body), body)), [])
    assert many[-1] == "  and 77 lines more"
    assert len(many) == 25
