"""Binding chooses the recorded connection that a live client plays."""

from __future__ import annotations

from natsproxy.protocol.connect import Connect
from natsproxy.replay.conversation.identifier_map import IdentifierMap
from natsproxy.replay.conversation.matching import Matcher
from natsproxy.replay.conversation.recorded_conversation import RecordedConversation
from natsproxy.replay.server_playback.binding import Binder, Client
from natsproxy.wire.ops import C2S
from natsproxy.wire.parse import frames
from tests.replay.scripted import Line, events, hello

TWO: list[Line] = [
    *hello(1, "a"),
    *hello(2, "a"),
    *hello(3, "b"),
    (1, ">", b"SUB x 1\r\nPUB one 0\r\n\r\n"),
    (2, ">", b"SUB x 1\r\nPUB two 0\r\n\r\n"),
    (3, ">", b"PUB three 0\r\n\r\n"),
]


def bound(name: str, sent: bytes, lines: list[Line] = TWO) -> int | None:
    conversation = RecordedConversation(events(lines))
    conversation.fill()
    client = Client(7, Connect(name=name), held=list(frames(sent, C2S)))
    Binder(conversation, Matcher(IdentifierMap())).bind(client)
    if client.recorded is None:
        return None
    assert client.recorded.client_id == 7
    return client.recorded.conn


def test_the_name_counts_first_then_the_best_fit_then_the_earliest() -> None:
    assert bound("a", b"SUB x 4\r\n") == 1
    assert bound("a", b"SUB x 4\r\nPUB two 0\r\n\r\n") == 2
    assert bound("b", b"PUB two 0\r\n\r\n") == 3
    assert bound("a", b"PUB nothing 0\r\n\r\n") == 1


def test_an_unknown_client_name_needs_a_matching_conversation() -> None:
    assert bound("c", b"PUB three 0\r\n\r\n") == 3
    assert bound("c", b"PUB nothing 0\r\n\r\n") is None
