"""Which matches a gate lets through."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from natsproxy.errors import ConfigError
from natsproxy.rules.file.parser import load
from natsproxy.rules.kinds import KINDS
from natsproxy.rules.model.counts import Count
from natsproxy.rules.model.gate import OPEN, Gate, Window, ordinal
from natsproxy.units import HOUR, SECOND
from natsproxy.wire.ops import C2S
from tests.rules.kit import Wire


def fired(gate: Gate, matches: int = 12, *, u: float = 0.5, key: str = "k") -> list[int]:
    count = Count()
    found = []
    for m in range(1, matches + 1):
        count.match()
        if gate.admits(count, m, (key,), 0, lambda: u):
            found.append(m)
    return found


@pytest.mark.parametrize(
    ("gate", "expected"),
    [
        (Gate(), list(range(1, 13))),
        (Gate(first=3), [1, 2, 3]),
        (Gate(after=9), [10, 11, 12]),
        (Gate(after=2, first=3), [3, 4, 5]),
        (Gate(every=4), [4, 8, 12]),
        (Gate(after=1, every=4), [5, 9]),
        (Gate(every=3, limit=2), [3, 6]),
        (Gate(probability=0.4), []),
        (Gate(probability=0.6, limit=2), [1, 2]),
        (Gate(probability=1.0), list(range(1, 13))),
        (Gate(probability=0.0), []),
        (Gate(only={"k": frozenset({2, 7})}), [2, 7]),
        (Gate(only={"other": frozenset({2, 7})}), []),
    ],
)
def test_conditions_add_up(gate: Gate, expected: list[int]) -> None:
    assert fired(gate) == expected


def test_a_window_is_half_open() -> None:
    gate = Gate(between=Window(5, 9))
    assert [gate.in_time(age) for age in (4, 5, 8, 9)] == [False, True, True, False]
    assert Gate(between=Window(5, None)).in_time(10**18)


def test_age_is_counted_from_when_counting_began() -> None:
    assert Gate(between=Window(5, 9)).admits(Count(since=100, matched=1), 1, ("k",), 106, lambda: 0.5)


def test_the_open_gate_knows_that_it_is() -> None:
    assert OPEN.open
    assert not Gate(limit=1).open


def test_words() -> None:
    assert Gate().describe() == "always"
    second = 10**9
    words = Gate(probability=0.5, every=2, between=Window(second, None)).describe()
    assert words == "every 2nd, with probability 0.5, at age 1s to the end"
    words = Gate(every=2, per_proxy=True, between=Window(second, 2 * second)).describe()
    assert words == "every 2nd, counted over all connections, 1s to 2s after it came into force"
    assert Gate(between=Window(0, second, since_rule=True)).describe() == "0s to 1s after it came into force"
    assert [ordinal(number) for number in (1, 2, 3, 4, 11, 12, 13, 21, 102, 111)] == [
        "1st",
        "2nd",
        "3rd",
        "4th",
        "11th",
        "12th",
        "13th",
        "21st",
        "102nd",
        "111th",
    ]
    assert Gate(every=3, limit=1).describe() == "every 3rd, once at most"


def test_exact_firings_of_clients_whose_names_are_alike() -> None:
    """The second worker, whatever its name is."""
    gate = Gate(only={"c2s worker-*/2": frozenset({3})})
    for keys, direction, expected in (
        (("worker-77/1", "worker-*/2"), "c2s", True),
        (("worker-77/1", "worker-*/1"), "c2s", False),
        (("worker-77/1", "worker-*/2"), "s2c", False),
    ):
        assert gate.admits(Count(matched=3), 3, keys, 0, lambda: 0.5, direction) is expected


NIGHT = '[[rules]]\nname = "r"\nkind = "drop"\nsubject = "a"\n'


def acts(hours: str, time: datetime) -> bool:
    """Tell whether a rule of these hours acts at a time; `hours`: the lines of the rule."""
    wire = Wire(NIGHT + hours)
    wire.chain.begin(0, lambda now: int(time.timestamp()) * SECOND + now)
    return wire.fired(C2S, "PUB a 0\n")


@pytest.mark.parametrize(
    ("hours", "inside", "outside"),
    [
        (
            '"22:00-06:00"',
            ["22:00:00", "23:59:59", "00:00:00", "05:59:59"],
            ["06:00:00", "12:00:00", "21:59:59"],
        ),
        ('"09:30-17:00"', ["09:30:00", "16:59:59"], ["09:29:59", "17:00:00", "00:00:00"]),
        ('"22:00-24:00"', ["23:59:59"], ["00:00:00", "21:59:59"]),
        ('["12:00-13:00", "23:00-01:00"]', ["12:30:00", "00:30:00"], ["13:00:00", "01:00:00"]),
    ],
)
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu"])
def test_hours_are_those_of_their_zone(hours: str, inside: list[str], outside: list[str], zone: str) -> None:
    lines = f'hours = {hours}\nzone = "{zone}"\n' if zone != "UTC" else f"hours = {hours}\n"
    for times, expected in ((inside, True), (outside, False)):
        for time in times:
            at = datetime.fromisoformat(f"2026-11-26T{time}").replace(tzinfo=ZoneInfo(zone))
            assert acts(lines, at) is expected, time


@pytest.mark.parametrize(
    ("utc", "expected"),
    [
        ("2026-03-29T00:59:59", False),  # 01:59:59, the last second of winter time
        ("2026-03-29T01:00:00", True),  # 03:00, as 02:00 to 03:00 do not exist that night
        ("2026-10-25T00:30:00", True),  # 02:30 for the first time
        ("2026-10-25T01:30:00", True),  # 02:30 for the second time
        ("2026-10-25T02:30:00", True),  # 03:30
        ("2026-10-25T03:00:00", False),  # 04:00
    ],
)
def test_daylight_saving_time(utc: str, expected: bool) -> None:
    lines = 'hours = "02:30-04:00"\nzone = "Europe/Berlin"\n'
    assert acts(lines, datetime.fromisoformat(utc).replace(tzinfo=UTC)) is expected


def test_hours_follow_a_clock_that_is_set() -> None:
    """And combine with the other conditions, which count all matches."""
    wire = Wire(NIGHT + 'hours = "22:00-06:00"\nafter = 1\n')
    set_forward = 0
    wire.chain.begin(0, lambda now: now + set_forward)
    wire.now = 21 * HOUR
    assert [wire.fired(C2S, "PUB a 0\n") for _ in range(2)] == [False, False]
    wire.now += HOUR
    assert wire.fired(C2S, "PUB a 0\n")
    set_forward = 8 * HOUR
    assert not wire.fired(C2S, "PUB a 0\n")
    set_forward = -HOUR
    assert not wire.fired(C2S, "PUB a 0\n")


def test_hours_stay_those_of_a_rule_that_survives_a_reload() -> None:
    wire = Wire(NIGHT + 'hours = "22:00-06:00"\n')
    wire.chain.begin(0, lambda now: 23 * HOUR)
    wire.rebind(NIGHT + 'hours = "22:00-06:00"\n' + NIGHT.replace('"r"', '"other"').replace('"a"', '"b"'))
    assert wire.fired(C2S, "PUB a 0\n")


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ('hours = "22:00"', "two times of the day"),
        ('hours = "22:00-22:00"', "two times of the day"),
        ('hours = "24:00-06:00"', "two times of the day"),
        ('hours = "22:00-24:01"', "two times of the day"),
        ('hours = "22:60-23:00"', "two times of the day"),
        ('hours = "٢٢:00-23:00"', "two times of the day"),
        ("hours = []", "empty list"),
        ('hours = "22:00-06:00"\nzone = "Europe/Bielefeld"', "time zone"),
        ('hours = "22:00-06:00"\nzone = "../etc/passwd"', "time zone"),
        ('hours = "22:00-06:00"\nzone = "Europe"', "time zone"),
        ('zone = "Europe/Berlin"', "'hours', which are not given"),
    ],
)
def test_hours_that_are_none_are_refused(lines: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        load(NIGHT + lines, KINDS)


def test_hours_of_an_open_link_are_refused() -> None:
    """Of a new connection, and of frames, they are not."""
    rule = '[[rules]]\nname = "r"\nkind = "{0}"\nhours = "22:00-06:00"\n'
    with pytest.raises(ConfigError, match="no meaning for an open link"):
        load(rule.format("pause"), KINDS)
    assert load(rule.format("refuse"), KINDS)
    assert load(rule.format("pause") + 'subject = "a"\n', KINDS)
