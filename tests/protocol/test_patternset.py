"""A set of patterns answers as its patterns do one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproxy.errors import ConfigError
from natsproxy.protocol.patternset import PatternSet
from natsproxy.protocol.subjects import is_valid_subscribe, matches

TOKENS = st.sampled_from([b"a", b"b", b"*", b">", b"*x", b""])
SUBJECTS = st.lists(TOKENS, min_size=1, max_size=4).map(b".".join)


@given(st.lists(SUBJECTS.filter(is_valid_subscribe), max_size=8), SUBJECTS)
def test_equals_the_patterns_one_by_one(patterns: list[bytes], subject: bytes) -> None:
    """All matching values come back, in the order given, duplicates included."""
    made = PatternSet((pattern, index) for index, pattern in enumerate(patterns))
    expected = tuple(index for index, pattern in enumerate(patterns) if matches(pattern, subject))
    assert made.find(subject) == expected
    assert made.first(subject) == (expected[0] if expected else None)
    assert made.matches(subject) is bool(expected)
    assert len(made) == len(patterns)


@pytest.mark.parametrize("pattern", [b"", b"a..b", b"a.>.b", b"a."])
def test_destinations_that_the_server_refuses_are_refused(pattern: bytes) -> None:
    """A pattern that could never match is an error, not a silent nothing."""
    with pytest.raises(ConfigError, match="not a valid subject pattern"):
        PatternSet([(pattern, 1)])
