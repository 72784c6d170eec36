"""Messages are translated as a whole: also a stored message that an answer of the API holds as base64."""

from __future__ import annotations

import base64

import pytest

from natsproxy.replay.conversation.identifier_map import IdentifierMap, LearnedPairs, live_text, recorded_text

RECORDED, LIVE = (b"%c23e4567-e89b-12d3-a456-426614174000" % n for n in b"19")
STORED = b'{"type":"io.nats.jetstream.api.v1.stream_msg_get_response","message":{"data":"%b","hdrs":"%b"}}'


def stored(inside: bytes) -> bytes:
    encoded = base64.b64encode(inside)
    return STORED % (encoded, encoded)


def knowing() -> IdentifierMap:
    identifiers, new = IdentifierMap(), LearnedPairs()
    assert identifiers.unify(RECORDED, LIVE, new, "here")
    identifiers.learn(new)
    return identifiers


@pytest.mark.parametrize(
    "text",
    [
        lambda one: b"a.%b.b" % one,
        lambda one: b"NATS/1.0\r\nX-Id: %b\r\n\r\n" % one,
        lambda one: b'{"id":"%b"}' % one,
        lambda one: stored(b'{"id":"%b"}' % one),
        lambda one: stored(b"\xff\0" + one),
        lambda one: b'[{"id":"%b"}]' % (b"x" * 300_000 + b" " + one),
    ],
)
def test_a_text_is_translated_there_and_back(text: object) -> None:
    assert callable(text)
    identifiers = knowing()
    assert live_text(identifiers, text(RECORDED)) == text(LIVE)
    assert recorded_text(identifiers, text(LIVE)) == text(RECORDED)


@pytest.mark.parametrize("text", [b"x" * 300_000 + b" " + RECORDED, STORED % (b"!" * 20, b"=")])
def test_what_is_too_large_or_no_base64_stays(text: bytes) -> None:
    identifiers = knowing()
    assert live_text(identifiers, text) == recorded_text(identifiers, text) == text


def test_a_client_knows_the_identifiers_that_it_was_sent() -> None:
    identifiers = IdentifierMap()
    live_text(identifiers, stored(RECORDED))
    assert not identifiers.unify(RECORDED, LIVE, LearnedPairs(), "here")
