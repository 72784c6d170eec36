"""The functions of a mapping's destination, one by one, and what is refused."""

from __future__ import annotations

import re

import pytest

from natsproxy.errors import ConfigError
from natsproxy.protocol.mapping import Source, SubjectTransform, compile_token, fnv1a, refuse_to_draw


@pytest.mark.parametrize(("data", "value"), [(b"", 0x811C9DC5), (b"a", 0xE40C292C), (b"foobar", 0xBF9CF968)])
def test_fnv1a(data: bytes, value: int) -> None:
    """The published test vectors of FNV-1a come out."""
    assert fnv1a(data) == value


@pytest.mark.parametrize(
    ("token", "made", "wildcard"),
    [
        (b"lit", b"lit", None),
        (b"$2", b"b-c", 3),
        (b"$0", b"s", 0),
        (b"{{wildcard(1)}}", b"abcd", 1),
        (b"{{Left(1, 3)}}", b"abc", None),
        (b"{{split(2,-)}}", b"b.c", None),
        (b"{{random(3)}}", b"2", None),
    ],
)
def test_a_token(token: bytes, made: bytes, wildcard: int | None) -> None:
    """A compiled token makes its piece of the destination and says what it copies."""
    compiled = compile_token(token, Source(b"s.*.k.*"))
    assert compiled.part([b"s", b"abcd", b"k", b"b-c"], lambda limit: limit - 1) == made
    assert compiled.wildcard == wildcard


def test_refuse_to_draw() -> None:
    """Randomness without a source is an error, not a guess."""
    with pytest.raises(ConfigError, match="randomness is not allowed"):
        refuse_to_draw(3)


@pytest.mark.parametrize(
    ("source", "destination", "says"),
    [
        ("a..b", "c", "source of a mapping, 'a..b', is not a valid subject"),
        ("a", "b c", "destination of a mapping, 'b c', is not a valid subject"),
        ("a.*", "b.*", "must name wildcards by $1"),
        ("a.>", "b", "must both end in >"),
        ("a", "b.>", "must both end in >"),
        ("a.*", "b.$2", "names wildcard 2, but 'a.*' has 1"),
        ("a", "b.$1", "names wildcard 1, but 'a' has 0"),
        ("a.*", "b.{{wildcard()}}", "takes 1 argument, not 0"),
        ("a.*", "b.{{wildcard(1,2)}}", "takes 1 argument, not 2"),
        ("a.*", "b.{{wildcard(x)}}", "'x' is not a whole number"),
        ("a.*", "b.{{WILDCARD(1)}}", "is not a mapping function"),
        ("a.*", "b.{{unknown(1)}}", "is not a mapping function"),
        ("a.*", "b.{{wildcard}}", "is not a mapping function"),
        ("a.*", "b.{{left(1)}}", "takes 2 arguments, not 1"),
        ("a.*", "b.{{split(1, )}}", "delimiter"),
        ("a.*", "b.{{partition(0,1)}}", "must be a positive number"),
        ("a.*", "b.{{random(-1)}}", "must be a positive number"),
    ],
)
def test_bad_mappings(source: str, destination: str, says: str) -> None:
    """What the server's configuration refuses is one sentence here."""
    with pytest.raises(ConfigError, match=re.escape(says)):
        SubjectTransform(source.encode(), destination.encode())
