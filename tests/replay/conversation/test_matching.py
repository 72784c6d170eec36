"""Matching frames agree; of others the first field that differs is named."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproxy.protocol.places import pointer_text
from natsproxy.replay.conversation import matching
from natsproxy.replay.conversation.identifier_map import IdentifierMap, LearnedPairs
from natsproxy.replay.conversation.match_options import MatchOptions, read
from natsproxy.replay.conversation.matching import Matcher
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S
from natsproxy.wire.parse import frames

N1, N2 = "A" * 21 + "1", "B" * 21 + "2"


def one(data: str) -> Frame:
    (frame,) = frames(data.encode(), C2S)
    return frame


def pub(subject: str, body: str = "", reply: str = "") -> str:
    return f"PUB {subject} {reply} {len(body)}\r\n{body}\r\n"


CREATE = "$JS.API.STREAM.CREATE.S"
ZEROS = ("0", "0.0", "false", '""', "[]", "{}", "null", '{"b":{"c":0}}')
CASES = [
    (pub("a", "x"), pub("a", "x"), ""),
    (pub("a", "x"), pub("b", "x"), "subject"),
    (pub("a", "x"), pub("a", "y"), "body"),
    (pub("a", "x", "r"), pub("a", "x"), "reply"),
    (pub("a", "x", f"_INBOX.{N1}"), pub("a", "x", f"_INBOX.{N2}"), ""),
    ("SUB a q 1\r\n", "SUB a q 7\r\n", ""),
    ("SUB a q 1\r\n", "SUB a p 1\r\n", "queue"),
    (
        "HPUB a 18 18\r\nNATS/1.0\r\nA: 1\r\n\r\n\r\n",
        "HPUB a 18 18\r\nNATS/1.0\r\nA: 2\r\n\r\n\r\n",
        "headers",
    ),
    (pub("$JS.API.STREAM.INFO.S", '{"a":1,"b":[1]}'), pub("$JS.API.STREAM.INFO.S", '{"b": [1], "a": 1}'), ""),
    (pub("$JS.API.STREAM.INFO.S", '{"a":1}'), pub("$JS.API.STREAM.INFO.S", '{"a":2}'), "body"),
    (
        pub("$JS.API.CONSUMER.MSG.NEXT.S.C", '{"batch":1,"expires":5}'),
        pub("$JS.API.CONSUMER.MSG.NEXT.S.C", '{"batch":1,"expires":6}'),
        "",
    ),
    (
        pub("$JS.hub.API.CONSUMER.CREATE.S", f'{{"deliver_subject":"_INBOX.{N1}"}}'),
        pub("$JS.hub.API.CONSUMER.CREATE.S", f'{{"deliver_subject":"_INBOX.{N2}"}}'),
        "",
    ),
    (pub("$O.b.M.eA==", '{"size":1,"mtime":"1"}'), pub("$O.b.M.eA==", '{"size":1,"mtime":"2"}'), ""),
    (pub("$O.b.M.eA==", '{"size":1,"mtime":"1"}'), pub("$O.b.M.eA==", '{"size":2,"mtime":"1"}'), "body"),
    (pub("app", '{"expires":1}'), pub("app", '{"expires":2}'), "body"),
    (pub("app", "{}"), pub("app", '{"a":0}'), "body"),
    (pub("$O.b.M.eA==", "{}"), pub("$O.b.M.eA==", '{"size":0}'), "body"),
    *((pub(CREATE, "{}"), pub(CREATE, f'{{"a":{zero}}}'), "") for zero in ZEROS),
    *((pub(CREATE, f'{{"c":{{"a":{zero},"b":1}}}}'), pub(CREATE, '{"c":{"b":1}}'), "") for zero in ZEROS),
    (pub(CREATE), pub(CREATE, '{"a":0}'), ""),
    *(
        (pub(CREATE, "{}"), pub(CREATE, f'{{"a":{one}}}'), "body")
        for one in ("1", "true", '"x"', '{"b":[0]}')
    ),
    (pub(CREATE, '{"a":0}'), pub(CREATE, '{"a":1}'), "body"),
    (pub(CREATE, '{"a":0}'), pub(CREATE, '{"a":false}'), "body"),
]


@pytest.mark.parametrize(("recorded", "live", "field"), CASES)
def test_the_field_that_differs_is_named(recorded: str, live: str, field: str) -> None:
    found = Matcher(IdentifierMap()).differs(one(recorded), one(live), LearnedPairs())
    assert (found.field if found else "") == field


def test_frames_that_differ_in_known_values_alone_are_not_read_as_json(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    identifiers, new = IdentifierMap(), LearnedPairs()
    matcher = Matcher(identifiers)
    recorded, live = (one(pub("orders", json.dumps({"id": name, "n": 1}))) for name in (N1, N2))
    assert matcher.differs(recorded, live, new) is None
    identifiers.learn(new)
    monkeypatch.setattr(matching, "parse", lambda body: pytest.fail("it was read"))
    answer, live_answer = (
        one(pub("done", json.dumps({"of": name, "own": "c" * 21 + "3"}))) for name in (N1, N2)
    )
    new = LearnedPairs()
    assert matcher.differs(answer, live_answer, new) is None
    assert new.live == {b"c" * 21 + b"3": b"c" * 21 + b"3"}


def test_a_value_of_one_frame_is_no_other_one_beside_known_values() -> None:
    identifiers, other, new = IdentifierMap(), "C" * 21 + "3", LearnedPairs()
    matcher = Matcher(identifiers)
    matcher.differs(one(pub("orders", f"{N1}")), one(pub("orders", f"{N2}")), new)
    identifiers.learn(new)
    # The subject teaches that the live `other` stands for a new identifier; the body has it as itself.
    recorded = one(pub("done." + "D" * 21 + "4", json.dumps([N1, other])))
    live = one(pub(f"done.{other}", json.dumps([N2, other])))
    found = matcher.differs(recorded, live, LearnedPairs())
    assert found is not None
    assert found.place == "/1"


@pytest.mark.parametrize(("subject", "agrees"), [("$JS.API.CONSUMER.INFO.S.%s", True), ("orders.%s", False)])
def test_names_that_libraries_make_up_are_learned_always(subject: str, agrees: bool) -> None:
    recorded, live = (one(pub(subject % name, "", f"_INBOX.{name}")) for name in (N1, N2))
    found = Matcher(IdentifierMap(), MatchOptions(learn=False)).differs(recorded, live, LearnedPairs())
    assert (found is None) is agrees


def test_a_users_matcher_comes_first() -> None:
    """Before bytes that are equal, and before the other options."""

    def same_length(ours: bytes, theirs: bytes) -> bool:
        return len(ours) == len(theirs) and ours != theirs

    options = MatchOptions(**read({"bodies": {"app.>": same_length}, "ignore_bodies": "app.>"}))
    matcher = Matcher(IdentifierMap(), options)
    assert matcher.differs(one(pub("app.x", "ab")), one(pub("app.x", "cd")), LearnedPairs()) is None
    for body in ("ab", "abc"):
        found = matcher.differs(one(pub("app.x", "ab")), one(pub("app.x", body)), LearnedPairs())
        assert found
        assert found.field == "body"


def hpub(*lines: str, body: str = "") -> str:
    block = "".join(f"{line}\r\n" for line in ("NATS/1.0", *lines, ""))
    return f"HPUB a {len(block)} {len(block) + len(body)}\r\n{block}{body}\r\n"


U1, U2 = "6f1c0f2e-5b1c-4e6e-9d52-0d3c5c1d8a11", "b7d9a7b2-3f0e-4c43-8f6a-6f0a9f6f2c22"
NOT_LEARNED: dict[str, Any] = {"learn": False}
WORDS: list[tuple[dict[str, Any], str, str, str]] = [
    ({"match_on": "subject,headers"}, pub("a", "x"), pub("a", "y"), ""),
    ({"match_on": "subject,headers"}, pub("a", "x"), pub("b", "x"), "subject"),
    ({"match_on": "body"}, pub("a", "x"), pub("b", "x"), ""),
    ({"match_on": "subject,body"}, hpub("A: 1"), hpub("A: 2", "B: 3"), ""),
    ({"match_on": "subject,body"}, hpub("A: 1"), pub("a"), ""),
    ({"ignore_headers": "x-*"}, hpub("X-A: 1", "B: 1"), hpub("B: 1"), ""),
    ({"ignore_headers": "X-A"}, hpub("X-A: 1"), hpub("x-a: 2"), ""),
    ({"ignore_headers": "x-*"}, hpub("X-A: 1"), hpub("X-A: 1", "B: 1"), "headers"),
    ({"ignore_headers": "x-*"}, hpub("X-A: 1"), pub("a"), ""),
    ({}, hpub("traceparent: 1", "B3: 0", "Date: Mon"), pub("a"), ""),
    ({}, hpub("Nats-Msg-Id: one"), hpub("Nats-Msg-Id: another"), ""),
    ({}, hpub("Nats-Msg-Id: one"), pub("a"), "headers"),
    ({}, hpub("Attempt: 1"), hpub("Attempt: 2"), "headers"),
    ({"like_headers": "A", **NOT_LEARNED}, hpub(f"A: {U1}"), hpub(f"A: {U2}"), ""),
    ({"like_headers": "A", **NOT_LEARNED}, hpub(f"A: {U1}"), hpub("A: x"), "headers"),
    ({"like_headers": "A", **NOT_LEARNED}, hpub("A: 17"), hpub("A: 4"), ""),
    ({"like_headers": "A"}, hpub("A: 17"), pub("a"), "headers"),
    ({"like_headers": "traceparent"}, hpub("traceparent: 1"), pub("a"), "headers"),
    ({"match_headers": "date"}, hpub("Date: Mon"), hpub("Date: Mon"), ""),
    ({"match_headers": "date"}, hpub("Date: Mon"), hpub("Date: Tue"), "headers"),
    ({"match_headers": "nats-msg-id"}, hpub("Nats-Msg-Id: one"), hpub("Nats-Msg-Id: another"), "headers"),
    ({"ignore_json": "/ts"}, pub("a", '{"ts":1,"v":2}'), pub("a", '{"v": 2}'), ""),
    ({"ignore_json": "/ts"}, pub("a", '{"ts":1,"v":2}'), pub("a", '{"v": 3}'), "body"),
    ({"ignore_json": "b.> /ts"}, pub("a", '{"ts":1}'), pub("a", '{"ts":2}'), "body"),
    ({"ignore_json": "/i/*/ts"}, pub("a", '{"i":[{"ts":1},{"ts":2}]}'), pub("a", '{"i":[{"ts":3},{}]}'), ""),
    ({"ignore_json": "/i/0"}, pub("a", '{"i":[1,2]}'), pub("a", '{"i":[3,2]}'), ""),
    ({"ignore_json": "/ts"}, pub("a", '{"ts":1}'), pub("a", "no json"), "body"),
    ({"like_json": "/n"}, pub("a", '{"n":1}'), pub("a", '{"n":250}'), ""),
    ({"like_json": "/n"}, pub("a", '{"n":1}'), pub("a", '{"n":"x"}'), "body"),
    ({"like_json": "/n"}, pub("a", '{"n":1}'), pub("a", "{}"), "body"),
    ({"ignore_bodies": "a"}, pub("a", "x"), pub("a", "y"), ""),
    ({"ignore_bodies": "b"}, pub("a", "x"), pub("a", "y"), "body"),
    ({}, pub("a", f'{{"id":"{U1}"}}'), pub("a", f'{{"id":"{U2}"}}'), ""),
    (NOT_LEARNED, pub("a", f'{{"id":"{U1}"}}'), pub("a", f'{{"id":"{U2}"}}'), "body"),
    ({"learn_not": "/id"}, pub("a", f'{{"id":"{U1}"}}'), pub("a", f'{{"id":"{U2}"}}'), "body"),
    ({"learn_only": "/id"}, pub("a", f'{{"id":"{U1}"}}'), pub("a", f'{{"id":"{U2}"}}'), ""),
    ({"learn_only": "/no"}, pub("a", f'{{"id":"{U1}"}}'), pub("a", f'{{"id":"{U2}"}}'), "body"),
    ({"learn_not": "header:R"}, hpub(f"R: {U1}"), hpub(f"R: {U2}"), "headers"),
    ({"learn_not": "token"}, pub(f"o.{U1}"), pub(f"o.{U2}"), "subject"),
]


@pytest.mark.parametrize(("given", "recorded", "live", "field"), WORDS)
def test_options_say_what_counts(given: dict[str, Any], recorded: str, live: str, field: str) -> None:
    found = Matcher(IdentifierMap(), MatchOptions(**read(given))).differs(
        one(recorded), one(live), LearnedPairs()
    )
    assert ("" if found is None else found.field) == field


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
BODIES = st.binary(max_size=80) | JSON.map(lambda value: json.dumps(value).encode())
SUBJECTS = st.sampled_from([b"app.x", b"$JS.API.STREAM.INFO.S", b"$O.b.M.eA==", b"_INBOX.a.b"])


@given(SUBJECTS, BODIES, BODIES, st.booleans())
def test_any_two_frames_can_be_compared(subject: bytes, ours: bytes, theirs: bytes, headers: bool) -> None:
    """A frame agrees with itself, and a difference can be shown."""
    block = b"NATS/1.0\r\n%b\r\n\r\n" % theirs if headers else b""
    (recorded,) = frames(encode.pub(subject, ours), C2S)
    (live,) = frames(encode.pub(subject, theirs, headers=block), C2S)
    matcher = Matcher(IdentifierMap())
    for one in (recorded, live):
        assert matcher.differs(one, one, LearnedPairs()) is None
    found = matcher.differs(recorded, live, LearnedPairs())
    if found is not None:
        assert str(found.text).encode("utf-8", "backslashreplace")
    elif not headers:
        assert matcher.differs(live, recorded, LearnedPairs()) is None


@given(st.dictionaries(st.text(max_size=8), st.integers(-1000, 1000), min_size=1), st.data())
def test_a_small_number_that_changed_is_named_by_its_pointer(
    members: dict[str, int], data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(sorted(members)))
    changed = {**members, name: members[name] + 1}
    ours, theirs = (
        one(encode.pub(b"app", json.dumps(value).encode()).decode()) for value in (members, changed)
    )
    found = Matcher(IdentifierMap()).differs(ours, theirs, LearnedPairs())
    assert found is not None
    assert (found.place, found.text.recorded, found.text.live) == (
        pointer_text((name,)),
        str(members[name]),
        str(members[name] + 1),
    )
