"""The plan: one of each class first, what tells most before the rest, the same parts in every run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproxy.sweep.faults import trials
from natsproxy.sweep.plan import about, class_of, only, planned, recovery, shard, without
from natsproxy.sweep.timers import Timers
from natsproxy.sweep.trial_facts import trial_key
from natsproxy.sweep.values import Place, Position

TIMERS = Timers(request=2.0)
KINDS = st.sampled_from(
    [
        ("c2s", "PUB", "orders.*"),
        ("c2s", "ack", "$JS.ACK.S.c.>"),
        ("s2c", "publish-ack", "orders.*"),
        ("s2c", "PONG", ""),
    ]
)


def place(
    what: str, n: int = 1, state: str = "", *, subject: str = "", connection: str = "app/1", of: str = ""
) -> Place:
    """Return a place; `what` decides its direction."""
    direction = "s2c" if what in ("publish-ack", "PONG", "MSG", "delivery", "INFO") else "c2s"
    return Place(Position(connection, direction, what, subject, n), state, of=of)


@st.composite
def _places(draw: st.DrawFn) -> list[Place]:
    found = {}
    for number in range(draw(st.integers(0, 12))):
        direction, what, subject = draw(KINDS)
        position = Position(f"app/{draw(st.integers(1, 2))}", direction, what, subject, number + 1)
        found[position] = Place(
            position, draw(st.sampled_from(["first", "between"])), by_clock=draw(st.booleans())
        )
    return list(found.values())


@given(_places(), st.integers(0, 5))
def test_a_plan_has_each_trial_once_and_one_of_each_class_first(places: list[Place], failures: int) -> None:
    made = trials(places, timers=TIMERS)
    failed = {trial_key(trial) for trial in made[-failures:]} if failures else set()
    plan = planned(made, failed)
    assert sorted(map(trial_key, plan.first + plan.others)) == sorted(map(trial_key, made))
    fresh = plan.first[len([trial for trial in made if trial_key(trial) in failed]) :]
    assert len({class_of(trial) for trial in fresh}) == len(fresh)
    assert {class_of(trial) for trial in plan.first} == {class_of(trial) for trial in made}
    assert {trial_key(trial) for trial in plan.first[: len(failed)]} == failed


@given(_places(), st.integers(1, 5))
def test_shards_are_a_partition_that_other_trials_do_not_change(places: list[Place], parts: int) -> None:
    made = trials(places, timers=TIMERS)
    shards = [shard(made, number, parts) for number in range(1, parts + 1)]
    assert sorted(trial_key(trial) for part in shards for trial in part) == sorted(map(trial_key, made))
    assert shard(made[1:], 1, parts) == [trial for trial in shards[0] if trial in made[1:]]


def test_a_shard_has_a_number_up_to_their_count() -> None:
    with pytest.raises(ValueError, match="not 5/4"):
        shard([], 5, 4)


def test_cuts_at_new_states_and_lost_acks_come_first() -> None:
    places = [
        place("PUB", 1, "first", subject="orders.*"),
        place("SUB", 1, "first", subject="orders.*"),
        place("PONG", 2, "last")._replace(by_clock=True),
        place("publish-ack", 1, "last", subject="orders.*"),
    ]
    first = planned(trials(places, ["cut", "drop", "late"], TIMERS)).first
    told = [(trial.fault, trial.place.position.what) for trial in first]
    assert told[:3] == [("cut", "PUB"), ("cut", "publish-ack"), ("drop", "publish-ack")]
    assert told[3:5] == [("cut", "SUB"), ("drop", "PUB")]
    assert told.index(("late-600ms", "PUB")) < told.index(("late-2500ms", "PUB"))
    assert {what for _, what in told[-2:]} == {"PONG"}


def test_places_of_a_class_follow_only_behind_all_classes() -> None:
    places = [place("PUB", n, "between", subject="orders.*") for n in (1, 2, 3)]
    plan = planned(trials(places, ["drop"]))
    assert [trial.place.position.n for trial in plan.first] == [1]
    assert [trial.place.position.n for trial in plan.others] == [2, 3]
    apart = [place("PUB", n, state, subject="orders.*") for n, state in ((1, "first"), (2, "last"))]
    assert planned(trials(apart, ["drop"])).others == []


def test_a_reset_is_tried_once_at_each_state() -> None:
    states = ("first, login", "last, login", "only, 1 subscribed, answers time.now", "last, 1 subscribed")
    places = [place(what, 1, state, subject="orders.*") for state in states for what in ("PUB", "SUB")]
    plan = planned(trials(places, ["reset"]))
    assert [trial.place.state for trial in plan.first] == [states[0], states[2]]
    assert len(planned(trials(places, ["cut"])).first) == 8
    heard = [place("MSG", n, states[n // 4], subject="orders.*")._replace(size=5) for n in range(8)]
    parts = [trial.fault for trial in planned(trials(heard, ["reset"])).first]
    assert parts == ["reset", "reset-payload", "reset-head"]


def test_what_failed_last_time_comes_before_all_classes() -> None:
    made = trials([place("PUB", n, "between", subject="orders.*") for n in (1, 2, 3)], ["drop"])
    plan = planned(made, {trial_key(made[2])})
    assert [trial.place.position.n for trial in plan.first] == [3, 1]


def test_trials_are_found_and_left_out_by_key() -> None:
    made = trials([place("PUB", n, subject="orders.*") for n in (1, 2)], ["drop"])
    keys = [trial_key(trial) for trial in made]
    assert len(set(keys)) == 2
    assert only(made, keys[:1]) == made[:1]
    assert without(made, keys[:1]) == made[1:]


def test_a_subject_chooses_its_messages_their_acks_and_their_consumers() -> None:
    mine = [
        place("PUB", subject="orders.*"),
        place("publish-ack", subject="orders.*"),
        place("delivery", subject="orders.new", of="ORDERS/worker"),
        place("ack", subject="$JS.ACK.ORDERS.worker.>", of="ORDERS/worker"),
        place("pull", subject="$JS.API.CONSUMER.MSG.NEXT.ORDERS.worker", of="ORDERS/worker"),
        place("MSG", subject="_INBOX.>", of="orders.get"),
    ]
    others = [
        place("PUB", subject="jobs.*"),
        place("ack", subject="$JS.ACK.JOBS.worker.>", of="JOBS/worker"),
        place("MSG", 2, subject="_INBOX.>", of="time.now"),
        place("PING"),
    ]
    assert about([*others, *mine], ["orders.>"]) == mine
    assert about([*others, *mine], []) == [*others, *mine]


def test_a_recovery_is_what_only_the_faulty_run_has() -> None:
    before, after = place("PUB"), place("PUB", connection="app/2")
    assert recovery([before, after], [before]) == [after]
