"""Names of consumers and ack subjects, recorded and live."""

from __future__ import annotations

from natsproxy.replay.client_playback.server_names import ServerNames
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, S2C, Direction
from natsproxy.wire.parse import frames


def one(data: bytes, direction: Direction = S2C) -> Frame:
    (frame,) = frames(data, direction)
    return frame


def created(name: bytes) -> Frame:
    body = b'{"type":"io.nats.jetstream.api.v1.consumer_create_response","name":"%b"}' % name
    return one(b"MSG i.1 1 %d\r\n%b\r\n" % (len(body), body))


def names() -> ServerNames:
    known = ServerNames()
    known.requested(one(b"PUB $JS.API.CONSUMER.CREATE.S i.1 2\r\n{}\r\n", C2S))
    known.answered(created(b"recorded"), live=False)
    return known


def test_a_consumer_is_called_as_it_is_here() -> None:
    known = names()
    assert known.to_live(b"$JS.API.CONSUMER.INFO.S.recorded") == b"$JS.API.CONSUMER.INFO.S.recorded"
    known.answered(created(b"livelive"), live=True)
    assert known.to_live(b"$JS.API.CONSUMER.INFO.S.recorded") == b"$JS.API.CONSUMER.INFO.S.livelive"
    assert known.to_live(b"$JS.API.CONSUMER.INFO.T.recorded") == b"$JS.API.CONSUMER.INFO.T.recorded"
    assert known.to_live(b"$JS.API.STREAM.INFO.S") == b"$JS.API.STREAM.INFO.S"


def test_an_ack_goes_to_the_live_delivery_of_that_message() -> None:
    known = names()
    known.answered(created(b"livelive"), live=True)
    recorded = b"$JS.ACK.S.recorded.1.7.3.111.0"
    assert known.ack(recorded) is None
    assert known.to_live(recorded) == recorded
    known.answered(one(b"MSG s 1 $JS.ACK.S.livelive.1.7.1.999.4 1\r\nx\r\n"), live=True)
    assert known.to_live(recorded) == b"$JS.ACK.S.livelive.1.7.1.999.4"
    assert known.ack(b"$JS.ACK.S.recorded.2.7.3.111.0") is None


def test_an_answer_that_is_no_json_teaches_nothing() -> None:
    known = names()
    known.answered(one(b"MSG i.1 1 3\r\n[1]\r\n"), live=True)
    known.answered(one(b"MSG i.1 1 3\r\n{{{\r\n"), live=True)
    assert known.to_live(b"$JS.API.CONSUMER.INFO.S.recorded") == b"$JS.API.CONSUMER.INFO.S.recorded"
