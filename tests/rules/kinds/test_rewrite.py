"""The mappings that a rule may have; the tests of `rewriting` have their effects."""

from __future__ import annotations

import pytest

from natsproxy.errors import ConfigError
from tests.rules.kit import Wire


def wire(*lines: str) -> Wire:
    return Wire("\n".join(["[[rules]]", 'name = "r"', 'kind = "rewrite"', *lines, ""]))


@pytest.mark.parametrize("written", ["t", "t.", "t.>"])
def test_a_prefix_may_be_written_three_ways(written: str) -> None:
    assert wire(f'prefix = "{written}"').c2s("PUB a 0\n") == b"PUB t.a 0\r\n\r\n"


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ((), "it needs 'from' and 'to', or 'prefix'"),
        (('prefix = "t"', 'from = "a"'), "it needs 'from' and 'to', or 'prefix'"),
        (('prefix = "t"', 'to = "a"'), "prefix cannot be combined"),
        (('from = "a.*"', 'to = "b.{{partition(3,1)}}"'), "to cannot be undone .* say two_way = false"),
        (('from = "a"', "to = 3"), "to must be a subject or a list"),
        (('from = "a"', 'to = [{ to = "b" }]'), "to must list tables of 'to' and 'weight'"),
        (('from = "a"', 'to = [{ to = "b", weight = 101 }]', "two_way = false"), "must be 0 to 100"),
        (('from = "a"', 'to = "b"', "two_way = false", "jetstream = true"), "jetstream = true needs two_way"),
    ],
)
def test_bad_mappings_are_refused(lines: tuple[str, ...], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        wire(*lines)
