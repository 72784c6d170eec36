"""Previews of frames; the ranking is tested where mismatches are made."""

from __future__ import annotations

import json
import pickle
import uuid

import pytest

from natsproxy.protocol import headers
from natsproxy.replay.conversation.identifier_map import IdentifierMap
from natsproxy.replay.conversation.match_options import MatchOptions, read
from natsproxy.replay.conversation.matching import Matcher
from natsproxy.replay.conversation.recording import Recording
from natsproxy.replay.server_playback.mismatch import Mismatch, nearest, preview
from natsproxy.replay.server_playback.progress import Progress
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S
from natsproxy.wire.parse import frames
from tests.replay.scripted import events, hello
from tests.replay.server_playback.playing import Play


def one(data: bytes) -> Frame:
    (frame,) = frames(data, C2S)
    return frame


def test_a_preview_is_one_short_line() -> None:
    assert preview(one(b"SUB a.b q 1\r\n")) == "SUB a.b queue q"
    assert preview(one(b"PUB a r 3\r\nx\ny\r\n")) == r"PUB a reply r 'x\ny'"
    assert preview(one(b"PUB a 100\r\n" + b"z" * 100 + b"\r\n")).endswith("... 100 B")


def test_the_nearest_differ_least() -> None:
    progress = Progress(
        Recording(
            events(
                [
                    *hello(1, "a"),
                    (1, ">", b"PUB a.b 1\r\n1\r\nPUB a.c 1\r\n2\r\nPUB z 1\r\n2\r\nSUB a.b 1\r\n"),
                ]
            )
        )
    )
    progress.fill()
    found = nearest(one(b"PUB a.b 1\r\n2\r\n"), None, progress, Matcher(IdentifierMap()))
    assert (found.compared, found.used) == (1, 0)
    assert [
        (candidate.text, candidate.difference and candidate.difference.field, candidate.used)
        for candidate in found.candidates
    ] == [
        ("PUB a.b '1'", "body", False),
    ]
    found = nearest(one(b"PUB a.d 1\r\n2\r\n"), None, progress, Matcher(IdentifierMap()))
    assert [candidate.text for candidate in found.candidates] == ["PUB a.b '1'", "PUB a.c '2'"]


def test_all_that_differs_is_shown_where_that_is_more_than_one_value() -> None:
    members = ["name", "colour", "comment", "unit"]

    def order(qty: int, unit: str) -> bytes:
        body = json.dumps(
            {"id": str(uuid.uuid4()), **dict.fromkeys(members, "x" * 20), "qty": qty, "unit": unit}
        )
        return encode.pub(b"orders", body.encode(), reply=b"_INBOX.%b.1" % uuid.uuid4().hex[:22].encode())

    def report(qty: int, unit: str) -> str:
        play = Play([*hello(1, "a"), (1, ">", order(3, "kg"))])
        play.open(1, "a")
        play.send(1, order(qty, unit))
        return str(play.machine.mismatches[-1])

    assert "all that differs" not in report(4, "kg")
    lines = report(4, "g").splitlines()
    at = lines.index("    all differences except identifiers and times:")
    assert lines[at + 1 : at + 7] == [
        '         "comment": "xxxxxxxxxxxxxxxxxxxx",',
        '    -    "unit": "kg",',
        '    -    "qty": 3',
        '    +    "unit": "g",',
        '    +    "qty": 4',
        "       }",
    ]


def test_what_need_not_agree_is_not_shown_among_all_that_differs() -> None:
    def order(n: int, qty: int, unit: str) -> bytes:
        block = headers.build(
            [(b"traceparent", b"t%d" % n), (b"Nats-Msg-Id", b"m%d" % n), (b"Try", b"%d" % n)]
        )
        members = {
            "note": "x" * 120,
            "host": f"h{n}",
            "took": n,
            "lines": [{"at": n, "qty": qty, "unit": unit}],
        }
        return encode.pub(b"orders", json.dumps(members).encode(), headers=block)

    given = read({"ignore_json": ["/host", "/lines/*/at"], "like_json": "/took", "like_headers": "Try"})
    play = Play([*hello(1, "a"), (1, ">", order(1, 3, "kg"))], options=MatchOptions(**given))
    play.open(1, "a")
    play.send(1, order(2, 4, "g"))
    lines = str(play.machine.mismatches[-1]).splitlines()
    shown = lines[lines.index("    all differences except identifiers and times:") + 1 :]
    assert [line.split()[1] for line in shown if line.strip()[0] in "+-"] == ['"qty":', '"unit":'] * 2
    assert not any(word in line for line in shown for word in ("host", '"at"', "traceparent", "Msg-Id", "t2"))


