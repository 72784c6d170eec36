"""trace: what belongs to no trace begins one, and everything else is left alone."""

from __future__ import annotations

import pytest

from natsproxy.protocol import headers, traceparent
from natsproxy.protocol.connect import Connect
from natsproxy.protocol.info import Info
from natsproxy.wire.ops import C2S
from natsproxy.wire.parse import frames
from tests.rules.kit import FakeView, Wire

RULE = '[[rules]]\nname = "r"\nkind = "trace"\n'
THEIRS = traceparent.SpanContext(b"\1" * 16, b"\2" * 8).value
OWN = b"NATS/1.0\r\nTraceparent: " + THEIRS + b"\r\n\r\n"


def wire(*, agreed: bool = True, max_payload: int = 1024) -> Wire:
    view = FakeView(connect=Connect(headers=agreed), info=Info(headers=True, max_payload=max_payload))
    return Wire(RULE, view=view)


def test_each_message_begins_a_trace_of_its_own() -> None:
    """And keeps its other headers, its body and its reply subject."""
    one = wire()
    raw = one.c2s(b"PUB a r 2\r\nhi\r\n") + one.c2s(b"HPUB a 22 24\r\nNATS/1.0\r\nA: b c d\r\n\r\nho\r\n")
    first, second = frames(raw, C2S)
    assert (first.reply, first.body, second.body) == (b"r", b"hi", b"ho")
    contexts = [traceparent.context_of(frame.headers) for frame in (first, second)]
    assert None not in contexts
    assert len({one.trace for one in contexts if one}) == 2
    assert headers.get(second.headers, b"A") == b"b c d"


@pytest.mark.parametrize(
    ("frame", "agreed"),
    [
        (b"HPUB a %d %d\r\n%shi\r\n" % (len(OWN), len(OWN) + 2, OWN), True),
        (b"PUB _INBOX.oMssyhzujTKOBAXWf1wuAX.1 2\r\nhi\r\n", True),
        (b"PUB $JS.ACK.S.c.1.1.1.1795340332080752913.0 0\r\n\r\n", True),
        (b"PUB $SYS.REQ.USER.INFO r 0\r\n\r\n", True),
        (b"PUB a 2\r\nhi\r\n", False),
        (b"PUB a 1000\r\n%s\r\n" % (b"x" * 1000), True),
    ],
    ids=["has one", "an answer", "an ack", "to the server", "no headers agreed", "would be too large"],
)
def test_what_is_left_alone(frame: bytes, agreed: bool) -> None:
    assert wire(agreed=agreed).c2s(frame) == frame


def test_without_the_reasons_the_same_frames_are_changed() -> None:
    assert wire().c2s(b"PUB a 2\r\nhi\r\n") != b"PUB a 2\r\nhi\r\n"
    large = b"PUB a 1000\r\n%s\r\n" % (b"x" * 1000)
    assert wire(max_payload=2048).c2s(large) != large
