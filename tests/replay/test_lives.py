"""What joins a bulk of publishes, and how a missing need reads."""

from __future__ import annotations

from natsproxy.replay.lives import Bulk, Missing


def test_a_bulk_takes_publishes_of_its_time_up_to_its_size_and_subjects() -> None:
    bulk = Bulk(1, 5, [], {b"a"})
    assert bulk.takes(5, b"b")
    assert not bulk.takes(6, b"a")
    bulk.subjects |= {b"%d" % n for n in range(20)}
    assert bulk.takes(5, b"a")
    assert not bulk.takes(5, b"new")
    bulk.size = 1 << 20
    assert not bulk.takes(5, b"a")


def test_what_is_missing_is_a_sentence() -> None:
    assert str(Missing(3, "PUB a", "a PONG")) == "connection 3: PUB a waited in vain for a PONG"
