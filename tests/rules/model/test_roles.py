"""Roles: by subject, reply, status, body, or by an earlier request."""

from __future__ import annotations

import pytest

from natsproxy.rules.model.roles import ROLES, OpenRequests
from natsproxy.wire.frames import Need
from natsproxy.wire.ops import C2S, S2C
from tests.rules.kit import FakeView, Wire, parse

ACK = "PUB $JS.ACK.S.C.1.2.3.4.5 {}\n{}"
BEAT = b"HMSG i 1 %d %d\r\n%s\r\n"


def status(text: bytes) -> bytes:
    block = b"NATS/1.0 " + text + b"\r\n\r\n"
    return BEAT % (len(block), len(block), block)


@pytest.mark.parametrize(
    ("role", "frame"),
    [
        ("ack", ACK.format(0, "")),
        ("ack", ACK.format(4, "+ACK")),
        ("nak", ACK.format(11, '-NAK {"d":1}')[:-1]),
        ("term", ACK.format(5, "+TERM")),
        ("wpi", ACK.format(4, "+WPI")),
        ("next", ACK.format(4, "+NXT")),
        ("api", "PUB $JS.API.INFO r 0\n"),
        ("pull", "PUB $JS.hub.API.CONSUMER.MSG.NEXT.S.C r 0\n"),
        ("flow-reply", "PUB $JS.FC.S.C.abcd 0\n"),
        ("delivery", "MSG a 1 $JS.ACK.S.C.1.2.3.4.5 0\n"),
        ("redelivery", "MSG a 1 $JS.ACK.S.C.2.2.3.4.5 0\n"),
        ("redelivery", "MSG a 1 $JS.ACK.hub.hash.S.C.2.2.3.4.5 0\n"),
        ("heartbeat", status(b"100 Idle Heartbeat")),
        ("flow-control", status(b"100 FlowControl Request")),
        ("no-responders", status(b"503")),
    ],
)
def test_a_frame_plays_its_role_and_no_other(role: str, frame: str | bytes) -> None:
    direction = ROLES[role].direction
    wider = {"pull": {"api"}, "redelivery": {"delivery"}}.get(role, set())
    found = parse(direction, frame)
    for name, other in ROLES.items():
        if other.requests is not None or other.direction != direction:
            continue
        wire = Wire(f'[[rules]]\nname = "r"\nkind = "drop"\nrole = "{name}"\n')
        assert wire.fired(direction, found.raw) is (name == role or name in wider), name


def test_history_is_bounded_and_watches_what_the_server_sends() -> None:
    view, requests = FakeView(), OpenRequests(limit=2)
    for name in (b"1", b"2", b"3"):
        requests.open(name, b"t." + name, frozenset({"w"}), Need.LINE, view)
    assert set(view.watched) == {(S2C, b"t.2"), (S2C, b"t.3")}
    assert requests.waiters(b"3") == frozenset({"w"})
    assert requests.waiters(b"1") == frozenset()
    requests.open(b"3", b"t.3", frozenset({"v"}), Need.LINE, view)
    assert requests.waiters(b"3") == frozenset({"v", "w"})
    requests.close(view)
    assert not view.watched


def test_every_pull_reply_is_selected() -> None:
    wire = Wire('[[rules]]\nname = "r"\nkind = "drop"\nrole = "pull-reply"\nafter = 1\n')
    wire.c2s("PUB $JS.API.CONSUMER.MSG.NEXT.S.C _INBOX.1 1\n2")
    assert wire.s2c("MSG a 1 0\n") != b""
    assert [wire.s2c("MSG _INBOX.1 1 0\n") == b"" for _ in range(3)] == [False, True, True]


def test_a_subject_narrows_a_role_and_does_not_replace_it() -> None:
    wire = Wire('[[rules]]\nname = "r"\nkind = "drop"\nrole = "ack"\nsubject = ["$JS.ACK.S.>", "a"]\n')
    assert wire.fired(C2S, "PUB $JS.ACK.S.C.1.2.3.4.5 0\n")
    assert not wire.fired(C2S, "PUB $JS.ACK.T.C.1.2.3.4.5 0\n")
    assert not wire.fired(C2S, "PUB a 0\n")
