"""The ledger of a watch: nothing that has come is forgotten, whenever the watch is killed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="the tables need pyspark: pip install 'natsproxy[spark]'")

from natsproxy.spark.compaction import due
from natsproxy.spark.derived import SHARE, Pace
from natsproxy.spark.ledger import HOUR, HOURLY, SOURCES, Ledger, Part, Run, Whole, needs, spans
from natsproxy.spark.tables import TABLES

MINUTE = HOUR // 60
WANTED = ("frames", "requests", "gaps", "connections")


def run(first: int, last: int | None = None, level: int = 0, size: int = 10, t0: int = 0, t1: int = 0) -> Run:
    last = first if last is None else last
    return Run(first, last, f"frames/{first}-{last}", level, size, last - first + 1, t0, t1)


def part(hour: int, first: int, last: int) -> Part:
    """Return a part whose times are minutes of the hour."""
    return Part(hour, hour * HOUR + first * MINUTE, hour * HOUR + last * MINUTE)


def take(ledger: Ledger, source: str, *parts: Part) -> None:
    """Let a batch come."""
    ledger.version += 1
    batch = ledger.taken[source] + 1
    one = run(batch, t0=min(part.first for part in parts), t1=max(part.last for part in parts))
    ledger.add(source, batch, one, parts, MINUTE)


_STEP = st.one_of(
    st.tuples(st.sampled_from(SOURCES), st.integers(0, 5), st.integers(0, 59)),
    st.tuples(st.sampled_from(["write", "ahead", "late", "kill"]), st.just(0), st.integers(0, 1)),
)


@settings(max_examples=100, deadline=None)
@given(steps=st.lists(_STEP, max_size=40))
def test_what_has_come_is_stale_until_it_is_written(steps: list[tuple[str, int, int]]) -> None:
    """Written as of a moment, killed at any: a model that knows which batches each hour has seen."""
    ledger = Ledger()
    ledger.want(WANTED)
    came: dict[str, dict[int, int]] = {name: {} for name in ("requests", "gaps")}
    shown: dict[str, dict[int, int]] = {name: {} for name in came}
    for step, hour, minute in steps:
        if step in SOURCES:
            take(ledger, step, part(hour, minute, minute))
            for name in came:
                if step in needs(name):
                    came[name][hour] = ledger.version
        elif step == "kill":
            ledger = Ledger.from_json(ledger.to_json())
        elif step == "ahead":
            as_of, hours = ledger.version, ledger.open(MINUTE)
            for name in {name for tables in hours.values() for name in tables}:
                ledger.version += 1
                ledger.wrote_ahead(name, "x", [one for one, tables in hours.items() if name in tables], as_of)
                shown[name] |= dict.fromkeys(ledger.hours[name].ahead_of, as_of)
        else:
            for one, tables in (ledger.due if step == "write" else ledger.late)(MINUTE).items():
                as_of = ledger.version
                if minute:  # something comes while it is written
                    take(ledger, "frames", part(one, 3, 3))
                    came["requests"][one] = ledger.version
                for name in tables:
                    ledger.wrote(name, one, as_of)
                    shown[name][one] = as_of
        for name, table in ledger.hours.items():
            assert not table.done & table.ahead_of
            behind = {one for one, version in came[name].items() if shown[name].get(one, -1) < version}
            assert behind <= table.stale.keys()
            assert set(came[name]) <= table.stale.keys() | table.done | table.ahead_of
    rest = ledger.rest()
    for hour, tables in rest.items():
        for name in tables:
            ledger.wrote(name, hour, ledger.version)
    assert not ledger.rest()
    assert all(table.done >= set(came[name]) for name, table in ledger.hours.items())


def test_neighbours_that_look_at_a_frame_are_stale_too() -> None:
    """The hour before, of a frame in its look-ahead, and the one behind; only where there are frames."""
    ledger = Ledger()
    ledger.want(["requests"])
    take(ledger, "frames", part(1, 10, 10), part(2, 10, 10), part(3, 10, 10))
    for hour in (1, 2, 3):
        ledger.wrote("requests", hour, ledger.version)
    take(ledger, "frames", part(2, 5, 30))
    assert list(ledger.rest()) == [2]
    take(ledger, "frames", part(2, 0, 30))
    assert list(ledger.rest()) == [1, 2]
    take(ledger, "frames", part(3, 59, 59))
    assert list(ledger.rest()) == [1, 2, 3, 4]


def test_a_delayed_frame_may_be_the_only_one_of_its_hour() -> None:
    """It was received in the hour before; tables that are asked for later see it too."""
    ledger = Ledger()
    ledger.want(["errors"])
    take(ledger, "frames", part(1, 10, 59))
    assert list(ledger.rest()) == [1, 2]
    ledger.want(["requests"])
    assert list(ledger.rest()) == [1, 2]


def test_a_clock_that_is_ahead_closes_no_hours() -> None:
    """The hours of the other recorders go on."""
    ledger = Ledger()
    ledger.want(["requests"])
    parts = [part(1, 10, 10), part(1_000, 0, 0)]
    ledger.add("frames", 0, run(0, t0=parts[0].first, t1=parts[1].last), parts, MINUTE, HOUR + 11 * MINUTE)
    assert (ledger.newest, list(ledger.due(MINUTE))) == (HOUR + 11 * MINUTE, [])


def test_an_hour_that_is_replaced_does_not_count() -> None:
    """Killed before it is whole, it is due again."""
    ledger = Ledger()
    ledger.want(["requests"])
    take(ledger, "frames", part(1, 10, 10), part(2, 10, 10))
    ledger.wrote("requests", 1, ledger.version)
    take(ledger, "frames", part(1, 20, 20))
    assert (ledger.due(MINUTE), ledger.late(MINUTE)) == ({}, {1: ["requests"]})
    ledger.replace(1, ["requests"])
    ledger = Ledger.from_json(ledger.to_json())
    assert (ledger.due(MINUTE), ledger.late(MINUTE)) == ({1: ["requests"]}, {})


def test_an_hour_is_over_by_the_newest_frame() -> None:
    """Of any recorder, with the look-ahead; one that comes late is written again, not now."""
    ledger = Ledger()
    ledger.want(["requests"])
    take(ledger, "frames", part(1, 10, 10), part(2, 0, 0))
    assert (list(ledger.due(MINUTE)), list(ledger.open(MINUTE))) == ([], [1, 2])
    ledger.wrote_ahead("requests", "there", [1, 2], ledger.version)
    assert (ledger.due(MINUTE), ledger.open(MINUTE)) == ({}, {})
    take(ledger, "frames", part(2, 2, 2))
    # The first hour stands beside the table until it stands in it.
    assert (list(ledger.due(MINUTE)), list(ledger.open(MINUTE))) == ([1], [1, 2])
    ledger.wrote("requests", 1, ledger.version)
    assert ledger.hours["requests"].ahead_of == {2}
    take(ledger, "frames", part(1, 30, 30))
    assert (ledger.due(MINUTE), list(ledger.late(MINUTE))) == ({}, [1])


def test_tables_that_are_asked_for_later_are_of_everything() -> None:
    """And what is not asked for any more is forgotten."""
    ledger = Ledger()
    ledger.want(["requests", "connections"])
    take(ledger, "frames", part(1, 10, 10))
    ledger.wrote("requests", 1, ledger.version)
    ledger.whole["connections"] = Whole("connections/version=1", 3, ledger.version)
    assert ledger.behind(["connections"]) == []
    assert ledger.want(["requests", "errors"]) == ["connections"]
    assert ledger.rest() == {1: ["errors"]}
    take(ledger, "items", part(1, 10, 10))
    assert ledger.behind(["connections"]) == ["connections"]


def test_every_table_has_hours_or_none() -> None:
    """Those without are of whole connections."""
    assert set(TABLES) - HOURLY.keys() - {"frames"} == {"connections", "subscriptions", "liveness"}
    assert {name: needs(name) for name in ("requests", "gaps", "faults")} == {
        "requests": {"frames"}, "gaps": {"items"}, "faults": {"frames", "items"}
    }  # fmt: skip
    assert spans([5, 1, 2, 9, 3]) == [(1, 4), (5, 6), (9, 10)]


def test_small_runs_become_large_ones() -> None:
    """Few of each level are left; large ones are never written again; each row a few times at most."""
    ledger, written = Ledger(), 0
    for batch in range(1_000):
        size = 2_000 if batch in (300, 301) else 10
        ledger.add("frames", batch, run(batch, size=size), [], 0)
        while runs := due(ledger.runs["frames"], fan=4, full=1_000):
            first, last, size = runs[0].first, runs[-1].last, sum(one.bytes for one in runs)
            written += size
            merged = run(first, last, runs[0].level + 1, size)
            assert ledger.merge("frames", merged) == [one.place for one in runs]
    runs = ledger.runs["frames"]
    assert [(one.first, one.last) for one in runs] == sorted((one.first, one.last) for one in runs)
    assert sum(one.last - one.first + 1 for one in runs) == 1_000
    assert len(runs) < 30
    assert written < 5 * 10_000


def test_runs_are_found_by_time() -> None:
    """So that an hour reads its own files only."""
    ledger = Ledger()
    take(ledger, "frames", part(1, 0, 5))
    take(ledger, "frames", part(1, 5, 30))
    assert ledger.places("frames") == ["frames/0-0", "frames/1-1"]
    assert ledger.places("frames", HOUR + 6 * MINUTE, 2 * HOUR) == ["frames/1-1"]
    assert ledger.places("frames", 0, HOUR + MINUTE) == ["frames/0-0"]


def test_what_is_not_over_takes_a_part_of_the_time() -> None:
    """However long it takes."""
    now = 100.0
    pace = Pace(60, lambda: now)
    assert not pace.due()
    now += 60
    assert pace.due()
    with pace.work():
        now += 1
    now += 59
    assert not pace.due()
    now += 1
    assert pace.due()
    with pace.work():
        now += 100
    now += 100 * (SHARE - 1) - 1
    assert not pace.due()
    now += 1
    assert pace.due()
