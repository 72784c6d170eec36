"""Normalized frames keep the parts that count in a comparison."""

from __future__ import annotations

import base64
import json

import pytest

from natsproxy.protocol.places import parse_pointer
from natsproxy.replay.diff.normalize import (
    Ignore,
    NormalizedFrame,
    difference,
    normalize,
    server_chosen_name,
)
from natsproxy.wire.ops import C2S, S2C
from natsproxy.wire.parse import frames

N1, N2 = "YsWepi49b8wudIgA6wZ1I0", "ve7W1VgogpWgdqn9EOcG89"


def normalized(data: str, ignore: Ignore | None = None) -> NormalizedFrame | None:
    direction = S2C if data.startswith(("MSG", "HMSG", "-ERR", "PONG")) else C2S
    (frame,) = frames(data.encode(), direction)
    return normalize(frame, direction, ignore or Ignore())


def msg(subject: str, body: str, reply: str = "") -> str:
    return f"MSG {subject} 1 {reply} {len(body)}\r\n{body}\r\n"


API = '{"type":"io.nats.jetstream.api.v1.stream_info_response","created":"%s","config":{"num_replicas":%d}}'
LIST = (
    '{"type":"io.nats.jetstream.api.v1.stream_list_response","streams":'
    '[{"config":{"num_replicas":%d}},{"config":{"num_replicas":%d}}]}'
)


def stored(subject: str, body: str) -> str:
    data = base64.b64encode(body.encode()).decode()
    kind = "io.nats.jetstream.api.v1.stream_msg_get_response"
    return msg("i", json.dumps({"type": kind, "message": {"subject": subject, "seq": 4, "data": data}}))


SAME = [
    (msg(f"_INBOX.{N1}", "x"), msg(f"_INBOX.{N2}", "x")),
    (msg("s", "x", "$JS.ACK.S.C.1.1.1.5.0"), msg("s", "x", "$JS.ACK.S.C.1.1.1.6.0")),
    (msg("i", API % ("1", 1)), msg("i", API % ("2", 1))),
    (
        "HMSG a 1 24 24\r\nNATS/1.0\r\nA: 1\r\nB:2\r\n\r\n\r\n".replace("24 24", "23 23"),
        "HMSG a 1 24 24\r\nNATS/1.0\r\nB:2\r\nA: 1\r\n\r\n\r\n".replace("24 24", "23 23"),
    ),
    *(
        (
            f"PUB $JS.API.CONSUMER.INFO.S.{before}{N1}{behind} 0\r\n\r\n",
            f"PUB $JS.API.CONSUMER.INFO.S.{before}{N2}{behind} 0\r\n\r\n",
        )
        for before, behind in (("", ""), ("", "_1"), ("oc_", "_1"))
    ),
    ("PUB $O.b.C.ABCDEFGHIJKLMNOPQRSTUV 1\r\nx\r\n", "PUB $O.b.C.BCDEFGHIJKLMNOPQRSTUVW 1\r\nx\r\n"),
    (
        stored("$O.b.M.bg==", f'{{"name":"n","nuid":"{N1}","mtime":"1","size":5}}'),
        stored("$O.b.M.bg==", f'{{"name":"n","nuid":"{N2}","mtime":"2","size":5}}'),
    ),
    ("PUB $JS.API.CONSUMER.INFO.S.ZFMIoOQM 0\r\n\r\n", "PUB $JS.API.CONSUMER.INFO.S.n9pgj0i0 0\r\n\r\n"),
]
DIFFERENT = [
    (msg("a", "x"), msg("a", "y"), "body"),
    (msg("a", "x"), msg("a", "x", "r"), "reply"),
    (msg("i", API % ("1", 1)), msg("i", API % ("1", 3)), "body /config/num_replicas"),
    (msg("i", LIST % (1, 1)), msg("i", LIST % (1, 2)), "body /streams/1/config/num_replicas"),
    (stored("$O.b.M.bg==", '{"size":5}'), stored("$O.b.M.bg==", '{"size":6}'), "body /message/data/size"),
    (stored("$O.b.M.bg==", "no JSON"), stored("$O.b.M.bg==", "none"), "body /message/data"),
    (stored("s", '{"mtime":1}'), stored("s", '{"mtime":2}'), "body /message/data"),
    (msg("a", ""), "HMSG a 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n", "status"),
]


@pytest.mark.parametrize(("ours", "theirs"), SAME)
def test_values_that_differ_from_run_to_run_do_not_count(ours: str, theirs: str) -> None:
    assert normalized(ours) == normalized(theirs) != None  # noqa: E711


@pytest.mark.parametrize(("ours", "theirs", "field"), DIFFERENT)
def test_the_field_that_differs_is_named(ours: str, theirs: str, field: str) -> None:
    first, second = normalized(ours), normalized(theirs)
    assert first is not None
    assert second is not None
    assert first.digest != second.digest
    assert difference(first, second) == field


