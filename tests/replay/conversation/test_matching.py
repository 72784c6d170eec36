"""Matching frames agree; of others the first field that differs is named."""

from __future__ import annotations

import pytest

from natsproxy.replay.conversation.identifier_map import IdentifierMap, Lesson
from natsproxy.replay.conversation.match_options import MatchOptions
from natsproxy.replay.conversation.matching import Matcher, ignoring_json
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S
from natsproxy.wire.parse import frames

N1, N2 = "A" * 21 + "1", "B" * 21 + "2"


def one(data: str) -> Frame:
    (frame,) = frames(data.encode(), C2S)
    return frame


def pub(subject: str, body: str = "", reply: str = "") -> str:
    return f"PUB {subject} {reply} {len(body)}\r\n{body}\r\n"


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
]


@pytest.mark.parametrize(("recorded", "live", "field"), CASES)
def test_the_field_that_differs_is_named(recorded: str, live: str, field: str) -> None:
    found = Matcher(IdentifierMap()).differs(one(recorded), one(live), Lesson())
    assert (found.field if found else "") == field


def test_a_users_matcher_comes_first() -> None:
    matcher = Matcher(IdentifierMap(), MatchOptions(bodies=((b"app.>", ignoring_json(["/a/ts", "/id"])),)))
    ours, theirs = (
        one(pub("app.x", '{"a":{"ts":1,"v":2},"id":3}')),
        one(pub("app.x", '{"id":4,"a":{"v":2,"ts":5}}')),
    )
    assert matcher.differs(ours, theirs, Lesson()) is None
    for body in ('{"a":{"v":9}}', "no json"):
        found = matcher.differs(ours, one(pub("app.x", body)), Lesson())
        assert found
        assert found.field == "body"
