"""A setting is one field: its option, its default and its value all come from there."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from natsproxy.config.settings import OPTIONS, RunSettings
from natsproxy.errors import ConfigError
from natsproxy.option import (
    DURATION,
    FILE,
    FLAG,
    SIZE,
    ValueType,
    described,
    group,
    merged,
    optional,
    optional_group,
    options_of,
    read_values,
    same_as,
    setting,
    settings_from,
    several,
    words,
)
from natsproxy.units import KIB, SECOND


@dataclass(frozen=True, slots=True)
class Inner:
    path: Path = field(metadata=described(FILE, "Its file.", name="inner"))
    flush: int = setting(DURATION, "1s", "How often.")
    form: str = setting(words("a", "b"), "a", "Its form.")


@dataclass(frozen=True, slots=True)
class Limits:
    size_max: int = setting(SIZE, "4KiB", "The largest.")


@dataclass(frozen=True, slots=True)
class Outer:
    quick: bool = setting(FLAG, True, "Be quick.")
    names: tuple[str, ...] = several(ValueType(str, "NAME"), "A name.", name="name")
    total: int = merged(ValueType(int, "NUMBER"), sum, "Parts of a sum.")
    limits: Limits = group(Limits, "limits")
    inner: Inner | None = optional_group(Inner, "inner")
    note: str | None = optional(ValueType(str), "A note.")
    derived: int = 7
    flush: int = same_as(Inner, "flush")


VALUES = {
    "quick": False,
    "name": ["x", "y"],
    "total": [1, 2],
    "limits_size_max": 5,
    "inner": None,
    "inner_flush": 1,
    "inner_form": "b",
    "note": "n",
    "flush": 3,
}


def test_names_come_from_fields_and_groups() -> None:
    names = [option.name for option in options_of(Outer)]
    assert " ".join(names) == "quick name total limits-size-max inner inner-flush inner-form note flush"
    flush = next(option for option in options_of(Outer) if option.name == "inner-flush")
    assert (flush.key, flush.variable) == ("inner_flush", "NATSPROXY_INNER_FLUSH")
    assert (flush.default, flush.metavar, flush.help) == ("1s", "DURATION", "How often.")
    assert [option.name for option in OPTIONS if not re.fullmatch(r"[a-z]+(-[a-z]+)*", option.name)] == []


def test_defaults_are_typed() -> None:
    assert Outer() == Outer(True, (), 0, Limits(4 * KIB), None, None, 7, SECOND)


def test_settings_are_made_of_values() -> None:
    made = Outer(False, ("x", "y"), 3, Limits(5), None, "n", 7, 3)
    assert settings_from(Outer, VALUES) == made
    inner = Inner(Path("f"), 1, "b")
    assert settings_from(Outer, VALUES | {"inner": Path("f")}) == replace(made, inner=inner)


def test_values_are_read_with_the_name_in_the_error() -> None:
    options = {option.name: option for option in options_of(Outer)}
    found = read_values(options, {"limits-size-max": "1KiB", "name": "x", "total": [1, "2"]})
    assert found == {
        "quick": True,
        "name": ["x"],
        "total": [1, 2],
        "limits_size_max": KIB,
        "inner": None,
        "inner_flush": SECOND,
        "inner_form": "a",
        "note": None,
        "flush": SECOND,
    }
    with pytest.raises(ConfigError, match=r"^inner-form must be 'a' or 'b', not 'c'$"):
        read_values(options, {"inner-form": "c"})


def test_the_defaults_of_run_are_those_of_its_classes() -> None:
    values = read_values({option.key: option for option in OPTIONS}, {})
    assert settings_from(RunSettings, values) == RunSettings()
