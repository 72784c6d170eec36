"""Batches of publishes, and the text of a missing requirement."""

from __future__ import annotations

from natsproxy.replay.client_playback.batches import PlainBatch
from natsproxy.replay.client_playback.state import Missing, MissingList, QueuedBatch
from tests.replay.scripted import named


def publish(subject: bytes) -> PlainBatch:
    return PlainBatch(0, named(1), 5, b"PUB %b 1\r\nx\r\n" % subject, 1)


def test_a_bulk_takes_publishes_of_its_mark_and_time_up_to_its_size() -> None:
    bulk = QueuedBatch(1, 5, mark=3)
    assert bulk.takes(3, 5)
    assert bulk.takes(3, None)  # times do not count
    assert not bulk.takes(3, 6)
    assert not bulk.takes(4, 5)
    bulk.size = 1 << 20
    assert not bulk.takes(3, 5)


def test_a_bulk_knows_its_subjects_also_of_those_that_join_later() -> None:
    bulk = QueuedBatch(1, 5, mark=0)
    bulk.add(publish(b"a"))
    assert bulk.subjects == {b"a"}
    bulk.add(publish(b"b"))
    assert bulk.subjects == {b"a", b"b"}
    assert (bulk.frames, bulk.size) == (2, 24)


def test_a_missing_requirement_is_a_sentence() -> None:
    assert str(Missing(named(3), "PUB a", "a PONG")) == "connection 3: PUB a waited in vain for a PONG"


def test_the_first_waits_in_vain_stay_and_all_are_counted() -> None:
    """A capture of a million requests, played to a server where nobody answers."""
    one, all_ = MissingList(), MissingList()
    for n in range(1500):
        one.add(Missing(named(n), "PUB a", "a PONG"))
    all_.add(Missing(named(-1), "PUB a", "a PONG"))
    all_.join(one)
    all_.join(one)
    assert [missing.conn.number for missing in one] == list(range(1000))
    assert [missing.conn.number for missing in all_] == list(range(-1, 999))
    assert (one.total, all_.total) == (1500, 3001)
