"""Two captures side by side."""

from __future__ import annotations

from pathlib import Path

from natsproxy.replay.canonical import parse_ignore
from natsproxy.replay.compare import compare
from tests.replay.scripted import MS, Line, hello, write

N1, N2 = b"YsWepi49b8wudIgA6wZ1I0", b"ve7W1VgogpWgdqn9EOcG89"


def conversation(nuid: bytes, answer: bytes) -> list[Line]:
    return [
        *hello(1, "a"),
        (1, ">", b"SUB _INBOX.%b 1\r\nPUB ask _INBOX.%b 1\r\n?\r\n" % (nuid, nuid)),
        (1, "<", b"MSG _INBOX.%b 1 %d\r\n%b\r\n" % (nuid, len(answer), answer)),
    ]


def test_the_same_conversation_with_other_identifiers_is_the_same(tmp_path: Path) -> None:
    a = write(tmp_path / "a.ncap", conversation(N1, b"42"))
    b = write(tmp_path / "b.ncap", conversation(N2, b"42"))
    report = compare(a, b)
    assert report.same
    ask = next(row for row in report.rows if row.group == "ask")
    assert (ask.recorded.sent, ask.observed.sent, ask.recorded.replies) == (1, 1, 1)
    assert ask.recorded.percentile(0.5) == MS


def test_another_answer_is_shown_beside_the_recorded_one(tmp_path: Path) -> None:
    a = write(tmp_path / "a.ncap", conversation(N1, b"42"))
    b = write(tmp_path / "b.ncap", conversation(N2, b"43"))
    report = compare(a, b)
    assert not report.same
    row = report.rows[0]
    assert (row.group, row.missing, row.added) == ("ask (answer)", 1, 1)
    assert row.sample is not None
    assert row.sample.field == "body"
    assert row.sample.recorded.endswith("42")
    assert row.sample.observed.endswith("43")
    assert report.facts()["groups"][0]["first_difference"]["field"] == "body"


def test_what_only_one_side_has_is_named(tmp_path: Path) -> None:
    a = write(tmp_path / "a.ncap", conversation(N1, b"42"))
    b = write(tmp_path / "b.ncap", [*conversation(N2, b"42"), (1, "<", b"-ERR 'oops'\r\n")])
    (row,) = (row for row in compare(a, b).rows if not row.same)
    assert (row.group, row.observed.errors, row.missing, row.added) == ("'oops'", 1, 0, 1)
    assert row.sample is not None
    assert row.sample.field == "presence"


def test_ignored_members_do_not_differ(tmp_path: Path) -> None:
    a = write(tmp_path / "a.ncap", conversation(N1, b'{"ts":1}'))
    b = write(tmp_path / "b.ncap", conversation(N2, b'{"ts":2}'))
    assert not compare(a, b).same
    assert compare(a, b, parse_ignore(["json:/ts"])).same
