"""Two captures side by side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from natsproxy.replay.conversation.match_options import MatchOptions, read
from natsproxy.replay.diff.compare import compare
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


def test_generated_consumer_names_count_as_one(tmp_path: Path) -> None:
    captures = []
    for name in (b"Consumer", b"G0xHKKDJ"):
        answer = (
            b'{"type":"io.nats.jetstream.api.v1.consumer_create_response","name":"%b","config":{}}' % name
        )
        lines: list[Line] = [
            *conversation(N1, answer),
            (1, ">", b"PUB $JS.API.CONSUMER.INFO.S.%b 0\r\n\r\n" % name),
        ]
        captures.append(write(tmp_path / f"{name.decode()}.ncap", lines))
    assert compare(captures[0], captures[1]).same


def test_another_answer_is_shown_beside_the_recorded_answer(tmp_path: Path) -> None:
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


def test_frames_of_one_side_only_are_named(tmp_path: Path) -> None:
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
    assert compare(a, b, MatchOptions(**read({"ignore_json": "/ts"}))).same


def _shuffled(tmp_path: Path) -> tuple[Path, Path]:
    """Two captures of the same 300 publishes in other orders, but for one body and one frame."""
    ours = [(1, ">", b"PUB a.%d 3\r\n%03d\r\n" % (n % 7, n)) for n in range(300)]
    theirs = [*reversed(ours[:-1]), (1, ">", b"PUB b 0\r\n\r\n")]
    theirs[100] = (1, ">", b"PUB a.%d 3\r\nodd\r\n" % (198 % 7))
    return (
        write(tmp_path / "a.ncap", [*hello(1, "a"), *ours]),
        write(tmp_path / "b.ncap", [*hello(1, "a"), *theirs]),
    )


def test_files_give_the_same_report_as_memory(tmp_path: Path) -> None:
    a, b = _shuffled(tmp_path)
    report = compare(a, b)
    assert [(row.group, row.missing, row.added) for row in report.rows] == [("a.*", 2, 1), ("b", 0, 1)]
    assert report.rows[0].sample is not None
    assert report.rows[0].sample.recorded.endswith("198")
    assert report.rows[0].sample.observed.endswith("odd")
    for limit in (0, 1, 10):
        found = compare(a, b, limit=limit)
        assert found.by_form
        assert found.facts() == report.facts() | {"by_form": True}


def test_rows_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("natsproxy.replay.diff.compare.ROWS", 2)
    lines = [(1, ">", b"PUB %b 0\r\n\r\n" % name) for name in (b"a", b"b", b"c", b"d", b"a")]
    a = write(tmp_path / "a.ncap", [*hello(1, "a"), *lines])
    b = write(tmp_path / "b.ncap", [*hello(1, "a"), *lines[:3], *lines[4:]])
    rows = {row.group: (row.recorded.sent, row.observed.sent, row.missing) for row in compare(a, b).rows}
    assert rows == {"a": (2, 2, 0), "b": (1, 1, 0), "(other subjects)": (2, 1, 1)}


DELIVERY = b"MSG s 1 $JS.ACK.S.C.%d.7.%d.11.0 1\r\nx\r\n"


def test_a_redelivery_counts_behind_a_nak_and_is_shown_in_any_case(tmp_path: Path) -> None:
    once = [*hello(1, "a"), (1, ">", b"SUB s 1\r\n"), (1, "<", DELIVERY % (1, 1))]
    again = (1, "<", DELIVERY % (2, 2))
    a = write(tmp_path / "a.ncap", once)
    report = compare(a, write(tmp_path / "b.ncap", [*once, again]))
    assert report.same
    assert report.rows[0].observed.statuses == {"redelivered": 1}
    nak = (1, ">", b"PUB $JS.ACK.S.C.1.7.1.11.0 4\r\n-NAK\r\n")
    c = write(tmp_path / "c.ncap", [*once, nak, again])
    d = write(tmp_path / "d.ncap", [*once, nak])
    assert [(row.group, row.added) for row in compare(d, c).rows if not row.same] == [("s", 1)]


def told(path: Path, *sent: str, conn: int = 1) -> Path:
    """Write a capture of one client that sends these frames."""
    return write(path, [*hello(conn, "a"), *((conn, ">", one.encode()) for one in sent)])


def keyed(key: str, body: str = "x") -> str:
    block = f"NATS/1.0\r\nNats-Msg-Id: {key}\r\n\r\n"
    return f"HPUB orders {len(block)} {len(block) + len(body)}\r\n{block}{body}\r\n"


def test_equal_message_ids_are_equal_in_both(tmp_path: Path) -> None:
    """Their values count for nothing: two that were one are two messages to the server."""
    twice, other = (
        told(tmp_path / "1.ncap", keyed("a"), keyed("a")),
        told(tmp_path / "2.ncap", keyed("b"), keyed("b")),
    )
    assert compare(twice, other).same
    two = told(tmp_path / "3.ncap", keyed("b"), keyed("c"))
    for pair in ((twice, two), (two, twice)):
        (row,) = compare(*pair).rows
        assert (row.missing, row.added) == (1, 1)
        assert row.sample is not None
        assert row.sample.field == "header Nats-Msg-Id"


def order(identifier: str, subject: str = "orders") -> str:
    body = json.dumps({"id": identifier, "at": f"2026-11-25T15:08:{identifier[-2:]}"})
    return f"PUB {subject} {len(body)}\r\n{body}\r\n"


IDS = [f"3f2504e0-4f89-11d3-9a0c-0305e82c33{n}" for n in range(10, 20)]


def test_a_value_stands_for_one_other(tmp_path: Path) -> None:
    """As when a cassette is played: the second order is paid, and not the first."""
    a = told(tmp_path / "a.ncap", order(IDS[0]), order(IDS[1]), order(IDS[0], "paid"))
    b = told(tmp_path / "b.ncap", order(IDS[2]), order(IDS[3]), order(IDS[2], "paid"))
    report = compare(a, b)
    assert report.same
    assert report.learned[0].startswith("orders /id 3f2504e0... -> 3f2504e0...")
    assert report.facts()["learned"] == report.learned
    c = told(tmp_path / "c.ncap", order(IDS[2]), order(IDS[3]), order(IDS[3], "paid"))
    assert [row.group for row in compare(a, c).rows if not row.same] == ["paid"]


def test_clients_that_connect_in_another_order_are_known_by_what_they_send(tmp_path: Path) -> None:
    def two(path: Path, first: int, nuids: tuple[bytes, bytes]) -> Path:
        lines: list[Line] = [*hello(1, "a"), *hello(2, "a")]
        for n, nuid in enumerate(nuids):
            conn = first if n == 0 else 3 - first
            asks = b"SUB _INBOX.%b.* 1\r\nPUB ready _INBOX.%b.1 0\r\n\r\nPUB task.%d _INBOX.%b.2 0\r\n\r\n"
            lines += [
                (conn, ">", asks % (nuid, nuid, n, nuid)),
                (conn, "<", b"MSG _INBOX.%b.2 1 1\r\n%d\r\n" % (nuid, n)),
            ]
        return write(path, lines)

    a, b = two(tmp_path / "a.ncap", 1, (N1, N2)), two(tmp_path / "b.ncap", 2, (N2[::-1], N1[::-1]))
    assert [row.sample for row in compare(a, b).rows if not row.same] == []


def test_polls_may_come_more_often(tmp_path: Path) -> None:
    ask = "PUB $JS.API.STREAM.INFO.S _INBOX.%s.%d 0\r\n\r\n"
    a = told(tmp_path / "a.ncap", ask % (N1.decode(), 1))
    b = told(tmp_path / "b.ncap", ask % (N2.decode(), 1), ask % (N2.decode(), 2))
    for pair in ((a, b), (b, a)):
        assert compare(*pair).same
        assert not compare(*pair, MatchOptions(allow_repeats=False)).same
    none = told(tmp_path / "c.ncap", "PUB x 0\r\n\r\n")
    assert not compare(a, none).same


def test_sequences_of_messages_may_be_others(tmp_path: Path) -> None:
    """Of publishes side by side any may come first; the same message has the same one."""

    def acked(path: Path, *sequences: int) -> Path:
        lines: list[Line] = [*hello(1, "a")]
        for n, sequence in enumerate(sequences):
            ack = b'{"stream":"S","seq":%d}' % sequence
            lines += [
                (1, ">", b"PUB s.%d _INBOX.%b.%d 0\r\n\r\n" % (n, N1, n)),
                (1, "<", b"MSG _INBOX.%b.%d 1 %d\r\n%b\r\n" % (N1, n, len(ack), ack)),
            ]
        return write(path, lines)

    first, other = acked(tmp_path / "a.ncap", 1, 2), acked(tmp_path / "b.ncap", 2, 1)
    assert compare(first, other).same
    twice = acked(tmp_path / "c.ncap", 1, 1)
    (row,) = (row for row in compare(first, twice).rows if not row.same)
    assert row.sample is not None
    assert (row.group, row.sample.field) == ("s.* (answer)", "sequence")
