"""Exchanges that have happened, kept in bounded memory."""

from __future__ import annotations

import pytest

from natsproxy.replay.conversation import past
from natsproxy.replay.conversation.exchanges import RecordedExchange
from natsproxy.replay.conversation.frame_kind import FrameKind
from natsproxy.replay.conversation.past import PastPolls, Used
from natsproxy.wire.ops import C2S, S2C
from natsproxy.wire.parse import frames
from tests.replay.scripted import named


def ask(subject: str, seq: int = 0) -> RecordedExchange:
    """A request for information whose answer has 100,000 bytes."""
    (frame,) = frames(b"PUB $JS.API.DIRECT.GET.%b i 0\r\n\r\n" % subject.encode(), C2S)
    (answer,) = frames(b"MSG i 1 100000\r\n%b\r\n" % bytes(100_000), S2C)
    return RecordedExchange(seq, named(1), 0, frame, FrameKind.READ, answers=[answer])


def test_the_last_exchanges_stay_up_to_a_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past, "_USED_BYTES", 1 << 20)
    used = Used()
    for seq in range(30):
        used.add(ask("s", seq))
    assert [one.seq for one in used] == list(range(20, 30))
    used.give_back(used[-1])
    used.add(ask("s", 30))
    assert [one.seq for one in used] == [*range(20, 29), 30]
    used.give_back(ask("s", 0))  # one that was forgotten before


def test_the_newest_exchange_stays_whatever_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past, "_USED_BYTES", 1)
    monkeypatch.setattr(past, "_POLL_BYTES", 1)
    used, polls, one = Used(), PastPolls(), ask("s")
    used.add(one)
    polls.add(one)
    assert list(used) == list(polls.of(named(1), one.key)) == [one]


def test_polls_of_the_keys_that_were_not_used_for_longest_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past, "_POLL_BYTES", 1 << 20)
    polls = PastPolls()
    made = [ask(f"s{n}") for n in range(10)]
    for one in (*made, made[0], ask("new")):
        polls.add(one)
    assert [bool(polls.of(named(1), one.key)) for one in made] == [True, False, False, *[True] * 7]
    assert all(polls.asked(named(1), one.key) for one in made)
    assert not polls.asked(named(2), made[0].key)


def test_the_last_polls_of_a_key_stay_the_newest_first() -> None:
    polls = PastPolls()
    made = [ask("s", seq) for seq in range(20)]
    for one in made:
        polls.add(one)
    assert polls.of(named(1), made[0].key) == tuple(made[:11:-1])
    polls.give_back(made[19])
    assert polls.of(named(1), made[0].key) == tuple(made[18:11:-1])
