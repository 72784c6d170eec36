"""What tables keep of a message of JetStream's."""

from __future__ import annotations

from typing import Any

import pytest

from natsproxy.protocol.jetstream_message import NOTHING, JetStreamMessage, describe
from natsproxy.wire.ops import C2S, S2C, Direction
from natsproxy.wire.parse import frames

ACK = b"$JS.ACK.S.C.1.2.3.1767225600000000000.4"
OF_ACK = {"stream": b"S", "consumer": b"C", "delivered": 1, "stream_seq": 2, "consumer_seq": 3, "pending": 4}
CONSUMER = b'{"type":"io.nats.jetstream.api.v1.consumer_info_response",'


def described(direction: Direction, line: bytes, body: bytes = b"", headers: bytes = b"") -> JetStreamMessage:
    """Return the fields of one message; line: without its sizes."""
    sizes = b"%d %d" % (len(headers), len(headers + body)) if headers else b"%d" % len(body)
    raw = b"%b%b %b\r\n%b%b\r\n" % (b"H" if headers else b"", line, sizes, headers, body)
    (frame,) = frames(raw, direction)
    return describe(frame)


def fields(**given: Any) -> JetStreamMessage:
    return JetStreamMessage()._replace(**given)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", "ack"),
        (b"+ACK", "ack"),
        (b"+OK", "ack"),
        (b"-NAK 5s", "nak"),
        (b"+WPI", "wpi"),
        (b"+WPI now", "other"),
        (b"+TERM because", "term"),
        (b"+TER", "other"),
        (b"+NXT 5", "next"),
        (b"thanks", "other"),
    ],
)
def test_answers_to_deliveries(body: bytes, kind: str) -> None:
    """The kind is that of the payload, the names and numbers those of the subject."""
    assert described(C2S, b"PUB " + ACK, body) == fields(kind=kind, **OF_ACK)


def test_deliveries() -> None:
    """Named by their reply subject, whatever they hold; with a domain too."""
    assert described(S2C, b"MSG a 1 " + ACK, b'{"stream":"T","seq":1}') == fields(kind="delivery", **OF_ACK)
    far = ACK.replace(b"ACK.", b"ACK.hub.account.") + b".random"
    assert described(S2C, b"MSG a 1 " + far) == fields(kind="delivery", domain=b"hub", **OF_ACK)
    assert described(S2C, b"MSG a 1 $JS.ACK.odd") == fields(kind="delivery")


@pytest.mark.parametrize(
    ("subject", "verb", "names"),
    [
        (b"$JS.API.STREAM.INFO.S", b"STREAM.INFO", {"stream": b"S"}),
        (
            b"$JS.hub.API.CONSUMER.MSG.NEXT.S.C",
            b"CONSUMER.MSG.NEXT",
            {"domain": b"hub", "stream": b"S", "consumer": b"C"},
        ),
        (b"$JS.API.ACCOUNT.PURGE.A", b"ACCOUNT.PURGE", {}),
        (b"$JS.API.STREAM.DREAM.S", b"STREAM.DREAM", {}),
        (b"$JS.API.INFO", b"INFO", {}),
    ],
)
def test_calls(subject: bytes, verb: bytes, names: dict[str, bytes]) -> None:
    """Known verbs with their names; of later ones the first two words."""
    assert described(C2S, b"PUB %b r" % subject) == fields(kind="api", verb=verb, **names)


def test_the_ack_policy_of_a_consumer() -> None:
    """In the call that makes it, and in answers; the rest of either may be missing."""
    asked = described(C2S, b"PUB $JS.API.CONSUMER.CREATE.S.C r", b'{"config":{"ack_policy": "none", "x')
    assert (asked.stream, asked.consumer, asked.ack_policy) == (b"S", b"C", b"none")
    told = CONSUMER + b'"stream_name":"S","name":"C","config":{"ack_policy":"all"'
    assert described(S2C, b"MSG r 1", told) == fields(stream=b"S", consumer=b"C", ack_policy=b"all")


@pytest.mark.parametrize(
    ("verb", "body", "wanted"),
    [
        (b"CONSUMER.CREATE.S", b'{"config":{"flow_control":true}}', 1),
        (b"CONSUMER.CREATE.S", b'{"config":{"flow_control":false}}', None),
        (b"CONSUMER.CREATE.S", b'{"flow_control":true}', None),
        (b"CONSUMER.CREATE.S", b'{"config":{"flow_control":true}', None),
        (b"STREAM.CREATE.S", b'{"config":{"flow_control":true}}', None),
    ],
)
def test_the_flow_control_of_a_consumer(verb: bytes, body: bytes, wanted: int | None) -> None:
    assert described(C2S, b"PUB $JS.API.%b r" % verb, body).flow_control == wanted


def test_publishes_and_their_acks() -> None:
    """Stored, stored before, a batch, refused."""
    marked = b"NATS/1.0\r\nNats-Expected-Last-Sequence: 4\r\n\r\n"
    assert described(C2S, b"PUB a r", b"x", marked) == fields(kind="publish")
    assert described(C2S, b"PUB a r", b"x", marked.replace(b"Nats-", b"My-")) == NOTHING
    for text, kind in ((b"", "publish-ack"), (b', "duplicate": true', "duplicate")):
        body = b'{"stream":"S", "seq":7%b,"count":3}' % text
        assert described(S2C, b"MSG r 1", body) == fields(kind=kind, stream=b"S", stream_seq=7, batch=3)
    error = b'{"error":{"code":400,"err_code":10071,"description":"not \\"7\\""}'
    refused = {"err_code": 10071, "error": b'not \\"7\\"'}
    assert described(S2C, b"MSG r 1", error + b',"stream":"S","seq":0}') == fields(
        kind="publish-ack", stream=b"S", stream_seq=0, **refused
    )
    assert described(S2C, b"MSG r 1", error + b"}") == fields(**refused)


@pytest.mark.parametrize("body", [b'{"type":"order"}', b'{"seq":1,"stream":"S"}', b"[]", b'{"err_code":1}'])
def test_other_messages(body: bytes) -> None:
    """Are nothing of JetStream's."""
    assert described(S2C, b"MSG a 1 r", body) is NOTHING
    assert described(C2S, b"PUB a r", b'{"stream":"S","seq":1}') is NOTHING
