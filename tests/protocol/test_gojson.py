"""JSON read and written as Go does."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproxy.protocol import gojson
from natsproxy.protocol.connect import _FIELDS as CONNECT

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


FIELDS: dict[str, type] = {**CONNECT, "list": list}
BLANKS = st.sampled_from([b"", b"", b"", b" ", b"\t\r\n ", b"\v"])
KEYS = st.sampled_from(
    [
        b"verbose",
        b"VERBOSE",
        b"name",
        b"Name",
        b"user",
        b"pass",
        b"protocol",
        b"lang",
        b"list",
        b"import",
        b"unknown",
        b"",
        b"n\\u0061me",
        "\u017fig".encode(),
        b"\xff",
        b"a" * 32,
        b"protocol" + b"a" * 30,
        b"a\x00",
    ]
)
SCALARS = st.sampled_from(
    [
        b"true",
        b"false",
        b"null",
        b"True",
        b"tru",
        b"nul",
        b"0",
        b"1",
        b"01",
        b"-0",
        b"-3",
        b"+1",
        b"1.0",
        b"1e3",
        b"9" * 18,
        b"9" * 19,
        b"1" * 40,
        b"1x",
        b"1.",
        b'""',
        b'"a b"',
        b'"\\""',
        b'"\\ud800"',
        b'"\\n"',
        b'"\n"',
        b'"\x7f"',
        b'"\x80"',
        '"é\u2028"'.encode(),
        b'"',
        b"NaN",
        b"{}",
        b"[]",
        b'["a",null]',
        b'{"name":"b"}',
        b"",
    ]
)


@st.composite
def documents(draw: st.DrawFn) -> bytes:
    """An object, mostly a flat one that a client could send, and mostly whole."""
    members = [
        draw(BLANKS) + b'"' + key + b'"' + draw(BLANKS) + b":" + draw(BLANKS) + value + draw(BLANKS)
        for key, value in draw(st.lists(st.tuples(KEYS, SCALARS), max_size=5))
    ]
    raw = draw(BLANKS) + b"{" + b",".join(members) + draw(BLANKS) + b"}" + draw(BLANKS)
    at = draw(st.integers(0, len(raw)))
    change = draw(st.sampled_from(["", "", "", "cut", "add"]))
    if change == "cut":
        return raw[:at]
    added = draw(st.sampled_from([b"{", b"}", b",", b":", b'"', b"x", b"\x00", b"1"])) if change else b""
    return raw[:at] + added + raw[at:]


def outcome(raw: bytes, read: Callable[[bytes, dict[str, type]], object]) -> object:
    """What a reading returns, or that it fails."""
    try:
        return read(raw, FIELDS)
    except ValueError:
        return "refused"


@given(documents() | st.binary(max_size=20))
def test_flat_objects_are_read_in_c_as_in_python(raw: bytes) -> None:
    assert outcome(raw, gojson.fill) == outcome(
        raw, lambda raw, fields: gojson.fill_pairs(gojson.load_pairs(raw) or (), fields)
    )


@pytest.mark.skipif(gojson._flat is None, reason="this run has no compiled modules")
def test_c_reads_what_clients_send() -> None:
    """It leaves nothing usual to `json`: also none of the types is another one's."""
    raw = b'{"verbose":false,"tls_required":true,"name":"a b","lang":"go","protocol":1,"x":1,"y":"z"} '
    assert gojson._flat is not None
    found = gojson._flat(raw, FIELDS)
    assert found == {"verbose": False, "tls_required": True, "name": "a b", "lang": "go", "protocol": 1}
    assert [type(value) for value in found.values()] == [bool, bool, str, str, int]
    assert gojson._flat(b"{}", FIELDS) == {}
    for unusual in (
        b"null",
        b'{"name":"\\u0061"}',
        b'{"name":1}',
        b'{"verbose":1}',
        b'{"x":{}}',
        b'{"x":-1}',
    ):
        assert gojson._flat(unusual, FIELDS) is None
