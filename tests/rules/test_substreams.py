"""Deliveries meet the same random numbers in whatever order a server sends them to several subscriptions."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from natsproxy.rules.model.seeded_random import SUBSTREAMS, SeededRandom, Substreams, substream_of
from natsproxy.wire.ops import S2C
from tests.rules.kit import Wire

NUID = b"Xq3hT0aB5cD7eF9gH1iJ2k"
CHAOS = """
[[rules]]
name = "lossy"
kind = "drop"
direction = "s2c"
probability = 0.4

[[rules]]
name = "rot"
kind = "corrupt"
direction = "s2c"
subject = ["a.>", "_INBOX.>"]
probability = 0.5

[[rules]]
name = "slow"
kind = "latency"
direction = "s2c"
delay = { distribution = "uniform", min = "1ms", max = "1s" }
"""
SUBS = {"1": ">", "2": "a.*", "3": "a.b", "4": "*.b"}
SIDS_BY_SUBJECT = {"a.b": "1234", "a.1": "12", "z.b": "14"}
Fate = tuple[tuple[bytes, ...] | None, int | None]


def fates(seed: int, order: list[tuple[str, str, int]]) -> dict[tuple[str, str, int], Fate]:
    """Return the fates of deliveries: (subject, sid, number) in the order given."""
    wire = Wire(CHAOS, seed=seed)
    for sid, subject in SUBS.items():
        wire.c2s(f"SUB {subject} {sid}")
    found = {}
    for subject, sid, number in order:
        decision = wire.decide(S2C, f"MSG {subject} {sid} 4\n{number:04}")
        found[subject, sid, number] = (decision.out, decision.until) if decision else (None, None)
    return found


@given(st.integers(0, 99), st.integers(0, 1 << 30))
def test_the_order_of_fan_out_changes_nothing(seed: int, shuffle: int) -> None:
    seeded = random.Random(shuffle)
    plain = [
        (subject, sid, n) for subject, sids in SIDS_BY_SUBJECT.items() for n in range(12) for sid in sids
    ]
    order = []
    subjects = [subject for subject in SIDS_BY_SUBJECT for _ in range(12)]
    numbers = dict.fromkeys(SIDS_BY_SUBJECT, 0)
    for subject in seeded.sample(subjects, len(subjects)):
        sids = SIDS_BY_SUBJECT[subject]  # of one message, subscriptions come in any order
        order += [(subject, sid, numbers[subject]) for sid in seeded.sample(sids, len(sids))]
        numbers[subject] += 1
    before, after = fates(seed, plain), fates(seed, order)
    assert before == after
    dropped = [where for where, (out, _) in before.items() if out == ()]
    assert 10 < len(dropped) < len(plain) - 10
    assert len({until for _, until in before.values()}) > 10


def test_subscriptions_of_one_subject_have_random_numbers_of_their_own() -> None:
    found = fates(7, [("a.b", sid, n) for n in range(20) for sid in "1234"])
    by_sid = [tuple(found["a.b", sid, n][0] == () for n in range(20)) for sid in "1234"]
    assert len(set(by_sid)) == 4


def test_inboxes_of_another_run_have_the_same_random_numbers() -> None:
    other = NUID[::-1]
    names = {
        substream_of(b"_INBOX.%s.%s" % (nuid, nuid[:8]), b"_INBOX.%s.*" % nuid) for nuid in (NUID, other)
    }
    assert names == {b"_INBOX.*"}
    assert substream_of(b"mine.%s.1" % NUID, b"") == b"mine.*"
    pushed = {substream_of(b"orders.1", b"_INBOX.%s" % nuid) for nuid in (NUID, other)}
    assert pushed == {b"orders.1 _INBOX.*"}


def test_substreams_are_bounded_and_the_oldest_begins_anew() -> None:
    substreams, seeded = Substreams(), SeededRandom(1, "r", "k", S2C)

    def m(subject: bytes) -> int:
        return substreams.draws(seeded, subject, b">").m

    assert [m(b"kept"), m(b"kept"), m(b"kept")] == [1, 2, 3]
    for number in range(SUBSTREAMS - 1):
        m(b"%d" % number)
    assert m(b"kept") == 4
    m(b"one more")
    assert len(substreams) == SUBSTREAMS
    assert m(b"kept") == 5
    assert m(b"0") == 1


def test_inboxes_are_counted_together() -> None:
    substreams, seeded = Substreams(), SeededRandom(1, "r", "k", S2C)
    rolls = [substreams.draws(seeded, b"_INBOX.%s.%d" % (NUID, n), b"_INBOX.%s.*" % NUID) for n in range(3)]
    assert [draws.m for draws in rolls] == [1, 2, 3]
    assert {draws.numbers.digest for draws in rolls} == {seeded.substream(b"_INBOX.*").digest}
    long = b"a" * 4000
    assert [substreams.draws(seeded, long, b">").m for _ in range(2)] == [1, 2]
