"""Counting messages in bulk gives the same as looking at each one."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproxy.errors import ProtocolError
from natsproxy.replay.client_playback.bulk_scan import BulkScanner, BulkSearch
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import S2C, Op
from natsproxy.wire.parse import frames

SIDS = (b"1", b"2", b"3")
MESSAGES = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from([b"a", b"b.c", b"_INBOX.x"]),
            st.sampled_from(SIDS),
            st.sampled_from([b"", b"", b"", b"_INBOX.y", b"$JS.ACK.S.C.1.1.1.1.0"]),
            st.sampled_from([b"", b"x", b"MSG a 1 0", b"_INBOX."]),
        ),
        st.just(None),
    ),
    max_size=40,
)


def encoded(message: tuple[bytes, bytes, bytes, bytes] | None) -> bytes:
    if message is None:
        return b"PING\r\n"
    subject, sid, reply, body = message
    return b"MSG %b %b %b %d\r\n%b\r\n" % (subject, sid, reply, len(body), body)


@given(MESSAGES, st.integers(1, 50))
def test_counts_are_exact_and_nothing_that_names_something_is_only_counted(
    messages: list[tuple[bytes, bytes, bytes, bytes] | None], piece: int
) -> None:
    scanner = BulkScanner(BulkSearch())
    for sid in SIDS:
        scanner.subscribed(sid, b"a.%b" % sid)
    data = b"".join(map(encoded, messages))
    found: list[Frame] = []
    counts: Counter[bytes] = Counter()
    for at in range(0, len(data), piece):
        for part in scanner.scan(data[at : at + piece]):
            if isinstance(part, Frame):
                found.append(part)
                counts[part.sid] += part.op == Op.MSG
            else:
                counts[part[0]] += part[1]
    assert scanner.held == 0
    assert +counts == Counter(frame.sid for frame in frames(data, S2C) if frame.op == Op.MSG)
    for frame in frames(data, S2C):
        if frame.op == Op.PING or frame.reply or frame.subject == b"_INBOX.x":
            assert frame.raw in [one.raw for one in found]


def test_the_subscription_that_gets_most_is_the_one_that_is_counted() -> None:
    scanner = BulkScanner(BulkSearch())
    scanner.subscribed(b"1", b"quiet")
    scanner.subscribed(b"2", b"busy")
    assert all(isinstance(part, Frame) for part in scanner.scan(b"MSG busy 2 0\r\n\r\n" * 256))
    assert list(scanner.scan(b"MSG busy 2 0\r\n\r\n" * 9)) == [(b"2", 9)]
    (single,) = scanner.scan(b"MSG quiet 1 0\r\n\r\n")
    assert isinstance(single, Frame)


def test_reply_prefixes_are_learned_up_to_a_limit() -> None:
    search = BulkSearch()
    scanner = BulkScanner(search)
    scanner.subscribed(b"1", b"a")
    message = b"MSG a 1 my.box.1 0\r\n\r\n"
    assert list(scanner.scan(message)) == [(b"1", 1)]
    search.learn(b"my.box.1")
    assert search.names(b"my.other")
    (frame,) = scanner.scan(message)
    assert isinstance(frame, Frame)
    for n in range(20):
        search.learn(b"p%d.x" % n)
    (frame,) = scanner.scan(b"MSG a 1 0\r\n\r\n")
    assert isinstance(frame, Frame)
    assert search.plain.match(b"PUB a 0\r\n") is None


@pytest.mark.parametrize("reply", [b"*", b">", b".x"])
def test_a_reply_that_no_pattern_finds_makes_everything_be_looked_at(reply: bytes) -> None:
    search = BulkSearch()
    search.learn(reply)
    assert search.plain.match(b"PUB a 0\r\n") is None


def test_bytes_that_are_not_nats_are_reported() -> None:
    with pytest.raises(ProtocolError, match="s2c byte"):
        list(BulkScanner(BulkSearch()).scan(b"MSG a\r\n"))
