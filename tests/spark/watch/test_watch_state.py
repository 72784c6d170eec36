"""The ledger of a watch: nothing that has come is forgotten, whenever the watch is killed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="the tables need pyspark: pip install 'natsproxy[spark]'")

from natsproxy.spark.tables import TABLES
from natsproxy.spark.watch.compaction import due
from natsproxy.spark.watch.refresh import SHARE, Throttle
from natsproxy.spark.watch.watch_state import (
    HOUR,
    HOURLY,
    SOURCES,
    Part,
    Run,
    WatchState,
    Whole,
    needs,
    spans,
)

MINUTE = HOUR // 60
WANTED = ("frames", "requests", "gaps", "connections")


def run(first: int, last: int | None = None, level: int = 0, size: int = 10, t0: int = 0, t1: int = 0) -> Run:
    last = first if last is None else last
    return Run(first, last, f"frames/{first}-{last}", level, size, last - first + 1, t0, t1)


def part(hour: int, first: int, last: int) -> Part:
    """Return a part whose times are minutes of the hour."""
    return Part(hour, hour * HOUR + first * MINUTE, hour * HOUR + last * MINUTE)


def take(state: WatchState, source: str, *parts: Part) -> None:
    """Let a batch come."""
    state.version += 1
    batch = state.taken[source] + 1
    one = run(batch, t0=min(part.first for part in parts), t1=max(part.last for part in parts))
    state.add(source, batch, one, parts, MINUTE)


_STEP = st.one_of(
    st.tuples(st.sampled_from(SOURCES), st.integers(0, 5), st.integers(0, 59)),
    st.tuples(st.sampled_from(["write", "ahead", "late", "kill"]), st.just(0), st.integers(0, 1)),
)


@settings(max_examples=100, deadline=None)
@given(steps=st.lists(_STEP, max_size=40))
def test_what_has_come_is_stale_until_it_is_written(steps: list[tuple[str, int, int]]) -> None:
    """Written as of a moment, killed at any: a model that knows which batches each hour has seen."""
    state = WatchState()
    state.want(WANTED)
    came: dict[str, dict[int, int]] = {name: {} for name in ("requests", "gaps")}
    shown: dict[str, dict[int, int]] = {name: {} for name in came}
    for step, hour, minute in steps:
        if step in SOURCES:
            take(state, step, part(hour, minute, minute))
            for name in came:
                if step in needs(name):
                    came[name][hour] = state.version
        elif step == "kill":
            state = WatchState.from_json(state.to_json())
        elif step == "ahead":
            as_of, hours = state.version, state.open(MINUTE)
            for name in {name for tables in hours.values() for name in tables}:
                state.version += 1
                state.wrote_ahead(name, "x", [one for one, tables in hours.items() if name in tables], as_of)
                shown[name] |= dict.fromkeys(state.hours[name].ahead_of, as_of)
        else:
            for one, tables in (state.due if step == "write" else state.late)(MINUTE).items():
                as_of = state.version
                if minute:  # something comes while it is written
                    take(state, "frames", part(one, 3, 3))
                    came["requests"][one] = state.version
                for name in tables:
                    state.wrote(name, one, as_of)
                    shown[name][one] = as_of
        for name, table in state.hours.items():
            assert not table.done & table.ahead_of
            behind = {one for one, version in came[name].items() if shown[name].get(one, -1) < version}
            assert behind <= table.stale.keys()
            assert set(came[name]) <= table.stale.keys() | table.done | table.ahead_of
    rest = state.rest()
    for hour, tables in rest.items():
        for name in tables:
            state.wrote(name, hour, state.version)
    assert not state.rest()
    assert all(table.done >= set(came[name]) for name, table in state.hours.items())


def test_neighbours_that_look_at_a_frame_are_stale_too() -> None:
    """The hour before, of a frame in its look-ahead, and the one behind; only where there are frames."""
    state = WatchState()
    state.want(["requests"])
    take(state, "frames", part(1, 10, 10), part(2, 10, 10), part(3, 10, 10))
    for hour in (1, 2, 3):
        state.wrote("requests", hour, state.version)
    take(state, "frames", part(2, 5, 30))
    assert list(state.rest()) == [2]
    take(state, "frames", part(2, 0, 30))
    assert list(state.rest()) == [1, 2]
    take(state, "frames", part(3, 59, 59))
    assert list(state.rest()) == [1, 2, 3, 4]


def test_a_delayed_frame_may_be_the_only_one_of_its_hour() -> None:
    """It was received in the hour before; tables that are asked for later see it too."""
    state = WatchState()
    state.want(["errors"])
    take(state, "frames", part(1, 10, 59))
    assert list(state.rest()) == [1, 2]
    state.want(["requests"])
    assert list(state.rest()) == [1, 2]


def test_a_clock_that_is_ahead_closes_no_hours() -> None:
    """The hours of the other recorders go on."""
    state = WatchState()
    state.want(["requests"])
    parts = [part(1, 10, 10), part(1_000, 0, 0)]
    state.add("frames", 0, run(0, t0=parts[0].first, t1=parts[1].last), parts, MINUTE, HOUR + 11 * MINUTE)
    assert (state.newest, list(state.due(MINUTE))) == (HOUR + 11 * MINUTE, [])


def test_an_hour_that_is_replaced_does_not_count() -> None:
    """Killed before it is whole, it is due again."""
    state = WatchState()
    state.want(["requests"])
    take(state, "frames", part(1, 10, 10), part(2, 10, 10))
    state.wrote("requests", 1, state.version)
    take(state, "frames", part(1, 20, 20))
    assert (state.due(MINUTE), state.late(MINUTE)) == ({}, {1: ["requests"]})
    state.replace(1, ["requests"])
    state = WatchState.from_json(state.to_json())
    assert (state.due(MINUTE), state.late(MINUTE)) == ({1: ["requests"]}, {})


def test_an_hour_is_over_by_the_newest_frame() -> None:
    """Of any recorder, with the look-ahead; one that comes late is written again, not now."""
    state = WatchState()
    state.want(["requests"])
    take(state, "frames", part(1, 10, 10), part(2, 0, 0))
    assert (list(state.due(MINUTE)), list(state.open(MINUTE))) == ([], [1, 2])
    state.wrote_ahead("requests", "there", [1, 2], state.version)
    assert (state.due(MINUTE), state.open(MINUTE)) == ({}, {})
    take(state, "frames", part(2, 2, 2))
    # The first hour stands beside the table until it stands in it.
    assert (list(state.due(MINUTE)), list(state.open(MINUTE))) == ([1], [1, 2])
    state.wrote("requests", 1, state.version)
    assert state.hours["requests"].ahead_of == {2}
    take(state, "frames", part(1, 30, 30))
    assert (state.due(MINUTE), list(state.late(MINUTE))) == ({}, [1])


def test_tables_that_are_asked_for_later_are_of_everything() -> None:
    """And what is not asked for any more is forgotten."""
    state = WatchState()
    state.want(["requests", "connections"])
    take(state, "frames", part(1, 10, 10))
    state.wrote("requests", 1, state.version)
    state.whole["connections"] = Whole("connections/version=1", 3, state.version)
    assert state.behind(["connections"]) == []
    assert state.want(["requests", "errors"]) == ["connections"]
    assert state.rest() == {1: ["errors"]}
    take(state, "items", part(1, 10, 10))
    assert state.behind(["connections"]) == ["connections"]


def test_every_table_has_hours_or_none() -> None:
    """Those without are of whole connections."""
    assert set(TABLES) - HOURLY.keys() - {"frames"} == {"connections", "subscriptions", "liveness"}
    assert {name: needs(name) for name in ("requests", "gaps", "faults")} == {
        "requests": {"frames"},
        "gaps": {"items"},
        "faults": {"frames", "items"},
    }
    assert spans([5, 1, 2, 9, 3]) == [(1, 4), (5, 6), (9, 10)]


def test_small_runs_become_large_ones() -> None:
    """Few of each level are left; large ones are never written again; each row a few times at most."""
    state, written = WatchState(), 0
    for batch in range(1_000):
        size = 2_000 if batch in (300, 301) else 10
        state.add("frames", batch, run(batch, size=size), [], 0)
        while runs := due(state.runs["frames"], fan=4, full=1_000):
            first, last, size = runs[0].first, runs[-1].last, sum(one.bytes for one in runs)
            written += size
            merged = run(first, last, runs[0].level + 1, size)
            assert state.merge("frames", merged) == [one.place for one in runs]
    runs = state.runs["frames"]
    assert [(one.first, one.last) for one in runs] == sorted((one.first, one.last) for one in runs)
    assert sum(one.last - one.first + 1 for one in runs) == 1_000
    assert len(runs) < 30
    assert written < 5 * 10_000


def test_runs_are_found_by_time() -> None:
    """So that an hour reads its own files only."""
    state = WatchState()
    take(state, "frames", part(1, 0, 5))
    take(state, "frames", part(1, 5, 30))
    assert state.places("frames") == ["frames/0-0", "frames/1-1"]
    assert state.places("frames", HOUR + 6 * MINUTE, 2 * HOUR) == ["frames/1-1"]
    assert state.places("frames", 0, HOUR + MINUTE) == ["frames/0-0"]


def test_what_is_not_over_takes_a_part_of_the_time() -> None:
    """However long it takes."""
    now = 100.0
    throttle = Throttle(60, lambda: now)
    assert not throttle.due()
    now += 60
    assert throttle.due()
    with throttle.work():
        now += 1
    now += 59
    assert not throttle.due()
    now += 1
    assert throttle.due()
    with throttle.work():
        now += 100
    now += 100 * (SHARE - 1) - 1
    assert not throttle.due()
    now += 1
    assert throttle.due()