def test_a_repeated_request_was_used_already_whatever_its_reply_subject_is() -> None:
    inbox = b"_INBOX.ABCDEFGHIJKLMNOPQRSTU%d"
    play = Play([*hello(1, "a"), (1, ">", b"PUB ask %b 2\r\nhi\r\n" % (inbox % 1))])
    play.open(1, "a")
    for n in (2, 3):
        play.send(1, b"PUB ask %b 2\r\nhi\r\n" % (inbox % n))
    (mismatch,) = play.machine.mismatches
    assert mismatch.summary == "client 'a' sent PUB ask, more often than recorded"
    assert 'repeat="ask"' in str(mismatch)


def test_the_nearest_is_about_the_same_object() -> None:
    """The first one recorded is about another object, which the playback has met before."""
    uuid = "%08d-4f89-41d3-9a0c-0305e82c3301"

    def pub(subject: str, one: int, **more: int) -> bytes:
        return encode.pub(subject.encode(), json.dumps({"id": uuid % one, **more}).encode())

    play = Play(
        [
            *hello(1, "a"),
            (1, ">", pub("new", 1) + pub("new", 2)),
            (1, ">", pub("paid", 1, sum=5) + pub("paid", 2, sum=6)),
        ]
    )
    play.open(1, "a")
    play.send(1, pub("new", 11) + pub("new", 12))
    play.send(1, pub("paid", 12, sum=7))
    (mismatch,) = play.machine.mismatches
    assert mismatch.summary == "/sum: 6 recorded, 7 sent: PUB paid of client 'a'"


@pytest.mark.parametrize(
    ("recorded", "live", "option"),
    [
        (b'{"a":[{"qty":1}]}', b'{"a":[{"qty":2}]}', ("like_json", "s.*.x /a/0/qty")),
        (b'{"a":1}', b'{"a":"one"}', ("ignore_json", "s.*.x /a")),
        (b'{"a":"one"}', b'{"a":"2"}', ("any_json", "s.*.x /a")),
        (b'{"a":1}', b'{"a":1,"b":2}', ("ignore_json", "s.*.x /b")),
        (b"one", b"two", ("ignore_bodies", "s.*.x")),
        (b"X-Try: 1", b"X-Try: 2", ("like_headers", "X-Try")),
        (b"X-Try: 1", b"X-Try: no", ("any_headers", "X-Try")),
        (b"X-Try: 1", b"X-Other: 1", ("ignore_headers", ("X-Other", "X-Try"))),
    ],
)
def test_the_option_that_accepts_a_difference_does_so(
    recorded: bytes, live: bytes, option: tuple[str, object]
) -> None:
    """The second time, with it, the frame matches."""

    def frame(value: bytes, one: int) -> bytes:
        subject = b"s.%08d-4f89-41d3-9a0c-0305e82c3301.x" % one
        if b": " not in value:
            return encode.pub(subject, value)
        return encode.pub(subject, headers=b"NATS/1.0\r\n%b\r\n\r\n" % value)

    def play(**options: object) -> list[Mismatch]:
        played = Play([*hello(1, "a"), (1, ">", frame(recorded, 1))], options=MatchOptions(**read(options)))
        played.open(1, "a")
        played.send(1, frame(live, 2))
        return played.machine.mismatches

    (mismatch,) = play()
    assert mismatch.candidates[0].accepted == option
    assert not play(**{option[0]: option[1]})


@pytest.mark.parametrize("body", [b"%b", b'{"a":"%b"}'])
def test_a_mismatch_keeps_what_it_shows_and_not_the_payloads(body: bytes) -> None:
    """A client may retry a large message for hours."""
    recorded, live = (encode.pub(b"a", body % (letter * 100_000)) for letter in (b"x", b"y"))
    play = Play([*hello(1, "a"), (1, ">", recorded)])
    play.open(1, "a")
    play.send(1, live)
    (mismatch,) = play.machine.mismatches
    assert "yyyy... sent" in mismatch.summary
    assert len(pickle.dumps(mismatch)) < 2000
