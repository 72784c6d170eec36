"""JetStream: subjects, ack payloads, statuses and bodies, each recognised from one frame."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproxy.protocol import jetstream
from natsproxy.protocol.jetstream import (
    AckKind,
    AckSubject,
    ApiCall,
    JetStreamError,
    StatusKind,
    is_api,
)


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        (b"$JS.API.INFO", True),
        (b"$JS.hub.API.INFO", True),
        (b"$JS.ACK.S.C.1.1.1.1.1", False),
        (b"js.API.x", False),
        (b"API.INFO", False),
    ],
)
def test_api_subjects_differ_from_others(subject: bytes, expected: bool) -> None:
    assert is_api(subject) is expected


@pytest.mark.parametrize(
    ("subject", "call"),
    [
        (b"$JS.API.INFO", ApiCall(b"INFO", start=3)),
        (b"$JS.API.STREAM.CREATE.S", ApiCall(b"STREAM.CREATE", b"S", start=4)),
        (b"$JS.API.STREAM.MSG.GET.S", ApiCall(b"STREAM.MSG.GET", b"S", start=5)),
        (b"$JS.API.STREAM.NAMES", ApiCall(b"STREAM.NAMES", start=4)),
        (b"$JS.API.DIRECT.GET.S", ApiCall(b"DIRECT.GET", b"S", start=4)),
        (b"$JS.API.DIRECT.GET.KV_B.$KV.B.k", ApiCall(b"DIRECT.GET", b"KV_B", filter=b"$KV.B.k", start=4)),
        (b"$JS.API.CONSUMER.CREATE.S", ApiCall(b"CONSUMER.CREATE", b"S", start=4)),
        (b"$JS.API.CONSUMER.CREATE.S.C", ApiCall(b"CONSUMER.CREATE", b"S", b"C", start=4)),
        (b"$JS.API.CONSUMER.CREATE.S.C.a.*", ApiCall(b"CONSUMER.CREATE", b"S", b"C", b"a.*", start=4)),
        (b"$JS.API.CONSUMER.MSG.NEXT.S.C", ApiCall(b"CONSUMER.MSG.NEXT", b"S", b"C", start=5)),
        (b"$JS.hub.API.STREAM.INFO.S", ApiCall(b"STREAM.INFO", b"S", domain=b"hub", start=5)),
        (b"$JS.API.ACCOUNT.STREAM.MOVE.A.S", ApiCall(b"ACCOUNT.STREAM.MOVE", b"S", account=b"A", start=5)),
        (b"$JS.API.STREAM.INFO", None),
        (b"$JS.API.STREAM.INFO.S.T", None),
        (b"$JS.API.CONSUMER.CREATE", None),
        (b"$JS.API.NOPE.S", None),
        (b"$JS.ACK.S.C", None),
        (b"$JS.API", None),
        (b"other.API.INFO", None),
    ],
)
def test_parse_api(subject: bytes, call: ApiCall | None) -> None:
    """Verb, stream, consumer, filter and domain come out of the subject."""
    assert jetstream.parse_api(subject) == call


@pytest.mark.parametrize(
    ("subject", "ack"),
    [
        (b"$JS.ACK.S.C.1.5.6.1700000000000000000.7", AckSubject(b"S", b"C", 1, 5, 6, 1700000000000000000, 7)),
        (b"$JS.ACK.hub.szMpdrwD.S.C.2.5.6.1.5", AckSubject(b"S", b"C", 2, 5, 6, 1, 5, b"hub", b"szMpdrwD")),
        (b"$JS.ACK._.h.S.C.2.5.6.1.5.xyz", AckSubject(b"S", b"C", 2, 5, 6, 1, 5, b"", b"h")),
        (b"$JS.ACK.a.S.C.1.1.1.1.1", None),
        (b"$JS.ACK.S.C.x.5.6.1.7", None),
        (b"$JS.ACKX.S.C.1.5.6.1.7", None),
        (b"$JS.ACK.S.C.1.5.6." + b"9" * 4000 + b".7", None),
    ],
)
def test_parse_ack(subject: bytes, ack: AckSubject | None) -> None:
    """Both forms of the ack subject, and never one of ten tokens."""
    assert jetstream.parse_ack(subject) == ack


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", AckKind.ACK),
        (b"+ACK", AckKind.ACK),
        (b"+OK", AckKind.ACK),
        (b"-NAK", AckKind.NAK),
        (b'-NAK {"delay":5}', AckKind.NAK),
        (b"-NAK 500ms", AckKind.NAK),
        (b"+WPI", AckKind.PROGRESS),
        (b"+WPI x", AckKind.NONE),
        (b"+TERM", AckKind.TERM),
        (b"+TERM why", AckKind.TERM),
        (b"+TER", AckKind.NONE),
        (b"+NXT 5", AckKind.NEXT),
        (b"+ACK ", AckKind.NONE),
        (b"hello", AckKind.NONE),
    ],
)
def test_ack_kind(body: bytes, kind: AckKind) -> None:
    """Each payload asks for what the server takes it for."""
    assert jetstream.ack_kind(body) is kind


@pytest.mark.parametrize(
    ("code", "description", "kind"),
    [
        (b"100", b"Idle Heartbeat", StatusKind.HEARTBEAT),
        (b"100", b"FlowControl Request", StatusKind.FLOW_CONTROL),
        (b"100", b"", StatusKind.OTHER),
        (b"404", b"No Messages", StatusKind.NOT_FOUND),
        (b"408", b"Request Timeout", StatusKind.TIMEOUT),
        (b"409", b"Consumer Deleted", StatusKind.CONFLICT),
        (b"503", b"", StatusKind.NO_RESPONDERS),
        (b"", b"", StatusKind.OTHER),
    ],
)
def test_status_kind(code: bytes, description: bytes, kind: StatusKind) -> None:
    """Each status line has its kind."""
    assert jetstream.status_kind(code, description) is kind


ERROR = b'"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 1"}'


def test_api_responses() -> None:
    """The error of an API response."""
    body = b'{"type":"io.nats.jetstream.api.v1.stream_info_response",' + ERROR + b"}"
    assert jetstream.api_error(body) == JetStreamError(400, 10071, "wrong last sequence: 1")
    assert jetstream.api_error(b'{"error":"text"}') is None
    assert jetstream.api_error(b'{"error":{"code":"x"}}') is None
    assert jetstream.api_error(b"{}") is None


@given(
    st.binary(max_size=40)
    | st.lists(st.sampled_from([b"$JS", b"ACK", b"API", b"FC", b"1", b"STREAM", b""])).map(b".".join)
)
def test_anything_is_answered(raw: bytes) -> None:
    """Hostile subjects and bodies are answered, never raised on."""
    jetstream.parse_api(raw)
    assert jetstream.parse_ack(raw) is None or raw.startswith(b"$JS.ACK.")
    assert jetstream.api_error(raw) is None
