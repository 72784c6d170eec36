"""The values of settings: valid ones, and the errors of others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from natsproxy.rules.file import values
from natsproxy.rules.model.gate import Window
from natsproxy.wire.ops import Op


@pytest.mark.parametrize(
    ("convert", "given", "expected"),
    [
        (values.duration, "250ms", 250_000_000),
        (values.duration, "1m30s", 90_000_000_000),
        (values.duration, 0, 0),
        (values.size, "64KiB", 65536),
        (values.size, "2 MB", 2_000_000),
        (values.size, 7, 7),
        (values.op, "pub", Op.PUB),
        (values.op, "+OK", Op.OK),
        (values.op, "err", Op.ERR),
        (values.window, ["1s"], Window(10**9, None)),
        (values.window, ["1s", "2s"], Window(10**9, 2 * 10**9)),
        (values.window, ["+0s", "+2s"], Window(0, 2 * 10**9, True)),
        (values.several(values.natural), 3, (3,)),
        (values.several(values.natural), [3, 4], (3, 4)),
        (values.firings, {"k": 3}, {"k": frozenset({3})}),
        (values.probability, 1, 1.0),
        (values.pattern, "a.*.>", b"a.*.>"),
    ],
)
def test_valid_values_are_read(convert: Callable[[Any], Any], given: Any, expected: Any) -> None:
    assert convert(given) == expected


@pytest.mark.parametrize(
    ("convert", "given"),
    [
        (values.duration, 5),
        (values.duration, True),
        (values.duration, "-1s"),
        (values.duration, "1 fortnight"),
        (values.size, "64 kibibytes"),
        (values.size, -1),
        (values.size, True),
        (values.number_within(0.1, 10), 0),
        (values.number_within(0.1, 10), float("inf")),
        (values.probability, -0.1),
        (values.probability, "0.5"),
        (values.count, 1.5),
        (values.count, True),
        (values.pattern, "a b"),
        (values.pattern, ">.a"),
        (values.pattern, 3),
        (values.line, "a\r\nb"),
        (values.window, "1s"),
        (values.window, []),
        (values.window, ["+1s", "2s"]),
        (values.window, ["+2s", "+1s"]),
        (values.window, ["+"]),
        (values.boolean, 1),
        (values.table(values.text), []),
        (values.above_zero(values.duration), 0),
        (values.op, "MESSAGE"),
        (values.direction, "up"),
    ],
)
def test_invalid_values_are_refused_in_one_sentence(convert: Callable[[Any], Any], given: Any) -> None:
    with pytest.raises(ValueError, match=r"^must ") as caught:
        convert(given)
    assert "\n" not in str(caught.value)
