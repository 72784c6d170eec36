"""A set of colliding patterns answers as its patterns do one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproxy.errors import ConfigError
from natsproxy.protocol.collisions import CollisionSet
from natsproxy.protocol.subjects import collide, is_valid_subscribe

TOKENS = st.sampled_from([b"a", b"b", b"*", b">", b"*x", b">x", b""])
SUBJECTS = st.lists(TOKENS, min_size=1, max_size=4).map(b".".join)


@given(st.lists(SUBJECTS.filter(is_valid_subscribe), max_size=8), SUBJECTS)
def test_equals_the_patterns_one_by_one(patterns: list[bytes], subject: bytes) -> None:
    made = CollisionSet((pattern, index) for index, pattern in enumerate(patterns))
    assert made.find(subject) == {
        index for index, pattern in enumerate(patterns) if collide(pattern, subject)
    }


@pytest.mark.parametrize("pattern", [b"", b"a..b", b"a.>.b", b"a."])
def test_patterns_that_the_server_refuses_are_refused(pattern: bytes) -> None:
    with pytest.raises(ConfigError, match="not a valid subject pattern"):
        CollisionSet([(pattern, 1)])
