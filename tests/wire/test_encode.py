"""Encoding: the table's frames again from their fields; changed lines keep their payloads."""

from __future__ import annotations

import pytest

from natsproxy.errors import ProtocolError
from natsproxy.wire import encode
from natsproxy.wire.ops import C2S, S2C, Op
from natsproxy.wire.parse import frames
from tests.wire.cases import GOOD, Good

MESSAGES = [case for case in GOOD if case.op in (Op.PUB, Op.HPUB, Op.MSG, Op.HMSG)]


@pytest.mark.parametrize("case", MESSAGES, ids=lambda case: case.name)
def test_a_message_survives_decoding_and_encoding(case: Good) -> None:
    """What is encoded reads as the same fields."""
    (frame,) = frames(case.raw, case.direction)
    again = encode.message(
        frame.op, frame.subject, sid=frame.sid, reply=frame.reply, headers=frame.headers, body=frame.body
    )
    (second,) = frames(again, case.direction)
    assert second[4:] == frame[4:]
    assert second.body == frame.body


def test_only_the_line_changes() -> None:
    """`with_line` keeps headers and body byte for byte."""
    (frame,) = frames(b"HPUB  a\tr 12 14\r\nNATS/1.0\r\n\r\nhi\r\n", C2S)
    assert encode.with_line(frame, subject=b"t.a") == b"HPUB t.a r 12 14\r\nNATS/1.0\r\n\r\nhi\r\n"
    (sub,) = frames(b"SUB a q 1\r\n", C2S)
    assert encode.with_line(sub, subject=b"b") == b"SUB b q 1\r\n"


def test_sizes_are_corrected() -> None:
    """Another payload, other numbers; headers make an HMSG."""
    (frame,) = frames(b"MSG a 1 2\r\nhi\r\n", S2C)
    changed = encode.with_payload(frame, headers=b"NATS/1.0\r\n\r\n", body=b"longer")
    assert changed == b"HMSG a 1 12 18\r\nNATS/1.0\r\n\r\nlonger\r\n"
    (back,) = frames(changed, S2C)
    assert encode.with_payload(back, headers=b"") == b"MSG a 1 6\r\nlonger\r\n"


@pytest.mark.parametrize("data", [b"PUB a 2\r\nh", b"NOPE\r\n", b"PUB a\r\n"])
def test_a_buffer_of_partial_frames_is_an_error_with_its_offset(data: bytes) -> None:
    """ProtocolError with the offset, for captures and tests."""
    with pytest.raises(ProtocolError) as raised:
        list(frames(b"PING\r\n" + data, C2S))
    assert raised.value.offset >= 6
