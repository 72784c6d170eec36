"""The frames that are compared, and the parts of them that count."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from natsproxy.replay.conversation.match_options import MatchOptions, read
from natsproxy.replay.diff.compare import compare
from natsproxy.replay.diff.compared_frame import ComparedFrame, compared, server_chosen_name
from natsproxy.wire.ops import C2S, S2C
from natsproxy.wire.parse import frames
from tests.replay.scripted import hello, write

N1, N2 = "YsWepi49b8wudIgA6wZ1I0", "ve7W1VgogpWgdqn9EOcG89"


def one(data: str) -> ComparedFrame | None:
    direction = S2C if data.startswith(("MSG", "HMSG", "-ERR", "PONG")) else C2S
    (frame,) = frames(data.encode(), direction)
    return compared(frame, direction)


def difference(folder: Path, ours: str, theirs: str, **options: Any) -> str:
    """Return the place in which the captures of two frames differ; "" where they are the same."""
    paths = []
    folder = folder / str(len(list(folder.iterdir())))
    folder.mkdir()
    for number, data in enumerate((ours, theirs)):
        way = "<" if data.startswith(("MSG", "HMSG", "-ERR")) else ">"
        paths.append(write(folder / f"{number}.ncap", [*hello(1, "a"), (1, way, data.encode())]))
    report = compare(paths[0], paths[1], MatchOptions(**read(options)))
    return next((row.sample.field for row in report.rows if row.sample is not None), "")


def msg(subject: str, body: str, reply: str = "") -> str:
    return f"MSG {subject} 1 {reply} {len(body)}\r\n{body}\r\n"


API = '{"type":"io.nats.jetstream.api.v1.stream_info_response","created":"%s","config":{"num_replicas":%d}}'
LIST = (
    '{"type":"io.nats.jetstream.api.v1.stream_list_response","streams":'
    '[{"config":{"num_replicas":%d}},{"config":{"num_replicas":%d}}]}'
)
CREATED = '{"type":"io.nats.jetstream.api.v1.consumer_create_response","name":"%s","config":{%s}}'


def stored(subject: str, body: str) -> str:
    data = base64.b64encode(body.encode()).decode()
    kind = "io.nats.jetstream.api.v1.stream_msg_get_response"
    return msg("i", json.dumps({"type": kind, "message": {"subject": subject, "seq": 4, "data": data}}))


SAME = [
    (msg(f"_INBOX.{N1}", "x"), msg(f"_INBOX.{N2}", "x")),
    (msg("s", "x", "$JS.ACK.S.C.1.1.1.5.0"), msg("s", "x", "$JS.ACK.S.C.1.1.2.6.0")),
    (msg("i", API % ("1", 1)), msg("i", API % ("2", 1))),
    (
        "HMSG a 1 23 23\r\nNATS/1.0\r\nA: 1\r\nB:2\r\n\r\n\r\n",
        "HMSG a 1 23 23\r\nNATS/1.0\r\nB:2\r\nA: 1\r\n\r\n\r\n",
    ),
    *(
        (
            f"PUB $JS.API.CONSUMER.INFO.S.{before}{N1}{behind} 0\r\n\r\n",
            f"PUB $JS.API.CONSUMER.INFO.S.{before}{N2}{behind} 0\r\n\r\n",
        )
        for before, behind in (("", ""), ("", "_1"), ("oc_", "_1"))
    ),
    (f"PUB $O.b.C.{N1} 1\r\nx\r\n", f"PUB $O.b.C.{N2} 1\r\nx\r\n"),
    (
        stored("$O.b.M.bg==", f'{{"name":"n","nuid":"{N1}","mtime":"2026-11-25T15:08:28Z","size":5}}'),
        stored("$O.b.M.bg==", f'{{"name":"n","nuid":"{N2}","mtime":"2026-11-25T15:09:28Z","size":5}}'),
    ),
    ("PUB $JS.API.CONSUMER.INFO.S.ZFMIoOQM 0\r\n\r\n", "PUB $JS.API.CONSUMER.INFO.S.n9pgj0i0 0\r\n\r\n"),
    (msg("a", '{"a":1,"b":2}'), msg("a", '{"b": 2, "a": 1}')),
    (msg("a", f'{{"id":"{N1}"}}'), msg("a", f'{{"id":"{N2}"}}')),
    (f"PUB orders.{N1} 0\r\n\r\n", f"PUB orders.{N2} 0\r\n\r\n"),
    *((msg("i", CREATED % ("Consumer", "")), msg("i", CREATED % ("G0xHKKDJ", ""))),),
]
DIFFERENT = [
    (msg("a", "x"), msg("a", "y"), "body"),
    (msg("a", "x"), msg("a", "x", "r"), "reply"),
    (msg("i", API % ("1", 1)), msg("i", API % ("1", 3)), "body /config/num_replicas"),
    (msg("i", LIST % (1, 1)), msg("i", LIST % (1, 2)), "body /streams/1/config/num_replicas"),
    (stored("$O.b.M.bg==", '{"size":5}'), stored("$O.b.M.bg==", '{"size":6}'), "body /size"),
    (stored("$O.b.M.bg==", "no JSON"), stored("$O.b.M.bg==", "none"), "body"),
    (stored("s", '{"mtime":1}'), stored("s", '{"mtime":2}'), "body /mtime"),
    (stored("s", "1"), stored("t", "1"), "header Nats-Subject"),
    (msg("a", ""), "HMSG a 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n", "status"),
    ("PUB orders.17 0\r\n\r\n", "PUB orders.18 0\r\n\r\n", "token 2 of the subject"),
    (
        msg("i", CREATED % ("consumer", '"durable_name":"consumer"')),
        msg("i", CREATED % ("reporter", '"durable_name":"reporter"')),
        "body /name",
    ),
]


@pytest.mark.parametrize(("ours", "theirs"), SAME)
def test_values_that_differ_from_run_to_run_do_not_count(ours: str, theirs: str, tmp_path: Path) -> None:
    assert difference(tmp_path, ours, theirs) == ""


@pytest.mark.parametrize(("ours", "theirs", "field"), DIFFERENT)
def test_the_field_that_differs_is_named(ours: str, theirs: str, field: str, tmp_path: Path) -> None:
    assert difference(tmp_path, ours, theirs) == field


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
    found = one(data)
    assert found is not None
    assert (found.group, found.status, found.failed) == (group, status, True)


@pytest.mark.parametrize("body", ['{"error":1,"err_code":2}', '["err_code":', '{"a":"\\"err_code\\":"}'])
def test_an_application_message_about_an_error_is_none(body: str) -> None:
    found = one(msg("a", body))
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
    assert one(data) is None


def test_options_leave_out_members_and_headers(tmp_path: Path) -> None:
    ignored: dict[str, Any] = {
        "ignore_json": ["/a/ts", "b.> /v", "/streams/*/config/num_replicas"],
        "ignore_headers": "x",
    }
    bodies = msg("a", '{"a":{"ts":1}}'), msg("a", '{"a": {"ts": 2}}')
    assert difference(tmp_path, *bodies, **ignored) == ""
    assert difference(tmp_path, *bodies) == "body /a/ts"
    block = "HMSG a 1 18 18\r\nNATS/1.0\r\nX: %d\r\n\r\n\r\n"
    assert difference(tmp_path, block % 1, block % 2, **ignored) == ""
    assert difference(tmp_path, msg("b.x", '{"v":1}'), msg("b.x", '{"v":2}'), **ignored) == ""
    assert difference(tmp_path, msg("c.x", '{"v":1}'), msg("c.x", '{"v":2}'), **ignored) == "body /v"
    assert difference(tmp_path, msg("i", LIST % (1, 2)), msg("i", LIST % (3, 4)), **ignored) == ""


def test_a_name_that_the_server_chose_may_look_like_a_word() -> None:
    texts = (CREATED % ("Consumer", ""), CREATED % ("reporter", '"durable_name":"reporter"'), "x")
    found = [server_chosen_name(next(frames(msg("i", text).encode(), S2C))) for text in texts]
    assert found == [b"Consumer", b"", b""]
    (asked,) = frames(b"PUB $JS.API.CONSUMER.INFO.S.Consumer 0\r\n\r\n", C2S)
    for server_names, group in (((), "Consumer"), ((b"Consumer",), "*")):
        row = compared(asked, C2S, server_names)
        assert row is not None
        assert row.group == f"$JS.API.CONSUMER.INFO.S.{group}"
