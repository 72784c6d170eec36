"""The meaning of frames, in words and as facts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproxy.protocol.meaning import meaning, subject_text
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, S2C, Direction
from natsproxy.wire.parse import frames

ACK = b"$JS.ACK.ORDERS.worker.2.7.8.1795358594928748309.3"
V2 = b"$JS.ACK.hub.szMpdrwD.ORDERS.worker.1.7.8.1795358594928748309.0"
INBOX = b"_INBOX.sfcF9r6gVcN74ip0rQL90O.a"


def frame(raw: bytes, direction: Direction) -> Frame:
    """Return the only frame of some bytes."""
    (found,) = frames(raw, direction)
    return found


def status(line: bytes, pairs: bytes = b"", reply: bytes = b"") -> bytes:
    """Return a message of headers alone."""
    return encode.msg(INBOX, b"1", reply=reply, headers=b"NATS/1.0 " + line + b"\r\n" + pairs + b"\r\n")


def inbox(body: bytes) -> bytes:
    """Return an answer."""
    return encode.msg(INBOX, b"1", body=body)


STALLED = b"Nats-Consumer-Stalled: $JS.FC.x\r\n"
CLIENT = b'{"name":"shop","lang":"go","version":"1.2","user":"ann","verbose":false,"pedantic":false}'
FROM_CLIENT = [
    (encode.pub(ACK), "ack", "ack ORDERS/worker #7 (2nd delivery)"),
    (encode.pub(V2, body=b"+ACK"), "ack", "ack ORDERS/worker #7"),
    (encode.pub(ACK.replace(b".2.7.", b".1.7."), body=b"-NAK"), "nak", "nak ORDERS/worker #7"),
    (
        encode.pub(V2, body=b'-NAK {"delay": 5000000000}'),
        "nak",
        "nak ORDERS/worker #7, again in 5s",
    ),
    (encode.pub(V2, body=b"+WPI"), "wpi", "in progress ORDERS/worker #7"),
    (encode.pub(V2, body=b"+TERM no such customer"), "term", "term ORDERS/worker #7: no such customer"),
    (encode.pub(V2, body=b'+NXT {"batch": 3}'), "next", "ack and next ORDERS/worker #7 batch=3"),
    (encode.pub(V2, body=b"thanks"), "unknown-ack", "no known ack of ORDERS/worker #7"),
    (
        encode.pub(
            b"$JS.API.CONSUMER.MSG.NEXT.ORDERS.worker",
            reply=INBOX,
            body=b'{"batch":10,"expires":5000000000,"no_wait":true}',
        ),
        "pull",
        "CONSUMER.MSG.NEXT ORDERS/worker batch=10 expires=5s no_wait",
    ),
    (encode.pub(b"$JS.hub.API.STREAM.CREATE.ORDERS"), "api", "STREAM.CREATE ORDERS"),
    (encode.pub(b"$JS.API.CONSUMER.CREATE.S.c.a.>"), "api", "CONSUMER.CREATE S/c a.>"),
    (encode.pub(b"$JS.API.LATER.VERB.S"), "api", "LATER.VERB.S"),
    (encode.pub(b"$JS.FC.S.c.abcd"), "flow-reply", "answer to flow control"),
    (encode.connect(CLIENT), "connect", "shop (go 1.2), user ann"),
]
ERRED = b'"error":{"code":404,"err_code":10059,"description":"stream not found"}'
API = b'{"type":"io.nats.jetstream.api.v1.'
FLAGS = b'"jetstream":true,"max_payload":1048576,"ldm":true'
GREETING = b'{"server_id":"A","server_name":"n1","version":"2.15.1",%s}' % FLAGS
DENIED = 'Permissions Violation for Publish to "a.b"'
FROM_SERVER = [
    (encode.msg(b"a", b"1", reply=ACK), "redelivery", "ORDERS/worker #7 (2nd delivery), 3 pending"),
    (encode.msg(b"a", b"1", reply=V2), "delivery", "ORDERS/worker #7"),
    (status(b"503"), "no-responders", "503 no responders"),
    (status(b"404 No Messages"), "status", "404 No Messages"),
    (status(b"409 Consumer Deleted"), "status", "409 Consumer Deleted"),
    (status(b"100 Idle Heartbeat"), "heartbeat", "100 idle heartbeat"),
    (status(b"100 Idle Heartbeat", STALLED), "heartbeat", "100 idle heartbeat, stalled"),
    (status(b"100 FlowControl Request", reply=b"$JS.FC.x"), "flow-control", "100 flow control request"),
    (inbox(b'{"stream":"ORDERS", "seq":12}'), "publish-ack", "stored ORDERS #12"),
    (inbox(b'{"stream":"S","seq":12,"duplicate": true}'), "publish-ack", "duplicate of S #12"),
    (inbox(b'{"stream":"S","seq":12,"batch":"b","count":3}'), "publish-ack", "stored S #12, a batch of 3"),
    (inbox(b"{" + ERRED + b',"stream":"S","seq":0}'), "publish-ack", "error 10059: stream not found"),
    (inbox(API + b'stream_info_response",' + ERRED + b"}"), "api-reply", "error 10059: stream not found"),
    (inbox(API + b'consumer_create_response","name":"c"}'), "api-reply", "consumer create"),
    (
        encode.info(GREETING),
        "info",
        "nats-server 2.15.1 n1, JetStream, lame duck mode, payloads to 1MiB",
    ),
    (encode.err(DENIED), "error", DENIED),
]
CASES = [(C2S, *case) for case in FROM_CLIENT] + [(S2C, *case) for case in FROM_SERVER]


@pytest.mark.parametrize(("direction", "raw", "kind", "text"), CASES, ids=[case[3] for case in CASES])
def test_words(direction: Direction, raw: bytes, kind: str, text: str) -> None:
    found = meaning(frame(raw, direction))
    assert found is not None
    assert (found.kind, found.text) == (kind, text)
    assert found.row["kind"] == kind


@pytest.mark.parametrize(
    ("raw", "direction"),
    [
        (encode.pub(b"orders.new", body=b'{"stream":"S","seq":1}'), C2S),
        (encode.msg(b"orders.new", b"1", body=b'{"stream":"S","seq":1}'), S2C),
        (encode.msg(b"orders.new", b"1", reply=INBOX), S2C),
        (encode.sub(b"$JS.ACK.>", b"1"), C2S),
        (b"PING\r\n", C2S),
    ],
)
def test_plain_frames_have_none(raw: bytes, direction: Direction) -> None:
    assert meaning(frame(raw, direction)) is None


def test_an_answer_that_is_known_as_one_needs_no_inbox() -> None:
    found = meaning(
        frame(encode.msg(b"my.replies.1", b"1", body=b'{"stream":"S","seq":1}'), S2C), answer=True
    )
    assert found is not None
    assert found.fields == {"stream": "S", "stream_seq": 1, "duplicate": False}


def test_facts_are_numbers() -> None:
    found = meaning(frame(encode.pub(ACK), C2S))
    assert found is not None
    assert found.fields == {
        "stream": "ORDERS",
        "consumer": "worker",
        "stream_seq": 7,
        "consumer_seq": 8,
        "delivered": 2,
        "pending": 3,
        "stored_ns": 1795358594928748309,
    }


@pytest.mark.parametrize(
    ("subject", "text"),
    [
        (b"$JS.API.STREAM.INFO.S", "STREAM.INFO S"),
        (ACK, "ack ORDERS/worker #7 (2nd delivery)"),
        (b"$JS.EVENT.x", "$JS.EVENT.x"),
        (b"a.\xff", "a.\\xff"),
    ],
)
def test_a_subject_in_short(subject: bytes, text: str) -> None:
    assert subject_text(subject) == text


@given(st.binary(max_size=200), st.sampled_from([ACK, V2, b"$JS.API.CONSUMER.MSG.NEXT.S.c", INBOX]))
def test_no_payload_is_too_odd(body: bytes, subject: bytes) -> None:
    """Of either direction: peers choose them."""
    for raw, direction in [
        (encode.pub(subject, body=body), C2S),
        (encode.msg(subject, b"1", body=body), S2C),
        (encode.msg(subject, b"1", body=b'{"type":"io.nats.jetstream.api.v1.' + body), S2C),
        (encode.connect(b"{" + body.replace(b"\r", b"").replace(b"\n", b"") + b"}"), C2S),
    ]:
        found = meaning(frame(raw, direction), answer=True)
        assert found is None or (found.kind and isinstance(found.text, str))
