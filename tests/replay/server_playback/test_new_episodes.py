"""New episodes are collected under the names of the recording."""

from __future__ import annotations

import pytest

from natsproxy.errors import CaptureError
from natsproxy.replay.server_playback.new_episodes import Addition, NewEpisodes
from natsproxy.replay.server_playback.playback import ServerPlayback
from natsproxy.wire.ops import C2S, S2C
from natsproxy.wire.parse import frames
from tests.replay.scripted import MS, Line, connect, events, hello

A, B = b"A" * 21 + b"1", b"B" * 21 + b"2"  # nuids, recorded and live
REQUEST: list[Line] = [
    *hello(1, "a"),
    (1, ">", b"SUB _INBOX.%b.* 1\r\nPUB ask _INBOX.%b.t1 1\r\n?\r\n" % (A, A)),
    (1, "<", b"MSG _INBOX.%b.t1 1 2\r\n42\r\n" % A),
]


def machine(lines: list[Line]) -> ServerPlayback:
    return ServerPlayback(events(lines), unrecorded="record")


def say(played: ServerPlayback, live: int, data: bytes, now: int = 0) -> None:
    played.received(live, list(frames(data, C2S)), now)


def additions(played: ServerPlayback) -> list[Addition]:
    assert played.new_episodes is not None
    return played.new_episodes.additions


def test_a_new_request_and_its_answer_are_on_the_recorded_inbox_and_sid() -> None:
    played = machine(REQUEST)
    played.opened(1, ("127.0.0.1", 1))
    say(played, 1, connect("a") + b"SUB _INBOX.%b.* 9\r\n" % B, 3 * MS)
    say(played, 1, b"PUB other _INBOX.%b.xx 0\r\n\r\n" % B, 5 * MS)
    (answer,) = frames(b"MSG _INBOX.%b.xx 9 2\r\nok\r\n" % B, S2C)
    (sent,) = played.answered(1, answer, 6 * MS)
    assert sent.data == answer.raw  # type: ignore[union-attr]
    assert additions(played) == [
        Addition(1, C2S, b"PUB other _INBOX.%b.xx 0\r\n\r\n" % A, 4, 2 * MS),
        Addition(1, S2C, b"MSG _INBOX.%b.xx 1 2\r\nok\r\n" % A, 4, 3 * MS),
    ]
    assert played.mismatches == []


def test_a_new_subscription_gets_a_sid_that_the_recording_does_not_use() -> None:
    played = machine(REQUEST)
    played.opened(1, ("127.0.0.1", 1))
    say(played, 1, connect("a") + b"SUB _INBOX.%b.* 9\r\nSUB more q 1\r\nUNSUB 1 3\r\nUNSUB 9\r\n" % B, 1)
    assert [a.data for a in additions(played)] == [b"SUB more q 2\r\n", b"UNSUB 2 3\r\n"]


def test_a_new_client_is_added_from_its_connect_to_its_end() -> None:
    played = machine([*hello(1, "a"), (1, ">", b"SUB a 1\r\n")])
    played.opened(1, ("127.0.0.1", 1))
    say(played, 1, connect("stranger") + b"PUB x 0\r\n\r\n", 1)
    played.closed(1, 4)
    kinds = [(a.conn, a.direction.label, a.data[:4], a.after, a.delay) for a in additions(played)]
    assert kinds == [
        (-1, "s2c", b"INFO", -1, 0),
        (-1, "c2s", b"CONN", -1, 0),
        (-1, "c2s", b"PUB ", -1, 0),
        (-1, "c2s", b"", -1, 3),
    ]


def test_additions_are_bounded() -> None:
    played = machine(REQUEST)
    assert played._live is not None
    played._live.new_episodes = NewEpisodes(played.progress, played.identifiers, limit=1000)
    played.opened(1, ("127.0.0.1", 1))
    with pytest.raises(CaptureError, match="of new frames for one cassette: record it anew"):
        say(played, 1, connect("a") + b"PUB x 900\r\n%b\r\n" % (b"x" * 900))
