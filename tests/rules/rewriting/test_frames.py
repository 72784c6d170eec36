"""Frames in the other side's subjects: headers, and frames that are not whole."""

from __future__ import annotations

import pytest

from natsproxy.rules.interface import Decision
from natsproxy.wire.ops import C2S, Direction
from natsproxy.wire.parse import frames
from tests.rules.kit import Wire, parse

TENANT = '[[rules]]\nname = "t"\nkind = "rewrite"\nprefix = "t"\n'


def hpub(headers: bytes, body: bytes = b"body") -> bytes:
    return b"HPUB a %d %d\r\n%s%s\r\n" % (len(headers), len(headers) + len(body), headers, body)


EXPECTS = b"NATS/1.0\r\nNats-Expected-Last-Subject-Sequence-Subject: %s\r\nX: y\r\n\r\n"


@pytest.mark.parametrize(("named", "expected"), [(b"a.*", b"t.a.*"), (b"_INBOX.1", b"_INBOX.1")])
def test_the_subject_of_an_expected_sequence_is_the_server_s(named: bytes, expected: bytes) -> None:
    (out,) = frames(Wire(TENANT).c2s(hpub(EXPECTS % named)), C2S)
    assert (out.subject, out.headers, out.body) == (b"t.a", EXPECTS % expected, b"body")


def test_also_where_the_subject_of_the_publish_stays() -> None:
    wire = Wire('[[rules]]\nname = "m"\nkind = "rewrite"\nfrom = "b.*"\nto = "c.$1"\n')
    (out,) = frames(wire.c2s(hpub(EXPECTS % b"b.1")), C2S)
    assert (out.subject, out.headers) == (b"a", EXPECTS % b"c.1")


def cut(direction: Direction, raw: bytes, keep: int) -> Decision | None:
    """Decide on a frame of which only so much behind the control line is here."""
    frame = parse(direction, raw)
    end = frame.line_end + keep
    frame = frame._replace(end=end, missing=frame.end - end, short=True)
    return Wire(TENANT).rules.decide(direction, frame, 0)


def test_a_head_whose_body_is_still_coming_has_its_sizes_mended() -> None:
    headers, body = EXPECTS % b"a.1", b"0123456789"
    decision = cut(C2S, hpub(headers, body), len(headers) + 4)
    assert decision is not None
    assert decision.out is not None
    (out,) = frames(decision.out[0] + body[4:] + b"\r\n", C2S)
    assert (out.subject, out.headers, out.body) == (b"t.a", EXPECTS % b"t.a.1", body)


def test_a_head_that_is_not_whole_moves_at_its_line() -> None:
    headers = EXPECTS % b"a.1"
    decision = cut(C2S, hpub(headers), 3)
    assert decision is not None
    assert decision.out == (b"HPUB t.a %d %d\r\nNAT" % (len(headers), len(headers) + 4),)


def test_other_headers_keep_their_bytes() -> None:
    block = b"NATS/1.0\r\nNats-Subject-X:t.b\r\n\r\n"
    raw = b"HMSG t.a 1 %d %d\r\n%s\r\n" % (len(block), len(block), block)
    assert Wire(TENANT).s2c(raw) == raw.replace(b"t.a", b"a", 1)


def test_headers_that_name_subjects_are_translated() -> None:
    block = b"NATS/1.0\r\nNats-Trace-Dest: traces\r\nNats-Schedule-Target: later.x\r\nX: a.b\r\n\r\n"
    (out,) = frames(Wire(TENANT).c2s(hpub(block)), C2S)
    assert out.headers == block.replace(b" traces", b" t.traces").replace(b" later.x", b" t.later.x")


def test_the_header_value_that_the_server_reads_is_translated() -> None:
    """Of the trace's target the first that is not empty, of others the first, and only after CRLF."""
    block = (
        b"NATS/1.0\r\nNats-Trace-Dest: \r\nNats-Trace-Dest: a\r\nNats-Schedule-Target:\r\n"
        b"A: b\nNats-Schedule-Source: x\r\nNats-Schedule-Source: y\r\n\r\n"
    )
    (out,) = frames(Wire(TENANT).c2s(hpub(block)), C2S)
    assert out.headers == block.replace(b": a", b": t.a").replace(b": y", b": t.y")


def test_subjects_that_are_never_mapped_are_not_mapped_back() -> None:
    """A server passes any reply subject on, also one with empty tokens, which no mapping touches."""
    wire = Wire(TENANT)
    assert wire.s2c("MSG t.a 1 t. 0\n") == b"MSG a 1 t. 0\r\n\r\n"
    assert wire.s2c("MSG t.a 1 t.b..c 0\n") == b"MSG a 1 t.b..c 0\r\n\r\n"
    assert wire.s2c("MSG t. 1 0\n") == b"MSG t. 1 0\r\n\r\n"
    assert wire.c2s("PUB a b..c 0\n") == b"PUB t.a b..c 0\r\n\r\n"
