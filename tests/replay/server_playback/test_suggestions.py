"""Previews of frames; the ranking is tested where mismatches are made."""

from __future__ import annotations

from natsproxy.replay.conversation.exchanges import RecordedConversation
from natsproxy.replay.conversation.identifier_map import IdentifierMap
from natsproxy.replay.conversation.matching import Matcher
from natsproxy.replay.server_playback.suggestions import preview, suggest
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S
from natsproxy.wire.parse import frames
from tests.replay.scripted import events, hello


def one(data: bytes) -> Frame:
    (frame,) = frames(data, C2S)
    return frame


def test_a_preview_is_one_short_line() -> None:
    assert preview(one(b"SUB a.b q 1\r\n")) == "SUB a.b queue q"
    assert preview(one(b"PUB a r 3\r\nx\ny\r\n")) == r"PUB a reply r 'x\ny'"
    assert preview(one(b"PUB a 100\r\n" + b"z" * 100 + b"\r\n")).endswith("... 100 B")


def test_the_nearest_differ_least() -> None:
    conversation = RecordedConversation(
        events(
            [
                *hello(1, "a"),
                (1, ">", b"PUB a.b 1\r\n1\r\nPUB a.c 1\r\n2\r\nPUB z 1\r\n2\r\nSUB a.b 1\r\n"),
            ]
        )
    )
    conversation.fill()
    found = suggest(one(b"PUB a.b 1\r\n2\r\n"), None, conversation, Matcher(IdentifierMap()))
    assert [
        (candidate.text, candidate.difference and candidate.difference.field, candidate.used)
        for candidate in found
    ] == [
        ("PUB a.b '1'", "body", False),
        ("PUB a.c '2'", "subject", False),
    ]
