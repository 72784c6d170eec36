"""Subjects: validity and matching as nats-server decides them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproxy.protocol import subjects

TOKENS = st.sampled_from([b"a", b"b", b"foo", b"*", b">", b"*x", b"x>", b"", b"\xff", b"a\nb"])
SUBJECTS = st.lists(TOKENS, min_size=1, max_size=5).map(b".".join)

VALIDITY = [
    # subject, publish (pedantic), subscribe, strict
    (b"foo", True, True, True),
    (b"foo.bar", True, True, True),
    (b"foo.*", False, True, True),
    (b"foo.>", False, True, True),
    (b">", False, True, True),
    (b"*", False, True, True),
    (b">.foo", False, False, False),
    (b"foo.>.bar", False, False, False),
    (b"foo..bar", False, False, False),
    (b".foo", False, False, False),
    (b"foo.", False, False, False),
    (b"", False, False, False),
    (b".", False, False, False),
    (b"foo*bar", True, True, True),
    (b"foo>", True, True, True),
    (b">foo", True, True, True),
    (b"*foo.x", True, True, True),
    (b"a\xff\x00b", True, True, True),
    (b"a b", True, True, False),
    (b"a.b\tc", True, True, False),
    (b"a\x0cb", True, True, False),
    (b"a\x0bb", True, True, True),
]


@pytest.mark.parametrize(("subject", "publish", "subscribe", "strict"), VALIDITY)
def test_validity(subject: bytes, publish: bool, subscribe: bool, strict: bool) -> None:
    """Each context has the server's own rule."""
    assert subjects.is_valid_publish(subject) is publish
    assert subjects.is_valid_subscribe(subject) is subscribe
    assert subjects.is_valid_strict(subject) is strict


MATCHES = [
    (b"foo", b"foo", True),
    (b"foo", b"bar", False),
    (b"foo", b"foo.bar", False),
    (b"foo.*", b"foo.bar", True),
    (b"foo.*", b"foo", False),
    (b"foo.*", b"foo.bar.baz", False),
    (b"foo.>", b"foo", False),
    (b"foo.>", b"foo.bar", True),
    (b"foo.>", b"foo.bar.baz", True),
    (b">", b"foo", True),
    (b">", b"foo..bar", False),
    (b">", b"foo.", False),
    (b">", b".foo", False),
    (b">", b"", False),
    (b"*", b"", False),
    (b"foo..bar", b"foo..bar", False),
    # a wildcard in the tested subject is an ordinary token
    (b"foo.*", b"foo.*", True),
    (b"foo.>", b"foo.*", True),
    (b"foo.bar", b"foo.*", False),
    (b"foo.*", b"foo.>", True),
    (b"w.*", b"w.>", True),
    (b"*", b">", True),
    (b"foo.>", b"foo.>", True),
    (b"foo.*.bar", b"foo.>.bar", True),
    # partial wildcards are literals
    (b"foo*", b"foobar", False),
    (b"foo*", b"foo*", True),
    (b"*foo.x", b"afoo.x", False),
    # bytes are bytes
    (b"a.*", b"a.\xff\n\x00", True),
    (b"a.[^.]", b"a.x", False),
    (b"Foo", b"foo", False),
]


@pytest.mark.parametrize(("pattern", "subject", "expected"), MATCHES)
def test_matches(pattern: bytes, subject: bytes, expected: bool) -> None:
    """`matches` answers as the server's subscription table."""
    assert subjects.matches(pattern, subject) is expected


def table_match(pattern: list[bytes], subject: list[bytes]) -> bool:
    """Match token by token, as the server's table is walked: the slow model that the fast one must equal."""
    if not pattern or not subject:
        return not pattern and not subject
    if pattern == [b">"]:
        return True
    return pattern[0] in (b"*", subject[0]) and table_match(pattern[1:], subject[1:])


@given(SUBJECTS, SUBJECTS)
def test_matches_equals_the_token_walk(pattern: bytes, subject: bytes) -> None:
    """The compiled pattern decides as a plain walk over tokens does."""
    valid = subjects.is_valid_subscribe(pattern) and not subjects.has_empty_token(subject)
    expected = valid and table_match(pattern.split(b"."), subject.split(b"."))
    assert subjects.matches(pattern, subject) is expected


SUBSETS = [
    (b"foo.*", b">", True),
    (b"foo.*", b"*.*", True),
    (b"foo.*", b"foo.*", True),
    (b"foo.*", b"foo.bar", False),
    (b"foo.>", b"foo.*", False),
    (b"foo.>", b"foo.>", True),
    (b"foo.>", b">", True),
    (b"foo.bar", b"foo.bar", True),
    (b"foo.bar", b"foo", False),
    (b"foo", b"foo.bar", False),
    (b"foo..bar", b"foo.*.bar", False),
    (b"foo", b"foo.", False),
    # only the first byte of a filter's token is looked at
    (b"afoo", b"*foo", True),
    (b"*", b"*foo", False),
]


@pytest.mark.parametrize(("subject", "pattern", "expected"), SUBSETS)
def test_is_subset(subject: bytes, pattern: bytes, expected: bool) -> None:
    """`is_subset` answers as the server's SubjectMatchesFilter."""
    assert subjects.is_subset(subject, pattern) is expected


COLLISIONS = [
    (b"foo", b"foo", True),
    (b"foo", b"bar", False),
    (b"foo.*", b"foo.bar", True),
    (b"foo.*", b"*.bar", True),
    (b"foo.*", b"bar.*", False),
    (b"foo.>", b"foo.bar.baz", True),
    (b"foo.>", b"*.bar.*", True),
    (b"foo.*", b"foo.*.bar", False),
    (b"foo.*", b"foo.bar.>", False),
    (b"foo.>", b"foo.*.bar", True),
    (b">", b"a.b.c.*", True),
    (b"foo.>", b"foo", False),
    (b"*foo.*", b"bar.*", True),
    (b"a..*", b"a.*.*", False),
]


@pytest.mark.parametrize(("first", "second", "expected"), COLLISIONS)
def test_collide_is_symmetric(first: bytes, second: bytes, expected: bool) -> None:
    """`collide` answers as SubjectsCollide, whichever comes first."""
    assert subjects.collide(first, second) is expected
    assert subjects.collide(second, first) is expected


@given(SUBJECTS, SUBJECTS, SUBJECTS)
def test_patterns_that_share_a_subject_collide(first: bytes, second: bytes, subject: bytes) -> None:
    """Two patterns that both match one literal subject collide."""
    if (
        subjects.is_valid_publish(subject)
        and subjects.matches(first, subject)
        and subjects.matches(second, subject)
    ):
        assert subjects.collide(first, second)


def test_has_wildcard_wants_a_whole_token() -> None:
    """Only a token that is exactly `*` or `>` is a wildcard."""
    assert subjects.has_wildcard(b"a.*")
    assert subjects.has_wildcard(b">")
    assert not subjects.has_wildcard(b"a*.>b")
    assert subjects.tokens(b"a..b") == [b"a", b"", b"b"]
