"""The state of a watch: no batch is forgotten, whenever the watch is killed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="the tables need pyspark: pip install 'natsproxy[spark]'")

from natsproxy.spark.schema import SOURCES
from natsproxy.spark.storage.watch_state import BatchHour, BatchRange, WatchState, WholeTable, hour_spans
from natsproxy.spark.tables import TABLES
from natsproxy.spark.tables.hours import HOUR, HOURLY, needs

MINUTE = HOUR // 60
WANTED = ("frames", "requests", "gaps", "connections")


def batches(
    first: int, last: int | None = None, level: int = 0, size: int = 10, t0: int = 0, t1: int = 0
) -> BatchRange:
    """Return a range of batches in a folder."""
    last = first if last is None else last
    return BatchRange(first, last, f"frames/{first}-{last}", level, size, last - first + 1, t0, t1)


def rows_of(hour: int, first: int, last: int) -> BatchHour:
    """Return the rows of an hour; first, last: minutes."""
    return BatchHour(hour, hour * HOUR + first * MINUTE, hour * HOUR + last * MINUTE)


def take(state: WatchState, source: str, *hours: BatchHour) -> None:
    """Add a batch."""
    state.version += 1
    batch = state.taken[source] + 1
    one = batches(batch, t0=min(hour.first for hour in hours), t1=max(hour.last for hour in hours))
    state.add_batch(source, batch, one, hours, MINUTE)


_STEP = st.one_of(
    st.tuples(st.sampled_from(list(SOURCES)), st.integers(0, 5), st.integers(0, 59)),
    st.tuples(st.sampled_from(["write", "ahead", "late", "kill"]), st.just(0), st.integers(0, 1)),
)


@settings(max_examples=100, deadline=None)
@given(steps=st.lists(_STEP, max_size=40))
def test_hours_with_new_rows_are_stale_until_written(steps: list[tuple[str, int, int]]) -> None:
    """Written as of a moment, killed at any: a model that knows which batches each hour has seen."""
    state = WatchState()
    state.select_tables(WANTED)
    came: dict[str, dict[int, int]] = {name: {} for name in ("requests", "gaps")}
    shown: dict[str, dict[int, int]] = {name: {} for name in came}
    for step, hour, minute in steps:
        if step in SOURCES:
            take(state, step, rows_of(hour, minute, minute))
            for name in came:
                if step in needs(name):
                    came[name][hour] = state.version
        elif step == "kill":
            state = WatchState.from_json(state.to_json())
        elif step == "ahead":
            as_of, hours = state.version, state.open_hours(MINUTE)
            for name in {name for tables in hours.values() for name in tables}:
                state.version += 1
                state.open_hours_written(
                    name, "x", [one for one, tables in hours.items() if name in tables], as_of
                )
                shown[name] |= dict.fromkeys(state.hour_tables[name].open_hours, as_of)
        else:
            for one, tables in (state.due_hours if step == "write" else state.late_hours)(MINUTE).items():
                as_of = state.version
                if minute:  # something comes while it is written
                    take(state, "frames", rows_of(one, 3, 3))
                    came["requests"][one] = state.version
                for name in tables:
                    state.hour_written(name, one, as_of)
                    shown[name][one] = as_of
        for name, table in state.hour_tables.items():
            assert not table.done & table.open_hours
            behind = {one for one, version in came[name].items() if shown[name].get(one, -1) < version}
            assert behind <= table.stale.keys()
            assert set(came[name]) <= table.stale.keys() | table.done | table.open_hours
    unfinished = state.unfinished_hours()
    for hour, tables in unfinished.items():
        for name in tables:
            state.hour_written(name, hour, state.version)
    assert not state.unfinished_hours()
    assert all(table.done >= set(came[name]) for name, table in state.hour_tables.items())


def test_neighbours_that_look_at_a_frame_are_stale_too() -> None:
    """The hour before, of a frame in its look-ahead, and the one behind; only where there are frames."""
    state = WatchState()
    state.select_tables(["requests"])
    take(state, "frames", rows_of(1, 10, 10), rows_of(2, 10, 10), rows_of(3, 10, 10))
    for hour in (1, 2, 3):
        state.hour_written("requests", hour, state.version)
    take(state, "frames", rows_of(2, 5, 30))
    assert list(state.unfinished_hours()) == [2]
    take(state, "frames", rows_of(2, 0, 30))
    assert list(state.unfinished_hours()) == [1, 2]
    take(state, "frames", rows_of(3, 59, 59))
    assert list(state.unfinished_hours()) == [1, 2, 3, 4]


def test_a_delayed_frame_may_be_the_only_one_of_its_hour() -> None:
    """It was received in the hour before; tables that are asked for later see it too."""
    state = WatchState()
    state.select_tables(["errors"])
    take(state, "frames", rows_of(1, 10, 59))
    assert list(state.unfinished_hours()) == [1, 2]
    state.select_tables(["requests"])
    assert list(state.unfinished_hours()) == [1, 2]


def test_a_clock_that_is_ahead_closes_no_hours() -> None:
    """The hours of the other recorders go on."""
    state = WatchState()
    state.select_tables(["requests"])
    hours = [rows_of(1, 10, 10), rows_of(1_000, 0, 0)]
    one = batches(0, t0=hours[0].first, t1=hours[1].last)
    state.add_batch("frames", 0, one, hours, MINUTE, HOUR + 11 * MINUTE)
    assert (state.newest, list(state.due_hours(MINUTE))) == (HOUR + 11 * MINUTE, [])


def test_an_hour_that_is_replaced_does_not_count() -> None:
    """Killed before it is whole, it is due again."""
    state = WatchState()
    state.select_tables(["requests"])
    take(state, "frames", rows_of(1, 10, 10), rows_of(2, 10, 10))
    state.hour_written("requests", 1, state.version)
    take(state, "frames", rows_of(1, 20, 20))
    assert (state.due_hours(MINUTE), state.late_hours(MINUTE)) == ({}, {1: ["requests"]})
    state.begin_replacing(1, ["requests"])
    state = WatchState.from_json(state.to_json())
    assert (state.due_hours(MINUTE), state.late_hours(MINUTE)) == ({1: ["requests"]}, {})


def test_an_hour_is_over_by_the_newest_frame() -> None:
    """Of any recorder, with the look-ahead; one that comes late is written again, not now."""
    state = WatchState()
    state.select_tables(["requests"])
    take(state, "frames", rows_of(1, 10, 10), rows_of(2, 0, 0))
    assert (list(state.due_hours(MINUTE)), list(state.open_hours(MINUTE))) == ([], [1, 2])
    state.open_hours_written("requests", "there", [1, 2], state.version)
    assert (state.due_hours(MINUTE), state.open_hours(MINUTE)) == ({}, {})
    take(state, "frames", rows_of(2, 2, 2))
    # The first hour stands beside the table until it stands in it.
    assert (list(state.due_hours(MINUTE)), list(state.open_hours(MINUTE))) == ([1], [1, 2])
    state.hour_written("requests", 1, state.version)
    assert state.hour_tables["requests"].open_hours == {2}
    take(state, "frames", rows_of(1, 30, 30))
    assert (state.due_hours(MINUTE), list(state.late_hours(MINUTE))) == ({}, [1])


def test_tables_that_are_asked_for_later_are_of_everything() -> None:
    """And tables that are not asked for any more are forgotten."""
    state = WatchState()
    state.select_tables(["requests", "connections"])
    take(state, "frames", rows_of(1, 10, 10))
    state.hour_written("requests", 1, state.version)
    state.whole_tables["connections"] = WholeTable("connections/version=1", 3, state.version)
    assert state.outdated_tables(["connections"]) == []
    assert state.select_tables(["requests", "errors"]) == ["connections"]
    assert state.unfinished_hours() == {1: ["errors"]}
    take(state, "items", rows_of(1, 10, 10))
    assert state.outdated_tables(["connections"]) == ["connections"]


def test_every_table_has_hours_or_none() -> None:
    """Those without are of whole connections, or whole recordings."""
    whole = {"connections", "subscriptions", "liveness", "hops", "findings", "permissions"}
    assert set(TABLES) - HOURLY.keys() - {"frames"} == whole
    assert {name: needs(name) for name in ("requests", "gaps", "faults")} == {
        "requests": {"frames"},
        "gaps": {"items"},
        "faults": {"frames", "items"},
    }
    assert hour_spans([5, 1, 2, 9, 3]) == [(1, 4), (5, 6), (9, 10)]


def test_ranges_are_found_by_time() -> None:
    """So that an hour reads its own files only."""
    state = WatchState()
    take(state, "frames", rows_of(1, 0, 5))
    take(state, "frames", rows_of(1, 5, 30))
    assert state.places("frames") == ["frames/0-0", "frames/1-1"]
    assert state.places("frames", HOUR + 6 * MINUTE, 2 * HOUR) == ["frames/1-1"]
    assert state.places("frames", 0, HOUR + MINUTE) == ["frames/0-0"]
