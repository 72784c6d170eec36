"""Exchanges that have happened, kept in bounded memory."""

from __future__ import annotations

import pytest

from natsproxy.replay.conversation.exchanges import RecordedExchange
from natsproxy.replay.conversation.frame_kind import FrameKind
from natsproxy.replay.server_playback import played
from natsproxy.replay.server_playback.played import PlayedPoll, PlayedPolls, RecentExchanges
from natsproxy.wire.ops import C2S, S2C
from natsproxy.wire.parse import frames
from tests.replay.scripted import named


def publish(seq: int) -> RecordedExchange:
    """A publish of 100,000 bytes."""
    (frame,) = frames(b"PUB s 100000\r\n%b\r\n" % bytes(100_000), C2S)
    return RecordedExchange(seq, named(1), 0, frame)


def ask(subject: str, seq: int = 0) -> PlayedPoll:
    """A request for information whose answer has 100,000 bytes."""
    (frame,) = frames(b"PUB $JS.API.DIRECT.GET.%b i 0\r\n\r\n" % subject.encode(), C2S)
    (answer,) = frames(b"MSG i 1 100000\r\n%b\r\n" % bytes(100_000), S2C)
    return PlayedPoll(RecordedExchange(seq, named(1), 0, frame, FrameKind.READ), [answer])


def test_the_last_exchanges_stay_up_to_a_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(played, "_RECENT_BYTES", 1 << 20)
    used = RecentExchanges()
    for seq in range(30):
        used.add(publish(seq))
    assert [one.seq for one in used] == list(range(20, 30))
    used.give_back(used[-1])
    used.add(publish(30))
    assert [one.seq for one in used] == [*range(20, 29), 30]
    used.give_back(publish(0))  # one that was forgotten before


def test_the_newest_exchange_stays_whatever_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(played, "_RECENT_BYTES", 1)
    monkeypatch.setattr(played, "_POLL_BYTES", 1)
    used, polls, one = RecentExchanges(), PlayedPolls(), ask("s")
    used.add(one.exchange)
    polls.add(one)
    assert list(used) == [one.exchange]
    assert list(polls.of(named(1), one.exchange.key)) == [one]


def test_polls_of_the_keys_that_were_not_used_for_longest_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(played, "_POLL_BYTES", 1 << 20)
    polls = PlayedPolls()
    made = [ask(f"s{n}") for n in range(10)]
    for one in (*made, made[0], ask("new")):
        polls.add(one)
    assert [bool(polls.of(named(1), one.exchange.key)) for one in made] == [True, False, False, *[True] * 7]
    assert all(polls.asked(named(1), one.exchange.key) for one in made)
    assert not polls.asked(named(2), made[0].exchange.key)


def test_the_last_polls_of_a_key_stay_the_newest_first() -> None:
    polls = PlayedPolls()
    made = [ask("s", seq) for seq in range(20)]
    for one in made:
        polls.add(one)
    assert polls.of(named(1), made[0].exchange.key) == tuple(made[:11:-1])
    polls.give_back(made[19].exchange)
    assert polls.of(named(1), made[0].exchange.key) == tuple(made[18:11:-1])
