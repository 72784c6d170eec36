"""The options of the comparison: values, layers, and the treatment of one place."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproxy.errors import ConfigError
from natsproxy.replay.conversation.match_options import (
    OPTIONS,
    PARTS,
    MatchOptions,
    Treatment,
    combine,
    read,
)

IGNORED, LIKE, EXACT = Treatment.IGNORED, Treatment.LIKE, Treatment.EXACT
UNCHECKED = Treatment.UNCHECKED


def options(**given: Any) -> MatchOptions:
    return MatchOptions(**read(given))


def test_each_row_is_a_field_with_its_default() -> None:
    default = MatchOptions()
    for option in OPTIONS:
        value = getattr(default, option.key)
        assert value == (option.default if option.flag else set(PARTS) - {"order"} if value else ())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (b"traceparent", UNCHECKED),
        (b"Traceparent", UNCHECKED),
        (b"X-B3-TraceId", UNCHECKED),
        (b"x-datadog-trace-id", UNCHECKED),
        (b"X-Amzn-Trace-Id", UNCHECKED),
        (b"Date", UNCHECKED),
        (b"Nats-Msg-Id", Treatment.ANY_VALUE),
        (b"X-Timestamp", Treatment.ANY_VALUE),
        (b"X-Request-Id", EXACT),
        (b"X-Amz-Date", IGNORED),
        (b"X-Amz", EXACT),
        (b"baggage", LIKE),
        (b"B3", EXACT),
        (b"X-Amz-Version", EXACT),
        (b"\xff", EXACT),
    ],
)
def test_a_header_has_the_treatment_that_its_name_is_given(name: bytes, expected: Treatment) -> None:
    match = ["b3", "X-Amz-Version"]
    given = options(ignore_headers=["x-amz-*"], like_headers=["Baggage", "b3"], match_headers=match)
    assert given.header(name) is expected


@pytest.mark.parametrize(
    ("subject", "path", "expected"),
    [
        (b"orders.new", ("ts",), IGNORED),
        (b"orders.new", ("ts", "sec"), IGNORED),
        (b"orders.new", ("items", "0", "id"), LIKE),
        (b"orders.new", ("items", "0"), EXACT),
        (b"orders.new", ("a/b",), IGNORED),
        (b"carts.new", ("ts",), EXACT),
        (b"carts.new", ("a/b",), IGNORED),
        (b"orders.new", (), EXACT),
    ],
)
def test_a_member_has_the_treatment_of_the_nearest_pointer(
    subject: bytes, path: tuple[str, ...], expected: Treatment
) -> None:
    given = options(ignore_json=["orders.> /ts", "/a~1b"], like_json=["orders.* /items/*/id"])
    assert given.member(subject, path) is expected
    assert given.compares_json(subject)
    assert not options(ignore_json="orders.> /ts").compares_json(b"carts.new")


def test_learning_is_limited_to_places() -> None:
    only = options(learn_only=["/id", "orders.> header:X-*"], learn_not=["carts.> /id"])
    assert only.learns(b"orders.new", path=("id",))
    assert not only.learns(b"orders.new", path=("qty",))
    assert not only.learns(b"carts.new", path=("id",))
    assert only.learns(b"orders.new", header=b"x-id")
    assert not only.learns(b"carts.new", header=b"x-id")
    assert not only.learns(b"orders.new")
    assert options(learn_only="orders.> token").learns(b"orders.new")
    assert MatchOptions().learns(b"a")
    assert not options(learn=False).learns(b"a")


def test_parts_and_payloads_are_left_out() -> None:
    without = options(match_on="subject, headers")
    assert without.match_on == {"subject", "headers"}
    assert without.ignores_body(b"a")
    assert options(match_on=["subject", "body"]).header(b"X-Id") is UNCHECKED
    assert options(ignore_bodies="blobs.>").ignores_body(b"blobs.1")
    assert not options(ignore_bodies="blobs.>").ignores_body(b"a")


def test_the_nearest_layer_wins_and_lists_add_up() -> None:
    stored = read({"ignore_json": ["/ts"], "match_on": "subject", "like_headers": "A", "learn": False})
    near = read({"ignore_json": "/id", "match_on": list(PARTS), "ignore_headers": "a"})
    both = MatchOptions(**combine(stored, near))
    assert [str(place) for place in both.ignore_json] == ["/id", "/ts"]
    assert both.match_on == set(PARTS)
    assert not both.learn
    assert (both.like_headers, both.ignore_headers) == ((), ("a",))
    nearest = read({"match_headers": ["a", "b"], "ignore_headers": "c"})
    exact = MatchOptions(**combine(combine(stored, near), nearest))
    assert (exact.match_headers, exact.ignore_headers) == (("a", "b"), ("c",))
    relaxed = combine(read(exact.stored()), read({"like_headers": "b"}))
    assert (relaxed["match_headers"], relaxed["like_headers"]) == (("a",), ("b",))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ignore_header": "A"}, "did you mean 'ignore_headers'"),
        ({"zzz": 1}, "there is no option 'zzz': there are match_on"),
        ({"match_on": "subject,time"}, "match_on must be some of subject, headers, body, client, order"),
        ({"match_on": ""}, "match_on must be one line of text, not ''"),
        ({"match_on": ","}, "match_on must be some of"),
        ({"ignore_headers": "A: b"}, "must be the name of a header"),
        ({"ignore_headers": 7}, "ignore_headers must be one line of text, not 7"),
        ({"ignore_json": "ts"}, r"ignore_json must be a JSON pointer \(/id\)"),
        ({"ignore_json": "header:A"}, "must be a JSON pointer, as in /id"),
        ({"ignore_json": "/a~2"}, "must be a JSON pointer"),
        ({"like_json": "a..b /ts"}, "must begin with a valid subject pattern, not 'a..b'"),
        ({"learn_only": "header:"}, "header:NAME or token"),
        ({"learn": "yes"}, "learn must be true or false"),
        ({"bodies": {"a": 1}}, "bodies must map subject patterns to functions"),
        ({"bodies": {"a..b": bool}}, "a key of bodies must be a valid subject pattern"),
        ({"ignore_bodies": "a..b"}, "must be a valid subject pattern"),
    ],
)
def test_a_mistake_is_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(given)


_names = st.text(st.characters(codec="utf-8", exclude_characters=":\r\n"), min_size=1).filter(str.strip)
_members = st.text(st.characters(codec="utf-8", exclude_characters="\r\n")).map(
    lambda text: text.replace("~", "~0").replace("/", "~1")
)
_pointers = st.builds(
    lambda subject, members: f"{subject}/{'/'.join(members)}",
    st.sampled_from(["", "a.> ", "* "]),
    st.lists(_members, min_size=1, max_size=3),
)
_layers = st.fixed_dictionaries(
    {},
    optional={
        "match_on": st.sets(st.sampled_from(PARTS), min_size=1).map(list),
        "ignore_headers": st.lists(_names, max_size=3),
        "like_json": st.lists(_pointers, max_size=3),
        "learn_not": st.lists(_pointers | st.just("b token") | st.just("header:X-*"), max_size=3),
        "ignore_bodies": st.lists(st.sampled_from(["a", "b.>"]), max_size=2),
        "learn": st.booleans(),
        "allow_repeats": st.booleans(),
    },
)


@given(_layers)
def test_stored_options_are_read_back(given: dict[str, Any]) -> None:
    made = options(**given)
    stored = json.loads(json.dumps(made.stored()))
    assert options(**stored) == made