ERRORS = [
    ("-ERR 'Permissions Violation for Publish to \"orders.17\"'\r\n", "orders.*", ""),
    ("-ERR 'Stale Connection'\r\n", "'Stale Connection'", ""),
    (
        msg("a", '{"error":{"code":404,"err_code":10059,"description":"stream not found"}}'),
        "a",
        "404 stream not found (10059)",
    ),
]


@pytest.mark.parametrize(("data", "group", "status"), ERRORS)
def test_errors_belong_to_the_subject_that_they_name(data: str, group: str, status: str) -> None:
    found = normalized(data)
    assert found is not None
    assert (found.group, found.status, found.failed) == (group, status, True)


@pytest.mark.parametrize("body", ['{"error":1,"err_code":2}', '["err_code":', '{"a":"\\"err_code\\":"}'])
def test_an_application_message_about_an_error_is_none(body: str) -> None:
    found = normalized(msg("a", body))
    assert found is not None
    assert not found.failed


@pytest.mark.parametrize(
    "data",
    [
        "PING\r\n",
        "UNSUB 1\r\n",
        "PUB $JS.FC.S.C.x 0\r\n\r\n",
        "HMSG a 1 31 31\r\nNATS/1.0 100 Idle Heartbeat\r\n\r\n\r\n",
    ],
)
def test_frames_that_come_by_the_clock_do_not_count(data: str) -> None:
    assert normalized(data) is None


def test_ignore_leaves_out_members_headers_and_subjects() -> None:
    ignore = Ignore((parse_pointer("/a/ts"), parse_pointer("b.> /v")), ("x",), (b"noise.>",))
    assert normalized(msg("a", '{"a":{"ts":1}}'), ignore) == normalized(msg("a", '{"a": {"ts": 2}}'), ignore)
    first = normalized("HMSG a 1 18 18\r\nNATS/1.0\r\nX: 1\r\n\r\n\r\n", ignore)
    assert first == normalized("HMSG a 1 18 18\r\nNATS/1.0\r\nX: 2\r\n\r\n\r\n", ignore)
    assert normalized(msg("noise.x", ""), ignore) is None
    for subject, same in (("b.x", True), ("c.x", False)):
        both = [normalized(msg(subject, f'{{"v":{n}}}'), ignore) for n in (1, 2)]
        assert (both[0] == both[1]) == same


CREATED = '{"type":"io.nats.jetstream.api.v1.consumer_create_response","name":"%s","config":{%s}}'


def test_a_name_that_the_server_chose_may_look_like_a_word() -> None:
    chosen = [msg("i", CREATED % (name, "")) for name in ("Consumer", "G0xHKKDJ")]
    assert normalized(chosen[0]) == normalized(chosen[1])
    durable = [msg("i", CREATED % (name, f'"durable_name":"{name}"')) for name in ("consumer", "reporter")]
    assert normalized(durable[0]) != normalized(durable[1])
    names = [
        server_chosen_name(next(frames(text.encode(), S2C)))
        for text in (chosen[0], durable[0], msg("i", "x"))
    ]
    assert names == ["Consumer", "", ""]
    (request_group,) = frames(b"PUB $JS.API.CONSUMER.INFO.S.Consumer 0\r\n\r\n", C2S)
    for server_names, group in (((), "Consumer"), (("Consumer",), "*")):
        found = normalize(request_group, C2S, server_names=server_names)
        assert found is not None
        assert found.group == f"$JS.API.CONSUMER.INFO.S.{group}"


def test_a_star_in_a_pointer_is_each_entry_of_a_list() -> None:
    ignore = Ignore((parse_pointer("/streams/*/config/num_replicas"),))
    assert normalized(msg("i", LIST % (1, 2)), ignore) == normalized(msg("i", LIST % (3, 4)), ignore)
    assert normalized(msg("i", LIST % (1, 2)), ignore) != normalized(msg("i", '{"streams":[]}'), ignore)


@pytest.mark.parametrize(
    ("pointer", "left"),
    [
        ("/a/*", '{"a":[],"b":{"x":1,"y":2}}'),
        ("/a/1", '{"a":[1,3],"b":{"x":1,"y":2}}'),
        ("/b/*", '{"a":[1,2,3],"b":{}}'),
        ("/*/x", '{"a":[1,2,3],"b":{"y":2}}'),
        ("/a/7", '{"a":[1,2,3],"b":{"x":1,"y":2}}'),
    ],
)
def test_a_pointer_reaches_into_lists_and_objects(pointer: str, left: str) -> None:
    ignore = Ignore((parse_pointer(pointer),))
    assert normalized(msg("i", '{"a":[1,2,3],"b":{"x":1,"y":2}}'), ignore) == normalized(
        msg("i", left), Ignore((parse_pointer("/no"),))
    )
