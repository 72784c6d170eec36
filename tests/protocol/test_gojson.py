"""JSON read and written as Go does."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproxy.protocol import gojson

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text('ab{}[],:"\\', max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"{} x",
        b"[]",
        b'"a"',
        b"1",
        b"{'a':1}",
        b'{"a":NaN}',
        b'{"a":01}',
        b"\xef\xbb\xbf{}",
        b'{"a":"\n"}',
    ],
)
def test_json_that_go_refuses_is_refused(raw: bytes) -> None:
    """Anything but one object, blanks around it allowed, is an error."""
    with pytest.raises(ValueError, match=r"."):
        gojson.load_pairs(raw)


def test_deep_nesting_is_an_error_not_a_crash() -> None:
    """JSON that nests beyond the interpreter's stack is a ValueError."""
    with pytest.raises(ValueError, match="deeply"):
        gojson.load_pairs(b'{"a":' + b"[" * 100_000)


def test_fill_folds_keys_and_takes_the_last() -> None:
    """Keys match in any case, the last duplicate wins, null changes nothing."""
    raw = '{"A":1,"a":2,"\\u017f":"x","\u212a":"y","a":null,"other":[1]}'.encode()
    assert gojson.fill(raw, {"a": int, "s": str, "k": str}) == {"a": 2, "s": "x", "k": "y"}
    assert gojson.fill(b"null", {"a": int}) == {}


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (b'"yes"', bool),
        (b"1", bool),
        (b"true", int),
        (b"1.0", int),
        (b"1", str),
        (b'"a"', list),
        (b"[1]", list),
        (b"1", dict),
    ],
)
def test_wrong_types_are_errors(value: bytes, wanted: type) -> None:
    """No type is coerced."""
    with pytest.raises(ValueError, match=f'"a" is not of type {wanted.__name__}'):
        gojson.fill(b'{"a":' + value + b"}", {"a": wanted})


def test_dumps_escapes_as_go() -> None:
    """HTML characters and the two line separators are escaped, other characters are not."""
    assert gojson.dumps({"a": "<>&\u2028é"}) == '{"a":"\\u003c\\u003e\\u0026\\u2028é"}'.encode()


@given(st.binary(max_size=20))
def test_bytes_survive(raw: bytes) -> None:
    """Decoding and encoding gives the same bytes."""
    assert gojson.to_bytes(gojson.to_text(raw)) == raw


def pairs_of(value: object) -> int:
    if isinstance(value, dict):
        return len(value) + sum(map(pairs_of, value.values()))
    return sum(map(pairs_of, value)) if isinstance(value, list) else 0


@given(VALUES, st.sampled_from([None, 1]))
def test_members_have_the_right_spans(value: object, indent: int | None) -> None:
    """Every member of every object is found, and its span is its value."""
    text = json.dumps({"top": value}, indent=indent)
    found = gojson.members(text)
    assert len(found) == pairs_of({"top": value})
    for member in found:
        json.loads(text[member.value : member.end])
        assert gojson.fold(json.loads("{" + text[member.start : member.end] + "}").popitem()[0]) == member.key
    assert json.loads(text[found[-1].value : found[-1].end]) == value
    assert found[-1].depth == 1


def test_invalid_unicode_is_replaced_as_in_go() -> None:
    raw = rb'{"a":"\ud800x\udfff","b":["\udc00"],"c":"' + b"\xff\xc3\xa9" + rb'","d":"\ud83d\ude00"}'
    found = gojson.fill(raw, {"a": str, "b": list, "c": str, "d": str})
    assert found == {"a": "\ufffdx\ufffd", "b": ["\ufffd"], "c": "\ufffdé", "d": "\U0001f600"}
